//! Pictures, drawn from results alone: lines of cost by size, bars, and percentiles of lateness.

use std::{error::Error, fs, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{
    bench::{CONTESTANTS, Figure, Results},
    measure::shared::PERCENTILES,
    report::{cell, is_ours, number, position},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: i32 = 960;
/// Height of the title and the line below it.
const HEAD: i32 = 64;
const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
const FAINT: RGBColor = RGBColor(0x6a, 0x73, 0x7d);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xe9);
const PAPER: RGBColor = RGBColor(0xfd, 0xfd, 0xfc);
const OURS: [RGBColor; 3] =
    [RGBColor(0xd9, 0x1e, 0x36), RGBColor(0xf0, 0x7c, 0x12), RGBColor(0x9d, 0x12, 0x55)];

/// Contestants that are slower than the programs they were written after; pictures of throughput
/// leave them out.
const SLOWER_THAN_ORIGINAL: [&str; 1] = ["netty_timer"];

/// The form of a picture.
#[derive(Clone, Copy)]
enum Kind {
    /// A line for each contestant over the sizes below a row.
    Lines(&'static str),
    /// Bars for each contestant, each with a label; sorted by the last.
    Bars(&'static [(&'static str, &'static str)], Axis),
    /// A line for each contestant over the percentiles of lateness.
    Percentiles,
}

use Kind::{Bars, Lines, Percentiles};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Axis {
    Linear,
    Log,
}

struct Picture {
    file: &'static str,
    title: &'static str,
    /// The line below the title.
    below: &'static str,
    kind: Kind,
}

const fn picture(
    file: &'static str,
    title: &'static str,
    below: &'static str,
    kind: Kind,
) -> Picture {
    Picture { file, title, below, kind }
}

const COST: &str = "nanoseconds of one operation by pending timeouts; less is better";

const PICTURES: [Picture; 9] = [
    picture(
        "insert.svg",
        "Insert into an empty contestant, 1 ms to 60 s ahead",
        COST,
        Lines("wheel/insert"),
    ),
    picture("expire.svg", "Expire all, 1 ms to 60 s ahead", COST, Lines("wheel/expire")),
    picture(
        "churn.svg",
        "Cancel one and insert another, steady state, 1 ms to 60 s ahead",
        COST,
        Lines("wheel/churn/uniform"),
    ),
    picture(
        "churn-month.svg",
        "Cancel one and insert another, steady state, 1 ms to 30 days ahead",
        COST,
        Lines("wheel/churn/log-uniform"),
    ),
    picture(
        "server.svg",
        "A request server, and connections that are kept alive, in the steady state",
        "nanoseconds of one request or message; less is better",
        Bars(&[("wheel/keep_alive", "message"), ("wheel/server/random", "request")], Axis::Log),
    ),
    picture(
        "sparse.svg",
        "Wake-ups to expire 1000 timeouts within a year",
        "wake-ups of one timeout; less is better, 1 is needed; ≈ is estimated from a part of the year",
        Bars(&[("wheel/sparse/wakeups", "")], Axis::Log),
    ),
    picture(
        "memory.svg",
        "Memory of one timeout of 8 bytes",
        "bytes; with the key or handle, of contestants with threads; less is better",
        Bars(
            &[
                ("wheel/memory/peak/random", "peak of a server"),
                ("wheel/memory/pending", "pending"),
                ("timer/memory/peak", "peak of a server"),
                ("timer/memory/pending", "pending"),
            ],
            Axis::Log,
        ),
    ),
    picture(
        "threads.svg",
        "Threads that cancel and schedule at once",
        "million pairs a second, of all threads together, 100,000 pending; more is better",
        Bars(&[("timer/threads/1", "1 thread"), ("timer/threads/2", "2 threads")], Axis::Linear),
    ),
    picture(
        "lateness.svg",
        "When timeouts run, in real time",
        "milliseconds after the instant that was asked for; below 0 is early",
        Percentiles,
    ),
];

/// Draws all pictures for which there are figures. Returns files and titles.
pub fn draw_all(
    results: &Results,
    folder: &Path,
) -> Result<Vec<(&'static str, &'static str)>, Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut drawn = Vec::new();
    for picture in PICTURES {
        let path = folder.join(picture.file);
        let is_drawn = match picture.kind {
            Lines(row) => draw_chart(sizes(results, row), &picture, &path)?,
            Bars(series, axis) => draw_bars(results, series, axis, &picture, &path)?,
            Percentiles => draw_chart(percentiles(results), &picture, &path)?,
        };
        if is_drawn {
            fs::write(&path, shortened(&fs::read_to_string(&path)?))?;
            drawn.push((picture.file, picture.title));
        }
    }
    Ok(drawn)
}

/// Makes a picture half as large: drops default values, invisible digits, and spaces, and moves the
/// usual colour and size of texts to the root.
fn shortened(picture: &str) -> String {
    let drop =
        [" opacity=\"1\"", " text-anchor=\"start\"", " stroke=\"none\"", " stroke-width=\"1\""];
    let mut short = drop.iter().fold(picture.to_owned(), |short, text| short.replace(text, ""));
    for (long, text) in [("\">\n", "\">"), ("\n</text>", "</text>"), (" \"/>", "\"/>")] {
        short = short.replace(long, text);
    }
    for size in [12.0, 13.0, 14.0, 20.0].map(|size| size / 1.24) {
        short = short.replace(&format!("size=\"{size}\""), &format!("size=\"{size:.1}\""));
    }
    let root = ["font-family=\"sans-serif\"", "font-size=\"10.5\"", "fill=\"#24292F\""];
    for attribute in root {
        short = short.replace(&format!(" {attribute}"), "");
    }
    short.replacen("<svg ", &format!("<svg {} ", root.join(" ")), 1)
}

/// A contestant's colour: one of ours, or a hue by its position among all, neither red nor orange.
fn color(contestant: &str) -> RGBColor {
    let index = position(contestant).unwrap_or(0);
    if is_ours(contestant) {
        let before = CONTESTANTS.iter().take(index).filter(|one| is_ours(one.name));
        return OURS[before.count() % OURS.len()];
    }
    let step = f64::from(u32::try_from(index).unwrap_or(0));
    // Neighbours are far apart: the golden ratio spreads hues evenly between yellow and violet.
    let hue = 0.17 + 0.66 * (step * 0.618_034).fract();
    let (red, green, blue) = HSLColor(hue, 0.55, [0.33, 0.45, 0.57][index % 3]).rgb();
    RGBColor(red, green, blue)
}

fn text(size: i32, color: RGBColor, hpos: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color).pos(Pos::new(hpos, VPos::Center))
}

fn bold_if(is_bold: bool, style: TextStyle<'_>) -> TextStyle<'_> {
    if is_bold { TextStyle { font: style.font.style(FontStyle::Bold), ..style } } else { style }
}

/// Makes a card with a title.
fn card<'a>(path: &'a Path, height: i32, picture: &Picture) -> Result<Area<'a>, Box<dyn Error>> {
    let area =
        SVGBackend::new(path, (u32::try_from(WIDTH)?, u32::try_from(height)?)).into_drawing_area();
    area.fill(&PAPER)?;
    let title = bold_if(true, text(20, INK, HPos::Left));
    area.draw(&Text::new(picture.title, (20, 22), title))?;
    area.draw(&Text::new(picture.below, (20, 46), text(14, FAINT, HPos::Left)))?;
    Ok(area)
}

