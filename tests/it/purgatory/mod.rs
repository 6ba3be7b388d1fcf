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
mod panics;
mod reentry;
pub(crate) mod support;
mod thresholds;
