//! A queue whose values can be received once their delay is over.

use std::{
    fmt,
    time::{Duration, Instant},
    vec::Vec,
};

use crossbeam::{
    channel::{Receiver, Sender, after, bounded, never, unbounded},
    select,
};

use super::{
    builder::TimerBuilder,
    error::{ScheduleError, TimerBuildError},
    stats::TimerStats,
    value::{TimeoutKey, ValueTimer},
};
use crate::sync::Mutex;

/// A queue from which each value can be taken once its delay is over, in the order of their
/// deadlines, as far as these are a tick apart.
///
/// Like `java.util.concurrent.DelayQueue`, and with a key for each value, by which it can be taken
/// back or put off as long as it is not due. Any number of threads may insert and receive. Values
/// that are due wait, in memory, until somebody receives them.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::DelayQueue;
///
/// let queue = DelayQueue::new();
/// queue.insert(Duration::from_millis(20), "later")?;
/// queue.insert(Duration::from_millis(10), "sooner")?;
/// let never = queue.insert(Duration::from_secs(3600), "never")?;
/// assert_eq!(queue.try_recv(), None);
/// assert_eq!(queue.recv(), Some("sooner"));
/// assert_eq!(queue.recv(), Some("later"));
/// assert_eq!(queue.cancel(never), Some("never"));
/// # Ok::<_, delaywheel::ScheduleError<&str>>(())
/// ```
pub struct DelayQueue<T: Send + 'static> {
    timer: ValueTimer<T>,
    due: Receiver<T>,
    /// Disconnected when the queue is shut down.
    closed: Receiver<()>,
    /// `None` once the queue has been shut down.
    open: Mutex<Option<Sender<()>>>,
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Makes a queue with the default settings.
    #[must_use]
    pub fn new() -> Self {
        match Self::build(TimerBuilder::new()) {
            Ok(queue) => queue,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }

    /// Makes a queue with these settings; those of the executor do not matter.
    ///
    /// Unless a number of shards is set, it has one. With several, threads that insert at once wait
    /// less for each other; but values of different shards that become due by the same wake-up of
    /// the reaper are not received in the order of their deadlines.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{DelayQueue, ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let queue = DelayQueue::build(Timer::builder().clock(clock.clone()))?;
    /// queue.insert(Duration::from_secs(60), 'a')?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(queue.try_recv(), Some('a'));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    pub fn build(settings: TimerBuilder) -> Result<Self, TimerBuildError> {
        let (sender, due) = unbounded();
        let (open, closed) = bounded(0);
        // Nobody receives any more if this fails; then the value is dropped, as the others are.
        let pass_on = move |value| drop(sender.send(value));
        let timer = settings.inline().one_shard_by_default().build_with(pass_on)?;
        Ok(Self { timer, due, closed, open: Mutex::new(Some(open)) })
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

    /// Takes back a value that is not due; `None` if it is, or has been taken.
    pub fn cancel(&self, key: TimeoutKey) -> Option<T> {
        self.timer.cancel(key)
    }

    /// Has a value that is not due be so when `delay` is over from now. Returns whether it was not
    /// due.
    pub fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        self.timer.reset(key, delay)
    }

    /// Waits for a value to be due and takes it; `None` if the queue has been shut down, and nothing
    /// that was due is left.
    ///
    /// With nothing in the queue it waits for something to be inserted.
    pub fn recv(&self) -> Option<T> {
        self.wait(&never::<()>())
    }

    /// Waits for a value to be due, in real time and for no longer than `timeout`, and takes it;
    /// `None` if none was.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<T> {
        self.wait(&after(timeout))
    }

    /// Takes a value that is due, if there is one.
    pub fn try_recv(&self) -> Option<T> {
        self.due.try_recv().ok()
    }

    /// Waits for values and takes them, until the queue is shut down.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv())
    }

    /// Returns the number of values in the queue: those that are due, and those that are not.
    ///
    /// One that becomes due at this very moment may be missed.
    #[must_use]
    pub fn len(&self) -> usize {
        let pending = self.timer.stats().pending;
        self.due.len() + usize::try_from(pending).unwrap_or(usize::MAX)
    }

    /// Returns whether the queue has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shuts the queue down and returns what was in it; those who wait are told.
    ///
    /// A value that becomes due at this very moment is not returned but can be received still.
    pub fn shutdown(&self) -> Vec<T> {
        let mut values = self.timer.shutdown();
        self.open.lock().take();
        values.extend(self.due.try_iter());
        values
    }

    /// Takes in no more values, and shuts the queue down at `deadline`, by its clock, or as soon as
    /// every value is due. Returns the values that were not due by then.
    ///
    /// What is due can be received still, during the drain and after it; those who receive are told
    /// the end when it is all gone. The wait is that of [`Timer::drain`](crate::Timer::drain).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use delaywheel::DelayQueue;
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert(Duration::from_millis(5), "soon")?;
    /// assert!(queue.drain(Instant::now() + Duration::from_secs(60)).is_empty());
    /// assert_eq!((queue.recv(), queue.recv()), (Some("soon"), None));
    /// # Ok::<_, delaywheel::ScheduleError<&str>>(())
    /// ```
    pub fn drain(&self, deadline: Instant) -> Vec<T> {
        let values = self.timer.drain(deadline);
        drop(self.open.lock().take());
        values
    }

    /// Returns what the timer behind the queue has done so far.
    #[must_use]
    pub fn stats(&self) -> TimerStats {
        self.timer.stats()
    }

    fn wait<E>(&self, give_up: &Receiver<E>) -> Option<T> {
        if let Some(value) = self.try_recv() {
            return Some(value);
        }
        select! {
            recv(self.due) -> value => value.ok(),
            // Of several that are ready, any may be chosen.
            recv(self.closed) -> _ => self.try_recv(),
            recv(give_up) -> _ => self.try_recv(),
        }
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
