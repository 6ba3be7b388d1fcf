//! Cost against the number of timeouts: a line for each contestant on logarithmic axes, each with its
//! name where it ends.

use std::path::Path;

use delaywheel_compare::side_by_side::results::Results;
use plotters::{prelude::*, style::text_anchor::HPos};

use super::canvas::{self, Area, Drawn, FAINT, GRID, HEAD, INK, Look, WIDTH};

const HEIGHT: i32 = 620;

/// Room for the names at the right.
const NAMES: i32 = 250;

/// Least distance of two names.
const LINE: i32 = 17;

/// One contestant's costs.
struct Curve<'a> {
    name: &'a str,
    look: Look,
    /// Numbers of timeouts and nanoseconds, ascending.
    points: Vec<(f64, f64)>,
}

/// Draws a workload that was run at several sizes.
pub(crate) fn draw(results: &Results, workload: &str, title: &str, path: &Path) -> Drawn {
    let curves = curves(results, workload);
    let below = "nanoseconds per operation against pending timeouts; less is better";
    canvas::figure(path, HEIGHT, [title, below], |area| draw_curves(area, &curves))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of timeouts are far below 2^52")]
fn curves<'a>(results: &'a Results, workload: &str) -> Vec<Curve<'a>> {
    let mut curves: Vec<Curve<'a>> = Vec::new();
    for found in results.of(workload) {
        let point = (found.n as f64, found.value.max(0.1));
        if let Some(curve) = curves.last_mut().filter(|curve| curve.name == found.contestant) {
            curve.points.push(point);
        } else {
            let look = Look::of(results, &found.contestant);
            curves.push(Curve { name: &found.contestant, look, points: vec![point] });
        }
    }
    // Ours are drawn last, above all others.
    curves.sort_by_key(|curve| curve.look.is_ours);
    curves
}

fn draw_curves(area: &Area<'_>, curves: &[Curve<'_>]) -> Drawn {
    let (xs, ys) = (bounds(curves, |point| point.0), bounds(curves, |point| point.1));
    let mut chart = ChartBuilder::on(area)
        .margin_top(HEAD)
        .margin_left(12)
        .margin_right(NAMES)
        .margin_bottom(10)
        .x_label_area_size(46)
        .y_label_area_size(74)
        .build_cartesian_2d(
            (xs.0..xs.1.max(xs.0 * 10.0)).log_scale(),
            (ys.0 / 1.3..ys.1 * 1.3).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_labels(8)
        .disable_y_mesh()
        .y_labels(0)
        .y_label_formatter(&|_| String::new())
        .x_label_formatter(&|x| canvas::power(*x))
        .x_desc("pending timeouts")
        .axis_desc_style(canvas::text(14, INK))
        .label_style(("sans-serif", 13, &INK))
        .draw()?;
    for mark in marks(ys) {
        let (left, y) = chart.backend_coord(&(xs.0, mark));
        area.draw(&PathElement::new(vec![(left, y), (WIDTH - NAMES, y)], GRID))?;
        let style = canvas::aligned(HPos::Right, 13, INK);
        area.draw(&Text::new(canvas::nanos(mark), (left - 8, y), style))?;
    }
    let mut ends = Vec::new();
    for curve in curves {
        let points: Vec<_> = curve.points.iter().map(|point| chart.backend_coord(point)).collect();
        let stroke = curve.look.color.stroke_width(curve.look.stroke());
        area.draw(&PathElement::new(points.clone(), stroke))?;
        for &point in &points {
            curve.look.mark(area, point)?;
        }
        ends.extend(points.last().map(|&end| (end, curve)));
    }
    name_all(area, ends, xs.1)
}

/// What stands at the axis of costs: 1, 2 and 5 of each power of ten, or only powers if these are
/// many.
fn marks((least, greatest): (f64, f64)) -> Vec<f64> {
    let factors: &[f64] = if greatest / least > 1e4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (-1..12).map(|power| 10_f64.powi(power));
    let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    all.filter(|mark| (least / 1.3..=greatest * 1.3).contains(mark)).collect()
}

/// Writes the names at the right, each as near as may be to the height at which its line ends.
fn name_all(area: &Area<'_>, mut ends: Vec<((i32, i32), &Curve<'_>)>, greatest: f64) -> Drawn {
    ends.sort_by_key(|((_, y), _)| *y);
    let heights = spread(ends.iter().map(|((_, y), _)| *y).collect(), HEAD, HEIGHT - 30);
    for ((end, curve), height) in ends.into_iter().zip(heights) {
        let last = curve.points.last().map_or(greatest, |point| point.0);
        let start = (WIDTH - NAMES + 8, height);
        if last < greatest {
            let label = format!("{} (to {})", curve.name, canvas::power(last));
            canvas::name(area, start, start, curve.look, label)?;
        } else {
            canvas::name(area, end, start, curve.look, curve.name.to_owned())?;
        }
    }
    Ok(())
}

/// Moves heights apart, which ascend, and keeps them within a range.
pub(super) fn spread(mut heights: Vec<i32>, top: i32, bottom: i32) -> Vec<i32> {
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

fn bounds(curves: &[Curve<'_>], of: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(&of);
    (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_distance_and_stay_inside() {
        let heights = spread(vec![0, 70, 70, 71, 300, 600, 601, 602, 2_000], HEAD, HEIGHT);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= LINE), "{heights:?}");
        assert!(heights[0] >= HEAD && heights[8] <= HEIGHT, "{heights:?}");
        assert_eq!(heights[4], 300, "one that has room stays where it is");
    }
}
