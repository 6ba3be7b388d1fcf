//! `ValueTimer`: a timer of plain values, without an allocation for each timeout. Its handles and
//! threads share a [`SharedTimer`], which starts and ends the threads.
//!
//! [`lifecycle`](super::lifecycle) has the protocol of the end.

use std::{
    boxed::Box,
    fmt, format, io,
    ops::RangeInclusive,
    panic::RefUnwindSafe,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime},
    vec::Vec,
};

use super::{
    Timer,
    delivery::{Backlog, Delivery, Handler},
    error::{Refused, ScheduleError, ScheduleErrorKind},
    lifecycle::{CallbackThreads, Phase},
    reaper::Reaper,
    shards::{
        Shards, TimeoutKey,
        shard::{ShardGuard, ShardState},
    },
    stats::TimerStats,
};
use crate::{
    clock::{Driven, Reading, TickClock},
    sync::{AtomicBool, Mutex, Ordering, spawn},
    tick::Tick,
    ticks::Nanos,
    waker::wake_all,
    wheel::TimingWheel,
};

/// A timer that passes plain values to one handler.
///
/// For programs with millions of values, such as request ids. A timeout takes the size of its value
/// and a few words, in memory that the timer reuses. [`Timer`] is a `ValueTimer` of closures.
/// Closures of up to 24 bytes need no box if they hold a pointer, such as an `Arc` or a sender.
/// Other closures need no box up to 16 bytes.
///
/// The handler receives the value but not the [`TimeoutKey`]. If the handler has to distinguish an
/// old timeout of a resource from a newer one, put a version into the value, as the
/// [guide](crate::guide#a-cache) shows.
///
/// Keep the timer as long as its values must be handled. Clones are the same timer. When the last
/// clone is dropped, the timer shuts down and drops the pending values.
///
/// If nothing else determines the type of the values, write that type in the closure, as in
/// `|request: u64|`. Without that, type inference can fail with an error far from the closure.
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use delaywheel::{ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let (expired, requests) = mpsc::channel();
/// let timer = Timer::builder()
///     .clock(clock.clone())
///     .build_with(move |request: u64| expired.send(request).unwrap())?;
///
/// timer.schedule(Duration::from_secs(2), 17)?;
/// let answered = timer.schedule(Duration::from_secs(2), 18)?;
/// assert_eq!(timer.cancel(answered), Some(18));
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(requests.try_iter().collect::<Vec<_>>(), [17]);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct ValueTimer<T: Send + 'static> {
    owner: Arc<Owner<T>>,
}

