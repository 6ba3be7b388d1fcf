//! Compares delaywheel with other timers, and two commits of delaywheel: contestants, workloads,
//! one runner and one report.
//!
//! `src/main.rs` is the runner. A contestant of [`timers`] runs in virtual time, with ticks of one
//! millisecond: the caller passes the time to it. A contestant of [`shared`] has threads and reads
//! the clock itself. The timed loops are one source for all contestants, and every loop asserts its
//! result.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod bench;
pub mod beside;
pub mod figures;
pub mod measure;
pub mod os;
mod prelude;
pub mod purgatory;
pub mod report;
pub mod rows;
pub mod shared;
pub mod timers;
pub mod workload;

/// A set of timeouts, each with a payload of eight bytes and a deadline in ticks. It hands out
/// timeouts in the order of deadlines, and none early.
pub trait Timers {
    /// Names a timeout, to cancel or move it.
    type Key: Copy;

    const NAME: &'static str;

    /// Whether the key of an ended timeout is recognised. If not, it may panic or name another
    /// timeout.
    const HAS_SAFE_KEYS: bool = true;

    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key;

    /// Removes a timeout. Returns its payload, or `None` if it was not pending.
    fn cancel(&mut self, key: Self::Key) -> Option<u64>;

    /// Moves a timeout, which may change its key. Returns `None` if it was not pending.
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
        let payload = self.cancel(key)?;
        Some(self.insert(deadline, payload))
    }

    /// The tick at which to call [`advance`](Self::advance) next; `None` if nothing is pending.
    fn next_expiration(&mut self) -> Option<u64>;

    /// Lets time pass until `now` and hands out the payloads of due timeouts.
    fn advance(&mut self, now: u64, expired: impl FnMut(u64));

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
