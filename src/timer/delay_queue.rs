//! A queue from which threads receive values once their delay is over.
//!
//! It is a timer without callbacks: the reaper moves due values to a backlog, and receivers take
//! them from there. The reaper and a shutdown hold the same lock. So no value comes after the end,
//! and a shutdown returns every value that no receiver got.

use std::{
    fmt,
    iter::FusedIterator,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    builder::TimerBuilder,
    error::{RecvError, RecvTimeoutError, ScheduleError, TimerBuildError, TryRecvError},
    executor::{
        Delivery,
        backlog::{Backlog, TakeError},
    },
    shards::key::TimeoutKey,
    stats::TimerStats,
    tick_clock::after,
    value::ValueTimer,
};

/// A queue from which each value can be received once its delay is over, in the order of the
/// deadlines, to the tick.
///
/// It is like `java.util.concurrent.DelayQueue`, with a key for each value: until the value is due,
/// the key cancels it or moves its deadline. Any number of threads may insert and receive. Clones
/// are the same queue. Due values wait in memory, without a limit, until a thread receives them.
///
/// The receiving functions return the same kinds of results as those of [`std::sync::mpsc`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{DelayQueue, RecvError, TryRecvError};
///
/// let queue = DelayQueue::new();
/// let report = queue.insert(Duration::from_secs(3600), "report")?;
/// queue.insert(Duration::from_millis(10), "retry")?;
/// assert_eq!(queue.recv()?, "retry");
/// assert_eq!(queue.try_recv(), Err(TryRecvError::Empty));
/// assert_eq!(queue.cancel(report), Some("report"));
///
/// queue.shutdown();
/// assert_eq!(queue.recv(), Err(RecvError));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct DelayQueue<T: Send + 'static> {
    timer: ValueTimer<T>,
    due: Arc<Backlog<T>>,
}

impl DelayQueue<()> {
    /// Returns a builder with the default settings, for [`build_queue`](TimerBuilder::build_queue).
    /// The compiler infers the type of the values from the first insert.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Makes a queue with the default settings. Starts no thread; the first value does.
    #[must_use]
    pub fn new() -> Self {
        match TimerBuilder::new().build_queue() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }

    pub(super) fn from_parts(timer: ValueTimer<T>, due: Arc<Backlog<T>>) -> Self {
        Self { timer, due }
    }

    /// Returns a receiver for a task.
    #[cfg(feature = "future")]
    pub(crate) fn receiver(&self) -> super::executor::receiver::Receiver<T> {
        super::executor::receiver::Receiver::new(Arc::clone(&self.due))
    }

    /// Adds a value that can be received when `delay` is over.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], as [`ValueTimer::schedule`].
    pub fn insert(&self, delay: Duration, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        self.timer.schedule(delay, value)
    }

    /// Adds a value that can be received from `instant` on.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], as [`ValueTimer::schedule`].
    pub fn insert_at(&self, instant: Instant, value: T) -> Result<TimeoutKey, ScheduleError<T>> {
        self.timer.schedule_at(instant, value)
    }

