//! The picture: an SVG whose parts move by CSS alone, so it also plays as an image.

use std::{
    f64::consts::{FRAC_PI_2, FRAC_PI_4, TAU},
    fmt::Write,
};

use crate::film::{Frame, LEVELS, Lane, Place, SIZE};

/// Inner and outer radius of each level.
const RINGS: [[f64; 2]; LEVELS] = [[50.0, 98.0], [116.0, 168.0], [186.0, 254.0]];
/// Where timeouts come from, relative to the centre of the wheel.
const DOOR: [f64; 2] = [-262.0, -236.0];
/// Centre of the box for coarser levels, relative to that of the wheel.
const ABOVE: [f64; 2] = [-230.0, 238.0];
/// Ticks until all hands are at the top again.
pub(crate) const LAP: u64 = 8 * 8 * 8;
/// Seconds that a timeout moves.
const MOVE: f64 = 0.5;
/// Height of a row of the queue.
const ROW: f64 = 42.0;

const HEAD: &str = "<svg id=\"film\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 664\" \
    width=\"960\" height=\"664\" style=\"max-width:100%;height:auto\" role=\"img\" \
    font-family=\"system-ui,'Segoe UI',Helvetica,Arial,sans-serif\">\n\
    <title>A timing wheel that fills, cascades and drains</title>\n";

/// Colours that colour-blind readers can tell apart, for light and dark pages.
const STYLE: &str = "
#film{--paper:#fff;--ink:#1f2328;--pale:#59636e;--line:#c8d1da;--ring:#f3f5f7;--dot:#0064a8;--hot:#d98200;--tint:#cfe5f5}
@media(prefers-color-scheme:dark){
#film{--paper:#0d1117;--ink:#e6edf3;--pale:#9aa4af;--line:#3d444d;--ring:#171c23;--dot:#5bb8f0;--hot:#f5b041;--tint:#173a54}}
#film text{fill:var(--ink);font-size:16px}
#film .p{fill:var(--pale);font-size:14px}
#film .n{fill:var(--pale);font-size:12px;text-anchor:middle}
#film .b{font-weight:600;font-size:22px}
#film .h{fill:none;stroke:var(--ink);stroke-width:2.5}
#film .f{fill:var(--hot)}
#film .t{fill:var(--tint)}
#film .d{fill:var(--dot);stroke:var(--dot);stroke-width:1.4}
#film .l{stroke:var(--line);fill:none}
#film .m{animation-iteration-count:infinite;animation-timing-function:ease-in-out}
#film .s{animation-timing-function:step-end}
";

const LEGEND: &str = "<g transform=\"translate(0,342)\"><circle cx=\"8\" cy=\"-5\" r=\"4\" class=\"d\"/>\
    <text class=\"p\" x=\"24\">a timeout</text><rect y=\"13\" width=\"16\" height=\"16\" class=\"h\"/>\
    <text class=\"p\" x=\"24\" y=\"26\">the bucket of the present</text>\
    <rect y=\"39\" width=\"16\" height=\"16\" class=\"t\"/>\
    <text class=\"p\" x=\"24\" y=\"52\">a bucket with timeouts</text></g>\n";

/// Draws a film: frames, and seconds in all.
pub(crate) fn draw((frames, seconds): &(Vec<Frame>, f64)) -> String {
    // Viewers who prefer no motion, or whose program cannot play, see the full wheel.
    let still = frames.iter().position(|frame| frame.is_asleep).expect("the reaper sleeps");
    let mut picture = Picture { frames, seconds: *seconds, still, style: STYLE.into(), count: 0 };
    let wheel = picture.wheel();
    let panel = picture.panel();
    let ends =
        [(0.0, 0.0, "transform:scaleX(0)".into()), (0.0, *seconds, "transform:scaleX(1)".into())];
    let bar = format!(
        "<rect class=\"m\" y=\"86\" width=\"960\" height=\"2\" fill=\"var(--dot)\" \
         style=\"animation-name:{};animation-timing-function:linear\"/>\n",
        picture.keyframes(&ends),
    );
    let _ = writeln!(
        picture.style,
        "#film .m{{animation-duration:{seconds:.2}s}}\n@media(prefers-reduced-motion:reduce){{\
         #film .m{{animation-play-state:paused;animation-delay:-{:.2}s}}}}",
        frames[still].at + 0.01,
    );
    format!(
        "{HEAD}<style>{}</style>\n\
         <rect width=\"960\" height=\"664\" rx=\"12\" fill=\"var(--paper)\"/>\n\
         {bar}{panel}<g transform=\"translate(300,388)\">\n{wheel}</g>\n</svg>\n",
        picture.style,
    )
}

struct Picture<'a> {
    frames: &'a [Frame],
    seconds: f64,
    /// The frame that stands still.
    still: usize,
    style: String,
    /// Number of animations.
    count: usize,
}

