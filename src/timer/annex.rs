//! The annex of a shard: the state of another layer, under the lock of the shard.

use crate::wheel::Expired;

/// State that shares the lock of a shard with its timeouts. `T` is the type of their values.
///
/// A layer whose entries wait for a timeout each keeps them here. Then one hold of the lock adds an
/// entry and its timeout, or removes both.
///
/// `()` is the annex of a timer without other state. Its timeouts expire as they are.
pub(crate) trait Annex<T>: Send + 'static {
    /// The value that the reaper hands off for an expired timeout.
    type Due: Send + 'static;

    /// Maximum number of timeouts that expire in one hold of the lock.
    const MAX_EXPIRED: usize;

    /// Ends the entry of an expired timeout. The reaper calls this under the lock, `elapsed`
    /// nanoseconds after the start of the timer. It must neither run nor drop anything of the user.
    fn expire(&mut self, expired: Expired<T>, elapsed: u64) -> Expired<Self::Due>;
}

impl<T: Send + 'static> Annex<T> for () {
    type Due = T;

    const MAX_EXPIRED: usize = usize::MAX;

    #[inline]
    fn expire(&mut self, expired: Expired<T>, _: u64) -> Expired<T> {
        expired
    }
}
