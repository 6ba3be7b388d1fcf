//! One figure of each contestant, or a few, as bars; the best comes first.

use std::{cmp::Ordering, path::Path};

use delaywheel_compare::side_by_side::results::{Measurement, Results};
use plotters::{prelude::*, style::text_anchor::HPos};

use super::canvas::{self, Area, Drawn, FAINT, GRID, HEAD, INK, Look, WIDTH};

/// Room for the names at the left.
const NAMES: i32 = 220;

/// Room at the right for the figure at the end of the longest bar.
const ENDS: i32 = 150;

/// Height of a bar.
const BAR: i32 = 14;

/// Room between two contestants.
const GAP: i32 = 9;

/// Room for the axis below.
const AXIS: i32 = 56;

/// What is drawn, and how it is to be read.
pub(crate) struct Bars<'a> {
    pub(crate) title: &'a str,
    pub(crate) below: &'a str,
    /// What the axis tells, with the unit.
    pub(crate) axis: &'a str,
    /// Bars of each contestant: the workload, the number of timeouts, and what it is called.
    pub(crate) series: &'a [Series<'a>],
    pub(crate) is_log: bool,
    /// Whether the greatest is the best.
    pub(crate) is_greatest_best: bool,
}

/// One bar of each contestant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series<'a> {
    pub(crate) workload: &'a str,
    /// Number of timeouts, or whatever the workload counts; the only one if `None`.
    pub(crate) n: Option<u64>,
    pub(crate) name: &'a str,
}

/// A contestant's bars.
struct Group<'a> {
    name: &'a str,
    look: Look,
    bars: Vec<Option<&'a Measurement>>,
}

impl Bars<'_> {
    /// Draws the figure.
    pub(crate) fn draw(&self, results: &Results, path: &Path) -> Drawn {
        let groups = self.groups(results);
        let of_group = i32::try_from(self.series.len())? * BAR + GAP;
        let of_all = i32::try_from(groups.len())? * of_group;
        let scale = Scale::of(&groups, self.is_log);
        canvas::figure(path, HEAD + of_all + AXIS, [self.title, self.below], |area| {
            self.draw_axis(area, &scale, HEAD + of_all)?;
            for (group, place) in groups.iter().zip(0..) {
                self.draw_group(area, &scale, group, HEAD + place * of_group)?;
            }
            Ok(())
        })
    }

    fn groups<'a>(&self, results: &'a Results) -> Vec<Group<'a>> {
        let mut groups: Vec<_> = results
            .contestants
            .iter()
            .filter_map(|other| self.group(results, &other.name))
            .collect();
        groups.sort_by(|one, other| self.compare(one, other));
        groups
    }

    fn group<'a>(&self, results: &'a Results, name: &'a str) -> Option<Group<'a>> {
        let find = |series: &Series<'_>| {
            let mut of_contestant = results.of(series.workload).into_iter();
            of_contestant
                .find(|found| found.contestant == name && series.n.is_none_or(|n| n == found.n))
        };
        let bars: Vec<_> = self.series.iter().map(find).collect();
        let is_empty = bars.iter().all(Option::is_none);
        (!is_empty).then(|| Group { name, look: Look::of(results, name), bars })
    }

    /// The best at the last bar comes first.
    fn compare(&self, one: &Group<'_>, other: &Group<'_>) -> Ordering {
        let worst = if self.is_greatest_best { 0.0 } else { f64::INFINITY };
        let key =
            |group: &Group<'_>| group.bars.last().copied().flatten().map_or(worst, |bar| bar.value);
        let ascending = key(one).total_cmp(&key(other));
        if self.is_greatest_best { ascending.reverse() } else { ascending }
    }

    fn draw_axis(&self, area: &Area<'_>, scale: &Scale, bottom: i32) -> Drawn {
        for mark in scale.marks() {
            let x = scale.x(mark);
            area.draw(&PathElement::new(vec![(x, HEAD - 4), (x, bottom)], GRID))?;
            let label = Text::new(canvas::power(mark), (x, bottom + 12), centred(12));
            area.draw(&label)?;
        }
        let middle = NAMES + (WIDTH - NAMES - ENDS) / 2;
        area.draw(&Text::new(self.axis.to_owned(), (middle, bottom + 36), centred(14)))?;
        Ok(())
    }

    fn draw_group(&self, area: &Area<'_>, scale: &Scale, group: &Group<'_>, top: i32) -> Drawn {
        let height = BAR * i32::try_from(self.series.len())?;
        let style = canvas::aligned(
            HPos::Right,
            13,
            if group.look.is_ours { group.look.color } else { INK },
        );
        let style = canvas::emphasised(group.look.is_ours, style);
        area.draw(&Text::new(group.name.to_owned(), (NAMES - 10, top + height / 2), style))?;
        let bars = group.bars.iter().zip(self.series).zip(0..);
        for ((bar, series), place) in
            bars.filter_map(|((bar, series), place)| Some(((bar.as_ref()?, series), place)))
        {
            let (upper, lower) = (top + place * BAR, top + (place + 1) * BAR - 2);
            // The first bars of several are paler.
            let last = i32::try_from(self.series.len())? - 1;
            let strength = if place == last { 1.0 } else { 0.45 };
            let end = scale.x(bar.value).max(NAMES + 1);
            let fill = group.look.color.mix(strength).filled();
            area.draw(&Rectangle::new([(NAMES, upper), (end, lower)], fill))?;
            let label = self.label(bar, series);
            let place = (end + 6, upper + BAR / 2 - 1);
            area.draw(&Text::new(label, place, canvas::text(12, FAINT)))?;
        }
        Ok(())
    }

    fn label(&self, bar: &Measurement, series: &Series<'_>) -> String {
        let about = if bar.note.is_some() { "≈ " } else { "" };
        let name =
            if self.series.len() > 1 { format!(" · {}", series.name) } else { String::new() };
        format!("{about}{}{name}", canvas::number(bar.value))
    }
}

