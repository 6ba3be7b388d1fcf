//! A timeout as a store keeps it, its id and its queue.

use std::{borrow::Borrow, cmp::Ordering, fmt, str::FromStr, sync::Arc};

use crate::{error::InputError, repeat::Repeat, time::WallTime};

/// Largest payload in bytes: 1 MiB.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Name of a timeout: 1 to 255 bytes of UTF-8 without U+0000.
///
/// Ids are compared byte by byte.
///
/// # Examples
///
/// ```
/// use delaywheel_durable::{InputError, TimeoutId};
///
/// let id = TimeoutId::new("invoice/17")?;
/// assert_eq!(id.as_str(), "invoice/17");
/// assert_eq!(TimeoutId::new(""), Err(InputError::EmptyId));
/// # Ok::<_, InputError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeoutId(Arc<str>);

pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

/// Name of a queue, or of the group of timeouts with one key: at most 64 bytes of UTF-8 without
/// U+0000. The default queue has the empty name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(Arc<str>);

/// Which timeouts of a queue go first, of those that are due. Within a priority, the oldest does.
///
/// A timeout of a low priority waits as long as others are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Before all others.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

macro_rules! text {
    ($name:ident, max $max:literal else $too_long:ident, may_be_empty $may_be_empty:literal) => {
        impl $name {
            /// Largest length in bytes.
            pub const MAX_LEN: usize = $max;

            /// Checks a string.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InputError> {
                let text = text.as_ref();
                match text.len() {
                    0 if !$may_be_empty => Err(InputError::EmptyId),
                    len if len > Self::MAX_LEN => Err(InputError::$too_long(len)),
                    _ if text.contains('\0') => Err(InputError::NulInId),
                    _ => Ok(Self(text.into())),
                }
            }

            /// Returns the string.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InputError;

            fn from_str(text: &str) -> Result<Self, InputError> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
    };
}

text!(TimeoutId, max 255 else LongId, may_be_empty false);
text!(Name, max 64 else LongName, may_be_empty true);

impl Borrow<str> for TimeoutId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// State of a timeout in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Waits in the store; any worker may claim it.
    Pending,
    /// Waits in the memory of the worker that claimed it.
    Claimed,
    /// A delivery is under way.
    Delivering,
    /// Every attempt failed. It waits for `requeue` or `cancel`.
    Dead,
}

/// A timeout in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the timeout.
    pub id: TimeoutId,
    /// Time for which it was scheduled; the occurrence, if it recurs.
    pub due: WallTime,
    /// Time of the next attempt: `due`, or later after a failed attempt.
    pub next: WallTime,
    /// Bytes for the handler.
    pub payload: Arc<[u8]>,
    /// Rule by which it recurs.
    pub repeat: Option<Repeat>,
    /// Queue, whose handler gets it.
    pub queue: Name,
    /// Which timeouts of the queue go first.
    pub priority: Priority,
    /// Group within the queue, of which a limited number of deliveries run at once.
    pub key: Option<Name>,
    /// Number of deliveries that have begun for this occurrence.
    pub attempt: u32,
    /// State.
    pub state: State,
    /// Fencing token: every claim gives the record a new one, and so does every change by a user.
    pub token: u64,
    /// Why the latest attempt failed.
    pub error: Option<String>,
}

impl Record {
    /// Compares by the time of the next attempt, and then by id.
    pub(crate) fn by_time(a: &Self, b: &Self) -> Ordering {
        (a.next, &a.id).cmp(&(b.next, &b.id))
    }

    /// Returns the proof that its holder holds the record.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim { id: self.id.clone(), token: self.token }
    }
}

/// Error of a record in an old database whose copy in a new one is valid. It ends no attempt.
pub(crate) const MOVED: &str = "\u{1}moved to another database";

/// Returns whether a record only says that its timeout is in another database.
pub(crate) fn is_moved(record: &Record) -> bool {
    record.state == State::Dead && record.error.as_deref() == Some(MOVED)
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// It was acknowledged.
    Acknowledged,
    /// It failed, and another attempt followed.
    Failed,
    /// It failed, and the timeout is dead.
    Dead,
}

impl AttemptEnd {
    pub(crate) const ALL: [Self; 3] = [Self::Acknowledged, Self::Failed, Self::Dead];
}

/// An attempt that has ended, as the history of a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Number in the history. Later ones are larger.
    pub number: u64,
    /// Name of the timeout.
    pub id: TimeoutId,
    /// Queue of the timeout.
    pub queue: Name,
    /// Time for which the timeout was scheduled.
    pub due: WallTime,
    /// Number of the attempt; the first one is 1.
    pub attempt: u32,
    /// When it ended.
    pub ended: WallTime,
    /// How it ended.
    pub end: AttemptEnd,
    /// Why it failed.
    pub error: Option<String>,
}

/// Proof that a worker holds a record. It is void once the token of the record has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Name of the timeout.
    pub id: TimeoutId,
    /// Fencing token at the time of the claim.
    pub token: u64,
}