impl<T: Send + 'static> ValueTimer<T> {
    /// Makes a timer with the default settings: ticks of 1 ms, one executor thread. Starts no
    /// thread; the first value does.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::ValueTimer;
    ///
    /// let (expired, requests) = mpsc::channel();
    /// let timer = ValueTimer::new(move |request: u64| expired.send(request).unwrap());
    /// timer.schedule(Duration::from_millis(2), 17)?;
    /// assert_eq!(requests.recv()?, 17);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn new(handler: impl Fn(T) + Send + Sync + 'static) -> Self {
        let timer = Timer::builder().build_with(handler);
        timer.unwrap_or_else(|_| unreachable!("the default settings are valid"))
    }

    pub(super) fn from_shared(shared: Arc<SharedTimer<TimingWheel<T>>>) -> Self {
        Self { owner: Arc::new(Owner(shared)) }
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<SharedTimer<TimingWheel<T>>> {
        &self.owner.0
    }

    /// Passes `value` to the handler when `delay` is over: not earlier, and less than a tick plus
    /// scheduling delay later.
    ///
    /// A delay of zero is due at once, but this call never runs the handler itself. So the caller
    /// may hold a lock that the handler takes. A deadline more than 584 years after the timer was
    /// made never expires; [`Duration::MAX`] is such a delay.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] hands the value back if the timer is full or shut down. The first call
    /// starts the threads, so it also fails if a thread cannot be started.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized, and one lock. Wakes the reaper if the reaper would otherwise
    /// wake up too late. If the reaper is late, the call may also do a bounded part of its work:
    /// see clause 9 of the [contract](crate::contract#timers).
    #[inline]
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        self.shared().insert(value, |clock, read| clock.deadline(read, delay))
    }

    /// Passes `value` to the handler at `instant`; an instant that has passed is due at once.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    pub fn schedule_at(&self, instant: Instant, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        self.shared().insert(value, |clock, read| clock.at(read, instant))
    }

    /// Passes `value` to the handler when the wall clock shows `time` or later, as
    /// [`Timer::schedule_at_time`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    pub fn schedule_at_time(
        &self,
        time: impl Into<SystemTime>,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let shards = &self.shared().shards;
        // The clock is read before the start, as in `SharedTimer::insert`.
        let read = shards.clock.read();
        let value = self.shared().ensure_started(value)?;
        let insert = |shard: &mut ShardGuard<'_, _>, now, tick| shard.insert(now, tick, value);
        let inserted = shards.put_at_time(shards.current(), read.now, time.into(), insert);
        self.shared().help_if_late(read);
        inserted
    }

    /// Passes `value` to the handler within a window of delays, as [`Timer::schedule_within`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`schedule`](Self::schedule).
    pub fn schedule_within(
        &self,
        window: RangeInclusive<Duration>,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        self.shared().insert(value, |clock, read| clock.within(read, &window))
    }

    /// Cancels a timeout and returns its value. Returns `None` if the timeout has ended. If the
    /// value waits for an executor thread, the timeout has ended, and the handler still receives
    /// the value.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized, and one lock. Wakes no thread, except during a `finish`.
    #[inline]
    pub fn cancel(&self, key: TimeoutKey) -> Option<T> {
        self.shared().shards.cancel(key)
    }

    /// Moves the deadline of a timeout to `delay` from now. Returns whether the timeout was
    /// pending.
    pub fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        self.shared().shards.reset(key, |clock, read| clock.deadline(read, delay))
    }

    /// Moves the deadline of a timeout to `instant`. Returns whether the timeout was pending.
    ///
    /// A timeout whose new deadline has passed is due at once.
    pub fn reset_at(&self, key: TimeoutKey, instant: Instant) -> bool {
        self.shared().shards.reset(key, |clock, read| clock.at(read, instant))
    }

    /// Moves the deadline of a timeout to a time of the wall clock. Returns whether it was pending.
    pub fn reset_at_time(&self, key: TimeoutKey, time: impl Into<SystemTime>) -> bool {
        self.shared().shards.reset_at_time(key, time.into())
    }

    /// Returns whether a timeout has not ended.
    #[must_use]
    pub fn is_pending(&self, key: TimeoutKey) -> bool {
        self.shared().shards.deadline(key).is_some()
    }

    /// Returns the instant at which a timeout expires, the start of its tick; `None` if it has
    /// ended, or if an [`Instant`] cannot represent the time.
    #[must_use]
    pub fn deadline(&self, key: TimeoutKey) -> Option<Instant> {
        let shards = &self.shared().shards;
        shards.clock.instant(shards.deadline(key)?)
    }

    /// Returns the time until a timeout expires, on the timer's clock; zero if it is due, `None` if
    /// it has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Clock, ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build_with(|_: u32| ())?;
    /// let key = timer.schedule(Duration::from_secs(5), 1)?;
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(timer.remaining(key), Some(Duration::from_secs(3)));
    /// assert!(timer.reset_at(key, clock.now() + Duration::from_secs(9)));
    /// assert_eq!(timer.remaining(key), Some(Duration::from_secs(9)));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn remaining(&self, key: TimeoutKey) -> Option<Duration> {
        self.shared().shards.remaining(key)
    }

    /// Makes the reaper read the clock and expire the due timeouts, after the clock has jumped
    /// ahead.
    ///
    /// [`Timer::wake`] has the details.
    pub fn wake(&self) {
        self.shared().shards.wakeup.wake();
    }

    /// Returns whether the reaper has stopped serving this timer after a panic of the user's
    /// [`Clock`](crate::Clock).
    ///
    /// Then no timeout expires any more. The timer refuses timeouts as if it were shut down, and
    /// `shutdown` hands back the pending values.
    #[must_use]
    pub fn is_reaper_dead(&self) -> bool {
        self.shared().is_reaper_dead.load(Ordering::Acquire)
    }

    /// Shuts the timer down at once and returns the values that the handler never got, in any
    /// order.
    ///
    /// From then on, the timer refuses new values. `shutdown` does not wait for a running handler,
    /// and the handler may call it. Values that the timer has handed to a pool still reach the
    /// handler, and so do the values of the current turn of an
    /// [`inline`](crate::TimerBuilder::inline) timer. A second call returns nothing.
    pub fn shutdown(&self) -> Vec<T> {
        self.shared().shut_down()
    }

    /// Refuses new values, handles the pending ones that become due `within` this time, then shuts
    /// down. Returns the values that the handler never got.
    ///
    /// [`Timer::finish`] has the details.
    ///
    /// # Examples
    ///
    /// In virtual time there is no wait: values that are due now are handled.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, ScheduleErrorKind, Timer};
    ///
    /// let timer = Timer::builder().clock(ManualClock::new()).build_with(|_: u32| ())?;
    /// timer.schedule(Duration::ZERO, 1)?;
    /// timer.schedule(Duration::from_secs(1), 2)?;
    /// assert_eq!(timer.finish(Duration::from_secs(60)), [2]);
    /// let error = timer.schedule(Duration::ZERO, 3).unwrap_err();
    /// assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn finish(&self, within: Duration) -> Vec<T> {
        self.shared().finish_by(self.shared().shards.clock.elapsed_after(within))
    }

    /// Frees the memory that pending timeouts do not need, after a burst of them.
    ///
    /// Without this call, a timer keeps the memory of its largest number of timeouts. Keys stay
    /// valid. A pending timeout keeps its segment of 1024 slots, unless its value has more than 24
    /// bytes: `shrink` moves such values together. A shutdown frees all memory without this call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build_with(|_: u32| ())?;
    /// for value in 0..100_000 {
    ///     timer.schedule(Duration::from_secs(2), value)?;
    /// }
    /// clock.advance(Duration::from_secs(2));
    /// timer.shrink(); // 2.4 MB less.
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// Takes the lock of each shard, one after the other, for a time proportional to the memory of
    /// that shard: milliseconds for a million timeouts. Meanwhile the reaper and other calls on
    /// this shard wait. So call it rarely, when the load is low.
    pub fn shrink(&self) {
        self.shared().shards.shrink();
    }

    /// Returns the counts of the timer. Takes each shard's lock for a moment.
    #[must_use]
    pub fn stats(&self) -> TimerStats {
        self.shared().stats()
    }

    /// Checks the invariants of the timer, as [`Timer::check_invariants`](crate::Timer) does.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.shared().check_invariants();
    }
}