fn centred(size: i32) -> TextStyle<'static> {
    canvas::aligned(HPos::Center, size, INK)
}

/// Where a figure is on the axis.
struct Scale {
    least: f64,
    greatest: f64,
    is_log: bool,
}

impl Scale {
    fn of(groups: &[Group<'_>], is_log: bool) -> Self {
        let values =
            || groups.iter().flat_map(|group| group.bars.iter().flatten()).map(|bar| bar.value);
        let greatest = values().fold(f64::MIN_POSITIVE, f64::max);
        let least = if is_log {
            // A bar of the least figure is to be seen as well.
            let least = values().filter(|value| *value > 0.0).fold(greatest, f64::min);
            10_f64.powf((least / 1.5).log10().floor())
        } else {
            0.0
        };
        Self { least, greatest, is_log }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a figure is less than 1000 pixels wide")]
    fn x(&self, value: f64) -> i32 {
        let share = if self.is_log {
            (value.max(self.least) / self.least).ln() / (self.greatest / self.least).ln()
        } else {
            value / self.greatest
        };
        NAMES + (share * f64::from(WIDTH - NAMES - ENDS)).round() as i32
    }

    /// Powers of ten, each one or as few as there is room for; or steps of 1, 2 or 5.
    fn marks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.greatest / self.least).log10();
            let factor = if decades > 8.0 { 100.0 } else { 10.0 };
            let next = |mark: &f64| Some(mark * factor);
            let powers = std::iter::successors(Some(self.least), next);
            return powers.take_while(|mark| *mark <= self.greatest * 1.01).collect();
        }
        let power = 10_f64.powf((self.greatest / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| self.greatest / step <= 6.0).unwrap_or(power);
        (0..=6)
            .map(|mark| f64::from(mark) * step)
            .take_while(|mark| *mark <= self.greatest)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_on_the_axis_and_are_few() {
        for is_log in [false, true] {
            for greatest in [0.3, 1.0, 7.0, 42.0, 5_000.0, 3e10] {
                let scale = Scale { least: if is_log { 0.1 } else { 0.0 }, greatest, is_log };
                let marks = scale.marks();
                assert!((1..=8).contains(&marks.len()), "{greatest}: {marks:?}");
                let inside = NAMES..=WIDTH - ENDS + 1;
                assert!(marks.iter().all(|mark| inside.contains(&scale.x(*mark))), "{marks:?}");
            }
        }
    }
}
