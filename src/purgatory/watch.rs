//! What an operation waits for, and what comes of asking.

use super::slab::Index;

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

/// The name of an operation in the purgatory where it waits.
///
/// It is plain data, and good until the operation ends; then it is dead for ever, and no other
/// operation answers to it. It means nothing to another purgatory.
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

/// What became of an operation that was to wait.
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
