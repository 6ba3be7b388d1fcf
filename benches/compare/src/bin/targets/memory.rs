//! Bytes that a timeout takes: pending, at the peak of a churn, and after all are gone.

use delaywheel_compare::{
    Timers,
    report::{settings::Settings, table::Row},
    timers::{BTree, DelayQueue, LazyHeap, Wheel},
    workload::{Spread, Workload},
};
use peakmem_alloc::PeakMemAllocTrait;

use crate::{
    LIVE, PEAK,
    entrant::Entrant,
    server::{IN_FLIGHT, Order, PAIRS, Server},
};

const PENDING: u32 = 1_000_000;

/// Bytes per timeout, and what is left of them.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let turns = if settings.is_quick { 1 } else { 10 };
    let mut rows = vec![pending_row().at_most(40.0)];
    rows.extend([Order::Random, Order::OldestFirst].map(|order| peak_row(order, turns)));
    rows.extend(shrink_rows());
    rows
}

fn pending_row() -> Row {
    let deadlines = Workload::new(Spread::Minute, 1).deadlines(PENDING);
    let figures = [
        bytes_pending(Entrant::<Wheel>::new(), &deadlines),
        bytes_pending(Entrant::<LazyHeap>::new(), &deadlines),
        bytes_pending(Entrant::<BTree>::new(), &deadlines),
        bytes_pending(Entrant::<DelayQueue>::new(), &deadlines),
    ];
    Row::new(format!("memory per pending timeout at {PENDING}"), "bytes", figures)
}

/// Live bytes per timeout when all are pending.
pub(crate) fn bytes_pending<T: Timers>(
    entrant: Entrant<T>,
    deadlines: &[u64],
) -> (&'static str, f64) {
    let Entrant { name, make } = entrant;
    let before = LIVE.allocated();
    let mut timers = make();
    for &deadline in deadlines {
        timers.insert(deadline, deadline);
    }
    let bytes = LIVE.allocated() - before;
    assert_eq!(timers.len(), deadlines.len());
    (name, quotient(bytes, deadlines.len()))
}

fn peak_row(order: Order, turns: u32) -> Row {
    let figures = [
        bytes_at_peak(Entrant::<Wheel>::new(), order, turns),
        bytes_at_peak(Entrant::<LazyHeap>::new(), order, turns),
        bytes_at_peak(Entrant::<BTree>::new(), order, turns),
        bytes_at_peak(Entrant::<DelayQueue>::new(), order, turns),
    ];
    let pairs = PAIRS * turns;
    let name = format!("memory at the peak of {pairs} pairs, {}", order.name());
    Row::new(name, "bytes", figures).at_most(72.0)
}

/// The peak of live bytes per request in flight, over all the life of a request server.
fn bytes_at_peak<T: Timers>(entrant: Entrant<T>, order: Order, turns: u32) -> (&'static str, f64) {
    let Entrant { name, make } = entrant;
    let (victims, mut server) = (order.victims(), Server::new(make()));
    PEAK.reset_peak_memory();
    server.ramp_up();
    for _ in 0..turns {
        server.serve(&victims);
    }
    let peak = PEAK.get_peak_memory();
    assert_eq!(server.timers.len(), IN_FLIGHT as usize);
    (name, quotient(peak, IN_FLIGHT as usize))
}

/// What the wheel gives back when all is cancelled and it is told to shrink.
fn shrink_rows() -> [Row; 2] {
    let victims = Order::Random.victims();
    let mut server = Server::new(Wheel::default());
    let baseline = LIVE.allocated();
    server.ramp_up();
    server.serve(&victims);
    let full = LIVE.allocated() - baseline;
    for &key in &server.keys {
        assert!(server.timers.cancel(key));
    }
    server.timers.get_mut().shrink();
    let after = LIVE.allocated() - baseline;
    let row = |name, bytes| Row::new(name, "bytes", [(Wheel::NAME, quotient(bytes, 1))]);
    [
        row("memory of all before cancel and shrink", full),
        row("memory of all after cancel and shrink", after).at_most(0.0),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "sizes of memory are far below 2^52 bytes")]
fn quotient(bytes: usize, count: usize) -> f64 {
    bytes as f64 / count as f64
}
