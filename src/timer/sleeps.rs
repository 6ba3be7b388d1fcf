//! The sleeps of a timer: a second timer, whose values are wakers, next to the timer of callbacks.
//!
//! A sleep is a timeout whose value is the waker of the task that polled it last. The reaper of the
//! sleeps takes due wakers out of the wheel and wakes them itself, so a slow callback delays no
//! sleep. The first sleep creates the timer of wakers.
//!
//! # Protocol
//!
//! The *place* of a sleep is the key of its waker. Only the owner of the sleep uses the place, with
//! exclusive access.
//!
//! - A poll with a live key makes sure, under the lock of the shard, that the waker under the key
//!   wakes the polling task. It returns `Pending`. If the key is dead, the poll is ready.
//! - An expiration removes the key and the waker under the same lock, and wakes after the release.
//! - A reset moves a live key and keeps its waker. It clears a dead key, so the next poll inserts.
//! - A drop cancels the key.
//!
//! *Invariant*: after a poll that returned `Pending`, the waker of that poll is in the wheel under
//! the sleep's key, or the thread that removed it wakes it. No wake-up is lost, because one hold of
//! the lock both checks the key and changes the waker.
//!
//! A dead key at a time before the deadline means that the timer has ended. The clock of a timer
//! never shows less than the tick at which its reaper expired a timeout.
//!
//! Cloning and dropping wakers is user code, so both happen without a lock.

use std::{
    boxed::Box,
    fmt, mem,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;

use super::{
    MissedTicks,
    builder::TimerBuilder,
    error::ScheduleError,
    key::TimeoutKey,
    occurrences::{Occurrences, Rhythm},
    receivers::wake_all,
    shards::Shards,
    shared::Shared,
    stats::TimerStats,
    value::ValueTimer,
};
use crate::sync::Mutex;

/// The part of a timer that its sleeps use. Its drop ends the pending sleeps.
pub(super) struct Sleeps {
    settings: TimerBuilder,
    /// Made by the first sleep, and set under the lock of `is_closed`.
    wakers: OnceLock<Wakers>,
    /// Whether the timer refuses new sleeps. With this flag, an end need not create wheels that no
    /// sleep ever used.
    is_closed: Mutex<bool>,
}

struct Wakers {
    timer: ValueTimer<Waker>,
    /// One handle for each shard, so that threads on different shards use different reference
    /// counts.
    handles: Box<[SleepHandle]>,
}

/// A handle to the sleeps of a timer. It does not keep the timer running.
#[derive(Clone)]
pub(crate) struct SleepHandle(Arc<CachePadded<Arc<Shared<Waker>>>>);

impl Sleeps {
    pub(super) fn new(settings: TimerBuilder) -> Self {
        Self { settings, wakers: OnceLock::new(), is_closed: Mutex::new(false) }
    }

    /// Returns the handle that sleeps of this thread use.
    #[inline]
    pub(super) fn handle(&self) -> SleepHandle {
        let wakers = self.wakers();
        let shard = wakers.timer.current_shard();
        wakers.handles[shard].clone()
    }

    #[inline]
    fn wakers(&self) -> &Wakers {
        self.wakers.get().unwrap_or_else(|| self.make_wakers())
    }

    #[cold]
    fn make_wakers(&self) -> &Wakers {
        // `Wakers::new` reads the clock, which is user code, so it runs without a lock. Several
        // threads may run it at once. The first result is kept.
        let made = Wakers::new(self.settings.clone());
        let is_closed = self.is_closed.lock();
        let lost = self.wakers.set(made);
        let ends = *is_closed;
        drop(is_closed);
        drop(lost);
        let wakers = self.wakers.get_or_init(|| unreachable!("the wakers have been set"));
        if ends {
            wake_all(wakers.timer.shutdown());
        }
        wakers
    }

    /// Refuses new sleeps. Returns the wakers, if a sleep has ever used them.
    fn close(&self) -> Option<&Wakers> {
        *self.is_closed.lock() = true;
        self.wakers.get()
    }

    /// Ends the pending sleeps with an error, and refuses new ones.
    pub(super) fn shutdown(&self) {
        if let Some(wakers) = self.close() {
            wake_all(wakers.timer.shutdown());
        }
    }

    /// Refuses new sleeps, waits for the pending ones until `deadline`, and then shuts down.
    pub(super) fn finish_by(&self, deadline: Instant) {
        if let Some(wakers) = self.close() {
            wake_all(wakers.timer.finish_by(deadline));
        }
    }

    pub(super) fn check_invariants(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.check_invariants();
        }
    }

    /// Refuses new sleeps.
    pub(super) fn begin_finish(&self) {
        if let Some(wakers) = self.close() {
            wakers.timer.shared().shards.begin_finish();
        }
    }

    /// Makes the reaper read the clock.
    pub(super) fn wake(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.wake();
        }
    }

    pub(super) fn shrink(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.shrink();
        }
    }

    pub(super) fn is_reaper_dead(&self) -> bool {
        self.wakers.get().is_some_and(|wakers| wakers.timer.is_reaper_dead())
    }

    /// Adds the counts of the sleeps to those of the callbacks.
    pub(super) fn add_stats(&self, sum: &mut TimerStats) {
        if let Some(wakers) = self.wakers.get() {
            sum.add(&wakers.timer.stats());
        }
    }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        if let Some(wakers) = self.wakers.get() {
            wake_all(wakers.timer.shutdown());
        }
    }
}

