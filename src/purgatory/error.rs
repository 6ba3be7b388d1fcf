//! Errors of a purgatory: refused operations and invalid settings.

use std::{error::Error, fmt, io};

use crate::{error::Exclusive, timer::TimerBuildError};

/// Error of a purgatory that refuses an operation. Holds the operation.
///
/// The operation could not complete at that moment, or has too many keys for a check.
/// [`kind`](Self::kind) returns the reason, and [`into_value`](Self::into_value) the operation. The
/// error is `Send` and `Sync` if the operation is `Send`, so `?` works into `anyhow::Error`,
/// `Box<dyn Error + Send + Sync>` and [`io::Error`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory, WatchErrorKind};
///
/// struct Never;
///
/// impl DelayedOperation<u32> for Never {
///     fn complete(self, _: Completion) {}
/// }
///
/// let purgatory = Purgatory::<u32, Never>::new();
/// assert!(purgatory.shutdown().is_empty());
/// let error =
///     purgatory.watch(Never, [1], Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.kind(), WatchErrorKind::ShutDown);
/// let Never = error.into_value();
/// ```
pub struct WatchError<O> {
    kind: WatchErrorKind,
    /// The cause of [`NoThread`](WatchErrorKind::NoThread).
    cause: Option<io::Error>,
    operation: Exclusive<O>,
}

/// Reason of a [`WatchError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchErrorKind {
    /// [`max_delayed`](crate::PurgatoryBuilder::max_delayed) operations wait, or the purgatory's
    /// timer is full.
    Full,
    /// One of the keys has [`max_delayed_per_key`](crate::PurgatoryBuilder::max_delayed_per_key)
    /// operations.
    KeyFull,
    /// The operation waits on more keys than [`max_keys`](crate::PurgatoryBuilder::max_keys)
    /// allows.
    TooManyKeys,
    /// The purgatory is shut down.
    ShutDown,
    /// The operating system refused to start a thread of the timer. The cause is the
    /// [`source`](Error::source) of the error. A later call tries again.
    NoThread,
}

impl<O> WatchError<O> {
    pub(super) const fn new(kind: WatchErrorKind, operation: O) -> Self {
        Self { kind, cause: None, operation: Exclusive::new(operation) }
    }

    pub(super) const fn no_thread(cause: io::Error, operation: O) -> Self {
        let kind = WatchErrorKind::NoThread;
        Self { kind, cause: Some(cause), operation: Exclusive::new(operation) }
    }

    /// Returns the reason.
    #[must_use]
    pub const fn kind(&self) -> WatchErrorKind {
        self.kind
    }

    /// Returns the operation.
    pub fn into_value(self) -> O {
        self.operation.into_inner()
    }
}

impl fmt::Display for WatchErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "purgatory is full",
            Self::KeyFull => "too many operations wait on a key",
            Self::TooManyKeys => "operation waits on too many keys",
            Self::ShutDown => "purgatory is shut down",
            Self::NoThread => "cannot start a thread of the timer",
        })
    }
}

impl<O> fmt::Debug for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<O> fmt::Display for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl<O> Error for WatchError<O> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

/// A limit is [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), a purgatory that is shut down is
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe), and without a thread the kind is that of the cause.
impl<O: Send + 'static> From<WatchError<O>> for io::Error {
    fn from(error: WatchError<O>) -> Self {
        let kind = match (error.kind, &error.cause) {
            (_, Some(cause)) => cause.kind(),
            (WatchErrorKind::ShutDown, None) => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// Error of [`PurgatoryBuilder::build`](crate::PurgatoryBuilder::build): a setting is out of range.
///
/// # Examples
///
/// ```
/// use delaywheel::{Completion, DelayedOperation, Overload, Purgatory, PurgatoryBuildError};
///
/// struct Fetch;
///
/// impl DelayedOperation<u32> for Fetch {
///     fn complete(self, _: Completion) {}
/// }
///
/// let builder = Purgatory::<u32, Fetch>::builder().max_delayed(0, Overload::Refuse);
/// let refused = builder.build().unwrap_err();
/// assert!(matches!(refused, PurgatoryBuildError::NothingDelayed));
/// assert_eq!(refused.to_string(), "limit on waiting operations is 0");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum PurgatoryBuildError {
    /// [`max_delayed`](crate::PurgatoryBuilder::max_delayed) is 0.
    NothingDelayed,
    /// [`max_delayed_per_key`](crate::PurgatoryBuilder::max_delayed_per_key) is 0.
    NothingDelayedPerKey,
    /// [`max_keys`](crate::PurgatoryBuilder::max_keys) is 0.
    NoKeys,
    /// A setting of the timer is out of range.
    Timer(TimerBuildError),
}

impl fmt::Display for PurgatoryBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingDelayed => "limit on waiting operations is 0",
            Self::NothingDelayedPerKey => "limit on waiting operations per key is 0",
            Self::NoKeys => "limit on keys per operation is 0",
            Self::Timer(_) => "cannot build the timer of the purgatory",
        })
    }
}

impl Error for PurgatoryBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Timer(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TimerBuildError> for PurgatoryBuildError {
    fn from(error: TimerBuildError) -> Self {
        Self::Timer(error)
    }
}

/// The kind is [`InvalidInput`](io::ErrorKind::InvalidInput).
impl From<PurgatoryBuildError> for io::Error {
    fn from(error: PurgatoryBuildError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// The compiler rejects this if the error cannot be used with `?`.
const _: () = {
    const fn is_error<E: Error + Send + Sync + 'static>() {}
    is_error::<WatchError<std::cell::Cell<u32>>>();
    is_error::<PurgatoryBuildError>();
};
