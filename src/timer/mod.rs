//! The timer: wheels that threads share, one thread that expires their timeouts, and callbacks.
//!
//! Threads are spread over *shards*, each a wheel behind a lock. One *reaper* thread sleeps until
//! the earliest expiration of all shards, removes the due timeouts, and hands them off to the
//! executor. An insert or reset wakes the reaper earlier only if its timeout is due before that
//! time. A cancel wakes no thread, except the last one of a finish. Once all timeouts are
//! cancelled, the reaper wakes at most once more. One [`Reaper`] may serve many timers.
//!
//! # Locks
//!
//! A thread that holds a lock of this table takes only locks below that one. It holds the lock of
//! one shard at most. The locks of [`Debounce`], [`Throttle`] and [`Repeating`] come before all
//! locks of the table.
//!
//! | Lock | Held while |
//! |-|-|
//! | starter | a thread starts the reaper and the executors |
//! | joining | a timer joins its reaper |
//! | shard | an operation of its wheel runs, and expired timeouts move to the backlog |
//! | callback threads | a few fields change, or an executor thread starts |
//! | reaper's counts, backlog, offset of the wall clock | a few fields change; no lock is taken within |

#![expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
#![cfg_attr(not(feature = "future"), expect(dead_code, reason = "for sleeps and streams"))]

mod builder;
mod delay_queue;
mod delivery;
mod error;
mod handle;
mod lifecycle;
#[cfg(all(test, loom, feature = "future"))]
pub(crate) mod models;
mod reaper;
mod repeat;
mod shards;
#[cfg(feature = "future")]
mod sleep;
mod stats;
mod turn;
mod value;

use std::{
    fmt,
    future::{Future, poll_fn},
    ops::RangeInclusive,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant, SystemTime},
    vec::Vec,
};

use stackfuture::StackFuture;

#[cfg(feature = "future")]
pub use self::sleep::{SleepError, driver::Driver, sleeper::Sleep, until_time::TimeSleep};
pub use self::{
    builder::TimerBuilder,
    delay_queue::DelayQueue,
    delivery::Executor,
    error::{Refused, ScheduleError, ScheduleErrorKind, TimerBuildError},
    handle::{TimeoutGuard, TimeoutHandle},
    reaper::Reaper,
    repeat::{RepeatBuilder, Repeating, debounce::Debounce, grid::MissedTicks, throttle::Throttle},
    shards::TimeoutKey,
    stats::TimerStats,
    value::ValueTimer,
};
#[cfg(feature = "future")]
pub(crate) use self::{delivery::Receiver, repeat::grid::Grid, sleep::sleeper::SleepHandle};
pub(crate) use self::{
    shards::shard::{ShardGuard, ShardState},
    stats::Events,
    value::SharedTimer,
};
use crate::{clock::TickClock, wheel::TimingWheel};

