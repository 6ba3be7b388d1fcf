//! A future that ends at a deadline.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

pub use crate::timer::Sleep;
use crate::timer::{ScheduleError, TimeSleeper, Timer};

/// Waits until the wall clock shows a time; from [`Timer::sleep_until_time`] and
/// [`sleep_until_time()`](super::sleep_until_time()).
///
/// It is [`Unpin`]. Unlike that of a [`Sleep`], each pending poll clones the waker and takes a
/// lock. A poll after its end is ready again, unless the wall clock was set back before the time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Clock, ManualClock, Timer};
/// use pollster::block_on;
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let noon = clock.system_time() + Duration::from_secs(12 * 3600);
/// let lunch = timer.sleep_until_time(noon);
/// clock.set_system_time(noon);
/// block_on(lunch)?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
///
/// Those of [`Sleep`].
///
/// # Cancel safety
///
/// A dropped sleep leaves the wheel. Await `&mut sleep` to keep it.
#[must_use = "futures do nothing unless awaited"]
pub struct TimeSleep(pub(super) TimeSleeper);

impl Future for TimeSleep {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx.waker())
    }
}

impl fmt::Debug for TimeSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeSleep").field("time", &self.0.time).finish_non_exhaustive()
    }
}

/// Futures, with the feature `future`.
impl Timer {
    /// Returns a future that ends after `delay`: not earlier, and less than a tick plus scheduling
    /// delay later.
    ///
    /// The delay starts now. A delay of zero ends at once. A delay of [`Duration::MAX`] never ends.
    /// The sleep does not keep the timer running.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::Timer;
    /// use pollster::block_on;
    ///
    /// let timer = Timer::new();
    /// block_on(timer.sleep(Duration::from_millis(5)))?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    ///
    /// # Complexity
    ///
    /// *O*(1). Takes no lock.
    #[inline]
    pub fn sleep(&self, delay: Duration) -> Sleep {
        Sleep::after(self.sleep_handle(), delay)
    }

    /// Returns a future that ends at `deadline`; at once if the deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::at(self.sleep_handle(), deadline)
    }

    /// Returns a future that ends when the wall clock shows `time` or later.
    ///
    /// If the wall clock is set, the sleep follows it, as a timeout of
    /// [`schedule_at_time`](Self::schedule_at_time) does.
    ///
    /// # Cancel safety
    ///
    /// See [`TimeSleep`].
    pub fn sleep_until_time(&self, time: impl Into<SystemTime>) -> TimeSleep {
        TimeSleep(TimeSleeper::new(self.sleep_handle(), time.into()))
    }
}

/// Error of a [`Sleep`] whose timer cannot wake it: the timer is full, is shut down,
/// or cannot start its thread.
///
/// It converts to [`std::io::Error`]; a timer that is shut down is
/// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
pub type SleepError = ScheduleError<()>;
