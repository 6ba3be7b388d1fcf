//! Operations: what they implement, what they wait for, how they end, and their keys.

use std::convert::Infallible;

use super::slab::Index;

/// A request that waits for an event, and is answered exactly once.
///
/// `K` is what events happen to, a partition of a topic for one; `R` is why a waiting operation is
/// cancelled.
///
/// No lock of the purgatory is held while a method runs, and no two methods of one operation run at
/// once. So a method may take locks of its own, and other threads may hold them while they call
/// [`Purgatory::check_and_complete`](super::Purgatory::check_and_complete). Both may call the
/// purgatory. But a check that announces an event on a key of its own operation, or on one whose
/// operations announce that, is checked again because of it, for ever if that is so every time; and
/// so does an operation that is displaced, and waits again at once, displace others for ever.
///
/// A check that panics has not found the operation complete. A panic in [`complete`](Self::complete)
/// has consumed it. Both are counted, and concern no other operation.
///
/// # Examples
///
/// See [`Purgatory`](super::Purgatory).
pub trait DelayedOperation<K, R = ()>: Send + 'static {
    /// Returns whether the operation can complete now.
    ///
    /// Asked before the operation waits, again when it has begun to, and then after events on its
    /// keys. It is answered from the state that the events announce, so a caller of
    /// `check_and_complete` changes that state first.
    ///
    /// By default it cannot: it waits for thresholds only.
    fn try_complete(&mut self) -> bool {
        false
    }

    /// Returns whether the value of a key has reached a threshold that the operation waits for.
    ///
    /// Asked before the operation waits and again when it has begun to; after that
    /// [`advance`](super::Purgatory::advance) tells. Like there, a value that was reached stays
    /// reached.
    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        let _ = (key, threshold);
        false
    }

    /// Answers the request. Called once, on the thread that completed the operation.
    ///
    /// If the purgatory completes another operation meanwhile on the same thread, because this method
    /// calls it, that completion runs when this one has returned. So do not wait in here for the
    /// answer of another operation.
    fn complete(self, completion: Completion<R>);
}

/// Has no values. It stands for the operation where there is none, in the type of
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
    /// What it waited for has happened, or it was completed by its handle.
    Satisfied,
    /// Its delay is over.
    Expired,
    /// It was cancelled, by its handle or through one of its keys.
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
    /// Anything that is announced for the key, upon which the operation is checked.
    Events(K),
    /// That the value of the key reaches a number. Values never decrease.
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
/// It is plain data, and valid until the operation ends. After that no operation ever answers to it.
/// It has no meaning for another purgatory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationKey {
    /// Tells it from all others of the shard, past and future.
    serial: u64,
    index: Index,
    shard: u32,
}

impl OperationKey {
    #[inline]
    pub(super) fn new(shard: usize, (index, serial): (Index, u64)) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        Self { serial, index, shard: shard as u32 }
    }

    pub(super) const fn shard(self) -> usize {
        self.shard as usize
    }

    pub(super) const fn place(self) -> (Index, u64) {
        (self.index, self.serial)
    }

    /// Its index, if it is in this shard.
    pub(super) fn index_in(self, shard: usize) -> Option<Index> {
        (self.shard() == shard).then_some(self.index)
    }
}

/// Result of registering an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it tells whether the operation has completed"]
pub enum Watched {
    /// It could complete at once, and has.
    Completed,
    /// It waits, or has waited: it may have completed in the meantime.
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
