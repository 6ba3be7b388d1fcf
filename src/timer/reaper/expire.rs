//! The expiration of due timeouts: in bounded holds, with their lateness, and their hand-off.

use std::{time::Duration, vec::Vec};

use super::shared::Shared;
use crate::{
    tick::Tick,
    ticks::Nanos,
    timer::{executor::Delivery, shards::annex::Annex, tick_clock::Reading},
    wheel::Expired,
};

/// Steps of one hold of a shard's lock if the reaper is on time: 5 to 10 us, if each step misses
/// the cache. A hold that gathers part of a long run takes up to 137 us.
const LEAST_STEPS: u32 = 64;

/// Steps of one hold at most, however late the reaper is: 100 to 400 us.
const MOST_STEPS: u32 = 4096;

/// Returns how many steps the reaper takes in one hold if timeouts are this late: twice as many for
/// each millisecond.
fn steps_per_hold(lateness: Duration) -> u64 {
    let doublings = u32::try_from(lateness.as_millis()).unwrap_or(u32::MAX);
    let steps = LEAST_STEPS.checked_shl(doublings).filter(|steps| *steps >= LEAST_STEPS);
    let steps = steps.unwrap_or(MOST_STEPS).min(MOST_STEPS);
    debug_assert!(steps >= LEAST_STEPS, "{steps} steps for a lateness of {lateness:?}");
    u64::from(steps)
}

/// The work of the reaper in one hold of each shard.
pub(super) struct Holds {
    pub(super) now: Tick,
    /// The greatest lateness; `None` if no timeout expired.
    pub(super) lateness: Option<Duration>,
    /// Whether no due timeout is left.
    pub(super) is_drained: bool,
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X, X::Due> {
    /// Expires all due timeouts and hands them off, a bounded number at a time.
    pub(crate) fn expire_due(&self, delivery: &Delivery<X::Due>) {
        let (mut batch, mut lateness) = (Vec::new(), Duration::ZERO);
        loop {
            let holds = self.expire_some(delivery, &mut batch, lateness);
            lateness = holds.lateness.unwrap_or(lateness);
            if holds.is_drained {
                return;
            }
        }
    }

    /// Expires due timeouts and hands them off, in one hold of each shard. Its length depends on
    /// the lateness of the timeouts before.
    pub(super) fn expire_some(
        &self,
        delivery: &Delivery<X::Due>,
        batch: &mut Vec<Expired<X::Due>>,
        lateness: Duration,
    ) -> Holds {
        let read @ Reading { elapsed, now } = self.shards.clock().read();
        let mut batch_lateness = None;
        let is_drained = delivery.hand_off(&self.handler, batch, |batch| {
            let is_drained = self.shards.expire(read, steps_per_hold(lateness), batch);
            batch_lateness = self.record_lateness(elapsed, batch);
            is_drained
        });
        batch_lateness.inspect(|lateness| self.handler.events().expired(*lateness));
        Holds { now, lateness: batch_lateness, is_drained }
    }

    /// Records the lateness of a batch that is handed off `elapsed` after the start of the timer.
    /// Returns the greatest; `None` if the batch is empty.
    fn record_lateness(&self, elapsed: Nanos, batch: &[Expired<X::Due>]) -> Option<Duration> {
        if batch.is_empty() {
            return None;
        }
        let elapsed = Duration::from(elapsed);
        let mut greatest = Duration::ZERO;
        let mut stats = self.reaper_stats.lock();
        // Many timeouts have the same deadline, and these are equally late.
        for equal in batch.chunk_by(|one, next| one.deadline == next.deadline) {
            let deadline = self.shards.clock().since_origin(equal[0].deadline);
            let lateness = elapsed.saturating_sub(deadline);
            stats.lateness.record(lateness, equal.len() as u64);
            greatest = greatest.max(lateness);
        }
        debug_assert!(greatest <= stats.lateness.max(), "a lateness was not recorded");
        Some(greatest)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_hold_grows_with_the_lateness_and_ends() {
        let steps = [0, 1, 2, 5, 6, 25, 26, 27, 1000].map(|late| {
            assert!(steps_per_hold(Duration::from_micros(late * 1000 + 999)) >= 64);
            steps_per_hold(Duration::from_millis(late))
        });
        assert_eq!(steps, [64, 128, 256, 2048, 4096, 4096, 4096, 4096, 4096]);
        assert_eq!(steps_per_hold(Duration::MAX), 4096);
    }
}