/// Lines on linear axes of transformed values.
struct Chart<'a> {
    /// Contestants and their points.
    curves: Vec<(&'a str, Vec<(f64, f64)>)>,
    /// Positions and labels on the two axes.
    marks: [Vec<(f64, String)>; 2],
}

/// Draws lines, with a name at the end of each.
fn draw_chart(
    Chart { mut curves, marks }: Chart<'_>,
    picture: &Picture,
    path: &Path,
) -> Result<bool, Box<dyn Error>> {
    const HEIGHT: i32 = 620;
    const LEFT: i32 = 90;
    const RIGHT: i32 = WIDTH - 230;
    const TOP: i32 = HEAD + 12;
    const BOTTOM: i32 = HEIGHT - 50;
    if curves.is_empty() {
        return Ok(false);
    }
    // Ours are drawn last, above the others.
    curves.sort_by_key(|(name, _)| is_ours(name));
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let values = || curves.iter().flat_map(|(_, points)| points).map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let (xs, ys) = (bounds(|point| point.0), bounds(|point| point.1));
    let x = |value: f64| LEFT + scaled(value, xs, RIGHT - LEFT);
    let y = |value: f64| BOTTOM - scaled(value, ys, BOTTOM - TOP);
    let area = card(path, HEIGHT, picture)?;
    let within = |value: f64, (least, greatest): (f64, f64)| {
        (least - 1e-9..=greatest + 1e-9).contains(&value)
    };
    for (mark, label) in marks[0].iter().filter(|(mark, _)| within(*mark, xs)) {
        area.draw(&PathElement::new([(x(*mark), TOP), (x(*mark), BOTTOM)], GRID))?;
        let style = text(13, INK, HPos::Center);
        area.draw(&Text::new(label.as_str(), (x(*mark), BOTTOM + 16), style))?;
    }
    for (mark, label) in marks[1].iter().filter(|(mark, _)| within(*mark, ys)) {
        area.draw(&PathElement::new([(LEFT, y(*mark)), (RIGHT, y(*mark))], GRID))?;
        area.draw(&Text::new(label.as_str(), (LEFT - 8, y(*mark)), text(13, INK, HPos::Right)))?;
    }
    let mut ends = Vec::new();
    for (name, points) in &curves {
        let color = color(name);
        let points: Vec<_> = points.iter().map(|point| (x(point.0), y(point.1))).collect();
        let width = if is_ours(name) { 4 } else { 2 };
        area.draw(&PathElement::new(points.clone(), color.stroke_width(width)))?;
        for &point in &points {
            area.draw(&Circle::new(point, width + 1, color.filled()))?;
        }
        ends.extend(points.last().map(|&end| (end, *name, color)));
    }
    ends.sort_by_key(|((_, y), ..)| *y);
    let heights = spread(ends.iter().map(|((_, y), ..)| *y).collect(), TOP, BOTTOM);
    for ((end, name, color), height) in ends.into_iter().zip(heights) {
        area.draw(&PathElement::new([end, (RIGHT + 14, height)], color.mix(0.4)))?;
        let style = bold_if(is_ours(name), text(13, color, HPos::Left));
        area.draw(&Text::new(name, (RIGHT + 18, height), style))?;
    }
    area.present()?;
    Ok(true)
}

