//! Few timeouts with short ticks, as close to their time as the machine allows.

use std::time::Duration;

use delaywheel::Timer;
use delaywheel_compare::report::{
    rounds::{Contestant, Medians},
    settings::Settings,
    table::Row,
};

use crate::burst::Burst;

/// Microseconds of lateness.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let fine = Burst {
        name: "typed",
        settings: || Timer::builder().tick(Duration::from_micros(50)),
        count: 2_000,
        lead: Duration::from_millis(50),
    };
    let medians =
        Medians::of(settings.rounds.min(5), vec![Box::new(fine) as Box<dyn Contestant<4>>]);
    let row = |name, index| {
        let micros = medians.figure(index).map(|(name, millis)| (name, millis * 1e3));
        Row::new(name, "us", micros)
    };
    vec![
        row("2000 in a second, ticks of 50 us: lateness, p50", 0).at_most(120.0),
        row("2000 in a second, ticks of 50 us: lateness, p99", 1),
    ]
}
