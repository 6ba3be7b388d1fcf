//! The sleeps of a timer: a second timer, whose values are wakers, next to the timer of callbacks.
//!
//! A sleep is a timeout whose value is the waker of the task that polled it last. The reaper of the
//! sleeps takes due wakers out of the wheel and wakes them itself, so a slow callback delays no
//! sleep. The first sleep creates the timer of wakers.
//!
//! [`Registration`] is the protocol between a sleep and the expiration of its waker.

pub(super) mod driver;
pub(super) mod registration;

use std::{
    boxed::Box,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;

use self::{
    driver::Turns,
    registration::{Registration, wake_each},
};
use super::{
    builder::TimerBuilder, error::ScheduleError, executor::receivers::wake_all,
    reaper::shared::Shared, shards::Shards, stats::TimerStats, value::ValueTimer,
};
use crate::{sync::Mutex, ticks::Nanos};

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
///
/// `None` stands for the default timer of the process, which is never dropped. So its sleeps count
/// no references.
#[derive(Clone)]
pub(crate) struct SleepHandle(Option<Arc<CachePadded<Parts>>>);

/// The parts of the timer of wakers that sleeps use.
struct Parts {
    /// Those of `shared`. A pointer of its own saves each drop of a sleep a load, for which the
    /// lock of the shard would wait.
    shards: Arc<Shards<Waker>>,
    shared: Arc<Shared<Waker>>,
}

/// The sleeps of the default timer of the process.
static DEFAULT: OnceLock<Parts> = OnceLock::new();

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

    /// Makes a task of the user expire the sleeps. Call it before the first sleep.
    pub(super) fn leave_to_driver(&self) -> Turns {
        Turns::new(self.wakers().timer.shared())
    }

    /// Makes these sleeps the ones of the default timer of the process, which is never dropped.
    /// Returns their handle.
    #[cold]
    pub(super) fn set_default(&self) -> SleepHandle {
        // This may read the clock, which is user code, so it runs outside of the initialization.
        let shared = self.wakers().timer.shared();
        let default = DEFAULT.get_or_init(|| Parts::of(shared));
        debug_assert!(Arc::ptr_eq(&default.shared, shared), "the process has two default timers");
        SleepHandle(None)
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

    /// Refuses new sleeps, and wakes the task of each pending one.
    pub(super) fn begin_finish(&self) {
        if let Some(wakers) = self.close() {
            let shards = &wakers.timer.shared().shards;
            shards.begin_finish();
            wake_each(shards);
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
        let handle = |_| SleepHandle(Some(Arc::new(CachePadded::new(Parts::of(timer.shared())))));
        let handles = (0..timer.shard_count()).map(handle).collect();
        Self { timer, handles }
    }
}

impl Parts {
    fn of(shared: &Arc<Shared<Waker>>) -> Self {
        Self { shards: Arc::clone(&shared.shards), shared: Arc::clone(shared) }
    }
}

impl SleepHandle {
    /// Returns the handle to the default timer of the process, if its sleeps exist.
    #[inline]
    pub(crate) fn of_default() -> Option<Self> {
        DEFAULT.get().map(|_| Self(None))
    }

    #[inline]
    fn parts(&self) -> &Parts {
        match &self.0 {
            Some(parts) => parts,
            None => DEFAULT.get().expect("the default timer exists before its handles"),
        }
    }

    #[inline]
    fn shards(&self) -> &Shards<Waker> {
        &self.parts().shards
    }

    /// Returns the time since the sleeps' timer was made, on its clock.
    #[inline]
    pub(crate) fn elapsed(&self) -> Nanos {
        self.shards().clock().elapsed()
    }

    /// Returns the time from the start of the timer to `instant`; zero for an earlier one.
    pub(crate) fn elapsed_at(&self, instant: Instant) -> Nanos {
        self.shards().clock().elapsed_at(instant)
    }

    /// Returns the instant at `elapsed` after the start; `None` if an [`Instant`] cannot represent
    /// it.
    pub(crate) fn instant_at(&self, elapsed: Nanos) -> Option<Instant> {
        self.shards().clock().instant_at(elapsed)
    }

    /// Returns the time of the clock.
    pub(crate) fn now(&self) -> Instant {
        // An instant that cannot be represented lies centuries ahead, and a clock returned one.
        self.instant_at(self.elapsed()).unwrap_or_else(Instant::now)
    }

    /// Returns the length of a tick.
    pub(crate) fn tick(&self) -> Duration {
        self.shards().clock().tick()
    }

    /// Polls the sleep with this registration. It is ready at `deadline`, or with an error if the
    /// timer refuses or ends it.
    #[inline]
    pub(crate) fn poll(
        &self,
        registration: &mut Registration,
        deadline: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        let Parts { shards, shared } = self.parts();
        registration.poll(shards, deadline, waker, || shared.ensure_started())
    }

    /// Moves the deadline of the sleep with this registration.
    pub(crate) fn reset(&self, registration: &mut Registration, deadline: Nanos) {
        registration.reset(self.shards(), deadline);
    }

    /// Removes the waker of the sleep from the wheel. Takes no lock if the sleep is not registered.
    #[inline]
    pub(crate) fn cancel(&self, registration: &mut Registration) {
        registration.cancel(self.shards());
    }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::mpsc, task::Wake, thread};

    use super::*;
    use crate::clock::ManualClock;

    /// The waker of a task that never runs.
    struct Idle;

    impl Wake for Idle {
        fn wake(self: Arc<Self>) {}
    }

    /// The most time that calls without a lock take.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_sleep_that_is_unpolled_pending_moved_later_or_ended_takes_no_lock() {
        let clock = ManualClock::new();
        let settings = TimerBuilder::new().clock(clock.clone()).shards(1);
        let sleeps = Sleeps::new(settings);
        // A clone, as the first waker may have another identity than its clones.
        let waker = Waker::from(Arc::new(Idle)).clone();
        let [second, after_two, after_three] =
            [1, 2, 3].map(|count| Nanos::from(Duration::from_secs(count)));
        let new = |deadline| {
            let (handle, mut sleep) = (sleeps.handle(), Registration::new());
            assert!(handle.poll(&mut sleep, deadline, &waker).is_pending());
            (handle, sleep)
        };
        let (fired, mut ended) = (new(second), new(second));
        clock.advance(Duration::from_secs(1));
        assert!(ended.0.poll(&mut ended.1, second, &waker).is_ready());
        let (handle, mut pending) = new(after_two);

        let key = pending.0.expect("it is in the wheel").key;
        let shards = handle.shards();
        let mut calls = || {
            let (handle, mut unpolled) = (sleeps.handle(), Registration::new());
            handle.cancel(&mut unpolled);
            assert!(handle.poll(&mut unpolled, second, &waker).is_ready(), "it has passed");
            assert!(handle.poll(&mut pending, after_two, &waker).is_pending());
            handle.reset(&mut pending, after_three);
            assert!(handle.poll(&mut pending, after_three, &waker).is_pending());
            ended.0.cancel(&mut ended.1);
            let held = fired.1.0.expect("it was not polled");
            assert!(shards.is_past(held.key, held.due), "its drop would take the lock");
        };
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            let held = shards.with_value(key, |_| {
                scope.spawn(move || {
                    calls();
                    done.send(())
                });
                is_done.recv_timeout(LIMIT)
            });
            assert_eq!(held, Some(Ok(())), "a call takes the lock of the shard");
        });
    }

    #[test]
    fn a_sleep_whose_shard_is_locked_takes_another_shard() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let sleeps = Sleeps::new(TimerBuilder::new().clock(ManualClock::new()).shards(2));
            let (handle, waker) = (sleeps.handle(), Waker::noop());
            let poll = || {
                let mut sleep = Registration::new();
                assert!(handle.poll(&mut sleep, Nanos::new(1_000_000_000), waker).is_pending());
                sleep.0.expect("it is in the wheel").key
            };
            let key = poll();
            let other = handle.shards().with_value(key, |_| poll().shard());
            done.send((key.shard(), other))
        });
        let (shard, other) = is_done.recv_timeout(LIMIT).expect("the poll waits for the lock");
        assert_eq!(other, Some(1 - shard));
    }
}