#[expect(clippy::cast_possible_truncation, reason = "a picture is less than 1000 pixels wide")]
fn scaled(value: f64, (least, greatest): (f64, f64), length: i32) -> i32 {
    let share = (value - least) / (greatest - least).max(f64::MIN_POSITIVE);
    (share.clamp(0.0, 1.0) * f64::from(length)).round() as i32
}

/// Moves ascending heights apart, within a range.
fn spread(mut heights: Vec<i32>, top: i32, bottom: i32) -> Vec<i32> {
    const LINE: i32 = 17;
    let mut least = top;
    for height in &mut heights {
        *height = (*height).max(least);
        least = *height + LINE;
    }
    let mut greatest = bottom;
    for height in heights.iter_mut().rev() {
        *height = (*height).min(greatest);
        greatest = *height - LINE;
    }
    heights
}

/// Costs by the size at the end of a path, both logarithmic.
fn sizes<'a>(results: &'a Results, row: &str) -> Chart<'a> {
    let curve = |name: &'a str| {
        let point = |figure: &Figure| {
            let size = figure.row.strip_prefix(row)?.strip_prefix("/1e")?.parse().ok()?;
            Some((size, figure.value().max(0.1).log10()))
        };
        let figures = results.figures.iter().filter(|figure| figure.contestant == name);
        let mut points: Vec<(f64, f64)> = figures.filter_map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
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
        let value = |percentile| results.find(&format!("timer/lateness/{percentile}"), name);
        let values =
            PERCENTILES.iter().map(|(percentile, _)| Some(bent(value(percentile)?.value())));
        Some((name, steps().zip(values.collect::<Option<Vec<_>>>()?).collect()))
    };
    let names = steps().zip(PERCENTILES.map(|(name, _)| name.to_owned()));
    let millis = [-10.0, -1.0, -0.1, 0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0];
    let millis = millis.map(|millis| (bent(millis), format!("{millis} ms")));
    let curves = CONTESTANTS.iter().filter_map(|one| curve(one.name)).collect();
    Chart { curves, marks: [names.collect(), millis.into()] }
}

