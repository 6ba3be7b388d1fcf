//! One way to drive every contestant: a trait, the workloads, and the loops that are timed.
//!
//! All are deterministic: time is a tick of one millisecond that the benchmark counts, and random
//! numbers are drawn from a stated seed before the clock starts. A loop in [`drive`] is compiled
//! once for each contestant from the same source, so what differs is the contestant.

#![forbid(unsafe_code)]

pub mod delivered;
pub mod drive;
pub mod promises;
pub mod purgatory;
pub mod real;
pub mod report;
pub mod shared;
pub mod side_by_side;
pub mod timers;
pub mod workload;

pub use self::promises::{Promises, Wakes};

/// A set of timeouts, each a payload of eight bytes and a deadline in ticks.
pub trait Timers {
    /// What a timeout is cancelled by.
    type Key: Copy;

    /// What the contestant is called in a report.
    const NAME: &'static str;

    /// What the contestant is, and how far it holds what is said of the methods below.
    const PROMISES: Promises;

    /// Adds a timeout.
    ///
    /// # Panics
    ///
    /// If it lies further ahead than [`Promises::max_delay`], which is counted from the latest
    /// [`advance`](Self::advance).
    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key;

    /// Takes out a timeout. Returns whether it was pending; never if [`Promises::can_cancel`] is not
    /// promised.
    fn cancel(&mut self, key: Self::Key) -> bool;

    /// Moves a timeout, which may give it another key; `None` if it was not pending, or could not be
    /// cancelled.
    ///
    /// # Panics
    ///
    /// As [`insert`](Self::insert).
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

    /// Makes one that is told tenths of its own tick, by which it is seen what it makes of times
    /// between two ticks. One that has no ticks of its own takes any unit, and is as ever.
    #[must_use]
    fn in_tenths() -> impl Timers
    where
        Self: Default,
    {
        Self::default()
    }
}
