//! One way to drive every contestant: a trait, the workloads, and the loops that are timed.
//!
//! All are deterministic: time is a tick of one millisecond that the benchmark counts, and random
//! numbers are drawn from a stated seed before the clock starts. A loop in [`drive`] is compiled
//! once for each contestant from the same source, so what differs is the contestant.

#![forbid(unsafe_code)]

pub mod delivered;
pub mod drive;
pub mod purgatory;
pub mod real;
pub mod report;
pub mod shared;
pub mod timers;
pub mod workload;

/// A set of timeouts, each a payload of eight bytes and a deadline in ticks.
pub trait Timers {
    /// What a timeout is cancelled by.
    type Key: Copy;

    /// What the contestant is called in a report.
    const NAME: &'static str;

    /// Adds a timeout.
    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key;

    /// Takes out a timeout. Returns whether it was pending.
    fn cancel(&mut self, key: Self::Key) -> bool;

    /// Moves a timeout, which may give it another key; `None` if it was not pending.
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key>;

    /// The tick at which to call [`advance`](Self::advance) next; `None` if nothing is pending.
    fn next_expiration(&mut self) -> Option<u64>;

    /// Lets time pass until `now`; hands out what is due, in order. Returns how many that were.
    fn advance(&mut self, now: u64, expired: impl FnMut(u64)) -> usize;

    /// Number of pending timeouts.
    fn len(&self) -> usize;

    /// Whether nothing is pending.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
