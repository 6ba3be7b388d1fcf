//! Batches: many timeouts in one call, which reads the clock once and locks once for 256 of them.
//!
//! A call first collects the caller's iterator, which is user code. So the iterator runs without a
//! lock, and if it panics, nothing is scheduled.

use std::{borrow::Borrow, boxed::Box, fmt, time::Duration, vec::Vec};

use super::{
    Task, Timeout, Timer, error::ScheduleError, shards::key::TimeoutKey, value::ValueTimer,
};

/// The two parts of a batch of which only the first was scheduled; in a [`BatchError`].
///
/// Both parts are in the order of the batch. The refused part can be scheduled again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ScheduleErrorKind, ValueTimer};
///
/// let timer = ValueTimer::builder().max_pending(2).build_with(|_: u32| ())?;
/// let batch = [(60, 'a'), (61, 'b'), (62, 'c')];
/// let batch = batch.map(|(delay, value)| (Duration::from_secs(delay), u32::from(value)));
/// let error = timer.schedule_batch(batch).unwrap_err();
/// assert_eq!(error.kind(), ScheduleErrorKind::Full);
/// let partial = error.into_value();
/// assert_eq!(partial.scheduled.len(), 2);
/// assert_eq!(partial.refused, [(Duration::from_secs(62), u32::from('c'))]);
///
/// timer.cancel_batch(partial.scheduled);
/// assert!(timer.schedule_batch(partial.refused).is_ok());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[non_exhaustive]
pub struct PartialBatch<K, T> {
    /// Keys or handles of the scheduled timeouts.
    pub scheduled: Vec<K>,
    /// Delays and values of the refused timeouts.
    pub refused: Vec<(Duration, T)>,
}

impl<K, T> fmt::Debug for PartialBatch<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialBatch")
            .field("scheduled", &self.scheduled.len())
            .field("refused", &self.refused.len())
            .finish()
    }
}

/// Error of a batch that was not scheduled completely. Holds both parts of the batch.
pub type BatchError<K, T> = ScheduleError<PartialBatch<K, T>>;

impl<T: Send + 'static> ValueTimer<T> {
    /// Schedules each value of a batch after its delay, as [`schedule`](Self::schedule) does, and
    /// returns the keys in the order of the batch.
    ///
    /// All delays begin when the iterator has ended. The batch goes to one shard. After each 256
    /// values the call unlocks the shard, and wakes the reaper if one of them is earlier than the
    /// reaper's next wake-up.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, ValueTimer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = ValueTimer::builder().clock(clock.clone()).build_with(|_: u64| ())?;
    /// let requests = (0..1000).map(|request| (Duration::from_secs(2), request));
    /// let keys = timer.schedule_batch(requests)?;
    /// assert_eq!(timer.cancel(keys[7]), Some(7));
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(timer.stats().expired, 999);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The same as those of [`schedule`](Self::schedule). Scheduling stops at the first refused
    /// value. [`PartialBatch`] returns the keys of the values before it, and the refused values.
    ///
    /// # Panics
    ///
    /// Panics if the iterator does. Then nothing is scheduled.
    ///
    /// # Complexity
    ///
    /// Takes the time of the inserts, and memory for the batch and its keys.
    pub fn schedule_batch(
        &self,
        batch: impl IntoIterator<Item = (Duration, T)>,
    ) -> Result<Vec<TimeoutKey>, BatchError<TimeoutKey, T>> {
        let batch: Vec<_> = batch.into_iter().collect();
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        if let Err(cause) = self.shared().ensure_started() {
            let partial = PartialBatch { scheduled: Vec::new(), refused: batch };
            return Err(ScheduleError::no_thread(partial, cause));
        }
        let count = batch.len();
        let (scheduled, rest) = self.shards().insert_batch(batch);
        match rest {
            None => {
                debug_assert_eq!(scheduled.len(), count, "a timeout has no key");
                Ok(scheduled)
            }
            Some(error) => Err(error.map(|refused| {
                debug_assert_eq!(scheduled.len() + refused.len(), count, "a timeout is lost");
                PartialBatch { scheduled, refused }
            })),
        }
    }

    /// Cancels each timeout of a batch. Returns their values in the order of the keys; `None` for a
    /// timeout that has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::ValueTimer;
    ///
    /// let timer = ValueTimer::builder().build_with(|_: char| ())?;
    /// let hour = Duration::from_secs(3600);
    /// let keys = timer.schedule_batch(['a', 'b', 'c'].map(|value| (hour, value)))?;
    /// timer.cancel(keys[1]);
    /// assert_eq!(timer.cancel_batch(keys), [Some('a'), None, Some('c')]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the iterator does. Then nothing is cancelled.
    ///
    /// # Complexity
    ///
    /// Takes the time of the cancels and of sorting the keys by shard; one lock for each 256 keys
    /// of a shard.
    pub fn cancel_batch(&self, keys: impl IntoIterator<Item = TimeoutKey>) -> Vec<Option<T>> {
        let keys: Vec<_> = keys.into_iter().collect();
        let values = self.shards().cancel_batch(&keys);
        debug_assert_eq!(values.len(), keys.len(), "a key has no answer");
        values
    }
}

