//! What a timer can refuse; the value is handed back.

use std::{error::Error, fmt, time::Duration};

use crate::BuildError;

/// Why a timer refused a timeout, with the task or value that it was given.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ScheduleError, ValueTimer};
///
/// let timer = ValueTimer::builder().max_pending(1).build_with(|_: u32| ())?;
/// timer.schedule(Duration::from_secs(60), 1)?;
/// let refused = timer.schedule(Duration::from_secs(60), 2).unwrap_err();
/// assert_eq!(refused.into_value(), 2);
///
/// timer.shutdown();
/// let refused = timer.schedule(Duration::ZERO, 3).unwrap_err();
/// assert!(matches!(refused, ScheduleError::ShutDown(3)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError<T> {
    /// As many timeouts are pending as the timer may hold.
    Full(T),
    /// The timer has been shut down.
    ShutDown(T),
    /// The system has no thread for the timer; a later call tries again.
    NoThread(T),
}

impl<T> ScheduleError<T> {
    /// Returns what was not scheduled.
    pub fn into_value(self) -> T {
        match self {
            Self::Full(value) | Self::ShutDown(value) | Self::NoThread(value) => value,
        }
    }
}

impl<T> ScheduleError<T> {
    /// The same reason, with something else to hand back.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> ScheduleError<U> {
        match self {
            Self::Full(value) => ScheduleError::Full(change(value)),
            Self::ShutDown(value) => ScheduleError::ShutDown(change(value)),
            Self::NoThread(value) => ScheduleError::NoThread(change(value)),
        }
    }
}

impl<T> fmt::Debug for ScheduleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::ShutDown(_) => "ShutDown(..)",
            Self::NoThread(_) => "NoThread(..)",
        })
    }
}

impl<T> fmt::Display for ScheduleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the timer holds as many timeouts as it may",
            Self::ShutDown(_) => "the timer has been shut down",
            Self::NoThread(_) => "the timer's threads could not be started",
        })
    }
}

impl<T> Error for ScheduleError<T> {}

/// Why a timer could not be built.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Timer, TimerBuildError};
///
/// let refused = Timer::builder().tick(Duration::ZERO).build().unwrap_err();
/// assert!(matches!(refused, TimerBuildError::TickOutOfRange { .. }));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TimerBuildError {
    /// A tick is not within 1 us..=1 day.
    TickOutOfRange {
        /// The tick that was asked for.
        tick: Duration,
    },
    /// The number of shards is not within 1..=65536.
    ShardsOutOfRange {
        /// The number that was asked for.
        shards: usize,
    },
    /// There is to be no executor thread.
    NoExecutor,
    /// No timeout may be pending.
    NothingPending,
    /// The wheels refuse their size.
    Wheel(BuildError),
}

impl fmt::Display for TimerBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TickOutOfRange { tick } => {
                write!(f, "a tick takes 1 us to 1 day, not {tick:?}")
            }
            Self::ShardsOutOfRange { shards } => {
                write!(f, "a timer has 1 to 65536 shards, not {shards}")
            }
            Self::NoExecutor => f.write_str("a timer with executor threads has at least one"),
            Self::NothingPending => f.write_str("a timer may hold at least one timeout"),
            Self::Wheel(error) => error.fmt(f),
        }
    }
}

impl Error for TimerBuildError {}

impl From<BuildError> for TimerBuildError {
    fn from(error: BuildError) -> Self {
        Self::Wheel(error)
    }
}