impl<T: Send + 'static> Clone for ValueTimer<T> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<T: Send + 'static> fmt::Debug for ValueTimer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.shared().shards.counts().pending;
        f.debug_struct("ValueTimer").field("pending", &pending).finish_non_exhaustive()
    }
}

/// A timer without its handles.
///
/// The threads hold the [`SharedTimer`] until they end. [`Owner`] counts the user's handles.
pub(crate) struct SharedTimer<S: ShardState> {
    pub(crate) shards: Arc<Shards<S>>,
    pub(crate) handler: Arc<Handler<S::Due>>,
    /// Where expired timeouts go, unless the clock drives the timer: see
    /// [`delivery`](Self::delivery).
    pub(super) configured: Delivery<S::Due>,
    /// `None` once the threads have been started, or if the timer needs none.
    starter: Mutex<Option<Starter>>,
    is_started: AtomicBool,
    /// Whether the clock or a task of the user runs the timer, so that there are no threads.
    is_threadless: AtomicBool,
    /// Whether the user's clock has panicked on the reaper. For the callbacks of a [`Timer`], also
    /// whether it has panicked on the reaper of the sleeps.
    pub(crate) is_reaper_dead: AtomicBool,
    pub(crate) callback_threads: CallbackThreads,
    /// The wake-ups and the lateness, which no shard counts; the other counts are zero.
    pub(super) shared_stats: Mutex<TimerStats>,
    /// Called when the clock panics on the reaper: makes the other half of a [`Timer`] refuse
    /// timeouts too, or ends the operations of a purgatory.
    pub(crate) on_clock_panic: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

/// The parts from which the threads of a timer start.
pub(crate) struct Starter {
    pub(crate) reaper: Reaper,
    /// Executor threads that have not been started.
    pub(crate) executors: usize,
}

impl<S: ShardState> SharedTimer<S> {
    pub(crate) fn new(
        shards: Arc<Shards<S>>,
        handler: Handler<S::Due>,
        delivery: Delivery<S::Due>,
        starter: Starter,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            shards,
            handler: Arc::new(handler),
            configured: delivery,
            starter: Mutex::new(Some(starter)),
            is_started: AtomicBool::new(false),
            is_threadless: AtomicBool::new(false),
            is_reaper_dead: AtomicBool::new(false),
            callback_threads: CallbackThreads::default(),
            shared_stats: Mutex::new(TimerStats::default()),
            on_clock_panic: OnceLock::new(),
        });
        // If the clock drives the timer, no thread is started.
        if shared.shards.clock.source.adopt(Arc::<Self>::downgrade(&shared)) {
            // The clock may already advance, and take a turn, on another thread.
            shared.is_threadless.store(true, Ordering::Release);
            shared.need_no_threads();
        }
        shared
    }

    /// Lets a task of the user expire sleeps in place of the reaper. Call it before the timer has
    /// started a thread.
    pub(crate) fn leave_to_driver(&self) {
        debug_assert!(self.is_threadless() || !self.is_started(), "the timer has a reaper");
        if self.shards.clock.source.may_jump() {
            self.shards.watch_jumps();
        }
        self.shards.wakeup.leave_to_driver();
        self.is_threadless.store(true, Ordering::Release);
        self.need_no_threads();
    }

    /// Starts no threads from now on: something else takes their place.
    pub(crate) fn need_no_threads(&self) {
        let _starter = self.starter.lock().take();
        self.is_started.store(true, Ordering::Release);
    }

    /// Starts the threads unless they have been started. If a thread cannot be started, the error
    /// holds the caller's value.
    #[inline]
    pub(crate) fn ensure_started<V>(self: &Arc<Self>, value: V) -> Result<V, ScheduleError<V>> {
        let started = if self.is_started() { Ok(()) } else { self.start() };
        let Err(cause) = started else { return Ok(value) };
        Err(Refused { cause: Some(cause), ..Refused::new(ScheduleErrorKind::NoThread, value) })
    }

    /// Starts the threads unless another call has done so, or the timer has been shut down.
    ///
    /// If an executor thread cannot be started, those before it keep running, and a later call
    /// starts the missing ones.
    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        // This calls the user's clock, so it comes before the lock.
        if !self.shards.is_shut_down() && self.shards.clock.source.may_jump() {
            self.shards.watch_jumps();
        }
        let mut starter = self.starter.lock();
        let Some(parts) = starter.as_mut().filter(|_| !self.shards.is_shut_down()) else {
            return Ok(());
        };
        debug_assert!(!self.is_threadless(), "a timer that its clock runs has no threads");
        while let Some(index) = parts.executors.checked_sub(1) {
            let (shared, name) = (Arc::clone(self), &self.handler.events.name);
            let run = Box::new(move || shared.run_executor());
            self.callback_threads.add(|| spawn(format!("{name}-{index}"), run))?;
            parts.executors = index;
        }
        parts.reaper.serve(self.client())?;
        *starter = None;
        self.is_started.store(true, Ordering::Release);
        drop(starter);
        self.handler.events.started();
        Ok(())
    }

    /// Runs callbacks on this thread until the backlog is closed and empty.
    pub(crate) fn run_executor(&self) {
        let take = |backlog: &Backlog<_>| backlog.take_by(None).ok();
        while let Some(expired) = self.delivery().backlog().and_then(take) {
            self.handler.call(expired);
        }
        self.callback_threads.leave();
    }

    /// Returns where expired timeouts go: inline if the clock drives the timer, except in a queue.
    pub(super) fn delivery(&self) -> &Delivery<S::Due> {
        let is_inline = self.is_threadless() && !self.configured.is_queue();
        if is_inline { &Delivery::Inline } else { &self.configured }
    }

    /// Closes the backlog: the threads that take from it end once it is empty.
    pub(super) fn close_backlog(&self) {
        wake_all(self.delivery().backlog().map(Backlog::close).unwrap_or_default());
    }

    /// Refuses new timeouts and ends the threads. Returns the pending timeouts and, unless
    /// `keeps_expired`, the timeouts in the backlog.
    pub(crate) fn stop(&self, keeps_expired: bool) -> (Vec<S::Value>, Vec<S::Due>) {
        let is_first = self.shards.lifecycle.enter(Phase::ShutDown);
        let pending = self.shards.close_and_drain();
        self.close_backlog();
        let backlog = self.delivery().backlog().filter(|_| !keeps_expired);
        let expired = backlog.map(Backlog::take_all).unwrap_or_default();
        self.callback_threads.shut_down();
        // A timer that was never used emits no event.
        if is_first && self.is_started() {
            self.handler.events.shut_down(pending.len() + expired.len());
        }
        (pending, expired)
    }

    pub(crate) fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    pub(crate) fn is_threadless(&self) -> bool {
        self.is_threadless.load(Ordering::Acquire)
    }

    /// Returns the counts of the shards and of the backlog.
    fn counts(&self) -> TimerStats {
        // `taken` is read first, so a timeout that is taken meanwhile still counts, and none counts
        // twice.
        let taken = self.delivery().backlog().map(|backlog| backlog.state.lock().taken);
        let counts = self.shards.counts();
        TimerStats { waiting: taken.map_or(0, |taken| counts.expired - taken), ..counts }
    }

    /// Returns the number of timeouts that are pending or in the backlog.
    pub(crate) fn len(&self) -> u64 {
        let counts = self.counts();
        counts.pending + counts.waiting
    }

    /// Checks the invariants of the timer. No other thread may use it meanwhile; its own threads
    /// may run.
    pub(crate) fn check_invariants(&self) {
        self.shards.check_invariants();
        let (counts, is_shut_down) = (self.shards.counts(), self.shards.is_shut_down());
        let lateness = self.shared_stats.lock().lateness.count();
        // A sleep that was moved later also has a lateness for each wake-up before its deadline.
        assert!(lateness >= counts.expired, "an expired timeout has no lateness");
        assert!(!is_shut_down || counts.pending == 0, "a shutdown returns all timeouts");
        let backlog = self.delivery().backlog();
        let is_closed = backlog.is_none_or(|backlog| backlog.state.lock().is_closed);
        assert!(!is_shut_down || is_closed, "the backlog is open");
    }

    pub(crate) fn stats(&self) -> TimerStats {
        let mut stats = self.counts().plus(&self.shared_stats.lock());
        stats.panicked = self.handler.events.panics.load(Ordering::Relaxed);
        stats
    }

    /// Helps a reaper that is late. An inserter calls this while it holds no lock.
    #[inline]
    pub(crate) fn help_if_late(&self, read: Reading) {
        if self.shards.wakeup.is_late(read.now) {
            self.help(read);
        }
    }
}