impl Timer {
    /// Schedules each callback of a batch after its delay, as [`schedule`](Self::schedule) does,
    /// and returns the handles in the order of the batch.
    ///
    /// [`ValueTimer::schedule_batch`] has the details.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::mpsc, time::Duration};
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let (ran, runs) = mpsc::channel();
    /// let batch = (0..100).map(|number| {
    ///     let ran = ran.clone();
    ///     (Duration::from_secs(2), move || ran.send(number).unwrap())
    /// });
    /// let timeouts = timer.schedule_batch(batch)?;
    /// assert_eq!(timer.cancel_batch(&timeouts[..90]), 90);
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(runs.try_iter().count(), 10);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The same as those of [`ValueTimer::schedule_batch`].
    ///
    /// # Panics
    ///
    /// Panics if the iterator does. Then nothing is scheduled.
    pub fn schedule_batch<F: FnOnce() + Send + 'static>(
        &self,
        batch: impl IntoIterator<Item = (Duration, F)>,
    ) -> Result<Vec<Timeout>, BatchError<Timeout, Task>> {
        let tasks = batch.into_iter().map(|(delay, run)| (delay, Task(Box::new(run))));
        let named =
            |keys: Vec<TimeoutKey>| keys.into_iter().map(|key| self.timeout_of(key)).collect();
        match self.values.schedule_batch(tasks) {
            Ok(keys) => Ok(named(keys)),
            Err(error) => Err(error.map(|PartialBatch { scheduled, refused }| PartialBatch {
                scheduled: named(scheduled),
                refused,
            })),
        }
    }

    /// Cancels each timeout of a batch. Returns how many were pending.
    ///
    /// Timeouts of other timers are cancelled as well, one at a time.
    ///
    /// # Panics
    ///
    /// Panics if the iterator does. Then nothing is cancelled.
    pub fn cancel_batch(&self, timeouts: impl IntoIterator<Item: Borrow<Timeout>>) -> usize {
        let timeouts: Vec<_> = timeouts.into_iter().collect();
        let shards = self.values.shards();
        let (own, others): (Vec<_>, Vec<_>) =
            timeouts.iter().map(Borrow::borrow).partition(|timeout| timeout.is_of(shards));
        let own: Vec<_> = own.into_iter().map(Timeout::key).collect();
        let tasks = shards.cancel_batch(&own);
        let cancelled = others.into_iter().filter(|timeout| timeout.cancel()).count();
        let cancelled = cancelled + tasks.iter().flatten().count();
        debug_assert!(cancelled <= timeouts.len(), "a timeout was cancelled twice");
        cancelled
    }
}
