//! A future that ends at a deadline.

use std::time::{Duration, Instant, SystemTime};

pub use crate::timer::Sleep;
use crate::timer::{ScheduleError, TimeSleep, Timer};

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
        TimeSleep::new(self.sleep_handle(), time.into())
    }
}

/// Error of a [`Sleep`] whose timer cannot wake it: the timer is full, is shut down,
/// or cannot start its thread.
///
/// It converts to [`std::io::Error`]; a timer that is shut down is
/// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
pub type SleepError = ScheduleError<()>;