    /// Removes a value that is not due yet and returns it; `None` if it is due or gone.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn cancel(&self, key: TimeoutKey) -> Option<T> {
        self.timer.cancel(key)
    }

    /// Moves the deadline of a value to `delay` from now. Returns whether the value was not due
    /// yet.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        self.timer.reset(key, delay)
    }

    /// Moves the deadline of a value to `instant`. Returns whether the value was not due yet.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn reset_at(&self, key: TimeoutKey, instant: Instant) -> bool {
        self.timer.reset_at(key, instant)
    }

    /// Returns whether a value is in the queue and not due yet.
    #[must_use]
    pub fn is_pending(&self, key: TimeoutKey) -> bool {
        self.timer.is_pending(key)
    }

    /// Returns when a value becomes due, rounded up to a tick; `None` if it is due or gone, or if
    /// an [`Instant`] cannot represent the time.
    #[must_use]
    pub fn deadline(&self, key: TimeoutKey) -> Option<Instant> {
        self.timer.deadline(key)
    }

    /// Returns the time until a value becomes due, on the queue's clock; `None` if it is due or
    /// gone.
    #[must_use]
    pub fn remaining(&self, key: TimeoutKey) -> Option<Duration> {
        self.timer.remaining(key)
    }

    /// Waits for a due value and removes it.
    ///
    /// On an empty queue it waits until another thread inserts a value.
    ///
    /// # Errors
    ///
    /// [`RecvError`] if the queue is shut down and no due value is left.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.due.take().map(|expired| expired.value).ok_or(RecvError)
    }

    /// Waits for a due value, no longer than `timeout` in real time, and removes it.
    ///
    /// # Examples
    ///
    /// A loop that does other work now and then, and ends with the queue:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{DelayQueue, RecvTimeoutError};
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert(Duration::from_millis(2), "tea")?;
    /// loop {
    ///     match queue.recv_timeout(Duration::from_millis(50)) {
    ///         Ok(value) => println!("time for {value}"),
    ///         Err(RecvTimeoutError::Timeout) => drop(queue.shutdown()),
    ///         Err(RecvTimeoutError::ShutDown) => break,
    ///     }
    /// }
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::Timeout`] if no value became due in time,
    /// [`RecvTimeoutError::ShutDown`] if the queue is shut down and no due value is left.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match self.due.take_by(after(Instant::now(), timeout)) {
            Ok(expired) => Ok(expired.value),
            Err(TakeError::Empty) => Err(RecvTimeoutError::Timeout),
            Err(TakeError::Closed) => Err(RecvTimeoutError::ShutDown),
        }
    }

    /// Removes a due value without waiting.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`] if no value is due, [`TryRecvError::ShutDown`] if the queue is shut
    /// down and no due value is left.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        match self.due.try_take() {
            Ok(expired) => Ok(expired.value),
            Err(TakeError::Empty) => Err(TryRecvError::Empty),
            Err(TakeError::Closed) => Err(TryRecvError::ShutDown),
        }
    }

    /// Returns an iterator that [receives](Self::recv) values until the queue is shut down and no
    /// due value is left.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{DelayQueue, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayQueue::builder().clock(clock.clone()).build_queue()?;
    /// queue.insert(Duration::from_secs(2), 'a')?;
    /// queue.insert(Duration::from_secs(1), 'b')?;
    /// clock.advance(Duration::from_secs(2));
    /// queue.finish(Duration::ZERO);
    /// assert_eq!(queue.iter().collect::<String>(), "ba");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> QueueIter<'_, T> {
        QueueIter { queue: self }
    }

    /// Returns the number of values in the queue, due or not.
    ///
    /// Takes each shard's lock for a moment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timer.shared().len()
    }

    /// Returns whether the queue has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shuts the queue down at once and returns every value that no thread received, in any order.
    ///
    /// From then on, the queue refuses values, and receivers get an error.
    #[expect(clippy::must_use_candidate, reason = "the values may be dropped")]
    pub fn shutdown(&self) -> Vec<T> {
        self.timer.shutdown()
    }

    /// Refuses new values, waits for those that become due `within` this time, then shuts down.
    /// Returns the values that are not due.
    ///
    /// This is [`finish_by`](Self::finish_by) with a deadline `within` from now, on the queue's
    /// clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{DelayQueue, RecvError};
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert(Duration::from_millis(5), "soon")?;
    /// assert!(queue.finish(Duration::from_secs(60)).is_empty());
    /// assert_eq!((queue.recv(), queue.recv()), (Ok("soon"), Err(RecvError)));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "the values may be dropped")]
    pub fn finish(&self, within: Duration) -> Vec<T> {
        self.timer.finish(within)
    }

    /// Refuses new values, waits for those that become due before `deadline`, then shuts down.
    /// Returns the values that are not due.
    ///
    /// It returns at `deadline`, on the queue's clock, or as soon as every value is due or
    /// cancelled. It does not wait for receivers. Due values can be received during the wait and
    /// after it. Receivers get an error when no due value is left. A later
    /// [`shutdown`](Self::shutdown) returns those that no thread received.
    ///
    /// With a [`ManualClock`](crate::ManualClock), or a deadline in the past, there is no wait.
    #[expect(clippy::must_use_candidate, reason = "the values may be dropped")]
    pub fn finish_by(&self, deadline: Instant) -> Vec<T> {
        self.timer.finish_by(deadline)
    }

    /// Makes the reaper read the clock and expire the due values, after the clock has jumped ahead.
    ///
    /// [`Timer::wake`](crate::Timer::wake) has the details.
    pub fn wake(&self) {
        self.timer.wake();
    }

    /// Returns whether the reaper has stopped serving this queue after a panic of the user's
    /// [`Clock`](crate::Clock). Then no further value becomes due, and receivers get the error for
    /// a queue that is shut down.
    #[must_use]
    pub fn is_reaper_dead(&self) -> bool {
        self.timer.is_reaper_dead()
    }

    /// Checks the invariants of the queue, for tests of programs that use one.
    ///
    /// [`Timer::check_invariants`](crate::Timer::check_invariants) has the details.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken. Other threads must not use the queue meanwhile.
    pub fn check_invariants(&self) {
        self.timer.check_invariants();
    }

    /// Returns the counts of the timer behind the queue. Takes each shard's lock for a moment.
    #[must_use]
    pub fn stats(&self) -> TimerStats {
        self.timer.stats()
    }
}