/// Runs callbacks after a delay.
///
/// Keep the timer as long as its callbacks must run. Clones are the same timer. When the last clone
/// is dropped, the timer shuts down and drops the pending callbacks without running them. So a
/// function that makes a timer, schedules a callback and returns has done nothing: a handle does
/// not keep the timer. A pending callback that owns a clone keeps the timer until the callback has
/// run. To run callbacks that are due soon, call [`finish`](Self::finish). To get all pending
/// callbacks back, call [`shutdown`](Self::shutdown). The first timeout starts the threads.
///
/// - A callback starts at or after its deadline. It starts less than a tick later, plus the time to
///   wake a thread and the callbacks ahead of it on the same thread.
/// - Each timeout ends once: it runs, is cancelled, or is returned by a shutdown.
/// - The timer holds no lock while user code runs. A callback may schedule, cancel, reset, shut
///   down and drop its own timer. The drop of a value is user code as well.
/// - The timer catches and counts the panic of a callback. A slow callback delays other callbacks
///   of the same executor thread, but no expiration.
///
/// The [contract](crate::contract#timers) has all promises and edge cases.
///
/// A forked child has only the thread that forked. A timer that was made before the fork does not
/// run in the child, and its locks may stay locked. Make timers after the fork. If another thread,
/// such as one of a timer, is inside the library during the fork, locks that all timers share may
/// stay locked too. Then timers of the child may not run.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::Timer;
///
/// let timer = Timer::new();
/// let (fired, events) = mpsc::channel();
/// let timeout = timer.schedule(Duration::from_millis(5), move || fired.send("now").unwrap())?;
/// assert_eq!(events.recv(), Ok("now"));
/// assert!(!timeout.cancel());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A timer for the whole program:
///
/// ```
/// use std::sync::LazyLock;
///
/// use delaywheel::Timer;
///
/// static TIMER: LazyLock<Timer> = LazyLock::new(Timer::new);
/// assert_eq!(TIMER.stats().pending, 0);
/// ```
#[derive(Clone)]
pub struct Timer {
    values: ValueTimer<Task>,
    /// For each shard, the reference that the handles of its timeouts clone.
    references: Arc<[shards::ShardRef<TimingWheel<Task>>]>,
    #[cfg(feature = "future")]
    sleeps: Arc<sleep::Sleeps>,
}

