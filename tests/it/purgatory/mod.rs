//! The purgatory, mostly in virtual time. With real threads, a test waits for a condition and never
//! for time to pass.

mod bounds;
mod checks;
mod crowds;
mod deadlocks;
mod ends;
mod holds;
mod keys;
mod limits;
#[cfg(target_pointer_width = "64")]
mod memory;
mod panics;
mod reentry;
pub(crate) mod support;
mod thresholds;
