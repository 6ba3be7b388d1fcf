//! Errors of sleeps and timeouts.

use std::{error::Error, fmt, io};

use crate::timer::ScheduleError;

/// Error of a [`Sleep`](super::Sleep) whose timer cannot wake it: the timer is full, is shut down,
/// or cannot start its thread.
///
/// It converts to [`io::Error`]; a timer that is shut down is
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
pub type SleepError = ScheduleError<()>;

/// Error of a [`Timeout`](super::Timeout): its future did not complete in time, or its timer
/// failed.
///
/// # Examples
///
/// ```
/// use std::{future::pending, io, time::Duration};
///
/// use delaywheel::{ManualClock, Timer, future::{TimeoutError, block_on}};
///
/// let timer = Timer::builder().clock(ManualClock::new()).build()?;
/// let error = block_on(timer.timeout(Duration::ZERO, pending::<()>())).unwrap_err();
/// assert!(matches!(error, TimeoutError::Elapsed));
/// assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
///
/// timer.shutdown();
/// let error = block_on(timer.timeout(Duration::from_secs(9), pending::<()>())).unwrap_err();
/// assert!(!error.is_elapsed());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub enum TimeoutError {
    /// The time elapsed before the future completed.
    Elapsed,
    /// The timer failed before the future completed.
    Sleep(SleepError),
}

impl TimeoutError {
    /// Returns whether the time elapsed.
    #[must_use]
    pub const fn is_elapsed(&self) -> bool {
        matches!(self, Self::Elapsed)
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed => f.write_str("deadline has elapsed"),
            Self::Sleep(_) => f.write_str("timer cannot limit the time"),
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

/// The kind is [`TimedOut`](io::ErrorKind::TimedOut), or that of the [`SleepError`].
impl From<TimeoutError> for io::Error {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::new(io::ErrorKind::TimedOut, error),
            TimeoutError::Sleep(cause) => Self::from(cause),
        }
    }
}

/// The compiler rejects this if an error cannot be used with `?`.
const _: () = {
    const fn is_error<E: Error + Send + Sync + 'static>() {}
    is_error::<SleepError>();
    is_error::<TimeoutError>();
};
