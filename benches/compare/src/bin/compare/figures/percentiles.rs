//! How early or late timeouts come: a line over the percentiles for each contestant.
//!
//! Neither axis is linear. Percentiles are as far apart as they are listed, so that the far end can be
//! read. Milliseconds are linear near zero and logarithmic beyond, on both sides of it.

use std::path::Path;

use delaywheel_compare::side_by_side::{
    names::{PERCENTILES, lateness},
    results::Results,
};
use plotters::{prelude::*, style::text_anchor::HPos};

use super::{
    canvas::{self, Area, Drawn, FAINT, GRID, HEAD, INK, Look, WIDTH},
    lines::spread,
};

const HEIGHT: i32 = 560;

/// Left, right, upper and lower border of the plot.
const LEFT: i32 = 86;
const RIGHT: i32 = WIDTH - 250;
const TOP: i32 = HEAD + 10;
const BOTTOM: i32 = HEIGHT - 66;

/// Up to this many milliseconds the axis is linear.
const LINEAR: f64 = 0.1;

/// What may stand at the axis, in milliseconds.
const MARKS: [f64; 15] = [
    -1000.0, -100.0, -10.0, -1.0, -0.1, 0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0,
    10_000.0,
];

/// A contestant's lateness at each percentile.
struct Curve<'a> {
    name: &'a str,
    look: Look,
    millis: Vec<f64>,
}

/// Draws the percentiles, of which each is a workload: `lateness/p50`.
pub(crate) fn draw(results: &Results, title: &str, path: &Path) -> Drawn {
    let mut curves: Vec<_> =
        results.contestants.iter().filter_map(|other| curve(results, &other.name)).collect();
    curves.sort_by_key(|curve| curve.look.is_ours);
    let below =
        "milliseconds after the instant that was asked for; below the line of zero is early";
    canvas::figure(path, HEIGHT, [title, below], |area| {
        let scale = Scale::of(&curves);
        draw_axes(area, &scale)?;
        draw_curves(area, &scale, &curves)
    })
}

fn curve<'a>(results: &'a Results, name: &'a str) -> Option<Curve<'a>> {
    let at = |(percentile, _): &(&str, usize)| {
        let found = results.of(&lateness(percentile));
        found.into_iter().find(|found| found.contestant == name).map(|found| found.value)
    };
    let millis = PERCENTILES.iter().map(at).collect::<Option<Vec<_>>>()?;
    Some(Curve { name, look: Look::of(results, name), millis })
}

fn draw_axes(area: &Area<'_>, scale: &Scale) -> Drawn {
    for mark in scale.marks() {
        let y = scale.y(mark);
        let color = if mark == 0.0 { FAINT } else { GRID };
        area.draw(&PathElement::new(vec![(LEFT, y), (RIGHT, y)], color))?;
        let style = canvas::aligned(HPos::Right, 13, INK);
        area.draw(&Text::new(format!("{mark} ms"), (LEFT - 8, y), style))?;
    }
    let centred = |size| canvas::aligned(HPos::Center, size, INK);
    for (index, (percentile, _)) in PERCENTILES.iter().enumerate() {
        let x = Scale::x(index);
        area.draw(&PathElement::new(vec![(x, TOP), (x, BOTTOM)], GRID))?;
        area.draw(&Text::new((*percentile).to_owned(), (x, BOTTOM + 14), centred(12)))?;
    }
    let middle = (LEFT + (RIGHT - LEFT) / 2, BOTTOM + 44);
    area.draw(&Text::new("percentile of timeouts", middle, centred(14)))?;
    Ok(())
}

fn draw_curves(area: &Area<'_>, scale: &Scale, curves: &[Curve<'_>]) -> Drawn {
    let mut ends = Vec::new();
    for curve in curves {
        let point = |(index, millis): (usize, &f64)| (Scale::x(index), scale.y(*millis));
        let points: Vec<_> = curve.millis.iter().enumerate().map(point).collect();
        let stroke = curve.look.color.stroke_width(curve.look.stroke());
        area.draw(&PathElement::new(points.clone(), stroke))?;
        for &point in &points {
            curve.look.mark(area, point)?;
        }
        ends.extend(points.last().map(|&(_, y)| (y, curve)));
    }
    ends.sort_by_key(|(y, _)| *y);
    let heights = spread(ends.iter().map(|(y, _)| *y).collect(), TOP, BOTTOM);
    for ((y, curve), height) in ends.into_iter().zip(heights) {
        canvas::name(area, (RIGHT, y), (RIGHT + 8, height), curve.look, curve.name.to_owned())?;
    }
    Ok(())
}

/// Where percentiles and milliseconds are.
struct Scale {
    least: f64,
    greatest: f64,
}

impl Scale {
    fn of(curves: &[Curve<'_>]) -> Self {
        let values = || curves.iter().flat_map(|curve| &curve.millis).copied();
        let least = values().fold(-LINEAR, f64::min) * 1.3;
        Self { least, greatest: values().fold(1.0, f64::max) * 1.3 }
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        MARKS.into_iter().filter(|mark| (self.least..=self.greatest).contains(mark))
    }

    #[expect(clippy::cast_possible_truncation, reason = "a figure is less than 1000 pixels high")]
    fn y(&self, millis: f64) -> i32 {
        let [least, greatest, value] = [self.least, self.greatest, millis].map(bent);
        let share = (value - least) / (greatest - least);
        BOTTOM - (share * f64::from(BOTTOM - TOP)).round() as i32
    }

    fn x(index: usize) -> i32 {
        let steps = i32::try_from(PERCENTILES.len() - 1).expect("there are few percentiles");
        let index = i32::try_from(index).expect("there are few percentiles");
        LEFT + (RIGHT - LEFT) * index / steps
    }
}

/// Linear near zero and logarithmic beyond.
fn bent(millis: f64) -> f64 {
    (millis / LINEAR).asinh()
}
