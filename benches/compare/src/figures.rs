//! Pictures, drawn from results alone: lines over sizes or numbers of threads.

use std::{fmt::Write, io};

use crate::prelude::*;
use crate::report::{is_ours, number, position};

const WIDTH: i32 = 960;
const HEIGHT: i32 = 620;
/// Height of the title and the line below it.
const HEAD: i32 = 64;
const OURS: [&str; 6] = ["#d91e36", "#d91e36", "#f07c12", "#9d1255", "#7a3b00", "#c2407a"];

/// Files, titles, the lines below the titles, and what to draw.
const PICTURES: [(&str, &str, &str, fn(&Results) -> Chart<'_>); 4] = [
    (
        "pair.svg",
        "Cancel a random timeout and schedule another, one thread",
        "nanoseconds of one pair by pending timeouts; less is better",
        |results| sizes(results, "timer/pair", ""),
    ),
    (
        "late.svg",
        "When timeouts run beside more threads than processors",
        "milliseconds late, percentile 99, by threads that cancel and schedule; less is better",
        |results| sizes(results, "timer/oversubscribed", "/p99"),
    ),
    (
        "sleep.svg",
        "Create, poll once and drop a sleep, in a task on tokio",
        "nanoseconds by pending sleeps; less is better",
        |results| sizes(results, "future/sleep", ""),
    ),
    (
        "churn.svg",
        "A bare wheel: cancel one and insert another, 1 ms to 60 s ahead",
        "nanoseconds of one pair by pending timeouts; less is better",
        |results| sizes(results, "wheel/churn/uniform", ""),
    ),
];

/// Draws all pictures for which there are figures. Returns files and titles.
pub fn draw_all(results: &Results, folder: &Path) -> io::Result<Vec<(&'static str, &'static str)>> {
    fs::create_dir_all(folder)?;
    let mut drawn = Vec::new();
    for (file, title, below, lines) in PICTURES {
        if let Some(shapes) = chart(lines(results)) {
            let svg = format!(
                "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" xmlns=\"http://www.w3.org/2000/svg\" \
                 font-family=\"sans-serif\" font-size=\"10.5\" fill=\"#24292f\">\n\
                 <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fdfdfc\"/>\n\
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
        let before = CONTESTANTS.iter().take(index).filter(|one| is_ours(one));
        return OURS[before.count() % OURS.len()].to_owned();
    }
    let step = f64::from(u32::try_from(index).unwrap_or(0));
    // Neighbours are far apart: the golden ratio spreads hues evenly between yellow and violet.
    let hue = 61.0 + 238.0 * (step * 0.618_034).fract();
    format!("hsl({hue:.0},55%,{}%)", [33, 45, 57][index % 3])
}

/// A text at a position, which `style` aligns and colours.
fn text([x, y]: [i32; 2], style: &str, text: &str) -> String {
    format!("<text x=\"{x}\" y=\"{}\" {style}>{text}</text>\n", y + 4)
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

/// The shapes of lines, with a name at the end of each.
fn chart(Chart { mut curves, marks }: Chart<'_>) -> Option<String> {
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
            shapes += &text(label_at, &format!("text-anchor=\"{anchor}\""), label);
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
        let weight = if is_ours(one) { "bold" } else { "normal" };
        let style = format!("fill=\"{color}\" font-weight=\"{weight}\"");
        shapes += &text([right + 18, height], &style, one);
    }
    (!curves.is_empty()).then_some(shapes)
}

#[expect(clippy::cast_possible_truncation, reason = "a picture is less than 1000 pixels wide")]
fn scaled(value: f64, [least, most]: [f64; 2], [start, end]: [i32; 2]) -> i32 {
    let share = (value - least) / (most - least).max(f64::MIN_POSITIVE);
    start + (share.clamp(0.0, 1.0) * f64::from(end - start)).round() as i32
}

/// Values by the number behind a path and before a suffix, both logarithmic.
fn sizes<'a>(results: &'a Results, row: &str, suffix: &str) -> Chart<'a> {
    let point = |figure: &Figure| {
        let size = figure.row.strip_prefix(row)?.strip_prefix('/')?.strip_suffix(suffix)?;
        let size: f64 = size.parse().ok()?;
        Some([size.log10(), figure.value().max(0.01).log10()])
    };
    let curve = |&name: &&'a str| {
        let figures = results.figures.iter().filter(|figure| figure.contestant == name);
        let mut points: Vec<[f64; 2]> = figures.filter_map(point).collect();
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        (!points.is_empty()).then_some((name, points))
    };
    let curves: Vec<_> = CONTESTANTS.iter().filter_map(curve).collect();
    let mut sizes: Vec<f64> =
        curves.iter().flat_map(|(_, points)| points).map(|at| at[0]).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let sizes = sizes.into_iter().map(|size| (size, number(10_f64.powf(size).round())));
    let values = (-2..9).flat_map(|power| [1.0, 2.0, 5.0].map(|value| value * 10_f64.powi(power)));
    let values = values.map(|value| (value.log10(), number(value)));
    Chart { marks: [sizes.collect(), values.collect()], curves }
}
