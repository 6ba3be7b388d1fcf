//! Errors of timers and of the delay queue. An error of a refused value returns the value.

use std::{error::Error, fmt, io, time::Duration};

use crate::error::{BuildError, Exclusive};

/// Error of a timer that refuses a timeout. Holds the refused callback or value.
///
/// [`kind`](Self::kind) returns the reason, [`into_value`](Self::into_value) the value. The
/// error is `Send` and `Sync` if the value is `Send`, so `?` works into `anyhow::Error`,
/// `Box<dyn Error + Send + Sync>` and [`io::Error`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ScheduleErrorKind, ValueTimer};
///
/// let timer = ValueTimer::builder().max_pending(1).build_with(|_: u32| ())?;
/// timer.schedule(Duration::from_secs(60), 1)?;
/// let error = timer.schedule(Duration::from_secs(60), 2).unwrap_err();
/// match error.kind() {
///     ScheduleErrorKind::Full => assert_eq!(error.into_value(), 2),
///     _ => return Err(error.into()),
/// }
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct ScheduleError<T> {
    reason: Reason,
    value: Exclusive<T>,
}

/// Reason of a [`ScheduleError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScheduleErrorKind {
    /// As many timeouts are pending as [`max_pending`](crate::TimerBuilder::max_pending) allows.
    Full,
    /// The timer is shut down.
    ShutDown,
    /// The operating system refused to start a thread of the timer. The cause is the
    /// [`source`](Error::source) of the error. A later call tries again.
    NoThread,
}

/// A reason with its cause.
#[derive(Debug)]
pub(crate) enum Reason {
    Full,
    ShutDown,
    NoThread(io::Error),
}

impl<T> ScheduleError<T> {
    pub(crate) const fn full(value: T) -> Self {
        Self { reason: Reason::Full, value: Exclusive::new(value) }
    }

    pub(crate) const fn shut_down(value: T) -> Self {
        Self { reason: Reason::ShutDown, value: Exclusive::new(value) }
    }

    pub(crate) const fn no_thread(value: T, cause: io::Error) -> Self {
        Self { reason: Reason::NoThread(cause), value: Exclusive::new(value) }
    }

    /// Returns the reason.
    #[must_use]
    pub const fn kind(&self) -> ScheduleErrorKind {
        match self.reason {
            Reason::Full => ScheduleErrorKind::Full,
            Reason::ShutDown => ScheduleErrorKind::ShutDown,
            Reason::NoThread(_) => ScheduleErrorKind::NoThread,
        }
    }

    /// Returns the callback or value that was not scheduled.
    pub fn into_value(self) -> T {
        self.value.into_inner()
    }

    /// Replaces the value and keeps the reason.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> ScheduleError<U> {
        let value = Exclusive::new(change(self.value.into_inner()));
        ScheduleError { reason: self.reason, value }
    }

    pub(crate) fn into_reason(self) -> Reason {
        self.reason
    }
}

impl fmt::Display for ScheduleErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "timer is full",
            Self::ShutDown => "timer is shut down",
            Self::NoThread => "cannot start a thread of the timer",
        })
    }
}

impl<T> fmt::Debug for ScheduleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduleError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for ScheduleError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl<T> Error for ScheduleError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.reason {
            Reason::NoThread(cause) => Some(cause),
            Reason::Full | Reason::ShutDown => None,
        }
    }
}

/// A full timer is [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), one that is shut down is
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe), and without a thread the kind is that of the cause.
impl<T: Send + 'static> From<ScheduleError<T>> for io::Error {
    fn from(error: ScheduleError<T>) -> Self {
        let kind = match &error.reason {
            Reason::Full => io::ErrorKind::QuotaExceeded,
            Reason::ShutDown => io::ErrorKind::BrokenPipe,
            Reason::NoThread(cause) => cause.kind(),
        };
        Self::new(kind, error)
    }
}

