//! Errors of timers. The error of a refused value holds the value.

use std::{error::Error, fmt, io, time::Duration};

use crate::error::Exclusive;

/// Error of a call that hands a value back: the reason `K`, and the value.
///
/// It has two names: [`ScheduleError`] of timers, and [`WatchError`](crate::WatchError) of
/// purgatories. It is `Send` and `Sync` if the value is `Send`, so `?` works into `anyhow::Error`,
/// `Box<dyn Error + Send + Sync>` and [`io::Error`]. The [`io::Error`] has the kind of the cause,
/// if a thread could not be started, and otherwise the kind into which the reason converts.
pub struct Refused<T, K> {
    pub(super) kind: K,
    /// Why a thread could not be started.
    pub(super) cause: Option<io::Error>,
    pub(super) value: Exclusive<T>,
}

/// Error of a timer that refuses a timeout. Holds the refused callback or value.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ScheduleErrorKind, Timer};
///
/// let timer = Timer::builder().max_pending(1).build_with(|_: u32| ())?;
/// timer.schedule(Duration::from_secs(60), 1)?;
/// let error = timer.schedule(Duration::from_secs(60), 2).unwrap_err();
/// match error.kind() {
///     ScheduleErrorKind::Full => assert_eq!(error.into_value(), 2),
///     _ => return Err(error.into()),
/// }
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub type ScheduleError<T> = Refused<T, ScheduleErrorKind>;

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

impl<T, K> Refused<T, K> {
    pub(crate) const fn new(kind: K, value: T) -> Self {
        Self { kind, cause: None, value: Exclusive::new(value) }
    }

    /// Returns the reason.
    #[must_use]
    pub const fn kind(&self) -> K
    where
        K: Copy,
    {
        self.kind
    }

    /// Returns the callback, value or operation that was refused.
    pub fn into_value(self) -> T {
        self.value.into_inner()
    }

    /// Replaces the value, and keeps the reason.
    pub(crate) fn map<U, L: From<K>>(self, change: impl FnOnce(T) -> U) -> Refused<U, L> {
        let value = Exclusive::new(change(self.value.into_inner()));
        Refused { kind: self.kind.into(), cause: self.cause, value }
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

impl<T, K: fmt::Debug> fmt::Debug for Refused<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, cause, .. } = self;
        f.debug_struct("Refused").field("kind", kind).field("cause", cause).finish_non_exhaustive()
    }
}

impl<T, K: fmt::Display> fmt::Display for Refused<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<T, K: fmt::Debug + fmt::Display> Error for Refused<T, K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

impl<T, K> From<Refused<T, K>> for io::Error
where
    T: Send + 'static,
    K: fmt::Debug + fmt::Display + Copy + Send + Sync + 'static,
    io::ErrorKind: From<K>,
{
    fn from(error: Refused<T, K>) -> Self {
        let kind = error.cause.as_ref().map_or(error.kind.into(), Self::kind);
        Self::new(kind, error)
    }
}

/// The kind is [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) for a full timer, and
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe) for a timer that is shut down.
impl From<ScheduleErrorKind> for io::ErrorKind {
    fn from(kind: ScheduleErrorKind) -> Self {
        match kind {
            ScheduleErrorKind::Full => Self::QuotaExceeded,
            ScheduleErrorKind::ShutDown => Self::BrokenPipe,
            ScheduleErrorKind::NoThread => Self::Other,
        }
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
    /// A [`DelayQueue`](crate::DelayQueue) runs no callbacks, so it has no executor.
    ExecutorOfQueue,
    /// The limit on pending timeouts is 0.
    NothingPending,
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
            Self::ExecutorOfQueue => {
                f.write_str("a `DelayQueue` runs no callbacks: remove the executor setting")
            }
            Self::NothingPending => f.write_str("limit on pending timeouts is 0"),
        }
    }
}

impl Error for TimerBuildError {}

/// The kind is [`InvalidInput`](io::ErrorKind::InvalidInput).
impl From<TimerBuildError> for io::Error {
    fn from(error: TimerBuildError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
