//! The counts of a purgatory. Each shard has counts of its own, under its lock.

use super::operation::Completion;
use crate::{histogram::Histogram, ticks::Nanos, timer::TimerStats};

/// Counts of a purgatory, from [`Purgatory::stats`](super::Purgatory::stats).
///
/// Each operation that was not refused is in exactly one of `at_once`, `delayed`, `satisfied`,
/// `expired`, `cancelled`, `displaced` and `shut_down`. The shards are read one after the other, so
/// under concurrency the sums do not belong to one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PurgatoryStats {
    /// Operations that wait.
    pub delayed: u64,
    /// Watchers: an operation counts once for each of its keys and thresholds.
    pub watched: u64,
    /// Keys that are watched. A key counts once in each shard that has a watcher of it.
    pub keys: u64,
    /// Operations that could complete at once and never waited.
    pub at_once: u64,
    /// Operations that waited until they could complete, or that a caller completed by their key.
    pub satisfied: u64,
    /// Operations that waited until their delay ended.
    pub expired: u64,
    /// Operations that were cancelled.
    pub cancelled: u64,
    /// Operations that made room for newer ones.
    pub displaced: u64,
    /// Operations that waited when the purgatory was shut down.
    pub shut_down: u64,
    /// Operations that were refused.
    pub refused: u64,
    /// Panics of the user's code that the purgatory caught: of methods of operations, of drops of
    /// keys, and of a clock.
    pub panicked: u64,
    /// Waiting times of the operations that have ended.
    ///
    /// A wait ends when a thread reads the clock, just before it takes the lock under which the
    /// operation ends.
    pub waits: Histogram,
    /// Counts of the purgatory's timer: lateness, wake-ups.
    pub timer: TimerStats,
}

impl PurgatoryStats {
    /// Counts the end of an operation that waited this long.
    #[inline]
    pub(super) fn count(&mut self, completion: Completion, waited: Nanos) {
        *match completion {
            Completion::Satisfied => &mut self.satisfied,
            Completion::Expired => &mut self.expired,
            Completion::Cancelled => &mut self.cancelled,
            Completion::Displaced => &mut self.displaced,
            Completion::ShutDown => &mut self.shut_down,
        } += 1;
        self.waits.record(waited, 1);
    }

    /// Adds the counts of a shard: its watchers, and the ends of its operations.
    pub(super) fn add(&mut self, shard: &Self) {
        self.watched += shard.watched;
        self.satisfied += shard.satisfied;
        self.expired += shard.expired;
        self.cancelled += shard.cancelled;
        self.displaced += shard.displaced;
        self.shut_down += shard.shut_down;
        self.waits.add(&shard.waits);
    }
}
