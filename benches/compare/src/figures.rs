//! Pictures, drawn from results alone: lines of cost by size, bars, and percentiles of lateness.

use std::{fmt::Write, io};

use crate::prelude::*;
use crate::{
    measure::shared::PERCENTILES,
    report::{cell, is_ours, number, position},
};

const WIDTH: i32 = 960;
/// Height of the title and the line below it.
const HEAD: i32 = 64;
const OURS: [&str; 3] = ["#d91e36", "#f07c12", "#9d1255"];

/// Contestants that are slower than the programs they were written after; pictures of throughput
/// leave them out.
const SLOWER_THAN_ORIGINAL: [&str; 1] = ["netty_timer"];

/// The form of a picture.
#[derive(Clone, Copy)]
enum Kind {
    /// A line for each contestant over the sizes below a row.
    Lines(&'static str),
    /// Bars for each contestant, each with a label; sorted by the last, the least first.
    Logarithmic(&'static [(&'static str, &'static str)]),
    /// The same on a linear axis, the greatest first.
    Linear(&'static [(&'static str, &'static str)]),
    /// A line for each contestant over the percentiles of lateness.
    Percentiles,
}

use Kind::{Linear, Lines, Logarithmic, Percentiles};

const COST: &str = "nanoseconds of one operation by pending timeouts; less is better";

/// Files, titles, the lines below the titles, and forms.
const PICTURES: [(&str, &str, &str, Kind); 9] = [
    (
        "insert.svg",
        "Insert into an empty contestant, 1 ms to 60 s ahead",
        COST,
        Lines("wheel/insert"),
    ),
    ("expire.svg", "Expire all, 1 ms to 60 s ahead", COST, Lines("wheel/expire")),
    (
        "churn.svg",
        "Cancel one and insert another, steady state, 1 ms to 60 s ahead",
        COST,
        Lines("wheel/churn/uniform"),
    ),
    (
        "churn-month.svg",
        "Cancel one and insert another, steady state, 1 ms to 30 days ahead",
        COST,
        Lines("wheel/churn/log-uniform"),
    ),
    (
        "server.svg",
        "A request server, and connections that are kept alive, in the steady state",
        "nanoseconds of one request or message; less is better",
        Logarithmic(&[("wheel/keep_alive", "message"), ("wheel/server/random", "request")]),
    ),
    (
        "sparse.svg",
        "Wake-ups to expire 1000 timeouts within a year",
        "wake-ups of one timeout; less is better, 1 is needed; ≈ is estimated from a part of the year",
        Logarithmic(&[("wheel/sparse/wakeups", "")]),
    ),
    (
        "memory.svg",
        "Memory of one timeout of 8 bytes",
        "bytes; with the key or handle, of contestants with threads; less is better",
        Logarithmic(&[
            ("wheel/memory/peak/random", "peak of a server"),
            ("wheel/memory/pending", "pending"),
            ("timer/memory/peak", "peak of a server"),
            ("timer/memory/pending", "pending"),
        ]),
    ),
    (
        "threads.svg",
        "Threads that cancel and schedule at once",
        "million pairs a second, of all threads together, 100,000 pending; more is better",
        Linear(&[("timer/threads/1", "1 thread"), ("timer/threads/2", "2 threads")]),
    ),
    (
        "lateness.svg",
        "When timeouts run, in real time",
        "milliseconds after the instant that was asked for; below 0 is early",
        Percentiles,
    ),
];

/// Draws all pictures for which there are figures. Returns files and titles.
pub fn draw_all(results: &Results, folder: &Path) -> io::Result<Vec<(&'static str, &'static str)>> {
    fs::create_dir_all(folder)?;
    let mut drawn = Vec::new();
    for (file, title, below, kind) in PICTURES {
        let picture = match kind {
            Lines(row) => chart(sizes(results, row)),
            Percentiles => chart(percentiles(results)),
            Logarithmic(series) => bars(results, series, false),
            Linear(series) => bars(results, series, true),
        };
        if let Some((height, shapes)) = picture {
            let svg = format!(
                "<svg width=\"{WIDTH}\" height=\"{height}\" xmlns=\"http://www.w3.org/2000/svg\" \
                 font-family=\"sans-serif\" font-size=\"10.5\" fill=\"#24292f\">\n\
                 <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fdfdfc\"/>\n\
                 <text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{title}</text>\n\
                 <text x=\"20\" y=\"50\" font-size=\"11.3\" fill=\"#6a737d\">{below}</text>\n\
                 {shapes}</svg>\n"
            );
            fs::write(folder.join(file), svg)?;
            drawn.push((file, title));
        }
    }
    Ok(drawn)
}

/// A contestant's colour: one of ours, or a hue by its position among all, neither red nor orange.
fn color(contestant: &str) -> String {
    let index = position(contestant).unwrap_or(0);
    if is_ours(contestant) {
        let before = CONTESTANTS.iter().take(index).filter(|one| is_ours(one.name));
        return OURS[before.count() % OURS.len()].to_owned();
    }
    let step = f64::from(u32::try_from(index).unwrap_or(0));
    // Neighbours are far apart: the golden ratio spreads hues evenly between yellow and violet.
    let hue = 61.0 + 238.0 * (step * 0.618_034).fract();
    format!("hsl({hue:.0},55%,{}%)", [33, 45, 57][index % 3])
}

/// A text, from, around or up to a position.
fn text([x, y]: [i32; 2], anchor: &str, style: &str, text: &str) -> String {
    let (y, style) = (y + 4, style.trim());
    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" {style}>{text}</text>\n")
        .replace(" text-anchor=\"start\"", "")
        .replace(" >", ">")
}

/// The name of a contestant, ours in bold.
fn name(at: [i32; 2], anchor: &str, name: &str, color: &str) -> String {
    let weight = if is_ours(name) { " font-weight=\"bold\"" } else { "" };
    text(at, anchor, &format!("fill=\"{color}\"{weight}"), name)
}

fn line(points: &[[i32; 2]], style: &str) -> String {
    let points: Vec<_> = points.iter().map(|[x, y]| format!("{x},{y}")).collect();
    format!("<polyline points=\"{}\" fill=\"none\" {style}/>\n", points.join(" "))
}

/// Lines on linear axes of transformed values.
struct Chart<'a> {
    /// Contestants and their points.
    curves: Vec<(&'a str, Vec<[f64; 2]>)>,
    /// Positions and labels on the two axes.
    marks: [Vec<(f64, String)>; 2],
}

/// Height and shapes of lines, with a name at the end of each.
fn chart(Chart { mut curves, marks }: Chart<'_>) -> Option<(i32, String)> {
    const HEIGHT: i32 = 620;
    const AREA: [[i32; 2]; 2] = [[90, WIDTH - 230], [HEIGHT - 50, HEAD + 12]];
    let [[left, right], [bottom, top]] = AREA;
    // Ours are drawn last, above the others.
    curves.sort_by_key(|(name, _)| is_ours(name));
    let bounds = [0, 1].map(|axis: usize| {
        let values = curves.iter().flat_map(|(_, points)| points).map(|point| point[axis]);
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[least, most], value| {
            [least.min(value), most.max(value)]
        })
    });
    let place = |axis: usize, value: f64| scaled(value, bounds[axis], AREA[axis]);
    let mut shapes = String::new();
    for (axis, marks) in marks.iter().enumerate() {
        let [least, most] = bounds[axis];
        let within = |mark: f64| (least - 1e-9..=most + 1e-9).contains(&mark);
        for (mark, label) in marks.iter().filter(|(mark, _)| within(*mark)) {
            let at = place(axis, *mark);
            let (ends, label_at, anchor) = match axis {
                0 => ([[at, top], [at, bottom]], [at, bottom + 16], "middle"),
                _ => ([[left, at], [right, at]], [left - 8, at], "end"),
            };
            shapes += &line(&ends, "stroke=\"#e3e6e9\"");
            shapes += &text(label_at, anchor, "", label);
        }
    }
    let mut ends = Vec::new();
    for (name, points) in &curves {
        let (color, width) = (color(name), if is_ours(name) { 4 } else { 2 });
        let points: Vec<_> = points.iter().map(|&[x, y]| [place(0, x), place(1, y)]).collect();
        shapes += &line(&points, &format!("stroke=\"{color}\" stroke-width=\"{width}\""));
        let circle =
            |[x, y]: &[i32; 2]| format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>", width + 1);
        let circles = points.iter().map(circle).collect::<String>();
        let _ = writeln!(shapes, "<g fill=\"{color}\">{circles}</g>");
        ends.push((*points.last()?, *name, color));
    }
    ends.sort_by_key(|([_, y], ..)| *y);
    let lines = i32::try_from(ends.len()).ok()?;
    let distance = ((bottom - top) / lines.max(1)).min(40);
    let heights = (0..lines).map(|line| (bottom + top + (2 * line - lines) * distance) / 2);
    for ((end, one, color), height) in ends.iter().zip(heights) {
        let style = format!("stroke=\"{color}\" stroke-opacity=\"0.4\"");
        shapes += &line(&[*end, [right + 14, height]], &style);
        shapes += &name([right + 18, height], "start", one, color);
    }
    (!curves.is_empty()).then_some((HEIGHT, shapes))
}

#[expect(clippy::cast_possible_truncation, reason = "a picture is less than 1000 pixels wide")]
fn scaled(value: f64, [least, most]: [f64; 2], [start, end]: [i32; 2]) -> i32 {
    let share = (value - least) / (most - least).max(f64::MIN_POSITIVE);
    start + (share.clamp(0.0, 1.0) * f64::from(end - start)).round() as i32
}

/// Costs by the size at the end of a path, both logarithmic.
fn sizes<'a>(results: &'a Results, row: &str) -> Chart<'a> {
    let curve = |name: &'a str| {
        let point = |figure: &Figure| {
            let size = figure.row.strip_prefix(row)?.strip_prefix("/1e")?.parse().ok()?;
            Some([size, figure.value().max(0.1).log10()])
        };
        let figures = results.figures.iter().filter(|figure| figure.contestant == name);
        let mut points: Vec<[f64; 2]> = figures.filter_map(point).collect();
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        (!points.is_empty()).then_some((name, points))
    };
    let sizes = (0..9).map(|power| (f64::from(power), number(10_f64.powi(power))));
    let costs = (0..9).flat_map(|power| [1.0, 2.0, 5.0].map(|cost| cost * 10_f64.powi(power)));
    let costs = costs.map(|cost| (cost.log10(), format!("{} ns", number(cost))));
    let curves = CONTESTANTS.iter().filter_map(|one| curve(one.name)).collect();
    Chart { curves, marks: [sizes.collect(), costs.collect()] }
}

