//! The default timer of the process, and the free functions that use it.

use std::{
    fmt,
    future::IntoFuture,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{Interval, Sleep, Timeout};
use crate::timer::{MissedTicks, SleepHandle, Timer};

static DEFAULT: OnceLock<Timer> = OnceLock::new();

/// Returns the handle to the default timer, which counts no references.
#[inline]
fn handle() -> SleepHandle {
    default_timer().static_sleep_handle()
}

/// Returns the timer that the free functions of this module use.
///
/// The first use creates it with the default settings, unless [`set_default_timer`] was called
/// before. It exists until the process ends. If it is shut down, the free functions return futures
/// that end with an error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::future::{default_timer, sleep};
///
/// let sleep = sleep(Duration::from_secs(60));
/// assert_eq!(default_timer().stats().pending, 0, "the first poll registers the sleep");
/// ```
#[inline]
pub fn default_timer() -> &'static Timer {
    DEFAULT.get_or_init(Timer::new)
}

/// Sets the timer that the free functions of this module use. Call it once, before you use them.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Timer, future::set_default_timer};
///
/// let timer = Timer::builder().tick(Duration::from_micros(100)).name("server").build()?;
/// set_default_timer(timer)?;
/// assert!(set_default_timer(Timer::new()).is_err(), "it is set once");
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
///
/// [`DefaultTimerError`] hands the timer back if the process already has a default timer.
pub fn set_default_timer(timer: Timer) -> Result<(), DefaultTimerError> {
    DEFAULT.set(timer).map_err(|timer| DefaultTimerError { timer })
}

/// Error of [`set_default_timer`]: the process already has a default timer.
#[derive(Debug)]
pub struct DefaultTimerError {
    timer: Timer,
}

impl DefaultTimerError {
    /// Returns the timer that was not set.
    #[must_use]
    pub fn into_value(self) -> Timer {
        self.timer
    }
}

impl fmt::Display for DefaultTimerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("default timer is set already")
    }
}

impl std::error::Error for DefaultTimerError {}

/// The kind is [`AlreadyExists`](std::io::ErrorKind::AlreadyExists).
impl From<DefaultTimerError> for std::io::Error {
    fn from(error: DefaultTimerError) -> Self {
        Self::new(std::io::ErrorKind::AlreadyExists, error)
    }
}

/// [`Timer::sleep`] on the [default timer](default_timer).
///
/// Write `sleep(delay).await?`. The result is an error if the sleep cannot wait: the process can
/// start no thread, or your program shut down or limited the timer that it made the default one. A
/// sleep that ended early, never, or with a panic instead would hide that from the task. Programs
/// that do neither may write `.await.expect("the timer runs")`.
///
/// # Cancel safety
///
/// See [`Sleep`].
#[doc(alias = "delay")]
#[inline]
pub fn sleep(delay: Duration) -> Sleep {
    Sleep::after(handle(), delay)
}

/// [`Timer::sleep_until`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::at(handle(), deadline)
}

/// [`Timer::timeout`] on the [default timer](default_timer).
///
/// # Examples
///
/// ```
/// use std::{io, time::Duration};
///
/// use delaywheel::future::timeout;
///
/// async fn first_byte(stream: impl Future<Output = io::Result<u8>>) -> io::Result<u8> {
///     timeout(Duration::from_secs(5), stream).await?
/// }
/// # assert_eq!(pollster::block_on(first_byte(async { Ok(3) })).unwrap(), 3);
/// ```
///
/// # Cancel safety
///
/// See [`Timeout`].
#[inline]
pub fn timeout<F: IntoFuture>(delay: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout::after(handle(), delay, future)
}

/// [`Timer::timeout_at`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Timeout`].
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout::at(Sleep::at(handle(), deadline), future)
}

/// [`Timer::interval`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Interval::tick`].
pub fn interval(period: Duration, missed: MissedTicks) -> Interval {
    default_timer().interval(period, missed)
}
