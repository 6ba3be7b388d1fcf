//! The wake-up protocol: the reaper never sleeps past an expiration, and wakes only if needed.
//!
//! One reaper sleeps on behalf of many shards. It may serve several timers, each with a clock and a
//! [`Wakeup`] of its own; [`reaper`](crate::timer::reaper) describes that. This module describes
//! one timer. Each shard [publishes](super::shard::Shard::published()) the tick at which the reaper
//! looks there next. The reaper publishes in [`Wakeup`] the tick until which it sleeps. The
//! protocol takes only the lock of the inserter's shard.
//!
//! # Protocol
//!
//! An inserter reads the clock. Then it
//!
//! 1. stores the lower expiration in its shard, under the shard's lock, which it then releases,
//! 2. executes a fence,
//! 3. loads the reaper's `asleep_until`, and wakes the reaper if its own expiration is earlier.
//!
//! The reaper
//!
//! 1. stores `asleep_until = x`, the least published expiration or an earlier tick,
//! 2. executes a fence,
//! 3. loads the published expirations again, and does not sleep if one is earlier than `x`,
//! 4. reads the clock,
//! 5. parks for the time from there to `x`, or for a little less if the ticks are short.
//!
//! Two further rules:
//!
//! - An inserter whose shard had already published an earlier expiration loads `asleep_until` as
//!   well. If the time that it has read is at or past `x`, the clock has jumped ahead, and the
//!   inserter wakes the reaper.
//! - A reaper that wakes at `x` and expires nothing has slept for a timeout that was cancelled or
//!   moved. It raises the published expiration of each shard, under the shard's lock, to the next
//!   expiration of its wheel.
//!
//! # Why no wake-up is lost
//!
//! Both fences are sequentially consistent, so one comes first. If the inserter's fence is first,
//! the reaper loads the new expiration in step 3. Otherwise the inserter loads `x` and wakes the
//! reaper. The parker keeps a wake-up that comes before the reaper has parked.
//!
//! If several inserters load `x`, one of them swaps it for `AWAKE` and wakes the reaper. The other
//! inserters rely on that one.
//!
//! Only a thread that expires timeouts or shuts down raises an expiration, and only under the
//! shard's lock. A published expiration may be too early, which costs a turn without work. It is
//! never later than the least deadline in the shard.
//!
//! # Why the reaper notices a jump of the clock
//!
//! If the reaper reads the clock after the jump, in step 4, it does not park. Otherwise it reads
//! the clock before the jump, and the inserter reads it after the jump, so after step 1 of the
//! reaper. Then the inserter loads `x`, provided that two reads of the clock order the memory
//! accesses around them. A clock behind a lock does that, and so does the counter that `Instant`
//! reads on x86-64. Where a clock does not order them, a later insert wakes the reaper.
//!
//! # How often the reaper wakes without work
//!
//! A cancel wakes no thread, and leaves the published expiration as it is. So the reaper may wake
//! once at the deadline of a cancelled timeout. After that, each shard publishes the next
//! expiration of its wheel. That expiration may be too early if a timeout was cancelled or moved
//! later, and its bucket has other timeouts. The reaper then wakes once for that bucket.
//!
//! # How a thread notices that the reaper is late
//!
//! `late_after` is the tick after the one in which the next turn has to begin. The reaper stores it
//! when it announces a sleep. An inserter that publishes an earlier expiration lowers it. After the
//! tick `late_after`, each inserter helps, until the reaper sleeps again. If an inserter finds no
//! due shard, or the timer has no executor threads and user code seems to block the reaper, it
//! stores its own tick. In these two cases, threads look for due shards at most about once a tick.
//!
//! No promise rests on `late_after`. Threads store it without order, so that it may be wrong for a
//! while. If the stored tick is too late, no thread helps. If the tick is too early, a thread looks
//! for due shards in vain.

use std::{convert::Infallible, sync::OnceLock, task::Waker};

use crate::{
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, Parker, fence},
    tick::Tick,
    waker::{poll_or_store, wake_all},
};

/// The part of a reaper that other threads use to wake it: the tick until which it sleeps, and its
/// parker.
pub(crate) struct Wakeup {
    asleep_until: AtomicU64,
    /// The tick after the one in which the next turn of the reaper has to begin.
    late_after: AtomicU64,
    /// Whether the reaper waits for the lock of a shard.
    pub(in crate::timer) is_waiting: AtomicBool,
    parker: Parker,
    /// Wakes the task that expires sleeps in place of the reaper, if there is one.
    driver: OnceLock<Mutex<Option<Waker>>>,
}

