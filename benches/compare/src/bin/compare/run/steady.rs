//! Steady states: cancel and insert, a request server, connections that are kept alive.

use std::time::{Duration, Instant};

use delaywheel_compare::{
    Timers,
    report::table::count,
    side_by_side::{
        names::{CHURN_LOG_UNIFORM, CHURN_UNIFORM, KEEP_ALIVE, REQUESTS},
        traffic::{Delays, Operation, Steady, Traffic},
    },
    timers::{Visitor, visit_all},
    workload::Spread,
};

use super::record::{Demand, Record};

/// Requests in flight, and connections.
const IN_FLIGHT: u32 = 100_000;

/// Operations that get a contestant into its steady state, or as many as there are timeouts.
const LEAST_WARM_UP: u32 = 200_000;

/// How long a contestant may take to get into its steady state, besides inserting all.
const WARM_UP: Duration = Duration::from_secs(5);

/// Cancels and inserts while some are pending, and time goes on.
pub(crate) fn churn(record: &mut Record) {
    for (workload, spread) in [(CHURN_UNIFORM, Spread::Minute), (CHURN_LOG_UNIFORM, Spread::Month)]
    {
        // Ten million take minutes, which are spent once.
        let most = if spread == Spread::Minute { u32::MAX } else { 1_000_000 };
        for &pending in record.scope.sizes().iter().filter(|pending| **pending <= most) {
            let traffic = |operations, seed| {
                Traffic::new(Operation::Replace, Delays::Drawn(spread), pending, operations, seed)
            };
            measure(record, workload, pending, Delays::Drawn(spread).max(), traffic);
        }
    }
}

/// A request server, where nothing expires; and connections that are kept alive.
pub(crate) fn server(record: &mut Record) {
    let pending = record.scope.pick(IN_FLIGHT, 1_000);
    let requests = |operations, seed| Traffic::requests(pending, operations, seed);
    measure(record, REQUESTS, pending, Traffic::REQUEST, requests);
    let connections = |operations, seed| Traffic::connections(pending, operations, seed);
    measure(record, KEEP_ALIVE, pending, Traffic::CONNECTION, connections);
}

fn measure(
    record: &mut Record,
    workload: &'static str,
    pending: u32,
    max_delay: u64,
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
        let [warm_up, limit] = [WARM_UP, Duration::from_secs(1)]
            .map(|full| self.record.scope.pick(full, Duration::from_millis(30)));
        steady.run(u64::from(demand.pending.max(LEAST_WARM_UP)), warm_up);
        let (done, time) = steady.run(u64::from(self.operations), limit);
        let (lost, pending) = (steady.lost(), steady.pending());
        let value = time.as_secs_f64() * 1e9 / count(done);
        self.record.add(T::NAME, u64::from(demand.pending), (demand.workload, "ns"), value);
        if lost > 0 || pending != demand.pending as usize {
            let note = format!("{lost} were not there to be cancelled, {pending} are pending");
            self.record.note(T::NAME, demand.workload, note);
        }
        self.record.took(T::NAME, demand.workload, start.elapsed());
    }
}
