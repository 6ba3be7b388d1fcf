//! A thousand timeouts that lie within a year, and how often a contestant is woken for them.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Timers,
    drive::{insert_all, timed},
    report::table::count,
    side_by_side::{
        drain::drain,
        names::{SPARSE_TIME, SPARSE_WAKEUPS},
    },
    timers::{Visitor, visit_all},
    workload::{DAY, Spread, Workload},
};

use super::record::{Demand, Record};

const COUNT: u32 = 1_000;

const YEAR: u64 = 365 * DAY;

pub(crate) fn run(record: &mut Record) {
    // Each round has a workload of its own, since that makes more difference than the machine.
    for round in 1..=record.scope.rounds() {
        record.tell(&format!("sparse year, round {round}"));
        let seed = record.scope.seed + round as u64;
        let deadlines = Workload::new(Spread::Year, seed).deadlines(COUNT);
        visit_all(&mut Sparse { record, deadlines: &deadlines });
    }
}

struct Sparse<'a> {
    record: &'a mut Record,
    deadlines: &'a [u64],
}

impl Visitor for Sparse<'_> {
    fn visit<T: Timers + Default>(&mut self) {
        let demand = Demand {
            workload: SPARSE_WAKEUPS,
            pending: COUNT,
            max_delay: YEAR,
            must_cancel: false,
        };
        if !self.record.admits(T::NAME, &T::PROMISES, &demand) {
            return;
        }
        let start = Instant::now();
        let mut timers = T::default();
        insert_all(&mut timers, self.deadlines, &mut Vec::new());
        let patience = self.record.scope.millis(1_000, 50);
        let (time, outcome) = timed(|| drain(&mut timers, patience));
        let last = self.deadlines.iter().copied().max().unwrap_or(YEAR);
        let whole = outcome.factor(last);
        let wakeups = count(outcome.wakeups) * whole / f64::from(COUNT);
        let micros = time.as_secs_f64() * 1e6 * whole;
        self.record.add(T::NAME, u64::from(COUNT), (SPARSE_WAKEUPS, "per timeout"), wakeups);
        self.record.add(T::NAME, u64::from(COUNT), (SPARSE_TIME, "us"), micros);
        if outcome.is_cut_off {
            let part = Duration::from_millis(outcome.now).as_secs_f64() / 86_400.0;
            for workload in [SPARSE_WAKEUPS, SPARSE_TIME] {
                self.record.note(
                    T::NAME,
                    workload,
                    format!("estimated from the first {part:.1} days"),
                );
            }
        }
        self.record.took(T::NAME, SPARSE_WAKEUPS, start.elapsed());
    }
}