/// The value of `asleep_until` while the reaper is awake. No expiration is before tick 0, so no
/// thread wakes it.
const AWAKE: u64 = 0;

impl Wakeup {
    /// Makes the part for a reaper that is awake, or has not been started.
    pub(super) fn new(parker: Parker) -> Self {
        Self {
            asleep_until: AtomicU64::new(AWAKE),
            late_after: AtomicU64::new(u64::MAX),
            is_waiting: AtomicBool::new(false),
            parker,
            driver: OnceLock::new(),
        }
    }

    /// Makes the reaper read the clock and expire due timeouts.
    pub(crate) fn wake(&self) {
        self.parker.unpark();
        if let Some(driver) = self.driver.get() {
            let waker = driver.lock().take();
            wake_all(waker);
        }
    }

    /// Wakes the reaper if it sleeps past an expiration that this thread has published, or past
    /// `now`.
    #[inline]
    pub(super) fn wake_if_needed(&self, now: Tick, earlier: Option<Tick>) {
        let sleeps_past = earlier.is_some_and(|expiration| {
            // The reaper is late from this insert on, also if the deadline passed long ago.
            let due = expiration.max(now);
            if due.get() < self.late_after.load(Ordering::Relaxed) {
                self.set_late_after(due.saturating_add(1));
            }
            fence(Ordering::SeqCst);
            expiration.get() < self.asleep_until.load(Ordering::Relaxed)
        });
        // If the reaper sleeps until `now` or earlier, the clock has jumped ahead. A reaper that is
        // awake needs no wake-up: `AWAKE` less one wraps to the greatest number.
        if sleeps_past || self.asleep_until.load(Ordering::Relaxed).wrapping_sub(1) < now.get() {
            self.wake_sleeper();
        }
    }

    /// Wakes a reaper that sleeps too long, unless another thread does.
    #[cold]
    fn wake_sleeper(&self) {
        if self.asleep_until.swap(AWAKE, Ordering::Release) != AWAKE {
            self.wake();
        }
    }

    /// Lets a task expire sleeps in place of the reaper. Call it before any thread uses the shards.
    pub(crate) fn leave_to_driver(&self) {
        let is_first = self.driver.set(Mutex::new(None)).is_ok();
        debug_assert!(is_first, "a timer has one driver");
    }

    /// Stores the waker of the task that takes the place of the reaper.
    pub(crate) fn store_driver_waker(&self, waker: &Waker) {
        if let Some(driver) = self.driver.get() {
            let stored = poll_or_store::<_, Infallible>(driver, waker, |slot| Err(slot));
            debug_assert!(stored.is_pending(), "there is no value to take");
        }
    }

    /// Returns whether the reaper had to begin a turn more than a tick ago, and has not ended it.
    #[inline]
    pub(in crate::timer) fn is_late(&self, now: Tick) -> bool {
        self.late_after.load(Ordering::Relaxed) < now.get()
    }

    /// Lets no thread find the reaper late up to `tick`.
    pub(in crate::timer) fn set_late_after(&self, tick: Tick) {
        self.late_after.store(tick.get(), Ordering::Relaxed);
    }

    /// Announces that the reaper sleeps until `until`. Before the reaper sleeps, it has to load the
    /// published expirations again.
    pub(super) fn announce(&self, until: Tick) {
        // A swap, because an inserter that found the reaper asleep before may be about to swap in
        // `AWAKE`. If the inserter swaps first, the reaper sees the expiration that the
        // inserter has published. Otherwise the inserter wakes the reaper.
        self.set_late_after(until.saturating_add(1));
        let before = self.asleep_until.swap(until.get(), Ordering::Acquire);
        debug_assert_eq!(before, AWAKE, "the reaper announces once before it sleeps");
        fence(Ordering::SeqCst);
    }

    /// Returns the tick until which the reaper sleeps; tick 0 if it is awake.
    pub(crate) fn asleep_until(&self) -> Tick {
        Tick::new(self.asleep_until.load(Ordering::Relaxed))
    }

    /// Announces that the reaper is awake.
    pub(crate) fn stay_awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reaper_that_sleeps_too_long_is_late_after_a_tick_and_a_thread_wakes_it() {
        let wakeup = Wakeup::new(Parker::new());
        wakeup.announce(Tick::new(5));
        assert!(!wakeup.is_late(Tick::new(6)) && wakeup.is_late(Tick::new(7)));
        wakeup.wake_if_needed(Tick::new(4), Some(Tick::new(5)));
        assert_eq!(wakeup.asleep_until(), Tick::new(5));
        wakeup.wake_if_needed(Tick::new(5), None);
        assert_eq!(wakeup.asleep_until(), Tick::ZERO);
    }
}
