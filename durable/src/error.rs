//! Errors: bad input, and a store that failed.

use std::{error::Error, fmt, io, sync::Arc};

/// Input that no store accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The id is the empty string.
    #[error("id is empty")]
    EmptyId,
    /// The id has more than [`TimeoutId::MAX_LEN`](crate::TimeoutId::MAX_LEN) bytes.
    #[error("id has {0} bytes, at most 255 are allowed")]
    LongId(usize),
    /// The name of a queue or a key has more than [`Name::MAX_LEN`](crate::Name::MAX_LEN) bytes.
    #[error("name has {0} bytes, at most 64 are allowed")]
    LongName(usize),
    /// The id or name contains the character U+0000, which PostgreSQL cannot store.
    #[error("id or name contains a NUL character")]
    NulInId,
    /// The payload has more than [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) bytes.
    #[error("payload has {0} bytes, at most 1048576 are allowed")]
    LargePayload(usize),
    /// The time is before the start of 1970.
    #[error("time is before 1970")]
    Before1970,
    /// The time is after the end of the year 9999, or a cron expression has none until then.
    #[error("there is no such time before the year 10000")]
    AfterYear9999,
    /// The period of a recurring timeout is shorter than a millisecond.
    #[error("period is shorter than a millisecond")]
    ShortPeriod,
    /// The cron expression is not valid.
    #[error("cron expression is not valid")]
    Cron,
    /// The time zone of a cron expression is not known here.
    #[error("time zone is not known here")]
    Zone,
    /// The record needs a feature of this crate that is not enabled.
    #[error("this build lacks the feature `cron`")]
    NoCron,
}

/// Error of starting a timer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The setting of this name is not valid: it is out of its range, or two queues have one name.
    #[error("setting `{0}` is not valid")]
    Setting(&'static str),
    /// The operating system refused a thread or a file descriptor.
    #[error("thread cannot be started")]
    Thread(#[from] io::Error),
}

impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Setting(_) => Self::new(io::ErrorKind::InvalidInput, error),
            BuildError::Thread(error) => error,
        }
    }
}

/// Reason for which a store failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreErrorReason {
    /// Another process has the file open, or has had it open since this store lost its lock.
    #[error("another process has opened the store")]
    InUse,
    /// The file or directory cannot be written. Nothing was changed.
    #[error("store is read-only")]
    ReadOnly,
    /// The disk is full. Nothing was changed.
    #[error("disk is full")]
    Full,
    /// The file is not a store, or is damaged.
    #[error("file is damaged or not a store of this crate")]
    Corrupt,
    /// A newer version of this crate wrote the store.
    #[error("a newer version of this crate wrote the store")]
    NewerVersion,
    /// The tables of the database are missing, or older than this program: call
    /// `PostgresStore::migrate`.
    #[error("tables are missing or older than this program")]
    NotMigrated,
    /// The database server cannot be reached, or another program has the file locked. Nothing was
    /// changed.
    #[error("database is unavailable")]
    Unavailable,
    /// Another transaction has locked the record, for longer than a command waits, or the store
    /// cannot write an earlier settlement of it. Nothing was changed.
    #[error("another transaction has locked the timeout")]
    Locked,
    /// The database refuses a value of the command. Nothing was changed.
    #[error("database refused a value")]
    Refused,
    /// The connection was lost or the sync of the file failed during a commit, or the store
    /// panicked. The store has made the change, or it has not.
    #[error("commit was interrupted, its outcome is unknown")]
    OutcomeUnknown,
    /// The store is closed or was shut down.
    #[error("store is closed")]
    Closed,
    /// Any other failure; see the source.
    #[error("store failed")]
    Other,
}

/// Result of a call of a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A failure of the store. Clones share their source.
#[derive(Debug, Clone)]
pub struct StoreError {
    reason: StoreErrorReason,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Creates an error without a source.
    #[must_use]
    pub fn new(reason: StoreErrorReason) -> Self {
        Self { reason, source: None }
    }

    /// Creates an error with a source.
    pub fn with_source(
        reason: StoreErrorReason,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { reason, source: Some(Arc::from(source.into())) }
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> StoreErrorReason {
        self.reason
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Returns the texts of an error and of its causes. For the program.
#[doc(hidden)]
#[must_use]
pub fn causes(error: &dyn Error) -> String {
    let errors = std::iter::successors(Some(error), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Error of an operation of a [`DurableTimer`](crate::DurableTimer).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// The input is not valid. Nothing was changed.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The id is scheduled already, and [`Conflict::Refuse`](crate::Conflict::Refuse) was asked
    /// for.
    #[error("id is scheduled already")]
    Exists,
    /// The timer was shut down, or its thread has panicked. Nothing was changed.
    #[error("timer is shut down")]
    ShutDown,
}

impl From<DurableError> for io::Error {
    fn from(error: DurableError) -> Self {
        let kind = match &error {
            DurableError::Input(_) => io::ErrorKind::InvalidInput,
            DurableError::Exists => io::ErrorKind::AlreadyExists,
            DurableError::ShutDown => io::ErrorKind::NotConnected,
            DurableError::Store(store) => match store.reason() {
                StoreErrorReason::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
                StoreErrorReason::Full => io::ErrorKind::StorageFull,
                StoreErrorReason::Corrupt => io::ErrorKind::InvalidData,
                _ => io::ErrorKind::Other,
            },
        };
        Self::new(kind, error)
    }
}