impl Timer {
    /// Makes a timer with the default settings: ticks of 1 ms, one executor thread. Starts no
    /// thread yet.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let timer = Self::builder().build();
        timer.unwrap_or_else(|_| unreachable!("the default settings are valid"))
    }

    /// Starts with the default settings.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::default()
    }

    /// Runs `callback` when `delay` is over: not earlier, and less than a tick plus scheduling
    /// delay later.
    ///
    /// A delay of zero is due at once, but this call never runs the callback itself. So the caller
    /// may hold a lock that the callback takes. A deadline more than 584 years after the timer was
    /// made never expires; [`Duration::MAX`] is such a delay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{
    ///     sync::{Arc, Mutex},
    ///     time::Duration,
    /// };
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let log = Arc::new(Mutex::new(Vec::new()));
    ///
    /// let locked = log.lock().unwrap();
    /// let callback = Arc::clone(&log);
    /// timer.schedule(Duration::ZERO, move || callback.lock().unwrap().push("expired"))?;
    /// drop(locked);
    /// assert!(log.lock().unwrap().is_empty());
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(*log.lock().unwrap(), ["expired"]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] hands the callback back if the timer is full or shut down. The first call
    /// starts the threads, so it also fails if a thread cannot be started.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized, and one lock. A callback of more than 24 bytes takes an
    /// allocation; one without a pointer does so from 17 bytes on. Wakes the reaper if the reaper
    /// would otherwise wake up too late. If the reaper is late, the call may also do a bounded part
    /// of its work: see clause 9 of the [contract](crate::contract#timers).
    pub fn schedule(
        &self,
        delay: Duration,
        callback: impl FnOnce() + Send + 'static,
    ) -> Result<TimeoutHandle, ScheduleError<Task>> {
        self.handle(self.values.schedule(delay, Task::new(callback)))
    }

    /// Runs `callback` at `instant`; an instant that has passed is due at once.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    pub fn schedule_at(
        &self,
        instant: Instant,
        callback: impl FnOnce() + Send + 'static,
    ) -> Result<TimeoutHandle, ScheduleError<Task>> {
        self.handle(self.values.schedule_at(instant, Task::new(callback)))
    }

    /// Runs `callback` when the wall clock shows `time` or later. A time that has passed is due at
    /// once.
    ///
    /// The wall clock is the [`system_time`](crate::Clock::system_time) of the timer's clock. If it
    /// is set forward past `time`, the callback runs within a tick. If it is set back, the callback
    /// runs later. It runs once, even if the clock is set back after the run. The timer notices a
    /// change of the wall clock in the same way as a resume of the machine: see
    /// [`BootClock`](crate::BootClock).
    ///
    /// `time` may also be a `jiff::Timestamp` or `jiff::Zoned`, a `chrono::DateTime`, and so on:
    /// these convert into a [`SystemTime`]. A callback that needs the wall clock reads it from the
    /// timer's clock, if that is not the system's.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::{Clock, ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// let hour = Duration::from_secs(3600);
    /// let noon = clock.system_time() + 12 * hour;
    /// timer.schedule_at_time(noon, move || ran.send("noon").unwrap())?;
    ///
    /// clock.advance(11 * hour);
    /// clock.set_system_time(noon - 2 * hour); // an administrator corrects the clock
    /// clock.advance(hour);
    /// assert!(runs.try_recv().is_err());
    /// clock.set_system_time(noon + hour);
    /// assert_eq!(runs.try_recv(), Ok("noon"));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    ///
    /// # Complexity
    ///
    /// Takes amortized *O*(1) time, and about 64 bytes more than another timeout. From the first
    /// call on, each turn of the reaper reads the wall clock. A turn or a call that finds the wall
    /// clock set moves all timeouts that follow it.
    pub fn schedule_at_time(
        &self,
        time: impl Into<SystemTime>,
        callback: impl FnOnce() + Send + 'static,
    ) -> Result<TimeoutHandle, ScheduleError<Task>> {
        self.handle(self.values.schedule_at_time(time, Task::new(callback)))
    }

    /// Runs `callback` within a window of delays: at an instant that timeouts with other windows
    /// often share, so that the reaper wakes up rarely.
    ///
    /// The callback never runs before the window. It runs after the window by no more than a
    /// callback of [`schedule`](Self::schedule) is late. The timer picks the instant in the window
    /// whose number of ticks is a multiple of the greatest power of two. This instant is often late
    /// in the window. A window that ends before it begins, or is shorter than a tick, counts as its
    /// beginning.
    ///
    /// A `reset` leaves the window, because it sets an exact deadline. If a timeout is often reset,
    /// such as a keep-alive, use `postpone`, which keeps a later deadline. Or cancel the timeout
    /// and schedule it again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{collections::BTreeSet, sync::mpsc, time::Duration};
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// let window = Duration::from_secs(30)..=Duration::from_secs(31);
    /// for _ in 0..1000 {
    ///     let (ran, clock) = (ran.clone(), clock.clone());
    ///     timer.schedule_within(window.clone(), move || ran.send(clock.elapsed()).unwrap())?;
    /// }
    /// clock.advance(Duration::from_secs(31));
    /// assert_eq!(runs.try_iter().collect::<BTreeSet<_>>().len(), 1, "one wake-up");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    pub fn schedule_within(
        &self,
        window: RangeInclusive<Duration>,
        callback: impl FnOnce() + Send + 'static,
    ) -> Result<TimeoutHandle, ScheduleError<Task>> {
        self.handle(self.values.schedule_within(window, Task::new(callback)))
    }

    #[inline]
    fn handle<E>(&self, scheduled: Result<TimeoutKey, E>) -> Result<TimeoutHandle, E> {
        let TimeoutKey { shard, key } = scheduled?;
        Ok(TimeoutHandle { shard: Arc::clone(&self.references[shard]), key })
    }

    /// Returns the time of the timer's clock, to which the timer compares deadlines. If the clock
    /// steps back before the start of the latest tick that the timer has seen, returns that start.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let start = timer.now();
    /// clock.advance(Duration::from_secs(3600));
    /// assert_eq!(timer.now(), start + Duration::from_secs(3600));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock().instant_now()
    }

    pub(crate) fn clock(&self) -> &TickClock {
        &self.values.shared().shards.clock
    }

    /// Shuts the timer down at once and returns the callbacks that never ran, in any order.
    ///
    /// From then on, the timer refuses new callbacks. `shutdown` does not wait for a running
    /// callback, and a callback may call it. Callbacks that the timer has handed to a pool still
    /// run, and so do the callbacks of the current turn of an [`inline`](TimerBuilder::inline)
    /// timer. A second call returns nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::Timer;
    ///
    /// let timer = Timer::new();
    /// timer.schedule(Duration::from_secs(3600), || println!("good night"))?;
    /// for task in timer.shutdown() {
    ///     task.run();
    /// }
    /// assert!(timer.schedule(Duration::ZERO, || ()).is_err());
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    pub fn shutdown(&self) -> Vec<Task> {
        #[cfg(feature = "future")]
        self.sleeps.end_all();
        self.values.shutdown()
    }

    /// Refuses new callbacks, runs the pending ones that become due `within` this time, then shuts
    /// down. Returns the callbacks that never ran.
    ///
    /// The call returns when that time is over, on the timer's clock. If the clock jumps ahead
    /// meanwhile, due callbacks run, and the call may return later by that time. It returns earlier
    /// if no callback is pending or running and no sleep is pending. With [`Duration::MAX`], it has
    /// no time limit. Meanwhile, pending callbacks can be cancelled and reset, and the cancel of
    /// the last one ends the wait. A repeated callback ends with its next occurrence.
    ///
    /// - Callbacks on the timer's own threads: the call waits until they return.
    /// - Callbacks on a pool: the call waits until the pool has them. The pool may run them later.
    /// - When the time is over, the call stops waiting. A callback that is running continues to its
    ///   end.
    /// - Sleeps that a task has polled, with the feature `future`: the call wakes the task once,
    ///   and waits until the sleep is over or dropped. If the calling thread is the one that polls
    ///   the sleep, it cannot drop the sleep meanwhile. So let another thread finish the timer.
    ///
    /// Several threads may finish a timer at once, and another one may shut it down. The earliest
    /// of their deadlines holds for all, and a shutdown ends every wait. The timer returns each
    /// callback once, to one of the callers.
    ///
    /// A callback may finish its own timer. The call waits neither for this callback nor for other
    /// callbacks that finish the timer. If only this thread could run the pending callbacks, the
    /// call is a [`shutdown`](Self::shutdown).
    ///
    /// A [`ManualClock`](crate::ManualClock) stands still, so there is no wait: callbacks that are
    /// due now run on this thread, and the call returns the others.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::Timer;
    ///
    /// let timer = Timer::new();
    /// let (sender, events) = mpsc::channel();
    /// timer.schedule(Duration::from_millis(5), move || sender.send("flushed").unwrap())?;
    /// timer.schedule(Duration::from_secs(3600), || ())?.cancel();
    ///
    /// let left = timer.finish(Duration::from_secs(60));
    /// assert!(left.is_empty(), "this took 5 ms, not a minute");
    /// assert_eq!(events.try_recv(), Ok("flushed"));
    /// assert!(timer.schedule(Duration::ZERO, || ()).is_err());
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    pub fn finish(&self, within: Duration) -> Vec<Task> {
        let deadline = self.values.shared().shards.clock.elapsed_after(within);
        #[cfg(feature = "future")]
        self.sleeps.begin_finish();
        let tasks = self.values.shared().finish_by(deadline);
        #[cfg(feature = "future")]
        self.sleeps.finish_by(deadline);
        tasks
    }

    /// Makes the reaper read the clock and expire the due timeouts. Call it after the clock has
    /// jumped ahead: for example after a suspension of the machine, if the clock counts the time of
    /// suspensions.
    ///
    /// Without this call the reaper notices the jump at its next wake-up. A schedule or reset also
    /// wakes the reaper if the clock is then past the time of that wake-up. With a
    /// [`ManualClock`](crate::ManualClock) there is no reaper, and `wake` does nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{
    ///     sync::{Arc, Mutex, mpsc},
    ///     time::{Duration, Instant},
    /// };
    ///
    /// use delaywheel::{Clock, Timer};
    ///
    /// /// The system's clock, and for how long the machine was suspended.
    /// #[derive(Debug, Clone, Default)]
    /// struct Boot(Arc<Mutex<Duration>>);
    ///
    /// impl Clock for Boot {
    ///     fn now(&self) -> Instant {
    ///         Instant::now() + *self.0.lock().unwrap()
    ///     }
    /// }
    ///
    /// let clock = Boot::default();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// timer.schedule(Duration::from_secs(3600), move || ran.send(()).unwrap())?;
    ///
    /// *clock.0.lock().unwrap() += Duration::from_secs(7200);
    /// timer.wake();
    /// runs.recv()?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn wake(&self) {
        #[cfg(feature = "future")]
        self.sleeps.wakers.shards.wakeup.wake();
        self.values.wake();
    }

    /// Returns whether a reaper has stopped serving this timer after a panic of the user's
    /// [`Clock`](crate::Clock).
    ///
    /// Then the timer refuses timeouts as if it were shut down, its sleeps end with an error, and
    /// `shutdown` hands back the pending callbacks. These callbacks no longer expire, unless only
    /// the reaper of the sleeps has stopped.
    #[must_use]
    pub fn is_reaper_dead(&self) -> bool {
        self.values.is_reaper_dead()
    }

    /// Frees the memory that pending timeouts do not need, after a burst of them.
    ///
    /// It holds the lock of each shard for milliseconds: see [`ValueTimer::shrink`].
    #[inline]
    pub fn shrink(&self) {
        self.values.shrink();
        #[cfg(feature = "future")]
        self.sleeps.wakers.shards.shrink();
    }

    /// Returns the counts of the timer. Takes each shard's lock for a moment.
    #[inline]
    #[must_use]
    pub fn stats(&self) -> TimerStats {
        let stats = self.values.stats();
        #[cfg(feature = "future")]
        let stats = stats.plus(&self.sleeps.wakers.stats());
        stats
    }

    /// Checks the invariants of the timer, for tests of this crate.
    ///
    /// - Each shard's wheel is in order.
    /// - The reaper does not sleep past a deadline.
    /// - Each scheduled timeout is pending or has ended once.
    /// - Each pending timeout holds a permit, if there is a limit.
    /// - After a shutdown, no timeout is pending.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken. Other threads must not use the timer meanwhile. If
    /// callbacks run [inline](TimerBuilder::inline) or on a pool, no timeout may become due either.
    #[inline]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.values.check_invariants();
        #[cfg(feature = "future")]
        self.sleeps.wakers.check_invariants();
    }
}

