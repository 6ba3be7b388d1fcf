//! Insert, cancel and insert, expire: with a given number of timeouts pending.

use delaywheel_compare::{
    Timers,
    drive::{Ledger, cancel_insert, expire_all, insert_all, timed},
    report::{
        rounds::{Contestant, Contestants, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
    timers::{BTree, DelayQueue, LazyHeap, Wheel},
    workload::{Spread, Workload},
};

use crate::entrant::Entrant;

/// A million pending, near and far.
pub(crate) fn million(settings: &Settings) -> Vec<Row> {
    let [insert, churn, expire] = all_rows(settings.rounds, Spread::Minute, 1_000_000);
    let mut rows = vec![
        insert.ratio(LazyHeap::NAME, 0.9),
        churn.ratio(LazyHeap::NAME, 0.8).ratio(DelayQueue::NAME, 0.3),
        expire.ratio(LazyHeap::NAME, 0.25),
    ];
    if !settings.is_quick {
        rows.extend(all_rows(settings.rounds, Spread::Month, 1_000_000));
    }
    rows
}

/// A thousand pending, and a hundred thousand.
pub(crate) fn thousand(settings: &Settings) -> Vec<Row> {
    let [insert, churn, expire] = all_rows(settings.rounds, Spread::Minute, 1_000);
    let mut rows = vec![insert, churn.ratio(LazyHeap::NAME, 0.6), expire];
    if !settings.is_quick {
        rows.extend(all_rows(settings.rounds, Spread::Minute, 100_000));
    }
    rows
}

/// Ten million pending.
pub(crate) fn ten_million(settings: &Settings) -> Vec<Row> {
    if settings.is_quick {
        return Vec::new();
    }
    let (spread, count) = (Spread::Minute, 10_000_000);
    let contestants = vec![
        Fill::boxed(Entrant::<Wheel>::new(), spread, count),
        Fill::boxed(Entrant::<LazyHeap>::new(), spread, count),
    ];
    let [insert, expire] = fill_rows(settings.rounds.min(3), spread, count, contestants);
    vec![insert, expire.at_most(80.0)]
}

fn all_rows(rounds: usize, spread: Spread, count: u32) -> [Row; 3] {
    let fills = vec![
        Fill::boxed(Entrant::<Wheel>::new(), spread, count),
        Fill::boxed(Entrant::<LazyHeap>::new(), spread, count),
        Fill::boxed(Entrant::<BTree>::new(), spread, count),
        Fill::boxed(Entrant::<DelayQueue>::new(), spread, count),
    ];
    let churns = || {
        vec![
            Churn::boxed(Entrant::<Wheel>::new(), spread, count),
            Churn::boxed(Entrant::<LazyHeap>::new(), spread, count),
            Churn::boxed(Entrant::<BTree>::new(), spread, count),
            Churn::boxed(Entrant::<DelayQueue>::new(), spread, count),
        ]
    };
    operation_rows(rounds, spread, count, fills, churns)
}

/// Rows for insert, cancel and insert, and expire. Those who churn are made when the others are
/// gone.
pub(crate) fn operation_rows(
    rounds: usize,
    spread: Spread,
    count: u32,
    fills: Contestants<2>,
    churns: impl FnOnce() -> Contestants<1>,
) -> [Row; 3] {
    let [insert, expire] = fill_rows(rounds, spread, count, fills);
    let medians = Medians::of(rounds, churns());
    let name = format!("cancel+insert at {count} {}", spread.name());
    [insert, Row::new(name, "ns", medians.figure(0)), expire]
}

fn fill_rows(rounds: usize, spread: Spread, count: u32, fills: Contestants<2>) -> [Row; 2] {
    let medians = Medians::of(rounds, fills);
    let name = |operation| format!("{operation} at {count} {}", spread.name());
    [("insert", 0), ("expire all", 1)]
        .map(|(operation, index)| Row::new(name(operation), "ns", medians.figure(index)))
}

/// Inserts all and expires all, starting from nothing.
pub(crate) struct Fill<T> {
    entrant: Entrant<T>,
    deadlines: Vec<u64>,
    count: u32,
    /// Number of times that it is done to make one figure.
    repetitions: u32,
}

impl<T: Timers + 'static> Fill<T> {
    pub(crate) fn boxed(entrant: Entrant<T>, spread: Spread, count: u32) -> Box<dyn Contestant<2>> {
        let deadlines = Workload::new(spread, 1).deadlines(count);
        let repetitions = (200_000 / count).max(1);
        Box::new(Self { entrant, deadlines, count, repetitions })
    }
}

impl<T: Timers> Contestant<2> for Fill<T> {
    fn name(&self) -> &'static str {
        self.entrant.name
    }

    fn measure(&mut self) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for _ in 0..self.repetitions {
            let mut timers = (self.entrant.make)();
            let mut keys = Vec::with_capacity(self.deadlines.len());
            let (inserting, ()) = timed(|| insert_all(&mut timers, &self.deadlines, &mut keys));
            let (expiring, (expired, _)) = timed(|| expire_all(&mut timers));
            assert_eq!(expired, Ledger::of(&self.deadlines));
            sums[0] += nanos_per(inserting, self.count);
            sums[1] += nanos_per(expiring, self.count);
        }
        sums.map(|sum| sum / f64::from(self.repetitions))
    }
}

/// Pairs of cancel and insert at a fixed number of pending timeouts, while no time passes.
pub(crate) struct Churn<T: Timers> {
    name: &'static str,
    timers: T,
    keys: Vec<T::Key>,
    /// The deadline of each pending timeout.
    deadlines: Vec<u64>,
    workload: Workload,
    pending: u32,
}

impl<T: Timers + 'static> Churn<T> {
    /// Fills a contestant and churns it until it is in a steady state.
    pub(crate) fn boxed(
        entrant: Entrant<T>,
        spread: Spread,
        pending: u32,
    ) -> Box<dyn Contestant<1>> {
        let Entrant { name, make } = entrant;
        let mut workload = Workload::new(spread, 2);
        let deadlines = workload.deadlines(pending);
        let (mut timers, mut keys) = (make(), Vec::new());
        insert_all(&mut timers, &deadlines, &mut keys);
        let mut churn = Self { name, timers, keys, deadlines, workload, pending };
        churn.run(4 * pending);
        Box::new(churn)
    }
}

impl<T: Timers> Churn<T> {
    /// Nanoseconds per pair.
    fn run(&mut self, count: u32) -> f64 {
        let pairs = self.workload.pairs(self.pending, count);
        let (duration, ()) = timed(|| cancel_insert(&mut self.timers, &mut self.keys, &pairs));
        for pair in &pairs {
            self.deadlines[pair.victim as usize] = pair.deadline;
        }
        nanos_per(duration, count)
    }
}

impl<T: Timers> Contestant<1> for Churn<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn measure(&mut self) -> [f64; 1] {
        [self.run(1_000_000)]
    }
}

impl<T: Timers> Drop for Churn<T> {
    /// Checks that what is pending at the end is what was not cancelled.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(expire_all(&mut self.timers).0, Ledger::of(&self.deadlines));
        }
    }
}