impl TimerBuilder {
    /// Makes a queue from which values are received. Starts no thread; the first value does.
    ///
    /// Settings of executors have no effect. By default a queue has one [shard](Self::shards), and
    /// returns values in the order of their deadlines, to the tick. With several shards, threads
    /// that insert at once wait less for each other. But values of different shards that become due
    /// at the same wake-up of the reaper come in any order.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{DelayQueue, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayQueue::builder().clock(clock.clone()).build_queue()?;
    /// queue.insert(Duration::from_secs(60), 'a')?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(queue.try_recv(), Ok('a'));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    pub fn build_queue<T: Send + 'static>(mut self) -> Result<DelayQueue<T>, TimerBuildError> {
        self.shards.get_or_insert(1);
        let backlog = Arc::new(Backlog::new());
        let delivery = Delivery::Queue(Arc::clone(&backlog));
        let shared = self.inline().build_shared(delivery, 0, |_, _| (), drop)?;
        Ok(DelayQueue::from_parts(ValueTimer::from_shared(shared), backlog))
    }
}

impl<T: Send + 'static> Clone for DelayQueue<T> {
    fn clone(&self) -> Self {
        Self { timer: self.timer.clone(), due: Arc::clone(&self.due) }
    }
}

impl<T: Send + 'static> Default for DelayQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + 'static> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

// User code never runs under a lock of the queue, so a panic leaves no inconsistent state.
impl<T: Send + 'static> UnwindSafe for DelayQueue<T> {}
impl<T: Send + 'static> RefUnwindSafe for DelayQueue<T> {}

/// Iterator that receives values; from [`DelayQueue::iter`].
pub struct QueueIter<'a, T: Send + 'static> {
    queue: &'a DelayQueue<T>,
}

impl<T: Send + 'static> Iterator for QueueIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.queue.recv().ok()
    }
}

impl<T: Send + 'static> FusedIterator for QueueIter<'_, T> {}

impl<T: Send + 'static> fmt::Debug for QueueIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueIter").field(self.queue).finish()
    }
}

impl<'a, T: Send + 'static> IntoIterator for &'a DelayQueue<T> {
    type Item = T;
    type IntoIter = QueueIter<'a, T>;

    fn into_iter(self) -> QueueIter<'a, T> {
        self.iter()
    }
}
