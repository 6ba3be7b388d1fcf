//! One thread that cancels a random timeout and schedules another, over and over.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_compare::{
    drive::timed,
    report::{
        rounds::{Contestant, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
    shared::{
        Accountable, Closures, Load, SharedTimer, Sleeps, Typed, replace_all, schedule_all, settle,
    },
};
use tokio::runtime;

/// Numbers of pending timeouts, and the most nanoseconds that a pair may take.
const COUNTS: [(u32, f64); 3] = [(1_000, 50.0), (100_000, 75.0), (1_000_000, 170.0)];

/// Nanoseconds per pair, and of a look at the clock, of which a pair takes one.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let mut rows = vec![clock_row(settings.rounds)];
    let counts = if settings.is_quick { &COUNTS[..2] } else { &COUNTS };
    for &(pending, bound) in counts {
        let pairs = if settings.is_quick { 200_000 } else { 1_000_000 };
        let churn = Churn { pending, pairs };
        let contestants: Vec<Box<dyn Contestant<1>>> = vec![
            Box::new(Ours { churn, make: || Typed::new(Timer::builder()) }),
            Box::new(Ours { churn, make: || Closures::new(Timer::builder()) }),
            Box::new(Tokio { churn }),
        ];
        let medians = Medians::of(settings.rounds, contestants);
        let name = format!("schedule+cancel at {pending}");
        rows.push(Row::new(name, "ns/pair", medians.figure(0)).at_most(bound));
    }
    rows
}

fn clock_row(rounds: usize) -> Row {
    let medians = Medians::of(rounds, vec![Box::new(Reads) as Box<dyn Contestant<1>>]);
    Row::new("one look at the clock", "ns", medians.figure(0))
}

/// Looks at the clock.
struct Reads;

impl Contestant<1> for Reads {
    fn name(&self) -> &'static str {
        "Instant::now"
    }

    fn measure(&mut self) -> [f64; 1] {
        const READS: u32 = 1_000_000;
        let (duration, ()) = timed(|| {
            for _ in 0..READS {
                black_box(Instant::now());
            }
        });
        [nanos_per(duration, READS)]
    }
}

/// Pairs at a number of pending timeouts.
#[derive(Debug, Clone, Copy)]
struct Churn {
    pending: u32,
    pairs: u32,
}

impl Churn {
    /// Schedules all, and measures when what was cancelled has left as many traces as it ever will.
    ///
    /// Returns how many were scheduled and how many cancelled as well: some expire meanwhile.
    fn run<S: SharedTimer>(self, timer: &S) -> (Duration, u64, u64) {
        let mut load = Load::new(1);
        let mut timeouts = schedule_all(timer, &load.delays(self.pending));
        let (mut scheduled, mut cancelled) = (u64::from(self.pending), 0);
        let mut replace = |count| {
            let victims = load.victims(self.pending, count);
            let (duration, pending) = timed(|| replace_all(timer, &mut timeouts, &victims));
            scheduled += u64::from(count);
            cancelled += pending;
            duration
        };
        for _ in 0..(4 * self.pending / self.pairs).max(1) {
            replace(self.pairs);
        }
        let duration = replace(self.pairs);
        (duration, scheduled, cancelled)
    }
}

/// One of our own, made anew for each turn.
struct Ours<S> {
    churn: Churn,
    make: fn() -> S,
}

impl<S: Accountable> Contestant<1> for Ours<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn measure(&mut self) -> [f64; 1] {
        let timer = (self.make)();
        let (duration, scheduled, cancelled) = self.churn.run(&timer);
        settle(&timer, scheduled, cancelled);
        [nanos_per(duration, self.churn.pairs)]
    }
}

/// Sleeps of a runtime of one thread that is busy with them, so that none is ever over.
struct Tokio {
    churn: Churn,
}

impl Contestant<1> for Tokio {
    fn name(&self) -> &'static str {
        Sleeps::NAME
    }

    fn measure(&mut self) -> [f64; 1] {
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without I/O can be built");
        let _entered = runtime.enter();
        let (duration, scheduled, cancelled) = self.churn.run(&Sleeps);
        assert_eq!(scheduled - cancelled, u64::from(self.churn.pending));
        [nanos_per(duration, self.churn.pairs)]
    }
}
