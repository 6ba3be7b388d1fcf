//! Every contestant beside an oracle: it keeps its promises, and its limits are real.

#![forbid(unsafe_code)]

mod limits;
mod purgatory;
mod scripts;
mod shared;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A lock for tests that advance a `DelayQueue`: all queues share one clock.
fn hold_paused_clock() -> MutexGuard<'static, ()> {
    static CLOCK: Mutex<()> = Mutex::new(());
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a call panics.
fn panics<R>(call: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}
