//! The key of a timeout: the index of its shard, and its key in the wheel of that shard.

use crate::wheel::Key;

/// Key of a timeout in the [`ValueTimer`](crate::ValueTimer) or [`DelayQueue`](crate::DelayQueue)
/// that made it.
///
/// It is plain data, and valid until the timeout ends. The timer does not use it for another
/// timeout afterwards. Do not pass it to another timer, in which it may name an unrelated timeout.
/// [`ValueTimer`](crate::ValueTimer) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeoutKey {
    shard: u32,
    key: Key,
}

impl TimeoutKey {
    #[inline]
    pub(super) fn new(shard: usize, key: Key) -> Self {
        debug_assert!(shard < 1 << 16, "the builder allows 2^16 shards");
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        Self { shard: shard as u32, key }
    }

    /// Returns the index of its shard.
    #[inline]
    pub(crate) const fn shard(self) -> usize {
        self.shard as usize
    }

    /// Returns the key in the wheel of its shard.
    #[inline]
    pub(super) const fn in_shard(self) -> Key {
        self.key
    }
}
