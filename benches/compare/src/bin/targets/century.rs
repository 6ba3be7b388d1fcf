//! One timeout a hundred years ahead, and the steps that it takes to get there.

use delaywheel::{Tick, TimingWheel};
use delaywheel_compare::{
    report::{settings::Settings, table::Row},
    workload::DAY,
};

const CENTURY: Tick = Tick::new(36_525 * DAY);

/// Steps until the timeout expires; at most one a level.
pub(crate) fn rows(_: &Settings) -> Vec<Row> {
    let mut wheel = TimingWheel::new(Tick::ZERO);
    wheel.insert(CENTURY, "a century").expect("the wheel is empty");
    let levels = u32::try_from(wheel.levels()).expect("there are at most 64 levels");
    let mut steps = 1;
    while wheel.advance(CENTURY).limit(1).next().is_none() {
        steps += 1;
    }
    assert!(wheel.is_empty());
    let row = Row::new("steps to expire after a century", "", [("wheel", f64::from(steps))]);
    vec![row.at_most(f64::from(levels))]
}
