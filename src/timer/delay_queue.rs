//! A queue from which threads receive values once their delay is over.
//!
//! A queue is a timer without callbacks: the reaper moves due values to a backlog, and receivers
//! take them from there. The reaper moves a value, and a shutdown closes the shard, under the same
//! lock. So no value comes after the end, and a shutdown returns every value that no receiver got.

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{RecvError, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    builder::{Execution, TimerBuilder},
    delivery::{Backlog, Delivery, Receiver},
    error::{ScheduleError, TimerBuildError},
    shards::TimeoutKey,
    value::ValueTimer,
};

/// A queue from which each value can be received once its delay is over, in the order of the
/// deadlines, to the tick.
///
/// It is like `java.util.concurrent.DelayQueue`, with a key for each value: until the value is due,
/// the key cancels it or moves its deadline. Any number of threads may insert and receive. Clones
/// are the same queue. Due values wait in memory, without a limit, until a thread receives them.
///
/// The receiving functions return the errors of [`std::sync::mpsc`]; *disconnected* means that the
/// queue is shut down and no due value is left.
///
/// The queue is a [`ValueTimer`] whose values are received instead of handled. Functions that the
/// queue lacks, such as the counts, are those of its [`timer`](Self::timer).
///
/// # Examples
///
/// ```
/// use std::{
///     sync::mpsc::{RecvError, TryRecvError},
///     time::Duration,
/// };
///
/// use delaywheel::DelayQueue;
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

impl<T: Send + 'static> DelayQueue<T> {
    /// Makes a queue with the default settings. Starts no thread; the first value does.
    #[must_use]
    pub fn new() -> Self {
        let queue = TimerBuilder::default().build_queue();
        queue.unwrap_or_else(|_| unreachable!("the default settings are valid"))
    }

    /// Returns a receiver for a task.
    pub(crate) fn receiver(&self) -> Receiver<T> {
        Receiver::new(Arc::clone(&self.due))
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

    /// Cancels a value that the reaper has not moved to the due ones and returns it; `None` if the
    /// reaper has, or the value was received, cancelled or returned before.
    pub fn cancel(&self, key: TimeoutKey) -> Option<T> {
        self.timer.cancel(key)
    }

    /// Moves the deadline of a value to `delay` from now, if [`cancel`](Self::cancel) could cancel
    /// the value. Returns whether there was such a value.
    pub fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        self.timer.reset(key, delay)
    }

    /// Shuts the queue down at once and returns every value that no thread received, in any order.
    /// Receivers get an error.
    pub fn shutdown(&self) -> Vec<T> {
        self.timer.shutdown()
    }

    /// Refuses new values, waits until every value is due or cancelled, but no longer than
    /// `within`, and returns the values that are not due.
    ///
    /// The call does not wait for receivers: due values can be received during the wait and after
    /// it. A later [`shutdown`](Self::shutdown) returns those that no thread received.
    /// [`Timer::finish`](crate::Timer::finish) has the details.
    pub fn finish(&self, within: Duration) -> Vec<T> {
        self.timer.finish(within)
    }

    /// Returns the timer of the queue, whose values are received instead of handled.
    #[must_use]
    pub fn timer(&self) -> &ValueTimer<T> {
        &self.timer
    }

    /// Waits for a due value and removes it.
    ///
    /// On an empty queue, the call waits until another thread inserts a value and that value is
    /// due.
    ///
    /// # Errors
    ///
    /// [`RecvError`] if the queue is shut down and no due value is left.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.due.take_by(None).map(|expired| expired.value).map_err(|_| RecvError)
    }

    /// Waits for a due value, no longer than `timeout` in real time, and removes it.
    ///
    /// # Examples
    ///
    /// A loop that does other work now and then, and ends with the queue:
    ///
    /// ```
    /// use std::{sync::mpsc::RecvTimeoutError, time::Duration};
    ///
    /// use delaywheel::DelayQueue;
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert(Duration::from_millis(2), "tea")?;
    /// loop {
    ///     match queue.recv_timeout(Duration::from_millis(50)) {
    ///         Ok(value) => println!("time for {value}"),
    ///         Err(RecvTimeoutError::Timeout) => drop(queue.shutdown()),
    ///         Err(RecvTimeoutError::Disconnected) => break,
    ///     }
    /// }
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::Timeout`] if no value became due in time,
    /// [`RecvTimeoutError::Disconnected`] if the queue is shut down and no due value is left.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match self.due.take_by(Instant::now().checked_add(timeout)) {
            Ok(expired) => Ok(expired.value),
            Err(TryRecvError::Empty) => Err(RecvTimeoutError::Timeout),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
        }
    }

    /// Removes a due value without waiting.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`] if no value is due, [`TryRecvError::Disconnected`] if the queue is
    /// shut down and no due value is left.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.due.try_take().map(|expired| expired.value)
    }

    /// Returns the number of values in the queue, due or not.
    ///
    /// Takes each shard's lock for a moment.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.timer.shared().len()).unwrap_or(usize::MAX)
    }

    /// Returns whether the queue has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl TimerBuilder {
    /// Makes a queue from which values are received. Starts no thread; the first value does.
    ///
    /// By default a queue has one [shard](Self::shards), and returns values in the order of their
    /// deadlines, to the tick. With several shards, threads that insert at the same time wait less
    /// for each other. But values of different shards that become due at the same wake-up of the
    /// reaper come in any order.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let queue = Timer::builder().clock(clock.clone()).build_queue()?;
    /// queue.insert(Duration::from_secs(60), 'a')?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(queue.timer().stats().waiting, 1);
    /// assert_eq!(queue.try_recv(), Ok('a'));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range, or an executor was chosen: a queue runs no
    /// callbacks.
    pub fn build_queue<T: Send + 'static>(mut self) -> Result<DelayQueue<T>, TimerBuildError> {
        if self.execution.is_some() {
            return Err(TimerBuildError::ExecutorOfQueue);
        }
        self.shards.get_or_insert(1);
        self.execution = Some(Execution::Queue);
        let shared = self.build_with_state(None, |wheel, _, _| wheel, drop)?;
        let Delivery::Backlog(due) = shared.delivery() else { unreachable!("it is a queue") };
        Ok(DelayQueue { due: Arc::clone(due), timer: ValueTimer::from_shared(shared) })
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