impl Picture<'_> {
    fn wheel(&mut self) -> String {
        let mut shapes = String::new();
        for [inner, outer] in RINGS {
            let (middle, width) = (f64::midpoint(inner, outer), outer - inner);
            let _ = writeln!(
                shapes,
                "<circle r=\"{middle}\" stroke-width=\"{width}\" fill=\"none\" stroke=\"var(--ring)\"/>"
            );
        }
        self.non_empty_buckets(&mut shapes);
        for (level, [inner, outer]) in RINGS.into_iter().enumerate() {
            let mut lines = String::new();
            for bucket in 0..SIZE {
                let ([x, y], [u, v]) = (polar(inner, float(bucket)), polar(outer, float(bucket)));
                let _ = write!(lines, "M{x:.0} {y:.0}L{u:.0} {v:.0}");
            }
            let _ = writeln!(
                shapes,
                "<path class=\"l\" d=\"{lines}\"/><circle r=\"{inner}\" class=\"l\"/>\
                 <circle r=\"{outer}\" class=\"l\"/>"
            );
            for bucket in 0..SIZE {
                let [x, y] = polar(outer - 9.0, float(bucket) + 9.0 / outer);
                let _ = write!(
                    shapes,
                    "<text class=\"n\" x=\"{x:.0}\" y=\"{:.0}\">{bucket}</text>",
                    y + 4.0
                );
            }
            let name = [
                "level 0: 1 tick a bucket",
                "level 1: 8 ticks a bucket",
                "level 2: 64 ticks a bucket",
            ][level];
            let radius = outer + 5.0;
            let _ = writeln!(
                shapes,
                "<path id=\"film{level}\" fill=\"none\" d=\"M{} 0A{radius} {radius} 0 0 1 {} 0\"/>\
                 <text class=\"n\"><textPath href=\"#film{level}\" startOffset=\"50%\">{name}\
                 </textPath></text>",
                -radius, radius,
            );
        }
        self.hands(&mut shapes);
        above(&mut shapes);
        self.timeouts(&mut shapes);
        self.time(&mut shapes);
        shapes
    }

    /// Tints the buckets that have timeouts.
    fn non_empty_buckets(&mut self, shapes: &mut String) {
        for (level, bucket) in (0..LEVELS).flat_map(|level| (0..SIZE).map(move |at| (level, at))) {
            let here = |place: &Place| match *place {
                Place::Bucket(one, at) => (one, at) == (level, bucket),
                Place::Listed(at) => (0, at) == (level, bucket),
                _ => false,
            };
            let shown =
                |frame: &Frame| format!("opacity:{}", u8::from(frame.places.iter().any(here)));
            let Some(part) = self.part("s", &shown) else { continue };
            let _ =
                writeln!(shapes, "<path class=\"t m s\" {part} d=\"{}\"/>", sector(level, bucket));
        }
    }

    /// A hand for each level.
    fn hands(&mut self, shapes: &mut String) {
        for level in 0..LEVELS {
            let turn = |frame: &Frame| {
                // The year ahead: a few turns stand for very many.
                let tick = if frame.until > LAP { LAP } else { frame.until };
                format!("transform:rotate({}deg)", (tick >> (3 * level)) * 45)
            };
            let part = self.part("", &turn).expect("every hand moves");
            let _ = writeln!(shapes, "<path class=\"h m\" {part} d=\"{}\"/>", sector(level, 0));
        }
    }

    /// The dots.
    fn timeouts(&mut self, shapes: &mut String) {
        let total = self.frames.last().map_or(0, |frame| frame.places.len());
        let mut seats = Seats::default();
        let mut tracks: Vec<Vec<(f64, Place, [f64; 2])>> = vec![Vec::new(); total];
        let mut before = vec![Place::Outside; total];
        for frame in self.frames {
            let moved = |&number: &usize| frame.places[number] != before[number];
            let moving: Vec<_> = (0..frame.places.len()).filter(moved).collect();
            for &number in &moving {
                seats.leave(number);
            }
            // They leave one after the other.
            let pause = (frame.takes - MOVE).max(0.1) / float(moving.len().max(1));
            for (rank, number) in moving.into_iter().enumerate() {
                let place = frame.places[number];
                let begin = frame.at + pause.min(0.08) * float(rank);
                let mut seat = seats.take(number, place);
                if let (Place::Cancelled, Some(&(.., [x, y]))) = (place, tracks[number].last()) {
                    seat = [x, y].map(|at| at * 290.0 / x.hypot(y));
                }
                tracks[number].push((begin, place, seat));
                before[number] = place;
            }
        }
        let still = self.frames[self.still].at;
        for track in tracks {
            let mut keys = vec![(0.0, 0.0, dot(DOOR, "opacity:0"))];
            for &(begin, place, seat) in &track {
                let look = match place {
                    Place::Expired | Place::Cancelled => "opacity:0",
                    _ => "opacity:1",
                };
                keys.push((begin, begin + MOVE, dot(seat, look)));
            }
            let last = track.iter().rfind(|(begin, ..)| *begin <= still);
            let (_, place, [x, y]) = *last.expect("all are inserted before the reaper sleeps");
            let gone = if place == Place::Cancelled { " opacity=\"0\"" } else { "" };
            let name = self.keyframes(&keys);
            let _ = writeln!(
                shapes,
                "<circle r=\"4\" class=\"d m\" style=\"animation-name:{name}\" \
                 transform=\"translate({x:.0},{y:.0})\"{gone}/>"
            );
        }
    }

    /// The tick in the centre.
    fn time(&mut self, shapes: &mut String) {
        let fires =
            |frame: &Frame| format!("opacity:{}", u8::from(frame.action.starts_with("expires")));
        let part = self.part("s", &fires).expect("timeouts expire");
        let _ = write!(shapes, "<circle r=\"49\" class=\"f m s\" {part}/>");
        shapes.push_str(
            "<circle r=\"44\" class=\"l\" style=\"fill:var(--paper)\"/><text y=\"-14\" class=\"n\">tick</text>",
        );
        let text = |frame: &Frame| match frame.now {
            now if now > LAP => "1 year".to_owned(),
            now => now.to_string(),
        };
        self.strip(
            shapes,
            [-42.0, -12.0, 84.0],
            "class=\"b\" text-anchor=\"middle\" x=\"42\"",
            &text,
        );
    }

    fn panel(&mut self) -> String {
        let mut shapes = String::new();
        self.strip(&mut shapes, [24.0, 18.0, 400.0], "class=\"b\"", &|frame| {
            frame.caption[0].into()
        });
        self.strip(&mut shapes, [24.0, 50.0, 912.0], "", &|frame| frame.caption[1].into());
        let _ = writeln!(
            shapes,
            "<g transform=\"translate(618,130)\"><rect y=\"10\" width=\"318\" height=\"44\" rx=\"8\" class=\"l\"/>"
        );
        self.strip(&mut shapes, [0.0, -21.0, 300.0], "class=\"p\"", &|frame| frame.actor.into());
        let asleep = |frame: &Frame| format!("opacity:{}", u8::from(!frame.is_asleep));
        let part = self.part("s", &asleep).expect("it sleeps and works");
        let _ = writeln!(
            shapes,
            "<rect y=\"10\" width=\"318\" height=\"44\" rx=\"8\" class=\"t m s\" {part}/>"
        );
        self.strip(&mut shapes, [14.0, 17.0, 300.0], "", &|frame| frame.action.clone());
        shapes.push_str(
            "<text class=\"p\" y=\"92\">Queue of buckets: the earliest is on top</text>\n",
        );
        for lane in [Lane::Listed, Lane::Level(0), Lane::Level(1), Lane::Level(2), Lane::Above] {
            self.lane(&mut shapes, lane);
        }
        shapes.push_str(LEGEND);
        shapes.push_str("</g>\n<g transform=\"translate(618,576)\">");
        let labels = ["pending", "expired", "cancelled", "wake-ups"];
        for (at, label) in labels.into_iter().enumerate() {
            let x = float(at) * 84.0;
            let _ = write!(shapes, "<text class=\"p\" x=\"{x}\" y=\"44\">{label}</text>");
            self.strip(&mut shapes, [x, -6.0, 80.0], "class=\"b\"", &move |frame| {
                frame.counts[at].to_string()
            });
        }
        shapes.push_str("</g>\n");
        shapes
    }

    /// A row of the queue, which moves as other buckets come and go.
    fn lane(&mut self, shapes: &mut String, lane: Lane) {
        let row = |frame: &Frame| frame.queue.iter().position(|queued| queued.1 == lane);
        let last = std::cell::Cell::new(4);
        let at = |frame: &Frame| {
            // A row that leaves fades out where it was.
            let shown = row(frame).inspect(|&row| last.set(row));
            let y = 104.0 + ROW * float(last.get());
            format!("transform:translate(0,{y}px);opacity:{}", u8::from(shown.is_some()))
        };
        let Some(part) = self.part("", &at) else { return };
        let name = match lane {
            Lane::Listed => "listed".to_owned(),
            Lane::Level(level) => format!("level {level}"),
            Lane::Above => "coarser".to_owned(),
        };
        let _ = write!(
            shapes,
            "<g class=\"m\" {part}><rect width=\"318\" height=\"36\" rx=\"8\" class=\"l\" \
             style=\"fill:var(--ring)\"/><text x=\"14\" y=\"24\">{name}</text>"
        );
        let due = |frame: &Frame| {
            let queued = frame.queue.iter().find(|queued| queued.1 == lane);
            queued.map_or_else(String::new, |&(due, _, bucket)| match lane {
                Lane::Level(_) => format!("bucket {bucket} · due {due}"),
                Lane::Listed => format!("tick · due {due}"),
                Lane::Above => "2 timeouts · due in a year".into(),
            })
        };
        self.strip(shapes, [84.0, 3.0, 230.0], "text-anchor=\"end\" x=\"220\"", &due);
        shapes.push_str("</g>\n");
    }

    /// A line of text that changes from frame to frame: a window on a column of all texts.
    fn strip(
        &mut self,
        shapes: &mut String,
        [x, y, width]: [f64; 3],
        style: &str,
        text: &dyn Fn(&Frame) -> String,
    ) {
        const HEIGHT: usize = 30;
        let mut texts: Vec<String> = self.frames.iter().map(text).collect();
        texts.sort_unstable();
        texts.dedup();
        let at = |frame: &Frame| {
            let row = texts.iter().position(|one| *one == text(frame)).unwrap_or(0);
            format!("transform:translate(0,-{}px)", row * HEIGHT)
        };
        let part = self.part("s", &at).unwrap_or_default();
        let _ = write!(
            shapes,
            "<svg x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\"><g class=\"m s\" {part}>"
        );
        for (row, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let _ = write!(shapes, "<text {style} y=\"{}\">{text}</text>", row * HEIGHT + 21);
        }
        shapes.push_str("</g></svg>\n");
    }

    /// The attributes of a part whose look depends on the frame; `None` if it never changes.
    /// With the kind `s`, it changes in a step.
    fn part(&mut self, kind: &str, look: &dyn Fn(&Frame) -> String) -> Option<String> {
        let looks: Vec<_> = self.frames.iter().map(look).collect();
        let mut keys = vec![(0.0, 0.0, looks[0].clone())];
        for (frame, look) in self.frames.iter().zip(&looks) {
            if keys.last().is_some_and(|(.., last)| last != look) {
                let takes = if kind == "s" { 0.0 } else { frame.takes.min(1.2) };
                keys.push((frame.at, frame.at + takes, look.clone()));
            }
        }
        let still = looks[self.still].replace("px", "").replace("deg", "");
        let still = still.split(';').filter_map(|one| one.split_once(':'));
        let still: Vec<_> = still.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let still = still.join(" ");
        (keys.len() > 1)
            .then(|| format!("style=\"animation-name:{}\" {still}", self.keyframes(&keys)))
    }

    /// Adds an animation: when each change begins and ends, and the look after it. Returns its
    /// name.
    fn keyframes(&mut self, keys: &[(f64, f64, String)]) -> String {
        let name = format!("w{}", self.count);
        self.count += 1;
        let percent = |at: f64| {
            let number = format!("{:.2}", at / self.seconds * 100.0);
            format!("{}%", number.trim_end_matches('0').trim_end_matches('.'))
        };
        let _ = write!(self.style, "@keyframes {name}{{");
        for (at, (_, end, look)) in keys.iter().enumerate() {
            let (end, until) =
                (percent(*end), keys.get(at + 1).map_or(self.seconds, |next| next.0));
            match percent(until) {
                until if until == end => write!(self.style, "{end}{{{look}}}"),
                until => write!(self.style, "{end},{until}{{{look}}}"),
            }
            .expect("a string takes everything");
        }
        self.style.push_str("}\n");
        name
    }
}

