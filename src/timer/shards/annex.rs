//! The annex of a shard: the state of another layer, under the lock of the shard.

use crate::{ticks::Nanos, wheel::Expired};

/// State that shares the lock of a shard with its timeouts. `T` is the type of their values.
///
/// A layer whose entries wait for a timeout each keeps them here. Then one hold of the lock adds an
/// entry and its timeout, or removes both.
///
/// `()` is the annex of a timer without other state. Its timeouts expire as they are.
pub(crate) trait Annex<T>: Send + 'static {
    /// The value that the reaper hands off for an expired timeout.
    type Due: Send + 'static;

    /// Returns the size of the state, in units that an expiration removes.
    fn size(&self) -> u64;

    /// Returns whether another timeout may expire in this hold of `steps` steps, after `count`
    /// others. At the start of the hold, the size was `size_before`. An annex must allow more with
    /// more steps: otherwise threads that insert starve a late reaper.
    fn may_expire(&self, count: usize, steps: u64, size_before: u64) -> bool;

    /// Ends the entry of an expired timeout. The reaper calls this under the lock, `elapsed` after
    /// the start of the timer. It must neither run nor drop anything of the user.
    fn expire(&mut self, expired: Expired<T>, elapsed: Nanos) -> Expired<Self::Due>;

    /// Returns the highest generation that a timeout's key ever had, if the last entry of a crowd
    /// has expired since the last call. The shard then frees the memory of its wheel.
    fn emptied(&mut self) -> Option<u32>;
}

impl<T: Send + 'static> Annex<T> for () {
    type Due = T;

    #[inline]
    fn size(&self) -> u64 {
        0
    }

    #[inline]
    fn may_expire(&self, _: usize, _: u64, _: u64) -> bool {
        true
    }

    #[inline]
    fn expire(&mut self, expired: Expired<T>, _: Nanos) -> Expired<T> {
        expired
    }

    #[inline]
    fn emptied(&mut self) -> Option<u32> {
        None
    }
}
