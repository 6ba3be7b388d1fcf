//! Announcements that complete nothing: nobody watches, nothing is reached, nobody can complete.

use delaywheel_compare::{
    drive::timed,
    purgatory::{Crowd, Demand, Requests, demands, settle},
    report::{
        rounds::{Contestant, Medians, nanos_per},
        settings::Settings,
        table::Row,
    },
};

/// Requests that wait.
const WAITING: usize = 100_000;

/// Calls between two looks at the clock.
const CALLS: u32 = 10_000;

/// Batches of which that counts which took least.
const BATCHES: u32 = 20;

const NOTHING_WAITS: &str = "check of a key nobody watches";
const OTHERS_WAIT: &str = "the same, 100,000 on 100 other keys";
const ON_VERY_MANY: &str = "the same, 100,000 on 10,000 other keys";
const NOT_REACHED: &str = "advance below 100,000 thresholds";
const NOT_READY: &str = "check of 100,000 on a key, each";

/// Nanoseconds per call, and per request that is checked.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let contestants: Vec<Box<dyn Contestant<1>>> = vec![
        Box::new(Unwatched { name: NOTHING_WAITS, space: 1_000, waiting: 0 }),
        Box::new(Unwatched { name: OTHERS_WAIT, space: 100, waiting: WAITING }),
        Box::new(Unwatched { name: ON_VERY_MANY, space: 10_000, waiting: WAITING }),
        Box::new(NotReached),
        Box::new(NotReady),
    ];
    let medians = Medians::of(settings.rounds, contestants);
    let row = |name| {
        let nanos = medians.figure_of(name, 0).map(|(_, nanos)| ("ours", nanos));
        Row::new(name, "ns", nanos)
    };
    vec![
        row(NOTHING_WAITS).at_most(40.0),
        row(OTHERS_WAIT).at_most(40.0),
        row(ON_VERY_MANY),
        row(NOT_REACHED).at_most(150.0),
        row(NOT_READY).at_most(25.0).beside("K 52"),
    ]
}

/// Nanoseconds that one of `count` takes, in the batch that took least. The work returns how many
/// requests it completed: none.
fn least(batches: u32, count: u32, mut work: impl FnMut() -> usize) -> f64 {
    let batch = |_| {
        let (duration, completed) = timed(&mut work);
        assert_eq!(completed, 0, "a request completed that could not");
        nanos_per(duration, count)
    };
    (0..batches).map(batch).fold(f64::INFINITY, f64::min)
}

/// Events on keys that nobody watches; others wait on other keys.
struct Unwatched {
    name: &'static str,
    /// Number of keys on which others wait.
    space: u32,
    waiting: usize,
}

impl Contestant<1> for Unwatched {
    fn name(&self) -> &'static str {
        self.name
    }

    fn measure(&mut self) -> [f64; 1] {
        let purgatory = Requests::new();
        let crowd = Crowd::new(&purgatory, &demands::<3>(1, 0..self.space, self.waiting));
        let keys = demands::<1>(2, 1_000_000..2_000_000, CALLS as usize);
        let check = |demand: &Demand<1>| purgatory.check_and_complete(&demand.keys[0]);
        let nanos = least(BATCHES, CALLS, || keys.iter().map(check).sum());
        settle(&purgatory, 0, crowd.count());
        [nanos]
    }
}

/// Advances of a key's value that reach no threshold.
struct NotReached;

impl Contestant<1> for NotReached {
    fn name(&self) -> &'static str {
        NOT_REACHED
    }

    fn measure(&mut self) -> [f64; 1] {
        const KEY: u32 = 7;
        let least_threshold = u64::from(CALLS) + 1;
        let purgatory = Requests::new();
        let crowd = Crowd::on_value(&purgatory, KEY, least_threshold, WAITING);
        let advance = || (1..least_threshold).map(|value| purgatory.advance(&KEY, value)).sum();
        let nanos = least(BATCHES, CALLS, advance);
        assert_eq!(purgatory.advance(&KEY, u64::MAX) as u64, crowd.count());
        assert_eq!(crowd.satisfied(), crowd.count());
        settle(&purgatory, crowd.count(), 0);
        [nanos]
    }
}

/// Events on a key that very many watch, none of which can complete yet.
struct NotReady;

impl Contestant<1> for NotReady {
    fn name(&self) -> &'static str {
        NOT_READY
    }

    fn measure(&mut self) -> [f64; 1] {
        const KEY: u32 = 0;
        let purgatory = Requests::new();
        let crowd = Crowd::new(&purgatory, &demands::<1>(1, KEY..KEY + 1, WAITING));
        let waiting = u32::try_from(crowd.count()).expect("some fit into memory");
        let nanos = least(10, waiting, || purgatory.check_and_complete(&KEY));
        crowd.make_ready();
        assert_eq!(purgatory.check_and_complete(&KEY) as u64, crowd.count());
        assert_eq!(crowd.satisfied(), crowd.count());
        settle(&purgatory, crowd.count(), 0);
        [nanos]
    }
}
