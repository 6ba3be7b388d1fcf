//! The sleeps of a timer: a timer of wakers beside the timer of the callbacks.
//!
//! A sleep is a timeout whose value is the waker of the task that polled it last. The reaper of the
//! sleeps takes due wakers out of the wheel and wakes them itself, so a slow callback delays no
//! sleep. The first sleep starts this reaper.
//!
//! [`sleeper`] has the protocol between a sleep and the expiration of its waker.

pub(super) mod driver;
pub(super) mod sleeper;
pub(super) mod until_time;

use std::{
    boxed::Box,
    mem,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant, SystemTime},
    vec::Vec,
};

use crossbeam::utils::CachePadded;

use self::{
    sleeper::{Parts, Sleep, SleepHandle},
    until_time::TimeSleep,
};
use super::{Task, Timer, error::ScheduleError, shards::Shards, value::SharedTimer};
use crate::{sync::Ordering, ticks::Nanos, waker::wake_all, wheel::TimingWheel};

/// A timer of wakers.
pub(super) type SleepTimer = SharedTimer<TimingWheel<Waker>>;

/// The part of a timer that its sleeps use. Its drop ends the pending sleeps.
pub(super) struct Sleeps {
    pub(super) wakers: Arc<SleepTimer>,
    /// One handle for each shard, so that threads on different shards use different reference
    /// counts.
    handles: Box<[Arc<CachePadded<Parts>>]>,
}

impl Sleeps {
    /// Makes the sleeps of a timer with these callbacks. If one of the two reapers panics, the
    /// whole timer refuses timeouts.
    pub(super) fn new(
        wakers: Arc<SleepTimer>,
        callbacks: &Arc<SharedTimer<TimingWheel<Task>>>,
    ) -> Self {
        let halves = (Arc::downgrade(&wakers), Arc::downgrade(callbacks));
        let on_clock_panic: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            let sleeps = halves.0.upgrade().map(|wakers| wakers.shut_down());
            if let Some(callbacks) = halves.1.upgrade() {
                callbacks.shards.begin_finish();
                callbacks.is_reaper_dead.store(true, Ordering::Release);
            }
            sleeps.into_iter().for_each(wake_all);
        });
        wakers.on_clock_panic.get_or_init(|| Arc::clone(&on_clock_panic));
        callbacks.on_clock_panic.get_or_init(|| on_clock_panic);
        let handles = (0..wakers.shards.count()).map(|_| Parts::new(&wakers)).collect();
        Self { wakers, handles }
    }

    /// Ends the pending sleeps with an error, and refuses new ones.
    pub(super) fn end_all(&self) {
        wake_all(self.wakers.shut_down());
    }

    /// Refuses new sleeps, and wakes the task of each pending one.
    pub(super) fn begin_finish(&self) {
        self.wakers.shards.begin_finish();
        wake_each(&self.wakers.shards);
    }

    /// Refuses new sleeps, waits for the pending ones until `deadline`, and then shuts down.
    pub(super) fn finish_by(&self, deadline: Nanos) {
        wake_all(self.wakers.finish_by(deadline));
    }
}

/// Futures, with the feature `future`.
impl Timer {
    /// Returns a future that ends after `delay`: not earlier, and less than a tick plus scheduling
    /// delay later.
    ///
    /// The delay starts now. A delay of zero ends at once. A delay of [`Duration::MAX`] never ends.
    /// The sleep does not keep the timer running.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::Timer;
    /// use pollster::block_on;
    ///
    /// let timer = Timer::new();
    /// block_on(timer.sleep(Duration::from_millis(5)))?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    ///
    /// # Complexity
    ///
    /// *O*(1). Takes no lock.
    #[inline]
    pub fn sleep(&self, delay: Duration) -> Sleep {
        Sleep::after(self.sleep_handle(), delay)
    }

    /// Returns a future that ends at `deadline`; at once if the deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::at(self.sleep_handle(), deadline)
    }

    /// Returns a future that ends when the wall clock shows `time` or later.
    ///
    /// If the wall clock is set, the sleep follows it, as a timeout of
    /// [`schedule_at_time`](Self::schedule_at_time) does.
    ///
    /// # Cancel safety
    ///
    /// See [`TimeSleep`].
    pub fn sleep_until_time(&self, time: impl Into<SystemTime>) -> TimeSleep {
        TimeSleep::new(self.sleep_handle(), time.into())
    }

    /// Returns the handle that sleeps of this thread use.
    #[inline]
    pub(crate) fn sleep_handle(&self) -> SleepHandle {
        let shard = self.values.shared().shards.current();
        SleepHandle::Counted(Arc::clone(&self.sleeps.handles[shard]))
    }

    /// Returns a handle that counts no references.
    #[inline]
    pub(crate) fn static_sleep_handle(&'static self) -> SleepHandle {
        SleepHandle::Uncounted(&self.sleeps.handles[0])
    }
}

/// Error of a [`Sleep`] whose timer cannot wake it: the timer is full, is shut down,
/// or cannot start its thread.
///
/// It converts to [`std::io::Error`], of the kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) if
/// the timer is shut down.
pub type SleepError = ScheduleError<()>;

impl Drop for Sleeps {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Wakes the task of each sleep, after a finish has begun. The keys stay in the wheel. Visits up to
/// 256 slots of a wheel in one hold.
pub(in crate::timer) fn wake_each(shards: &Shards<TimingWheel<Waker>>) {
    debug_assert!(shards.lifecycle.is_ending(), "a poll without the lock would miss the wake-up");
    for index in 0..shards.count() {
        let (mut start, mut slots) = (0, u32::MAX);
        while start < slots {
            let mut shard = shards.lock(index);
            let wheel = shard.state_mut();
            slots = wheel.slots();
            let end = slots.min(start.saturating_add(256));
            let take = |slot| Some(mem::replace(wheel.at_mut(slot)?.1, Waker::noop().clone()));
            let wakers: Vec<_> = (start..end).filter_map(take).collect();
            drop(shard);
            start = end;
            wake_all(wakers);
        }
    }
}