impl Default for Timer {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Timer {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.stats().pending;
        f.debug_struct("Timer").field("pending", &pending).finish_non_exhaustive()
    }
}

/// A callback that a timer handed back; from [`Timer::shutdown`](crate::Timer::shutdown) or an
/// error.
pub struct Task(
    /// The callback, as a future that is ready at the first poll. `StackFuture` stores a future of
    /// any type without a box, and needs no `unsafe` here. There is no such crate for functions.
    StackFuture<'static, (), STORED>,
);

/// Bytes of a callback that a task stores. A larger callback goes to a box.
const STORED: usize = 24;

impl Task {
    #[inline]
    fn new(callback: impl FnOnce() + Send + 'static) -> Self {
        // The `Option` takes no room if the callback holds a pointer. Otherwise it takes a word.
        let mut callback = Some(callback);
        Self(StackFuture::from_or_box(poll_fn(move |_| {
            if let Some(callback) = callback.take() {
                callback();
            }
            Poll::Ready(())
        })))
    }

    /// Runs the callback now.
    pub fn run(self) {
        let poll = pin!(self.0).poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(poll.is_ready(), "a callback is no future of the user");
    }
}

// A callback does not refer to itself, and it is pinned only while it runs.
impl Unpin for Task {}

impl fmt::Debug for Task {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task(..)")
    }
}