impl Wakers {
    fn new(settings: TimerBuilder) -> Self {
        let timer = match settings.for_sleeps().build_with(Waker::wake) {
            Ok(timer) => timer,
            Err(error) => unreachable!("the timer has been built with these settings: {error}"),
        };
        timer.shared().on_panic.get_or_init(|| |shared| wake_all(shared.shut_down()));
        let handle = |_| SleepHandle(Arc::new(CachePadded::new(Arc::clone(timer.shared()))));
        let handles = (0..timer.shard_count()).map(handle).collect();
        Self { timer, handles }
    }
}

impl SleepHandle {
    /// Returns the nanoseconds since the sleeps' timer was made, on its clock.
    #[inline]
    pub(crate) fn elapsed(&self) -> u64 {
        self.0.shards.clock().elapsed()
    }

    /// Returns the nanoseconds from the start of the timer to `instant`; 0 for an earlier one.
    pub(crate) fn elapsed_at(&self, instant: Instant) -> u64 {
        self.0.shards.clock().elapsed_at(instant)
    }

    /// Returns the instant `elapsed` nanoseconds after the start, or `None` for `u64::MAX`, which
    /// stands for any later time.
    pub(crate) fn instant_at(&self, elapsed: u64) -> Option<Instant> {
        self.0.shards.clock().instant_at(elapsed)
    }

    /// Returns the length of a tick.
    pub(crate) fn tick(&self) -> Duration {
        self.0.shards.clock().tick()
    }

    /// Polls the sleep with this place. It is ready at `deadline`, or with an error if the timer
    /// refuses or ends it.
    #[inline]
    pub(crate) fn poll(
        &self,
        place: &mut Option<TimeoutKey>,
        deadline: u64,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        let elapsed = self.elapsed();
        if elapsed >= deadline {
            self.leave(place);
            return Poll::Ready(Ok(()));
        }
        if place.is_none() {
            return match self.0.ensure_started() {
                Ok(()) => register(&self.0.shards, place, elapsed, deadline, waker),
                Err(cause) => Poll::Ready(Err(ScheduleError::no_thread((), cause))),
            };
        }
        renew(&self.0.shards, place, deadline, waker)
    }

    /// Moves the deadline of the sleep with this place.
    pub(crate) fn reset(&self, place: &mut Option<TimeoutKey>, deadline: u64) {
        reset(&self.0.shards, place, deadline);
    }

    /// Removes the waker of the sleep from the wheel. Takes no lock if the sleep has no place.
    #[inline]
    pub(crate) fn leave(&self, place: &mut Option<TimeoutKey>) {
        if let Some(key) = place.take() {
            drop(self.0.shards.cancel(key));
        }
    }
}

/// Inserts the waker of a sleep that has no place.
pub(super) fn register(
    shards: &Shards<Waker>,
    place: &mut Option<TimeoutKey>,
    elapsed: u64,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    match shards.insert_at_elapsed(elapsed, deadline, waker.clone()) {
        Ok(key) => {
            *place = Some(key);
            Poll::Pending
        }
        Err(refused) => Poll::Ready(Err(refused.map(drop))),
    }
}

/// Replaces the waker under the key of a sleep, unless it already wakes the polling task. Ready if
/// the key is dead.
pub(super) fn renew(
    shards: &Shards<Waker>,
    place: &mut Option<TimeoutKey>,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    let key = place.unwrap_or_else(|| unreachable!("only a sleep with a place is renewed"));
    let is_live = match shards.with_value(key, |held| held.will_wake(waker)) {
        Some(true) => true,
        Some(false) => {
            let mut other = waker.clone();
            shards.with_value(key, |held| mem::swap(held, &mut other)).is_some()
        }
        None => false,
    };
    if is_live {
        return Poll::Pending;
    }
    *place = None;
    let has_elapsed = shards.clock().elapsed() >= deadline;
    Poll::Ready(if has_elapsed { Ok(()) } else { Err(ScheduleError::shut_down(())) })
}

pub(super) fn reset(shards: &Shards<Waker>, place: &mut Option<TimeoutKey>, deadline: u64) {
    *place = place.filter(|&key| shards.reset_at_elapsed(key, deadline));
}

/// Returns the tick of an interval that follows a tick at `instant` taken at `now`. The period must
/// not be 0.
pub(crate) fn next_tick(missed: MissedTicks, period: u64, instant: u64, now: u64) -> u64 {
    Occurrences::new(Rhythm::Rate(missed), period, instant, 0, 0).next_start(now)
}

// User code never runs under a lock of the timer, so a panic leaves no inconsistent state.
impl UnwindSafe for Sleeps {}
impl RefUnwindSafe for Sleeps {}
impl UnwindSafe for SleepHandle {}
impl RefUnwindSafe for SleepHandle {}

impl fmt::Debug for SleepHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepHandle").finish_non_exhaustive()
    }
}
