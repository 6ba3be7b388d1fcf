//! Inserts so many timeouts into an empty contestant, and expires them all.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Timers,
    drive::{Ledger, insert_all, timed},
    report::table::count,
    side_by_side::{
        drain::drain,
        names::{EXPIRE, INSERT},
    },
    timers::{Visitor, visit_all},
    workload::{SECOND, Spread, Workload},
};

use super::record::{Demand, Record};

/// Timeouts that are inserted and expired in one turn, by doing it again with few.
const WORTHWHILE: f64 = 200_000.0;

/// Until the rest of the expiry is estimated.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(record: &mut Record) {
    for &pending in record.scope.sizes() {
        let deadlines = Workload::new(Spread::Minute, record.scope.seed).deadlines(pending);
        for round in 1..=record.scope.rounds_at(pending) {
            record.tell(&format!("insert and expire {pending}, round {round}"));
            visit_all(&mut Fill { record, deadlines: &deadlines, pending });
        }
    }
}

struct Fill<'a> {
    record: &'a mut Record,
    deadlines: &'a [u64],
    pending: u32,
}

impl Visitor for Fill<'_> {
    fn visit<T: Timers + Default>(&mut self) {
        let Self { pending, deadlines, .. } = *self;
        let demand =
            Demand { workload: INSERT, pending, max_delay: 60 * SECOND, must_cancel: false };
        if !self.record.admits(T::NAME, &T::PROMISES, &demand) {
            return;
        }
        // No longer than this is it done again.
        let long = self.record.scope.millis(300, 20);
        let (start, mut sum) = (Instant::now(), Turn::default());
        while sum.count < WORTHWHILE && start.elapsed() < long {
            sum.add(&turn::<T>(deadlines));
        }
        let n = u64::from(pending);
        self.record.add(T::NAME, n, (INSERT, "ns"), sum.inserting / sum.count);
        self.record.add(T::NAME, n, (EXPIRE, "ns"), sum.expiring / sum.count);
        if let Some(note) = sum.note {
            self.record.note(T::NAME, EXPIRE, note);
        }
        self.record.took(T::NAME, INSERT, start.elapsed());
    }
}

/// Nanoseconds in all, and how many timeouts took them.
#[derive(Default)]
struct Turn {
    inserting: f64,
    expiring: f64,
    count: f64,
    /// What a reader must know.
    note: Option<String>,
}

impl Turn {
    fn add(&mut self, other: &Self) {
        self.inserting += other.inserting;
        self.expiring += other.expiring;
        self.count += other.count;
        self.note.clone_from(&other.note);
    }
}

fn turn<T: Timers + Default>(deadlines: &[u64]) -> Turn {
    let (mut timers, mut keys) = (T::default(), Vec::with_capacity(deadlines.len()));
    let (inserting, ()) = timed(|| insert_all(&mut timers, deadlines, &mut keys));
    let (expiring, outcome) = timed(|| drain(&mut timers, PATIENCE));
    let expected = Ledger::of(deadlines);
    let note = if outcome.is_cut_off {
        Some(format!("estimated from the first {:.0} s", PATIENCE.as_secs_f64()))
    } else if (outcome.expired, outcome.sum) == (expected.count as u64, expected.sum) {
        None
    } else {
        Some(format!("{} of {} expired", outcome.expired, expected.count))
    };
    let whole = outcome.factor(60 * SECOND);
    Turn {
        inserting: inserting.as_secs_f64() * 1e9,
        expiring: expiring.as_secs_f64() * 1e9 * whole,
        count: count(expected.count as u64),
        note,
    }
}
