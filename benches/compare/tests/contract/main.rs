//! Every contestant beside an oracle: it keeps its promises, and its limits are real.

#![forbid(unsafe_code)]

mod oracle;
mod peers;
mod purgatory;
mod schemes;
mod scripts;
mod shared;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

use delaywheel_compare::Timers;

/// A lock for tests that let the time of a `DelayQueue` pass: all queues share one clock.
fn hold_paused_clock() -> MutexGuard<'static, ()> {
    static CLOCK: Mutex<()> = Mutex::new(());
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the payloads that an advance hands out.
fn advance<T: Timers>(timers: &mut T, now: u64) -> Vec<u64> {
    let mut payloads = Vec::new();
    assert_eq!(timers.advance(now, |payload| payloads.push(payload)), payloads.len());
    payloads
}

/// Wakes a contestant as it asks until something expires. Returns the tick, and the number of
/// wake-ups.
fn wake_until_expired<T: Timers>(timers: &mut T) -> (u64, u32) {
    let mut wakeups = 0;
    while let Some(now) = timers.next_expiration() {
        wakeups += 1;
        if !advance(timers, now).is_empty() {
            return (now, wakeups);
        }
    }
    panic!("{} lost a timeout", T::NAME);
}

/// Whether a call panics.
fn panics<R>(call: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}
