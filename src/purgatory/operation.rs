//! Operations: their trait, their watches, their completions, and their keys.

use std::convert::Infallible;

use super::slab::Index;
use crate::wheel::Key;

/// A request that waits for an event, and is answered exactly once.
///
/// `K` is the type of the keys, such as a partition of a topic. `R` is the type of the reasons for
/// which a waiting operation is cancelled.
///
/// The purgatory holds no lock while a method runs, and runs one method of an operation at a time.
/// So a method may take locks and call the purgatory.
///
/// [`Purgatory::check_and_complete`](super::Purgatory::check_and_complete) runs
/// [`try_complete`](Self::try_complete) on the thread that calls it. Release a lock that
/// `try_complete` takes before that call. A thread that holds a [`std::sync::Mutex`] would
/// deadlock.
///
/// Two cycles never end:
///
/// - A check announces an event that leads to a check of the same operation, each time.
/// - A displaced operation waits again at once, and displaces another one that does the same.
///
/// If `try_complete` panics, the operation continues to wait. If [`complete`](Self::complete)
/// panics, the operation has ended. The purgatory catches and counts both panics, and other
/// operations are not affected.
///
/// # Examples
///
/// See [`Purgatory`](super::Purgatory).
pub trait DelayedOperation<K, R = ()>: Send + 'static {
    /// Returns whether the operation can complete now.
    ///
    /// The purgatory calls this before the operation waits, after it has begun to wait, and after
    /// each event on its keys. The answer depends on the state that the events announce, so change
    /// that state before you call `check_and_complete`.
    ///
    /// A check may announce events. When checks have announced each other eight deep, the purgatory
    /// makes the further checks after the outermost one has returned.
    ///
    /// Returns `false` by default, for operations that wait for thresholds only.
    fn try_complete(&mut self) -> bool {
        false
    }

    /// Returns whether the value of a key has reached a threshold that the operation waits for.
    ///
    /// The purgatory calls this before the operation waits, and when it has begun to wait. After
    /// that, [`advance`](super::Purgatory::advance) passes new values in. Values never decrease:
    /// once this returns `true`, the threshold stays reached.
    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        let _ = (key, threshold);
        false
    }

    /// Answers the request. The purgatory calls this once.
    ///
    /// It runs on the thread whose call completed the operation, such as the thread that announced
    /// the event. After an expiration it runs where the [timer](super::PurgatoryBuilder::timer)
    /// runs callbacks. While it runs, that thread completes no other operation.
    ///
    /// If this method completes another operation, the purgatory calls `complete` of that one after
    /// this method returns. So do not wait in here for the answer of another operation.
    fn complete(self, completion: Completion<R>);
}

/// `Infallible` has no values. It is the placeholder for the operation type in
/// [`Purgatory::builder`](super::Purgatory::builder).
impl<K, R> DelayedOperation<K, R> for Infallible {
    fn complete(self, _: Completion<R>) {
        match self {}
    }
}

/// How an operation ended.
///
/// # Examples
///
/// ```
/// use delaywheel::Completion;
///
/// fn error_code(completion: &Completion<&'static str>) -> u16 {
///     match completion {
///         Completion::Satisfied => 0,
///         Completion::Expired => 7,
///         Completion::Cancelled(reason) if *reason == "moved" => 6,
///         _ => 13,
///     }
/// }
/// assert_eq!(error_code(&Completion::Cancelled("moved")), 6);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion<R = ()> {
    /// Its conditions hold, or a caller completed it by its key.
    Satisfied,
    /// Its delay has elapsed.
    Expired,
    /// It was cancelled: by its [`OperationKey`], or because it watched a key.
    Cancelled(R),
    /// It made room for a newer one; see [`Overload`](super::Overload).
    Displaced,
    /// The purgatory has been shut down.
    ShutDown,
}

/// Something that an operation waits for.
///
/// # Examples
///
/// A fetch that waits until partition 3 holds a record at offset 100, or until partition 4 changes
/// its leader, which is an event:
///
/// ```
/// use delaywheel::Watch;
///
/// let watches = [Watch::Threshold(3, 100), Watch::Events(4)];
/// # drop(watches);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Watch<K> {
    /// The events of the key. Each one leads to a check of the operation.
    Events(K),
    /// The value of the key reaches this number. Values never decrease.
    Threshold(K, u64),
}

impl<K> Watch<K> {
    /// Returns the key.
    pub const fn key(&self) -> &K {
        match self {
            Self::Events(key) | Self::Threshold(key, _) => key,
        }
    }
}

impl<K> From<K> for Watch<K> {
    fn from(key: K) -> Self {
        Self::Events(key)
    }
}

/// Identifies an operation in the purgatory where it waits.
///
/// It is plain data, and valid until the operation ends. The purgatory does not use it for another
/// operation afterwards. It has no meaning for another purgatory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationKey {
    /// The key of its timeout.
    key: Key,
    shard: u32,
    /// Whether the shard measures how long it waits.
    is_timed: bool,
}

impl OperationKey {
    #[inline]
    pub(super) fn new(shard: usize, key: Key, is_timed: bool) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        Self { key, shard: shard as u32, is_timed }
    }

    pub(super) const fn shard(self) -> usize {
        self.shard as usize
    }

    /// Returns the key within the shard.
    pub(super) const fn in_shard(self) -> Key {
        self.key
    }

    pub(super) const fn is_timed(self) -> bool {
        self.is_timed
    }

    /// Returns the index, if the operation is in this shard.
    pub(super) fn index_in(self, shard: usize) -> Option<Index> {
        (self.shard() == shard).then(|| Index::at(self.key.index()))
    }
}

/// Result of registering an operation. You may ignore it: the purgatory completes the operation in
/// either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// It completed at once.
    Completed,
    /// It waits. It may have completed in the meantime.
    Waiting(OperationKey),
}

impl Watched {
    /// Returns the key of an operation that waits.
    #[must_use]
    pub const fn key(self) -> Option<OperationKey> {
        match self {
            Self::Completed => None,
            Self::Waiting(key) => Some(key),
        }
    }

    /// Returns whether the operation has completed at once.
    #[must_use]
    pub const fn is_completed(self) -> bool {
        matches!(self, Self::Completed)
    }
}
