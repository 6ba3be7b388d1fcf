//! The sleeps of a timer: a timer of wakers beside that of the callbacks.
//!
//! A sleep is a timeout whose value is the waker of the task that polled it last. The reaper of the
//! sleeps takes due wakers out of the wheel and wakes them itself, so a slow callback delays no
//! sleep. It starts with the first sleep.
//!
//! [`Sleeper`](sleeper::Sleeper) is the protocol between a sleep and the expiration of its waker.
//! Without the feature `future`, a timer has no sleeps.

#[cfg(feature = "future")]
pub(super) mod driver;
#[cfg(feature = "future")]
pub(super) mod sleeper;
#[cfg(feature = "future")]
pub(super) mod until_time;

use std::{
    mem,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    task::Waker,
    time::Instant,
};

#[cfg(feature = "future")]
use self::sleeper::SleepHandle;
#[cfg(feature = "future")]
use super::Timer;
use super::{
    shards::{Shards, TimeoutKey},
    shared::Shared,
    stats::TimerStats,
    waker::wake_all,
};
use crate::wheel::TimingWheel;

/// A timer of wakers.
pub(super) type Wakers = Shared<TimingWheel<Waker>>;

/// The part of a timer that its sleeps use. Its drop ends the pending sleeps.
pub(super) struct Sleeps {
    /// `None` without the feature `future`.
    wakers: Option<Arc<Wakers>>,
    /// One handle for each shard, so that threads on different shards use different reference
    /// counts.
    #[cfg(feature = "future")]
    handles: std::boxed::Box<[SleepHandle]>,
}

impl Sleeps {
    pub(super) fn new(wakers: Option<Arc<Wakers>>) -> Self {
        #[cfg(feature = "future")]
        let handles = wakers.iter().flat_map(|wakers| {
            wakers.on_panic.get_or_init(|| |wakers| wake_all(wakers.shut_down()));
            (0..wakers.shards.count()).map(|_| SleepHandle::new(wakers))
        });
        Self {
            #[cfg(feature = "future")]
            handles: handles.collect(),
            wakers,
        }
    }

    /// Ends the pending sleeps with an error, and refuses new ones.
    pub(super) fn shutdown(&self) {
        self.wakers.iter().for_each(|wakers| wake_all(wakers.shut_down()));
    }

    /// Refuses new sleeps, and wakes the task of each pending one.
    pub(super) fn begin_finish(&self) {
        if let Some(wakers) = &self.wakers {
            wakers.shards.begin_finish();
            wake_each(&wakers.shards);
        }
    }

    /// Refuses new sleeps, waits for the pending ones until `deadline`, and then shuts down.
    pub(super) fn finish_by(&self, deadline: Instant) {
        self.wakers.iter().for_each(|wakers| wake_all(wakers.finish_by(deadline)));
    }

    /// Makes the reaper read the clock.
    pub(super) fn wake(&self) {
        self.wakers.iter().for_each(|wakers| wakers.shards.wakeup.wake());
    }

    pub(super) fn shrink(&self) {
        self.wakers.iter().for_each(|wakers| wakers.shards.shrink());
    }

    pub(super) fn is_reaper_dead(&self) -> bool {
        self.wakers.iter().any(|wakers| wakers.is_reaper_dead())
    }

    /// Adds the counts of the sleeps to those of the callbacks.
    pub(super) fn add_stats(&self, sum: &mut TimerStats) {
        self.wakers.iter().for_each(|wakers| sum.add(&wakers.stats()));
    }

    pub(super) fn check_invariants(&self) {
        self.wakers.iter().for_each(|wakers| wakers.check_invariants());
    }
}

#[cfg(feature = "future")]
impl Timer {
    /// Returns the handle that sleeps of this thread use.
    #[inline]
    pub(crate) fn sleep_handle(&self) -> SleepHandle {
        self.sleeps.handles[self.values.shards().current()].clone()
    }

    /// Returns a handle that counts no references.
    #[inline]
    pub(crate) fn static_sleep_handle(&'static self) -> SleepHandle {
        self.sleeps.handles[0].uncounted()
    }

    /// Makes a task of the user expire the sleeps. Call it before the first sleep.
    pub(crate) fn leave_sleeps_to_driver(&self) -> driver::Turns {
        let wakers = self.sleeps.wakers.as_ref();
        driver::Turns::new(wakers.expect("with this feature, a timer has sleeps"))
    }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Wakes the task of each sleep, after a finish has begun. The keys stay in the wheel.
pub(in crate::timer) fn wake_each(shards: &Shards<TimingWheel<Waker>>) {
    debug_assert!(shards.lifecycle.is_ending(), "a poll without the lock would miss the wake-up");
    let take = |key: TimeoutKey| {
        let mut shard = shards.lock(key.shard());
        let held = shard.get_mut(key.in_shard())?;
        Some(mem::replace(held, Waker::noop().clone()))
    };
    wake_all(shards.keys().into_iter().filter_map(take));
}

// User code never runs under a lock of the timer, so a panic leaves no inconsistent state.
impl UnwindSafe for Sleeps {}
impl RefUnwindSafe for Sleeps {}
