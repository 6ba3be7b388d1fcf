//! Operations of [`Timer`](delaywheel::Timer) and [`ValueTimer`](delaywheel::ValueTimer).
//!
//! ```text
//! cargo bench --bench timer                                # all
//! cargo bench --bench timer -- timer/schedule_cancel/1e6   # one operation and size
//! ```
//!
//! A path is `timer/OPERATION/PENDING/KIND`; a kind is `value` for values of 8 bytes, or `closure`.
//! Delays are 1 ms to 60 s, and a minute more for pairs of schedule and cancel. These run on the
//! system clock, the others on a manual one.

#![forbid(unsafe_code)]

mod shared;
#[path = "shared/timeouts.rs"]
mod timeouts;

use timeouts::{run, subject};

fn main() {
    let mut criterion = shared::criterion();
    run::<subject::Values>(&mut criterion, "timer", "schedule_cancel", "/value");
    run::<subject::Closures>(&mut criterion, "timer", "schedule_cancel", "/closure");
    criterion.final_summary();
}
