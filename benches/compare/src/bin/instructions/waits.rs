//! What is counted of the purgatory: requests that wait and complete, and announcements that
//! complete none.
//!
//! How keys are hashed differs from process to process, and with it where they are in their table.
//! That makes a difference where a request comes and goes, of 0.3 %. Nobody waits where
//! a check finds nobody, since a filter by hash would now and then take another key for that one.

use delaywheel::{ManualClock, PurgatoryBuilder, Timer};
use delaywheel_compare::purgatory::{Announce, ClosedLoop, Crowd, Demand, Requests, demands};

use crate::scenarios::Scenario;

/// Requests that wait besides, on other keys.
const OTHERS: usize = 1_000;

/// The key of which something is announced.
const KEY: u32 = 0;

/// With two shards, whatever the machine has: an announcement looks at each. Never freed, so that
/// loops may borrow it.
fn requests() -> &'static Requests {
    let timer = Timer::builder().clock(ManualClock::new()).shards(2);
    let purgatory = PurgatoryBuilder::new().timer(timer).build();
    Box::leak(Box::new(purgatory.expect("the settings are valid")))
}

/// A request waits on three keys out of 100, and is completed through one.
pub(crate) struct WatchComplete {
    requests: ClosedLoop<'static, 3>,
    demands: Vec<Demand<3>>,
    seed: u64,
}

impl WatchComplete {
    pub(crate) fn new() -> Self {
        let purgatory = requests();
        let _others = Crowd::new(purgatory, &demands::<3>(0, 1_000..1_100, OTHERS));
        let first = demands(0, 0..100, 1);
        let requests = ClosedLoop::new(purgatory, Announce::One, &first);
        Self { requests, demands: Vec::new(), seed: 0 }
    }
}

impl Scenario for WatchComplete {
    fn prepare(&mut self, count: usize) {
        self.seed += 1;
        self.demands = demands(self.seed, 0..100, count);
    }

    #[inline(never)]
    fn run(&mut self) {
        self.requests.run(&self.demands);
    }
}

/// Events on keys that nobody watches.
pub(crate) struct CheckNone {
    purgatory: &'static Requests,
    count: u32,
}

impl CheckNone {
    pub(crate) fn new() -> Self {
        Self { purgatory: requests(), count: 0 }
    }
}

impl Scenario for CheckNone {
    fn prepare(&mut self, count: usize) {
        self.count = u32::try_from(count).expect("few are counted");
    }

    #[inline(never)]
    fn run(&mut self) {
        for key in 0..self.count {
            assert_eq!(self.purgatory.check_and_complete(&key), 0);
        }
    }
}

/// An event on a key upon which none of those that watch it can complete; counted is each of them.
pub(crate) struct CheckWaiting {
    purgatory: &'static Requests,
    crowd: Option<Crowd>,
}

impl CheckWaiting {
    pub(crate) fn new() -> Self {
        Self { purgatory: requests(), crowd: None }
    }
}

impl Scenario for CheckWaiting {
    fn prepare(&mut self, count: usize) {
        if let Some(crowd) = self.crowd.take() {
            crowd.make_ready();
            assert_eq!(self.purgatory.check_and_complete(&KEY) as u64, crowd.count());
        }
        self.crowd = Some(Crowd::new(self.purgatory, &demands::<1>(0, KEY..KEY + 1, count)));
    }

    #[inline(never)]
    fn run(&mut self) {
        assert_eq!(self.purgatory.check_and_complete(&KEY), 0);
    }
}

/// Advances of a value below the thresholds of those that wait for it.
pub(crate) struct AdvanceNone {
    purgatory: &'static Requests,
    count: u64,
}

impl AdvanceNone {
    pub(crate) fn new() -> Self {
        let purgatory = requests();
        let _waiting = Crowd::on_value(purgatory, KEY, u64::from(u32::MAX), OTHERS);
        Self { purgatory, count: 0 }
    }
}

impl Scenario for AdvanceNone {
    fn prepare(&mut self, count: usize) {
        self.count = count as u64;
    }

    #[inline(never)]
    fn run(&mut self) {
        for value in 0..self.count {
            assert_eq!(self.purgatory.advance(&KEY, value), 0);
        }
    }
}