fn draw_bars(
    results: &Results,
    series: &[(&str, &str)],
    axis: Axis,
    picture: &Picture,
    path: &Path,
) -> Result<bool, Box<dyn Error>> {
    const NAMES: i32 = 200;
    const ENDS: i32 = 190;
    const BAR: i32 = 14;
    const GAP: i32 = 8;
    let of = |name: &str| -> Vec<_> {
        series.iter().filter_map(|(row, label)| Some((results.find(row, name)?, *label))).collect()
    };
    let mut groups: Vec<_> = CONTESTANTS.iter().map(|one| (one.name, of(one.name))).collect();
    let is_throughput = series.iter().any(|(row, _)| row.starts_with("timer/threads"));
    let is_drawn = |name: &str| !(is_throughput && SLOWER_THAN_ORIGINAL.contains(&name));
    groups.retain(|(name, bars)| !bars.is_empty() && is_drawn(name));
    if groups.is_empty() {
        return Ok(false);
    }
    let last = |bars: &[(&Figure, &str)]| bars.last().map_or(0.0, |(figure, _)| figure.value());
    groups.sort_by(|one, other| last(&one.1).total_cmp(&last(&other.1)));
    if axis == Axis::Linear {
        groups.reverse();
    }
    let transform = |value: f64| if axis == Axis::Log { value.max(0.1).log10() } else { value };
    let values =
        || groups.iter().flat_map(|(_, bars)| bars).map(|(figure, _)| transform(figure.value()));
    let bottom =
        if axis == Axis::Log { values().fold(f64::INFINITY, f64::min).floor() - 0.1 } else { 0.0 };
    let range = (bottom, values().fold(f64::NEG_INFINITY, f64::max));
    let bars = i32::try_from(groups.iter().map(|(_, bars)| bars.len()).sum::<usize>())?;
    let height = HEAD + bars * BAR + i32::try_from(groups.len())? * GAP + 12;
    let area = card(path, height, picture)?;
    let mut top = HEAD;
    for (name, bars) in &groups {
        let color = color(name);
        let middle = top + i32::try_from(bars.len())? * BAR / 2;
        let ink = if is_ours(name) { color } else { INK };
        let style = bold_if(is_ours(name), text(13, ink, HPos::Right));
        area.draw(&Text::new(*name, (NAMES - 10, middle), style))?;
        for (index, (figure, label)) in bars.iter().enumerate() {
            let end = NAMES + 1 + scaled(transform(figure.value()), range, WIDTH - NAMES - ENDS);
            // The last bar is the one by which contestants are sorted.
            let strength = if index + 1 == bars.len() { 1.0 } else { 0.45 };
            let fill = color.mix(strength).filled();
            area.draw(&Rectangle::new([(NAMES, top), (end, top + BAR - 2)], fill))?;
            let label = format!("{} {label}", cell(figure));
            let style = text(12, FAINT, HPos::Left);
            area.draw(&Text::new(label, (end + 6, top + BAR / 2 - 1), style))?;
            top += BAR;
        }
        top += GAP;
    }
    area.present()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_picture_looks_the_same() {
        let text = "<svg width=\"9\">\n<text x=\"1\" dy=\"0.5ex\" text-anchor=\"start\" \
                    font-family=\"sans-serif\" font-size=\"16.129032258064516\" opacity=\"1\" \
                    fill=\"#24292F\">\nName\n</text>\n<polyline opacity=\"0.4\" points=\"1,2 3,4 \"/>\n";
        let short = "<svg font-family=\"sans-serif\" font-size=\"10.5\" fill=\"#24292F\" \
                     width=\"9\"><text x=\"1\" dy=\"0.5ex\" font-size=\"16.1\">Name</text>\n\
                     <polyline opacity=\"0.4\" points=\"1,2 3,4\"/>\n";
        assert_eq!(shortened(text), short);
        assert_eq!(shortened(short), short, "a second time changes nothing");
    }

    #[test]
    fn names_keep_their_distance_and_stay_inside() {
        let heights = spread(vec![0, 70, 70, 71, 300, 590, 591, 2_000], HEAD, 600);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= 17), "{heights:?}");
        assert!(heights[0] >= HEAD && heights[7] <= 600, "{heights:?}");
        assert_eq!(heights[4], 300, "a name with room stays where it is");
    }
}
