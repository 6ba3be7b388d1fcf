//! The counts of a purgatory. Each shard has its own, under its lock.

use std::time::Duration;

use super::operation::Completion;
use crate::{histogram::Histogram, ticks::Nanos};

/// The first operations of a shard, whose waits are all measured.
const MEASURED: u64 = 1024;

/// After these, one operation in this many is measured, and counts for as many.
const SAMPLED: u64 = 8;

/// Returns the weight of an operation's wait in the histogram, or 0 if it is not measured. Reading
/// the clock costs as much as several locks, so most waits are not measured.
///
/// The multiplication is by the golden ratio. So about one in eight of any few hundred successive
/// operations is measured, and no period in the program can match the pattern.
#[inline]
pub(super) const fn wait_weight(serial: u64) -> u64 {
    if serial < MEASURED {
        return 1;
    }
    let is_sampled = serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) < u64::MAX / SAMPLED + 1;
    if is_sampled { SAMPLED } else { 0 }
}

/// Numbers of waiting operations and of their watchers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) delayed: u64,
    pub(super) watched: u64,
}

/// The counts of a shard.
pub(super) struct ShardStats {
    satisfied: u64,
    expired: u64,
    cancelled: u64,
    displaced: u64,
    shut_down: u64,
    waits: Histogram,
}

impl ShardStats {
    pub(super) fn new() -> Self {
        Self {
            satisfied: 0,
            expired: 0,
            cancelled: 0,
            displaced: 0,
            shut_down: 0,
            waits: Histogram::new(),
        }
    }

    /// Returns the number of operations that waited and ended.
    pub(super) const fn ended(&self) -> u64 {
        self.satisfied + self.expired + self.cancelled + self.displaced + self.shut_down
    }

    /// Counts an operation that waited this long. Its wait counts as `weight` waits.
    #[inline]
    pub(super) fn count<R>(&mut self, completion: &Completion<R>, waited: Nanos, weight: u64) {
        let outcome = match completion {
            Completion::Satisfied => &mut self.satisfied,
            Completion::Expired => &mut self.expired,
            Completion::Cancelled(_) => &mut self.cancelled,
            Completion::Displaced => &mut self.displaced,
            Completion::ShutDown => &mut self.shut_down,
        };
        *outcome += 1;
        if weight > 0 {
            self.waits.record(waited, weight);
        }
    }

    pub(super) fn add_to(&self, stats: &mut PurgatoryStats) {
        stats.satisfied += self.satisfied;
        stats.expired += self.expired;
        stats.cancelled += self.cancelled;
        stats.displaced += self.displaced;
        stats.shut_down += self.shut_down;
        stats.waits.add(&self.waits);
    }
}

/// Counts of a purgatory, from [`Purgatory::stats`](super::Purgatory::stats).
///
/// Each operation that was not refused is in exactly one of `at_once`, `delayed`, `satisfied`,
/// `expired`, `cancelled`, `displaced` and `shut_down`. The shards are read one after the other, so
/// under concurrency the sums do not belong to one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PurgatoryStats {
    /// Operations that wait.
    pub delayed: u64,
    /// Watchers: an operation counts once for each of its keys and thresholds.
    pub watched: u64,
    /// Keys that are watched, counted once in each shard where they are.
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
    /// Panics in methods of operations.
    pub panicked: u64,
    /// Waiting times of the operations that have ended.
    ///
    /// The first 1024 operations of each shard are all measured. After these, one in eight is
    /// measured and counts for eight, so [`count`](Histogram::count) is the number of ended
    /// operations to within a few, and [`max`](Histogram::max) is the greatest wait measured.
    pub waits: Histogram,
}

impl PurgatoryStats {
    pub(super) fn new() -> Self {
        Self {
            delayed: 0,
            watched: 0,
            keys: 0,
            at_once: 0,
            satisfied: 0,
            expired: 0,
            cancelled: 0,
            displaced: 0,
            shut_down: 0,
            refused: 0,
            panicked: 0,
            waits: Histogram::new(),
        }
    }

    /// Returns the wait that `percent` of the operations did not exceed, of those that waited and
    /// have ended. Returns zero if there are none.
    #[must_use]
    pub fn wait_percentile(&self, percent: f64) -> Duration {
        self.waits.percentile(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_successive_operations_add_up_to_their_number() {
        assert!((0..MEASURED).all(|serial| wait_weight(serial) == 1));
        for start in [MEASURED, 5_000, 1 << 20, 1 << 40] {
            for count in [100, 1_000, 10_000] {
                for step in [1, 2, 3, 8, 64] {
                    let serials = (0..count).map(|number| start + number * step);
                    let sum: u64 = serials.map(wait_weight).sum();
                    let is_near = sum.abs_diff(count) <= 8 * SAMPLED;
                    assert!(is_near, "{count} from {start} by {step} count as {sum}");
                }
            }
        }
    }
}
