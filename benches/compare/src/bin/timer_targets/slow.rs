//! A callback that takes a second, on one of two executor threads.

use std::{sync::Arc, thread, time::Duration};

use delaywheel::Timer;
use delaywheel_compare::{
    delivered::{Delivered, draw, histogram, millis, nanos},
    real::sleep_until,
    report::{
        rounds::{Contestant, Medians},
        settings::Settings,
        table::Row,
    },
};
use fastrand::Rng;

/// Number of the other timeouts, which are due before and while it runs.
const OTHERS: u32 = 20_000;

/// How long the slow callback takes.
const SLOW: Duration = Duration::from_secs(1);

/// When the first are due, and when the slow one is.
const LEAD: Duration = Duration::from_millis(100);

/// Milliseconds by which the others are late.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let contestants = vec![Box::new(Beside) as Box<dyn Contestant<2>>];
    let medians = Medians::of(settings.rounds.min(5), contestants);
    let row = |name, index| Row::new(name, "ms", medians.figure(index));
    vec![
        row("beside a callback of 1 s: lateness, p50", 0),
        row("beside a callback of 1 s: lateness, p99", 1).at_most(2.5),
    ]
}

/// Timeouts beside a slow callback.
struct Beside;

impl Contestant<2> for Beside {
    fn name(&self) -> &'static str {
        "two executor threads"
    }

    fn measure(&mut self) -> [f64; 2] {
        let slow = nanos(LEAD);
        let due = draw(&mut Rng::with_seed(1), OTHERS, LEAD + Duration::from_millis(1), SLOW);
        let delivered = Delivered::with_capacity(due.len());
        let handler = Arc::clone(&delivered);
        let timer = Timer::builder().executor_threads(2).build_with(move |due| {
            if due == slow { thread::sleep(SLOW) } else { handler.take_down(due) }
        });
        let timer = timer.expect("the settings are valid");
        for &due in due.iter().chain([&slow]) {
            timer.schedule_at(delivered.instant(due), due).expect("the timer takes 2^32 timeouts");
        }
        sleep_until(delivered.instant(nanos(LEAD + SLOW)));
        let lateness = delivered.settle(due);
        let stats = timer.stats();
        assert_eq!((stats.expired, stats.pending), (u64::from(OTHERS) + 1, 0));
        let histogram = histogram(lateness.iter().map(|&(_, late)| late));
        [50.0, 99.0].map(|percentile| millis(&histogram, percentile))
    }
}