/// The box for coarser levels.
fn above(shapes: &mut String) {
    let [x, y] = ABOVE;
    let _ = writeln!(
        shapes,
        "<rect x=\"{}\" y=\"{}\" width=\"104\" height=\"32\" rx=\"6\" class=\"l\" style=\"fill:var(--ring)\"/>\
         <text class=\"n\" x=\"{x}\" y=\"{}\">coarser levels</text>",
        x - 52.0,
        y - 16.0,
        y - 23.0,
    );
}

fn float(number: usize) -> f64 {
    f64::from(u32::try_from(number).expect("a picture has no large numbers"))
}

/// The position at a radius and a number of buckets clockwise from the top.
fn polar(radius: f64, buckets: f64) -> [f64; 2] {
    let angle = buckets * TAU / float(SIZE) - FRAC_PI_2;
    [radius * angle.cos(), radius * angle.sin()]
}

/// The outline of a bucket.
fn sector(level: usize, bucket: usize) -> String {
    let [inner, outer] = RINGS[level];
    let at = |radius, bucket| {
        let [x, y] = polar(radius, bucket);
        format!("{x:.1} {y:.1}")
    };
    let (start, end) = (float(bucket), float(bucket) + 1.0);
    format!(
        "M{}L{}A{outer} {outer} 0 0 1 {}L{}A{inner} {inner} 0 0 0 {}z",
        at(inner, start),
        at(outer, start),
        at(outer, end),
        at(inner, end),
        at(inner, start),
    )
}

