//! Every public function with values at the edges: it panics only where its documentation says so,
//! and always returns.

mod clock;
mod purgatory;
mod queue;
mod rhythms;
mod ticks;
mod timer;
mod wheel;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Numbers at which arithmetic overflows, or another level begins.
pub(crate) const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    63,
    64,
    65,
    4095,
    4096,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

pub(crate) const DELAYS: [Duration; 10] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_nanos(999_999),
    Duration::from_millis(1),
    Duration::from_secs(1),
    Duration::from_nanos(i64::MAX as u64),
    Duration::from_nanos(u64::MAX),
    Duration::from_millis(u64::MAX),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

/// Numbers for percentages, some of which are out of range.
pub(crate) const PERCENTS: [f64; 9] =
    [0.0, -0.0, -1.0, 50.0, 100.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

/// Instants as far from the present as there are, in both directions.
pub(crate) fn instants() -> Vec<Instant> {
    let now = Instant::now();
    let far = DELAYS.into_iter().flat_map(|delay| [now.checked_add(delay), now.checked_sub(delay)]);
    far.flatten().collect()
}

/// Runs a call that must panic, as its documentation says.
#[track_caller]
pub(crate) fn must_panic<R>(run: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the documentation says that it panics");
}
