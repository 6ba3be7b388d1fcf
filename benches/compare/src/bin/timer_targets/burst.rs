//! Very many timeouts that are due within a second.

use std::{sync::Arc, time::Duration};

use delaywheel::{Timer, TimerBuilder};
use delaywheel_compare::{
    delivered::{Delivered, draw, histogram, millis, nanos},
    real::{process_cpu, sleep_until},
    report::{
        rounds::{Contestant, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
};
use fastrand::Rng;

/// Processor time per timeout, and lateness.
///
/// The processor time is that of all the process, from when the last was scheduled until the last
/// was delivered: so what the reaper does ahead of time counts, and scheduling does not.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let count = if settings.is_quick { 100_000 } else { 1_000_000 };
    let lead = Duration::from_millis(if settings.is_quick { 500 } else { 2_000 });
    let burst = |name, settings| Burst { name, settings, count, lead };
    let contestants: Vec<Box<dyn Contestant<4>>> = vec![
        Box::new(burst("one executor thread", Timer::builder)),
        Box::new(burst("inline", || Timer::builder().inline())),
    ];
    let medians = Medians::of(settings.rounds.min(5), contestants);
    let row = |what, unit, index| {
        Row::new(format!("burst of {count}: {what}"), unit, medians.figure(index))
    };
    let mut rows = vec![
        row("lateness, p50", "ms", 0),
        row("lateness, p99", "ms", 1).at_most(2.5),
        row("lateness, max", "ms", 2),
    ];
    if process_cpu().is_some() {
        rows.push(row("CPU per timeout", "ns", 3).at_most(250.0));
    }
    rows
}

/// Timeouts that are due uniformly within a second.
pub(crate) struct Burst {
    pub(crate) name: &'static str,
    /// Settings of the timer.
    pub(crate) settings: fn() -> TimerBuilder,
    /// Number of timeouts.
    pub(crate) count: u32,
    /// How far ahead the second begins; scheduling is to be over by then.
    pub(crate) lead: Duration,
}

impl Contestant<4> for Burst {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Milliseconds of lateness: the median, the 99th percentile, the maximum; nanoseconds of
    /// processor time per timeout.
    fn measure(&mut self) -> [f64; 4] {
        const SPAN: Duration = Duration::from_secs(1);
        let due = draw(&mut Rng::with_seed(1), self.count, self.lead, SPAN);
        let delivered = Delivered::with_capacity(due.len());
        let handler = Arc::clone(&delivered);
        let timer = (self.settings)().build_with(move |due| handler.take_down(due));
        let timer = timer.expect("the settings are valid");
        for &due in &due {
            timer.schedule_at(delivered.instant(due), due).expect("the timer takes 2^32 timeouts");
        }
        let before = process_cpu();
        let end = nanos(self.lead + SPAN);
        sleep_until(delivered.instant(end) + Duration::from_millis(20));
        let lateness = delivered.settle(due);
        let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
        let stats = timer.stats();
        assert_eq!((stats.expired, stats.pending), (u64::from(self.count), 0));
        let histogram = histogram(lateness.iter().map(|&(_, late)| late));
        let [p50, p99, max] = [50.0, 99.0, 100.0].map(|percentile| millis(&histogram, percentile));
        [p50, p99, max, cpu.map_or(f64::NAN, |cpu| nanos_per(cpu, self.count))]
    }
}
