//! The shards as the reaper, or a driver in its place, sees them: expiration, sleep and wake-up.

#[cfg(feature = "future")]
use std::task::Waker;
use std::vec::Vec;

#[cfg(feature = "future")]
use super::driver_waker::DriverWaker;
use super::{Shards, annex::Annex};
use crate::{tick::Tick, timer::tick_clock::Reading, wheel::Expired};

impl<T, X> Shards<T, X> {
    /// Appends due timeouts to `expired`, in at most `steps` steps a shard. Returns whether no due
    /// timeout is left.
    pub(crate) fn expire(
        &self,
        read: Reading,
        steps: u64,
        expired: &mut Vec<Expired<X::Due>>,
    ) -> bool
    where
        X: Annex<T>,
    {
        let mut is_drained = true;
        for shard in self.all.iter().filter(|shard| shard.published() <= read.now) {
            is_drained &= shard.expire(read, steps, &self.permits, expired);
        }
        is_drained
    }

    /// Returns the least published expiration; `Tick::MAX` also stands for none.
    pub(crate) fn next_expiration(&self) -> Tick {
        self.all.iter().map(|shard| shard.published()).min().unwrap_or(Tick::MAX)
    }

    /// Returns the least tick at which the reaper has work; `None` if no timeout is pending.
    ///
    /// Unlike the published expirations, a cancelled timeout does not make it too early. It takes
    /// each shard's lock for a moment.
    pub(crate) fn next_turn(&self) -> Option<Tick> {
        self.all.iter().filter_map(|shard| shard.next_turn()).min()
    }

    /// Announces that the reaper sleeps until the next expiration, or until `latest` if that is
    /// earlier. Returns that tick; `None` if the reaper must not sleep.
    pub(crate) fn fall_asleep(&self, now: Tick, latest: Tick) -> Option<Tick> {
        let until = self.next_expiration().min(latest);
        if until > now {
            debug_assert!(until > Tick::ZERO, "it stands for a reaper that is awake");
            self.wakeup.announce(until);
            if self.next_expiration() >= until {
                return Some(until);
            }
            self.wakeup.stay_awake();
        }
        None
    }

    /// Announces that the reaper is awake.
    pub(crate) fn announce_awake(&self) {
        self.wakeup.stay_awake();
    }

    /// Returns whether the reaper has announced a sleep, and no thread has woken it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.wakeup.asleep_until() > Tick::ZERO
    }

    /// Makes the reaper read the clock and expire due timeouts.
    pub(crate) fn unpark_reaper(&self) {
        self.reaper.unpark();
        #[cfg(feature = "future")]
        self.driver.get().inspect(|driver| driver.wake());
    }

    /// Lets a task expire sleeps in place of the reaper. Call it before any thread uses the shards.
    #[cfg(feature = "future")]
    pub(crate) fn leave_to_driver(&self) {
        let is_first = self.driver.set(DriverWaker::new()).is_ok();
        debug_assert!(is_first, "a timer has one driver");
    }

    /// Stores the waker of the task that takes the place of the reaper.
    #[cfg(feature = "future")]
    pub(crate) fn store_driver_waker(&self, waker: &Waker) {
        self.driver.get().inspect(|driver| driver.store(waker));
    }

    /// Raises the published expirations to those of the wheels. Only the reaper calls this.
    pub(crate) fn raise_published(&self) {
        self.all.iter().for_each(|shard| shard.raise_published());
    }

    /// The same with a fault.
    #[cfg(all(test, loom))]
    pub(crate) fn raise_published_unlocked(&self) {
        self.all.iter().for_each(|shard| shard.raise_published_unlocked());
    }
}
