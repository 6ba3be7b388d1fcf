//! The worst of the calls that are to be short: a step of time, and a cancel that sweeps.

use std::hint::black_box;

use delaywheel::{Tick, TimingWheel};
use delaywheel_compare::{
    Timers,
    drive::{Ledger, insert_all, timed},
    report::{settings::Settings, table::Row},
    timers::{LazyHeap, Wheel},
    workload::{SECOND, Spread, Workload},
};

use crate::latency::{Latencies, nanos};

const PENDING: u32 = 1_000_000;

/// Ticks by which time moves at once.
const STEP: usize = 10;

/// Steps of the wheel that one call may take.
const LIMIT: u64 = 4_096;

/// The longest that one call may take, in microseconds.
const BOUND: f64 = 300.0;

/// Microseconds of one `advance`, and of one `cancel`, at the far end.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let deadlines = Workload::new(Spread::Minute, 4).deadlines(PENDING);
    let mut rows = advance_rows(settings.rounds, &deadlines);
    rows.extend(cancel_rows(settings.rounds, &deadlines));
    rows
}

fn advance_rows(rounds: usize, deadlines: &[u64]) -> Vec<Row> {
    let latencies = Latencies::of(
        rounds,
        vec![
            ("wheel, limit 4096", Box::new(|calls: &mut _| advance_limited(deadlines, calls))),
            ("wheel", Box::new(|calls: &mut _| advance::<Wheel>(deadlines, calls))),
            ("lazy_heap", Box::new(|calls: &mut _| advance::<LazyHeap>(deadlines, calls))),
        ],
    );
    let name = |which| format!("one advance by 10 ms at 1e6: {which}");
    vec![
        Row::new(name("p99.9"), "us", latencies.micros(99.9)).at_most(BOUND),
        Row::new(name("max"), "us", latencies.micros(100.0)).at_most(BOUND),
    ]
}

fn cancel_rows(rounds: usize, deadlines: &[u64]) -> Vec<Row> {
    let victims = Workload::new(Spread::Minute, 5).order(PENDING);
    let latencies = Latencies::of(
        rounds,
        vec![
            ("wheel", Box::new(|calls: &mut _| cancel_all::<Wheel>(deadlines, &victims, calls))),
            (
                "lazy_heap",
                Box::new(|calls: &mut _| cancel_all::<LazyHeap>(deadlines, &victims, calls)),
            ),
        ],
    );
    let name = |which| format!("one cancel of 1e6 cancelled: {which}");
    vec![
        Row::new(name("p99.99"), "us", latencies.micros(99.99)).at_most(BOUND),
        Row::new(name("max"), "us", latencies.micros(100.0)).at_most(BOUND),
    ]
}

/// Ticks at which time stands still for a call.
fn stops() -> impl Iterator<Item = u64> {
    (0..=60 * SECOND).step_by(STEP)
}

fn advance<T: Timers + Default>(deadlines: &[u64], calls: &mut Vec<u32>) {
    let mut timers = T::default();
    insert_all(&mut timers, deadlines, &mut Vec::new());
    let mut ledger = Ledger::default();
    for now in stops() {
        let (duration, count) = timed(|| {
            timers.advance(now, |deadline| ledger.sum = ledger.sum.wrapping_add(deadline))
        });
        calls.push(nanos(duration));
        ledger.count += count;
    }
    assert_eq!(ledger, Ledger::of(deadlines));
}

fn advance_limited(deadlines: &[u64], calls: &mut Vec<u32>) {
    let mut timers = Wheel::default();
    insert_all(&mut timers, deadlines, &mut Vec::new());
    let mut ledger = Ledger::default();
    for now in stops() {
        let mut is_drained = false;
        while !is_drained {
            let wheel = timers.get_mut();
            let (duration, drained) = timed(|| advance_once(wheel, now, &mut ledger));
            calls.push(nanos(duration));
            is_drained = drained;
        }
    }
    assert_eq!(ledger, Ledger::of(deadlines));
}

/// One call of `advance`, as between two holds of a lock. Returns whether nothing is due any more.
fn advance_once(wheel: &mut TimingWheel<u64>, now: u64, ledger: &mut Ledger) -> bool {
    let mut due = wheel.advance(Tick::new(now)).limit(LIMIT);
    for expired in due.by_ref() {
        ledger.count += 1;
        ledger.sum = ledger.sum.wrapping_add(expired.value);
    }
    due.is_drained()
}

fn cancel_all<T: Timers + Default>(deadlines: &[u64], victims: &[u32], calls: &mut Vec<u32>) {
    let (mut timers, mut keys) = (T::default(), Vec::new());
    insert_all(&mut timers, deadlines, &mut keys);
    for &victim in victims {
        let key = black_box(keys[victim as usize]);
        let (duration, is_cancelled) = timed(|| timers.cancel(key));
        calls.push(nanos(duration));
        assert!(is_cancelled, "a victim was not pending");
    }
    assert!(timers.is_empty());
}
