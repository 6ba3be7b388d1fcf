//! A thousand timeouts spread over a year, of which each should cost one wake-up.

use delaywheel_compare::{
    Timers,
    drive::{Ledger, expire_all, insert_all, timed},
    report::{
        rounds::{Contestant, Contestants, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
    timers::{BTree, LazyHeap, Wheel},
    workload::{Spread, Workload},
};

use crate::entrant::Entrant;

const COUNT: u32 = 1_000;

/// Seeds of the workloads.
const SEEDS: std::ops::Range<u64> = 0..20;

/// Wake-ups per timeout, and microseconds to expire all.
///
/// `DelayQueue` does not tell when it wants to be woken, so it has no part in this.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let contestants = vec![
        Drain::boxed(Entrant::<Wheel>::new()),
        Drain::boxed(Entrant::<LazyHeap>::new()),
        Drain::boxed(Entrant::<BTree>::new()),
    ];
    let [mean, greatest, micros] = sparse_rows(settings.rounds, contestants);
    vec![mean.at_most(1.2), greatest.at_most(1.2), micros.at_most(100.0)]
}

/// The same for others.
pub(crate) fn sparse_rows(rounds: usize, contestants: Contestants<3>) -> [Row; 3] {
    let medians = Medians::of(5 * rounds, contestants);
    let row = |(name, unit, index)| Row::new(name, unit, medians.figure(index));
    [
        ("wake-ups per sparse timeout, mean of seeds", "", 0),
        ("wake-ups per sparse timeout, worst seed", "", 1),
        ("expire all 1000 sparse, mean of seeds", "us", 2),
    ]
    .map(row)
}

/// Expires all of some workloads, sleeping until the next expiration each time.
pub(crate) struct Drain<T> {
    entrant: Entrant<T>,
    workloads: Vec<Vec<u64>>,
}

impl<T: Timers + 'static> Drain<T> {
    pub(crate) fn boxed(entrant: Entrant<T>) -> Box<dyn Contestant<3>> {
        let deadlines = |seed| Workload::new(Spread::Year, seed).deadlines(COUNT);
        Box::new(Self { entrant, workloads: SEEDS.map(deadlines).collect() })
    }
}

impl<T: Timers> Drain<T> {
    /// Wake-ups, and microseconds, to expire one workload.
    fn drain(&self, deadlines: &[u64]) -> (u32, f64) {
        let (mut timers, mut keys) = ((self.entrant.make)(), Vec::new());
        insert_all(&mut timers, deadlines, &mut keys);
        let (duration, (expired, wakeups)) = timed(|| expire_all(&mut timers));
        assert_eq!(expired, Ledger::of(deadlines));
        (wakeups, nanos_per(duration, 1_000))
    }
}

impl<T: Timers> Contestant<3> for Drain<T> {
    fn name(&self) -> &'static str {
        self.entrant.name
    }

    fn measure(&mut self) -> [f64; 3] {
        let (mut all, mut greatest, mut micros) = (0, 0, 0.0);
        for deadlines in &self.workloads {
            let (wakeups, taken) = self.drain(deadlines);
            all += wakeups;
            greatest = greatest.max(wakeups);
            micros += taken;
        }
        let runs = f64::from(u32::try_from(self.workloads.len()).expect("there are few seeds"));
        let count = f64::from(COUNT);
        [f64::from(all) / runs / count, f64::from(greatest) / count, micros / runs]
    }
}
