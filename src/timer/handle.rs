//! The handle of a timeout, and the guard that cancels it.

use std::{
    fmt,
    ops::Deref,
    time::{Duration, Instant, SystemTime},
};

use super::{
    Task,
    shards::{ShardRef, TimeoutKey},
};
use crate::wheel::{Key, TimingWheel};

/// Handle of a timeout of a [`Timer`](crate::Timer). It cancels the timeout or moves its deadline.
///
/// Dropping the handle leaves the timeout pending. A handle does not keep its timer alive.
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
/// let timeout = timer.schedule(Duration::from_secs(5), || panic!("it was cancelled"))?;
/// assert!(timeout.reset(Duration::from_secs(9)));
/// clock.advance(Duration::from_secs(8));
/// assert!(timeout.cancel());
/// assert!(!timeout.cancel());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct TimeoutHandle {
    pub(super) shard: ShardRef<TimingWheel<Task>>,
    /// The key in the wheel of the shard.
    pub(super) key: Key,
}

impl TimeoutHandle {
    #[inline]
    fn key(&self) -> TimeoutKey {
        TimeoutKey { shard: self.shard.index, key: self.key }
    }

    /// Cancels the timeout. Returns whether it was pending; if so, its callback never runs and is
    /// dropped here.
    ///
    /// Returns `false` if the callback has run, is running or waits for an executor thread. Also
    /// returns `false` if the timeout was cancelled, or returned by a shutdown.
    #[inline]
    pub fn cancel(&self) -> bool {
        self.shard.shards.cancel(self.key()).is_some()
    }

    /// Moves the deadline to `delay` from now. Returns whether the timeout was pending. If the
    /// timeout has ended, `reset` does not schedule the callback again.
    #[inline]
    pub fn reset(&self, delay: Duration) -> bool {
        self.shard.shards.reset(self.key(), |clock, read| clock.deadline(read, delay))
    }

    /// Moves the deadline to `instant`. Returns whether the timeout was pending.
    ///
    /// A timeout whose new deadline has passed is due at once.
    #[inline]
    pub fn reset_at(&self, instant: Instant) -> bool {
        self.shard.shards.reset(self.key(), |clock, read| clock.at(read, instant))
    }

    /// Moves the deadline to a time of the wall clock. Returns whether the timeout was pending.
    ///
    /// The timeout then follows the wall clock, until a `reset` gives it another deadline.
    pub fn reset_at_time(&self, time: impl Into<SystemTime>) -> bool {
        self.shard.shards.reset_at_time(self.key(), time.into())
    }

    /// Moves the deadline to `delay` from now, unless the present deadline is later. Returns
    /// whether the timeout was pending.
    ///
    /// Use it if threads share a timeout: of two calls of [`reset`](Self::reset) at the same time,
    /// the one that reads the clock first may move the deadline last, and so to an earlier instant.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{ManualClock, Timer};
    ///
    /// let timer = Timer::builder().clock(ManualClock::new()).build()?;
    /// let timeout = timer.schedule(Duration::from_secs(5), || ())?;
    /// timeout.postpone(Duration::from_secs(9));
    /// timeout.postpone(Duration::from_secs(7));
    /// assert_eq!(timeout.remaining(), Some(Duration::from_secs(9)));
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    pub fn postpone(&self, delay: Duration) -> bool {
        self.shard.shards.postpone(self.key(), self.shard.shards.clock.read(), delay)
    }

    /// Returns whether the timeout has not ended.
    #[inline]
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.shard.shards.deadline(self.key()).is_some()
    }

    /// Returns the instant at which the timeout expires, the start of its tick; `None` if it has
    /// ended, or if an [`Instant`] cannot represent the time.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let shards = &self.shard.shards;
        shards.clock.instant(shards.deadline(self.key())?)
    }

    /// Returns the time until the timeout expires, on the timer's clock; zero if it is due, `None`
    /// if it has ended.
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
    /// let timeout = timer.schedule(Duration::from_secs(5), || ())?;
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(timeout.remaining(), Some(Duration::from_secs(3)));
    /// clock.advance(Duration::from_secs(3));
    /// assert_eq!(timeout.remaining(), None);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.shard.shards.remaining(self.key())
    }

    /// Turns the handle into a guard that cancels the timeout when it is dropped.
    #[inline]
    pub fn cancel_on_drop(self) -> TimeoutGuard {
        TimeoutGuard { timeout: self, is_armed: true }
    }
}

impl fmt::Debug for TimeoutHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutHandle").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Cancels a timeout when it is dropped; from [`TimeoutHandle::cancel_on_drop`].
///
/// It dereferences to [`TimeoutHandle`], so `guard.reset(..)` works.
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
/// let guard = timer.schedule(Duration::from_secs(5), || ())?.cancel_on_drop();
/// drop(guard);
/// assert_eq!(timer.stats().cancelled, 1);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
#[must_use = "the timeout is cancelled as soon as this is dropped"]
pub struct TimeoutGuard {
    timeout: TimeoutHandle,
    is_armed: bool,
}

impl TimeoutGuard {
    /// Lets the timeout run when the guard is dropped.
    #[inline]
    pub fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Deref for TimeoutGuard {
    type Target = TimeoutHandle;

    fn deref(&self) -> &TimeoutHandle {
        &self.timeout
    }
}

impl Drop for TimeoutGuard {
    #[inline]
    fn drop(&mut self) {
        if self.is_armed {
            self.timeout.cancel();
        }
    }
}