impl<T: Send + 'static> SharedTimer<TimingWheel<T>> {
    /// Adds a timeout to the shard of this thread. `deadline` computes its tick from a reading.
    #[inline]
    pub(super) fn insert(
        self: &Arc<Self>,
        value: T,
        deadline: impl FnOnce(&TickClock, Reading) -> Tick,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let clock = &self.shards.clock;
        // Read before the reaper starts and reads the clock too: if the clock panics here, no timer
        // ends.
        let read = clock.read();
        let value = self.ensure_started(value)?;
        let key = self.shards.insert(read.now, deadline(clock, read), value)?;
        self.help_if_late(read);
        Ok(key)
    }

    /// Refuses new timeouts, runs the pending ones that become due until `deadline` or until none
    /// is left, then shuts down. Returns the timeouts that did not run.
    pub(super) fn finish_by(&self, deadline: Nanos) -> Vec<T> {
        let clock = &self.shards.clock;
        self.shards.begin_finish();
        if self.is_threadless() {
            if clock.elapsed() <= deadline {
                self.turn();
            }
        } else if self.is_started() {
            let remaining = || deadline.saturating_sub(clock.elapsed()).into();
            self.callback_threads.wait_for_end(remaining);
        }
        // Without threads no timeout is pending: the first insert starts the threads.
        //
        // The due values of a queue can still be received.
        if self.delivery().is_queue() { self.stop(true).0 } else { self.shut_down() }
    }

    /// Refuses new timeouts, ends the threads, and returns all timeouts that did not run.
    pub(crate) fn shut_down(&self) -> Vec<T> {
        let (mut pending, expired) = self.stop(false);
        pending.extend(expired);
        pending
    }
}

/// The user's handles of a timer. When the last one is dropped, the timer shuts down.
pub(super) struct Owner<T: Send + 'static>(pub(super) Arc<SharedTimer<TimingWheel<T>>>);

impl<T: Send + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        for value in self.0.shut_down() {
            self.0.handler.catch(|| drop(value));
        }
    }
}

// User code never runs under a lock of a timer: see `Shards`.
impl<S: ShardState> RefUnwindSafe for SharedTimer<S> {}
