//! Futures: sleeps, timeouts, intervals, streams and purgatory waits, on any runtime.
//!
//! ```
//! use std::{io, time::Duration};
//!
//! use delaywheel::future::timeout;
//!
//! async fn read() -> io::Result<usize> {
//!     Ok(512)
//! }
//!
//! async fn serve() -> io::Result<usize> {
//!     timeout(Duration::from_secs(5), read()).await?
//! }
//! # assert_eq!(pollster::block_on(serve()).unwrap(), 512);
//! ```
//!
//! A sleep holds a handle to a timer, and the key of its timeout in the wheel. The value of the
//! timeout is the waker of the task that polled the sleep last. The timer needs no runtime: its
//! *reaper*, one thread, wakes the tasks. The same future works on `tokio`, `smol` and every other
//! executor. A [`Driver`] expires the sleeps on a task of your runtime, in place of the thread. A
//! timer with both callbacks and sleeps has two reapers, so that neither delays the other. With a
//! [`Reaper`](crate::Reaper), one thread serves both.
//!
//! The feature `future` is not on by default, because it adds the crates `futures-core` and
//! `pin-project-lite`.
//!
//! | You want | Use |
//! |---|---|
//! | to wait | [`sleep()`], [`sleep_until`]; [`Timer::sleep`] |
//! | to wait for a time of the wall clock | [`Timer::sleep_until_time`] |
//! | to limit how long a future takes | [`timeout()`]; [`Timer::timeout`] |
//! | to do something regularly | [`interval()`]; [`Timer::interval`] |
//! | values when they are due | [`DelayQueue::recv_async`], [`DelayQueue::stream`], [`DelayMap::next`] |
//! | entries that expire, in a map that tasks share | [`SharedDelayMap`] |
//! | to wait for an event | [`AsyncPurgatory`] |
//!
//! The free functions use a [default timer](default_timer()) for the whole process.
//!
//! # Promises
//!
//! The [contract](crate::contract#futures) has the promises. A waker runs without a lock. A waker
//! that blocks delays the other sleeps of its timer, but no callback. Under a [`Driver`], it blocks
//! a worker of your runtime.
//!
//! # Cancel safety
//!
//! You can drop any future at any time without the loss of a tick or of a value of a queue. The
//! details are in the section *Cancel safety* of each function.
//!
//! # Tests
//!
//! On a [`ManualClock`](crate::ManualClock), sleeps end when the test advances the clock, on every
//! runtime. This also works inside of `tokio::time::pause`. One `advance` wakes a task once, and a
//! task that sleeps again needs another `advance`. So poll the task, and call `advance_to_next`
//! while it is pending, as the [retry](crate::guide#retry-with-backoff) of the guide does.
//!
//! ```
//! use std::time::Duration;
//!
//! use delaywheel::{ManualClock, Timer};
//! use pollster::block_on;
//!
//! let clock = ManualClock::new();
//! let timer = Timer::builder().clock(clock.clone()).build()?;
//! let sleep = timer.sleep(Duration::from_secs(3600));
//! clock.advance(Duration::from_secs(3600));
//! block_on(sleep)?;
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! [`Timer::sleep`]: crate::Timer::sleep
//! [`Timer::sleep_until_time`]: crate::Timer::sleep_until_time
//! [`Timer::timeout`]: crate::Timer::timeout
//! [`Timer::interval`]: crate::Timer::interval
//! [`DelayQueue::recv_async`]: crate::DelayQueue::recv_async
//! [`DelayQueue::stream`]: crate::DelayQueue::stream
//! [`DelayMap::next`]: crate::time::DelayMap::next

mod interval;
mod map;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod timeout;
mod wait;

use std::{
    fmt,
    future::IntoFuture,
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use self::{
    interval::Interval,
    map::SharedDelayMap,
    queue::QueueStream,
    timeout::{Timeout, TimeoutError},
    wait::{AsyncPurgatory, Wait, Waiting},
};
pub use crate::timer::{Driver, Sleep, SleepError, TimeSleep};
use crate::timer::{MissedTicks, SleepHandle, Timer};

/// The default timer of the process, which the free functions use.
static DEFAULT: OnceLock<Timer> = OnceLock::new();

/// Returns the handle to the default timer, which counts no references.
#[inline]
fn handle() -> SleepHandle {
    default_timer().static_sleep_handle()
}

/// Returns the timer that the free functions of this module use.
///
/// The first use creates this timer with the default settings, unless [`set_default_timer`] was
/// called before. It exists until the process ends. If it is shut down, the free functions return
/// futures that end with an error.
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
/// [`Deadline::after`](crate::time::Deadline::after) and
/// [`DelayMap::new`](crate::time::DelayMap::new) stay on the system's clock.
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

/// Calls [`Timer::sleep`] on the [default timer](default_timer).
///
/// Write `sleep(delay).await?`. The result is an error if the sleep cannot wait: the process can
/// start no thread, or your program has shut down or limited its default timer. Without the error,
/// such a sleep would end early, never, or with a panic. A program that neither shuts down nor
/// limits its default timer may write `.await.expect("the timer runs")`.
///
/// # Cancel safety
///
/// See [`Sleep`].
#[doc(alias = "delay")]
#[inline]
pub fn sleep(delay: Duration) -> Sleep {
    Sleep::after(handle(), delay)
}

/// Calls [`Timer::sleep_until`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::at(handle(), deadline)
}

/// Calls [`Timer::timeout`] on the [default timer](default_timer).
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

/// Calls [`Timer::timeout_at`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Timeout`].
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout::at(Sleep::at(handle(), deadline), future)
}

/// Calls [`Timer::interval`] on the [default timer](default_timer).
///
/// # Cancel safety
///
/// See [`Interval::tick`].
pub fn interval(period: Duration, missed: MissedTicks) -> Interval {
    default_timer().interval(period, missed)
}