/// Error of [`TimerBuilder::build`](crate::TimerBuilder::build): a setting is out of range.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Timer, TimerBuildError};
///
/// let error = Timer::builder().tick(Duration::ZERO).build().unwrap_err();
/// assert_eq!(error, TimerBuildError::TickOutOfRange { tick: Duration::ZERO });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerBuildError {
    /// The tick is not within 1 us..=1 day.
    TickOutOfRange {
        /// The tick that was set.
        tick: Duration,
    },
    /// The number of shards is not within 1..=65536.
    ShardsOutOfRange {
        /// The number that was set.
        shards: usize,
    },
    /// The number of executor threads is 0.
    NoExecutor,
    /// The limit on pending timeouts is 0.
    NothingPending,
    /// A setting of the wheels is out of range.
    Wheel(BuildError),
}

impl fmt::Display for TimerBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TickOutOfRange { tick } => {
                write!(f, "tick is {tick:?}, not within 1 us to 1 day")
            }
            Self::ShardsOutOfRange { shards } => {
                write!(f, "number of shards is {shards}, not within 1..=65536")
            }
            Self::NoExecutor => f.write_str("number of executor threads is 0"),
            Self::NothingPending => f.write_str("limit on pending timeouts is 0"),
            Self::Wheel(_) => f.write_str("setting of the wheels is out of range"),
        }
    }
}

impl Error for TimerBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Wheel(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<BuildError> for TimerBuildError {
    fn from(error: BuildError) -> Self {
        Self::Wheel(error)
    }
}

/// The kind is [`InvalidInput`](io::ErrorKind::InvalidInput).
impl From<TimerBuildError> for io::Error {
    fn from(error: TimerBuildError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Error of [`DelayQueue::recv`](crate::DelayQueue::recv): the queue is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecvError;

/// Error of [`DelayQueue::recv_timeout`](crate::DelayQueue::recv_timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecvTimeoutError {
    /// No value became due in time. A later call may receive one.
    Timeout,
    /// The queue is shut down and has no due value. Later calls return the same.
    ShutDown,
}

/// Error of [`DelayQueue::try_recv`](crate::DelayQueue::try_recv).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TryRecvError {
    /// No value is due. A later call may receive one.
    Empty,
    /// The queue is shut down and has no due value. Later calls return the same.
    ShutDown,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("queue is shut down")
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no value became due in time"),
            Self::ShutDown => RecvError.fmt(f),
        }
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no value is due"),
            Self::ShutDown => RecvError.fmt(f),
        }
    }
}

impl Error for RecvError {}
impl Error for RecvTimeoutError {}
impl Error for TryRecvError {}

impl From<RecvError> for RecvTimeoutError {
    fn from(RecvError: RecvError) -> Self {
        Self::ShutDown
    }
}

impl From<RecvError> for TryRecvError {
    fn from(RecvError: RecvError) -> Self {
        Self::ShutDown
    }
}

/// The kind is [`BrokenPipe`](io::ErrorKind::BrokenPipe).
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, error)
    }
}

/// The kind is [`TimedOut`](io::ErrorKind::TimedOut) or [`BrokenPipe`](io::ErrorKind::BrokenPipe).
impl From<RecvTimeoutError> for io::Error {
    fn from(error: RecvTimeoutError) -> Self {
        let kind = match error {
            RecvTimeoutError::Timeout => io::ErrorKind::TimedOut,
            RecvTimeoutError::ShutDown => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, error)
    }
}

/// The kind is [`WouldBlock`](io::ErrorKind::WouldBlock) or
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
impl From<TryRecvError> for io::Error {
    fn from(error: TryRecvError) -> Self {
        let kind = match error {
            TryRecvError::Empty => io::ErrorKind::WouldBlock,
            TryRecvError::ShutDown => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, error)
    }
}

/// The compiler rejects this if a public error of timers cannot be used with `?`.
const _: () = {
    use super::{BatchError, Task, Timeout, TimeoutKey};

    const fn is_error<E: Error + Send + Sync + 'static>() {}
    is_error::<ScheduleError<Task>>();
    is_error::<ScheduleError<std::cell::Cell<u32>>>();
    is_error::<BatchError<Timeout, Task>>();
    is_error::<BatchError<TimeoutKey, std::cell::Cell<u32>>>();
    is_error::<TimerBuildError>();
    is_error::<RecvError>();
    is_error::<RecvTimeoutError>();
    is_error::<TryRecvError>();
};
