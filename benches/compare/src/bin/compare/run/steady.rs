//! Steady states: cancel and insert, a request server, connections that are kept alive.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Timers,
    report::table::count,
    side_by_side::{
        names::{CHURN_LOG_UNIFORM, CHURN_UNIFORM, KEEP_ALIVE, REQUESTS},
        traffic::{Delays, Steady, Traffic},
    },
    timers::{Visitor, visit_all},
    workload::{SECOND, Spread},
};

use super::record::{Demand, Record};

/// Requests in flight, and connections.
const IN_FLIGHT: u32 = 100_000;

/// Ticks until the state of any churn is steady; the month of some is not waited for.
const MINUTE: u64 = 60 * SECOND;

/// How long a contestant may take to get into its steady state, besides inserting all.
const WARM_UP: Duration = Duration::from_secs(8);

/// For how long it is measured at most.
const LIMIT: Duration = Duration::from_secs(2);

/// Cancels and inserts while some are pending, and time goes on.
pub(crate) fn churn(record: &mut Record) {
    for (workload, spread) in [(CHURN_UNIFORM, Spread::Minute), (CHURN_LOG_UNIFORM, Spread::Month)]
    {
        // Ten million take minutes, which are spent once.
        let most = if spread == Spread::Minute { u32::MAX } else { 1_000_000 };
        for &pending in record.scope.sizes().iter().filter(|pending| **pending <= most) {
            let traffic = |operations, seed| Traffic::churn(spread, pending, operations, seed);
            let max_delay = Delays::Drawn(spread).max();
            measure(record, workload, (pending, max_delay), traffic);
        }
    }
}

/// A request server, where nothing expires; and connections that are kept alive.
pub(crate) fn server(record: &mut Record) {
    let pending = record.scope.pick(IN_FLIGHT, 1_000);
    let requests = |operations, seed| Traffic::requests(pending, operations, seed);
    measure(record, REQUESTS, (pending, Traffic::REQUEST), requests);
    let connections = |operations, seed| Traffic::connections(pending, operations, seed);
    measure(record, KEEP_ALIVE, (pending, Traffic::CONNECTION), connections);
}

fn measure(
    record: &mut Record,
    workload: &'static str,
    (pending, max_delay): (u32, u64),
    traffic: impl Fn(u32, u64) -> Traffic,
) {
    let operations = record.scope.pick(1_000_000, 20_000);
    let traffic = traffic(operations, record.scope.seed);
    let demand = Demand { workload, pending, max_delay, must_cancel: true };
    for round in 1..=record.scope.rounds_at(pending) {
        record.tell(&format!("{workload} at {pending}, round {round}"));
        visit_all(&mut Turn { record, demand, operations, traffic: &traffic });
    }
}

struct Turn<'a> {
    record: &'a mut Record,
    demand: Demand,
    operations: u32,
    traffic: &'a Traffic,
}

impl Visitor for Turn<'_> {
    fn visit<T: Timers + Default>(&mut self) {
        let Self { demand, traffic, .. } = *self;
        if !self.record.admits(T::NAME, &T::PROMISES, &demand) {
            return;
        }
        let start = Instant::now();
        let mut steady = Steady::new(T::default(), traffic);
        steady.ramp_up();
        let [warm_up, limit] =
            [WARM_UP, LIMIT].map(|full| self.record.scope.pick(full, Duration::from_millis(50)));
        let is_steady = steady.pass(demand.max_delay.min(MINUTE), warm_up);
        let (done, time) = steady.run(u64::from(self.operations), limit);
        let (lost, pending) = (steady.lost(), steady.pending());
        let value = time.as_secs_f64() * 1e9 / count(done);
        self.record.add(T::NAME, u64::from(demand.pending), (demand.workload, "ns"), value);
        if lost > 0 || pending != demand.pending as usize {
            let note = format!("{lost} were not there to be cancelled, {pending} are pending");
            self.record.note(T::NAME, demand.workload, note);
        } else if !is_steady {
            let note = format!("not steady: less than the longest delay within {warm_up:?}");
            self.record.note(T::NAME, demand.workload, note);
        }
        self.record.took(T::NAME, demand.workload, start.elapsed());
    }
}
