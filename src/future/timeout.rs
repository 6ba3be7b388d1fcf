//! A limit on the time that a future takes.

use std::{
    error::Error,
    fmt,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use pin_project_lite::pin_project;

use super::{Sleep, SleepError};
use crate::{
    time::Deadline,
    timer::{SleepHandle, Timer},
};

pin_project! {
    /// Limits how long a future takes; from [`Timer::timeout`] and [`timeout()`](super::timeout()).
    ///
    /// Each poll first polls the future. If the future completes in that poll, its output is the
    /// result, even after the deadline. The first poll that finds the future pending registers a
    /// sleep. So a future that is ready at once takes no lock and does not read the clock.
    ///
    /// A poll after [`TimeoutError::Elapsed`] polls the future again, and ends with that error
    /// again if the future is pending. Do not poll the timeout after an output of the future.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::Elapsed`] when the time has elapsed. [`TimeoutError::Sleep`] if the future
    /// is pending and the timer is full, is shut down, or cannot start its thread.
    ///
    /// # Cancel safety
    ///
    /// A dropped timeout drops its future and leaves the wheel.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        // The end of the time limit.
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    #[inline]
    pub(super) fn after(
        handle: SleepHandle,
        delay: Duration,
        future: impl IntoFuture<IntoFuture = F>,
    ) -> Self {
        Self { future: future.into_future(), sleep: Sleep::delayed(handle, delay) }
    }

    pub(super) fn at(sleep: Sleep, future: impl IntoFuture<IntoFuture = F>) -> Self {
        Self { future: future.into_future(), sleep }
    }

    /// Returns the future, without the time limit.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Poll::Ready(Err(match ready!(Pin::new(this.sleep).poll(cx)) {
            Ok(()) => TimeoutError::Elapsed,
            Err(error) => TimeoutError::Sleep(error),
        }))
    }
}

impl<F: fmt::Debug> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("future", &self.future).finish_non_exhaustive()
    }
}

impl Timer {
    /// Limits how long `future` takes.
    ///
    /// The delay starts at the end of the first poll, as in an `async fn`, and not at this call as
    /// in tokio. So a timeout whose future is ready at once never reads the clock. The read would
    /// take ten times as long as all the rest. To count from now, make a [`Deadline`], which
    /// accepts every delay, and call its [`timeout`](Deadline::timeout); [`Deadline::after`] tells
    /// how to make a deadline on a clock of your own. With a delay of zero, the timeout polls the
    /// future once.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::{pending, ready}, time::Duration};
    ///
    /// use delaywheel::Timer;
    /// use pollster::block_on;
    ///
    /// let timer = Timer::new();
    /// let limit = Duration::from_millis(5);
    /// assert_eq!(block_on(timer.timeout(limit, ready(7)))?, 7);
    /// assert!(block_on(timer.timeout(limit, pending::<()>())).is_err());
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Timeout`].
    #[inline]
    pub fn timeout<F: IntoFuture>(&self, delay: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout::after(self.sleep_handle(), delay, future)
    }

    /// Limits the time for `future`: it must complete by `deadline`.
    ///
    /// If the deadline has passed, the timeout polls the future once.
    ///
    /// # Cancel safety
    ///
    /// See [`Timeout`].
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout::at(self.sleep_until(deadline), future)
    }
}

/// A time limit, with the feature `future`.
impl Deadline {
    /// Limits the time for a future by this deadline, with a timer on the system's clock. After the
    /// deadline, the timeout polls the future once.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::{pending, ready}, time::Duration};
    ///
    /// use delaywheel::{future::default_timer, time::Deadline};
    /// use pollster::block_on;
    ///
    /// let request = Deadline::after(Duration::from_millis(5));
    /// let timer = default_timer();
    /// assert_eq!(block_on(request.timeout(timer, ready(7)))?, 7);
    /// assert!(block_on(request.timeout(timer, pending::<()>())).is_err());
    /// # Ok::<_, delaywheel::future::TimeoutError>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Timeout`].
    pub fn timeout<F: IntoFuture>(self, timer: &Timer, future: F) -> Timeout<F::IntoFuture> {
        match self.instant() {
            Some(instant) => timer.timeout_at(instant, future),
            None => timer.timeout(Duration::MAX, future),
        }
    }
}

/// Error of a [`Timeout`]: its future did not complete in time, or its timer failed.
///
/// # Examples
///
/// ```
/// use std::{future::pending, io, time::Duration};
///
/// use delaywheel::{ManualClock, Timer, future::TimeoutError};
/// use pollster::block_on;
///
/// let timer = Timer::builder().clock(ManualClock::new()).build()?;
/// let error = block_on(timer.timeout(Duration::ZERO, pending::<()>())).unwrap_err();
/// assert!(matches!(error, TimeoutError::Elapsed));
/// assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
///
/// timer.shutdown();
/// let error = block_on(timer.timeout(Duration::from_secs(9), pending::<()>())).unwrap_err();
/// assert!(matches!(error, TimeoutError::Sleep(_)));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The time elapsed before the future completed.
    Elapsed,
    /// The timer failed before the future completed.
    Sleep(SleepError),
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed => f.write_str("deadline has elapsed"),
            Self::Sleep(_) => f.write_str("timer refused the sleep of the timeout"),
        }
    }
}

impl Error for TimeoutError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Elapsed => None,
            Self::Sleep(cause) => Some(cause),
        }
    }
}

impl From<SleepError> for TimeoutError {
    fn from(error: SleepError) -> Self {
        Self::Sleep(error)
    }
}

/// The kind is [`TimedOut`](io::ErrorKind::TimedOut), or the kind of the [`SleepError`].
impl From<TimeoutError> for io::Error {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::new(io::ErrorKind::TimedOut, error),
            TimeoutError::Sleep(cause) => Self::from(cause),
        }
    }
}
