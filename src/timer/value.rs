//! `ValueTimer`: a timer of plain values, without an allocation for each timeout.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
    vec::Vec,
};

use super::{
    builder::TimerBuilder,
    error::{ScheduleError, TimerBuildError},
    shards::{TimeoutKey, shard::ShardGuard},
    shared::{Owner, Shared},
    stats::TimerStats,
};
use crate::wheel::TimingWheel;

/// A timer that passes plain values to one handler.
///
/// For programs with millions of timeouts, such as request ids. A timeout takes the size of its
/// value and a few words, in memory that the timer reuses. [`Timer`](crate::Timer) is a
/// `ValueTimer` of closures. Those of up to 24 bytes need no box if they hold a pointer, such as
/// an `Arc` or a sender. Others need none up to 16 bytes.
///
/// The handler receives the value but not the [`TimeoutKey`]. If the handler has to distinguish an
/// old timeout of a resource from a newer one, put a version into the value, as the
/// [guide](crate::guide#a-cache) shows.
///
/// Keep the timer as long as its values must be handled. Clones are the same timer. When the last
/// clone is dropped, the timer shuts down and drops the pending values.
///
/// Where nothing else tells the type of a value, write it in the closure, as in `|request: u64|`.
/// Without that, type inference can fail with an error far from the closure.
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
        let timer = TimerBuilder::default().build_with(handler);
        timer.unwrap_or_else(|_| unreachable!("the default settings are valid"))
    }

    pub(super) fn from_shared(shared: Arc<Shared<TimingWheel<T>>>) -> Self {
        Self { owner: Arc::new(Owner(shared)) }
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared<TimingWheel<T>>> {
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
    /// Takes *O*(1) time, amortized, and one lock. Wakes the reaper if it would wake up too late.
    #[inline]
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        let clock = &self.shared().shards.clock;
        let read = clock.read();
        self.shared().insert(read, clock.deadline(read, delay), value)
    }

    /// Passes `value` to the handler at `instant`; an instant that has passed is due at once.
    ///
    /// # Errors
    ///
    /// The same as those of [`schedule`](Self::schedule).
    pub fn schedule_at(&self, instant: Instant, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        let clock = &self.shared().shards.clock;
        let read = clock.read();
        self.shared().insert(read, clock.at(read, instant), value)
    }

    /// Passes `value` to the handler when the wall clock shows `time` or later, as
    /// [`Timer::schedule_at_time`](crate::Timer::schedule_at_time) does.
    ///
    /// # Errors
    ///
    /// The same as those of [`schedule`](Self::schedule).
    pub fn schedule_at_time(
        &self,
        time: impl Into<SystemTime>,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let value = self.shared().ensure_started(value)?;
        let (shards, read) = (&self.shared().shards, self.shared().shards.clock.read());
        let insert = |shard: &mut ShardGuard<'_, _>, tick| shard.insert(read.now, tick, value);
        let inserted = shards.put_at_time(shards.current(), read.now, time.into(), insert);
        self.shared().help_if_late(read);
        inserted
    }

    /// Passes `value` to the handler within a window of delays, as
    /// [`Timer::schedule_within`](crate::Timer::schedule_within) does.
    ///
    /// # Errors
    ///
    /// The same as those of [`schedule`](Self::schedule).
    pub fn schedule_within(
        &self,
        window: RangeInclusive<Duration>,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let clock = &self.shared().shards.clock;
        let read = clock.read();
        self.shared().insert(read, clock.within(read, &window), value)
    }

    /// Cancels a timeout and returns its value. Returns `None` if the timeout has ended. A value
    /// that waits for an executor thread has ended: the handler still receives it.
    ///
    /// # Complexity
    ///
    /// Takes *O*(1) time, amortized, and one lock. Wakes no thread.
    #[inline]
    pub fn cancel(&self, key: TimeoutKey) -> Option<T> {
        self.shared().shards.cancel(key)
    }

    /// Moves the deadline of a timeout to `delay` from now. Returns whether it was pending.
    pub fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        self.shared().shards.reset(key, |clock, read| clock.deadline(read, delay))
    }

    /// Moves the deadline of a timeout to `instant`. Returns whether it was pending.
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
    /// [`Timer::wake`](crate::Timer::wake) has the details.
    pub fn wake(&self) {
        self.shared().shards.wakeup.wake();
    }

    /// Returns whether the reaper has stopped serving this timer after a panic of the user's
    /// [`Clock`](crate::Clock).
    ///
    /// Then nothing expires any more. The timer refuses timeouts as if it were shut down, and
    /// `shutdown` hands back those that are pending.
    #[must_use]
    pub fn is_reaper_dead(&self) -> bool {
        self.shared().is_reaper_dead()
    }

    /// Shuts the timer down at once and returns the values that the handler never got, in any
    /// order.
    ///
    /// From then on, the timer refuses new values. This does not wait for a running handler, and
    /// the handler may call it. Values that the timer has handed to a pool still reach the handler,
    /// and so do those of the current turn of an [`inline`](TimerBuilder::inline) timer. A second
    /// call returns nothing.
    pub fn shutdown(&self) -> Vec<T> {
        self.shared().shut_down()
    }

    /// Refuses new values, handles those that become due `within` this time, then shuts down.
    /// Returns the values that the handler never got.
    ///
    /// [`Timer::finish`](crate::Timer::finish) has the details.
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
        let shared = self.shared();
        shared.finish_by(shared.shards.clock.elapsed_after(within))
    }

    /// Frees the memory that pending timeouts do not need, after a burst of them.
    ///
    /// A timer keeps the memory of its largest number of timeouts. Keys stay valid. A pending
    /// timeout keeps its segment of 1024 slots, unless its value has more than 24 bytes: those
    /// move together. A shutdown frees all memory without this call.
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

impl TimerBuilder {
    /// Makes a timer for values that are passed to `handler`. Starts no thread; the first timeout
    /// does.
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    pub fn build_with<T: Send + 'static>(
        self,
        handler: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<ValueTimer<T>, TimerBuildError> {
        self.build_with_state(|wheel, _, _| wheel, handler).map(ValueTimer::from_shared)
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