/// Lateness by percentile; linear near zero and logarithmic beyond.
fn percentiles(results: &Results) -> Chart<'static> {
    let bent = |millis: f64| (millis / 0.1).asinh();
    let steps = || (0_u32..).map(f64::from);
    let curve = |name| {
        let value = |(percentile, _)| results.find(&format!("timer/lateness/{percentile}"), name);
        let points = steps().zip(PERCENTILES).map(|(x, one)| Some([x, bent(value(one)?.value())]));
        Some((name, points.collect::<Option<_>>()?))
    };
    let names = steps().zip(PERCENTILES.map(|(name, _)| name.to_owned()));
    let millis = [-10.0, -1.0, -0.1, 0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0];
    let millis = millis.map(|millis| (bent(millis), format!("{millis} ms")));
    let curves = CONTESTANTS.iter().filter_map(|one| curve(one.name)).collect();
    Chart { curves, marks: [names.collect(), millis.into()] }
}

/// Height and shapes of bars.
fn bars(
    results: &Results,
    series: &[(&'static str, &'static str)],
    is_linear: bool,
) -> Option<(i32, String)> {
    const NAMES: i32 = 200;
    const BAR: i32 = 14;
    const GAP: i32 = 8;
    let value = |figure: &Figure| match figure.value() {
        value if is_linear => value,
        value => value.max(0.1).log10(),
    };
    let of = |name: &'static str| {
        let bar = |(row, label): &(&str, &'static str)| Some((results.find(row, name)?, *label));
        (name, series.iter().filter_map(bar).collect::<Vec<_>>())
    };
    let mut groups: Vec<_> = CONTESTANTS.iter().map(|one| of(one.name)).collect();
    let is_drawn = |name: &str| !is_linear || !SLOWER_THAN_ORIGINAL.contains(&name);
    groups.retain(|(name, bars)| !bars.is_empty() && is_drawn(name));
    let order = |(_, bars): &(_, Vec<(&Figure, _)>)| bars.last().map_or(0.0, |bar| value(bar.0));
    groups.sort_by(|one, other| order(one).total_cmp(&order(other)));
    let values = || groups.iter().flat_map(|(_, bars)| bars).map(|(figure, _)| value(figure));
    let least = values().reduce(f64::min)?;
    let range = [if is_linear { 0.0 } else { least.floor() - 0.1 }, values().fold(least, f64::max)];
    if is_linear {
        groups.reverse();
    }
    let (mut shapes, mut top) = (String::new(), HEAD);
    for (one, bars) in groups {
        let color = color(one);
        let middle = top + BAR * i32::try_from(bars.len()).ok()? / 2;
        let ink = if is_ours(one) { &color } else { "#24292f" };
        shapes += &name([NAMES - 10, middle], "end", one, ink);
        let length = bars.len();
        for (index, (figure, label)) in bars.into_iter().enumerate() {
            let end = scaled(value(figure), range, [NAMES + 1, WIDTH - 189]);
            // The last bar is the one by which contestants are sorted.
            let strength = if index + 1 == length { 1.0 } else { 0.45 };
            let _ = writeln!(
                shapes,
                "<rect x=\"{NAMES}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"{color}\" \
                 fill-opacity=\"{strength}\"/>",
                end - NAMES,
                BAR - 2,
            );
            let label = format!("{} {label}", cell(figure));
            shapes += &text([end + 6, top + BAR / 2 - 1], "start", "fill=\"#6a737d\"", &label);
            top += BAR;
        }
        top += GAP;
    }
    Some((top + 4, shapes))
}