/// The look of a timeout at a position.
fn dot([x, y]: [f64; 2], look: &str) -> String {
    format!("transform:translate({x:.0}px,{y:.0}px);{look}")
}

/// The position of each timeout in its bucket, so that no two cover each other.
#[derive(Default)]
struct Seats(Vec<(usize, Place, usize)>);

impl Seats {
    fn leave(&mut self, number: usize) {
        self.0.retain(|taken| taken.0 != number);
    }

    fn take(&mut self, number: usize, place: Place) -> [f64; 2] {
        let (key, list) = match place {
            Place::Listed(tick) => (Place::Bucket(0, tick), seats_of(0, tick)),
            Place::Bucket(level, bucket) => (place, seats_of(level, bucket)),
            Place::Above => {
                let [x, y] = ABOVE;
                let seat =
                    |at| [x - 42.0 + f64::from(at % 8) * 12.0, y - 6.0 + f64::from(at / 8) * 12.0];
                (place, (0..16).map(seat).collect())
            }
            Place::Expired | Place::Cancelled | Place::Outside => return [0.0, 0.0],
        };
        let is_free =
            |at: &usize| !self.0.iter().any(|&(_, other, seat)| (other, seat) == (key, *at));
        let seat = (0..list.len()).find(is_free).unwrap_or(list.len() - 1);
        self.0.push((number, key, seat));
        list[seat]
    }
}

/// The places for timeouts in a bucket, from its middle outwards.
fn seats_of(level: usize, bucket: usize) -> Vec<[f64; 2]> {
    let [inner, outer] = RINGS[level];
    let [x, y] = polar(f64::midpoint(inner, outer), float(bucket) + 0.5);
    let mut seats = Vec::new();
    let mut radius = inner + 8.0;
    while radius <= outer - 7.5 {
        let arc = radius * FRAC_PI_4;
        // Its ends stay free.
        let half = ((arc - 13.0) / 23.0 - 0.5).floor().max(0.0);
        let mut at = -half;
        while at <= half {
            seats.push(polar(radius, float(bucket) + 0.5 + at * 11.5 / arc));
            at += 1.0;
        }
        radius += 11.0;
    }
    let distance = |[u, v]: &[f64; 2]| (u - x).hypot(v - y);
    seats.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
    seats
}
