//! Measures the memory that a purgatory takes for each request that waits, and says which targets
//! are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin purgatory_memory [-- --check]
//! ```
//!
//! A program of its own, since its allocator counts, which would weigh on what is timed. What is
//! counted is what was asked for; what the system's allocator adds to that is not known to it. K is
//! what Kafka's purgatory takes.

#![forbid(unsafe_code)]

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use delaywheel::{ManualClock, PurgatoryBuilder, Timer};
use delaywheel_compare::{
    purgatory::{Announce, ClosedLoop, Crowd, Demand, Requests, demands, demands_apart, settle},
    report::{
        self, Section,
        settings::Settings,
        table::{Row, count},
    },
};

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<System> = Cap::new(System, usize::MAX);

const WAITING: usize = 1_000_000;

/// Bytes of an operation, which are the user's.
const PAYLOAD: f64 = 8.0;

/// Bytes that may be left in all: what a few requests take.
const LEFT: f64 = 65_536.0;

fn main() -> ExitCode {
    report::run(&[Section::new("memory", rows)])
}

/// Bytes for each request that waits, and those that are left when all have ended.
fn rows(settings: &Settings) -> Vec<Row> {
    let waiting = if settings.is_quick { WAITING / 10 } else { WAITING };
    let shared = bytes(&demands(1, 0..100, waiting), |purgatory| {
        (0..100).map(|key| purgatory.check_and_complete(&key)).sum()
    });
    let own_keys: Vec<Demand<3>> = demands_apart(1, waiting);
    let own = bytes(&own_keys, |purgatory| {
        own_keys.iter().map(|demand| purgatory.check_and_complete(&demand.keys[0])).sum()
    });
    let row = |what, figure| {
        Row::new(format!("{what}, {waiting} on 3 keys"), "bytes", [("ours", figure)])
    };
    vec![
        row("each out of 100", shared.each).at_most(160.0 + PAYLOAD).beside("K 187-213"),
        row("each of its own", own.each).at_most(400.0 + PAYLOAD).beside("K 600"),
        row("left by all out of 100", shared.left).at_most(LEFT),
        row("left by all of their own", own.left).at_most(LEFT),
        row("left by all out of 100, after shrink", shared.left_by_shrink),
        row("left by all of their own, after shrink", own.left_by_shrink),
    ]
}

/// What a crowd takes, and leaves.
struct Bytes {
    /// For each request, with its payload.
    each: f64,
    /// In all, when all have ended.
    left: f64,
    /// The same, when the purgatory was told to shrink.
    left_by_shrink: f64,
}

/// Has a crowd wait and end. Time stands still, so that none expires meanwhile.
fn bytes(demands: &[Demand<3>], complete_all: impl FnOnce(&Requests) -> usize) -> Bytes {
    let timer = Timer::builder().clock(ManualClock::new());
    let purgatory: Requests = PurgatoryBuilder::new().timer(timer).build().expect("it is valid");
    // What the first requests leave is not taken for what the crowd does.
    let mut first = ClosedLoop::new(&purgatory, Announce::One, &demands[..1]);
    first.run(&demands[..1_000]);
    let first = first.finish();
    let before = LIVE.allocated();
    let crowd = Crowd::new(&purgatory, demands);
    let answers = demands.len();
    let each = count((LIVE.allocated() - before - answers) as u64) / count(crowd.count());
    crowd.make_ready();
    assert_eq!(complete_all(&purgatory) as u64, crowd.count());
    assert_eq!(crowd.satisfied(), crowd.count());
    let left = || count(LIVE.allocated().saturating_sub(before + answers) as u64);
    let left_at_once = left();
    purgatory.shrink();
    let left_by_shrink = left();
    settle(&purgatory, first.watched + crowd.count(), 0);
    Bytes { each, left: left_at_once, left_by_shrink }
}
