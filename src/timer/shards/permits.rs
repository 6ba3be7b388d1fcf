//! Permits: the limit on the number of pending timeouts, exact even under concurrency.

use std::num::NonZeroU64;

use crate::sync::{AtomicU64, Ordering};

/// A fixed number of permits. Each pending timeout holds one.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Number of permits; `None` without a limit.
    limit: Option<NonZeroU64>,
    /// Permits that are free; not used without a limit.
    free: AtomicU64,
    /// Timeouts that were refused because no permit was free, or after they got one in a batch.
    refused: AtomicU64,
}

impl Permits {
    /// Makes `limit` permits; without a number there is no limit.
    pub(crate) fn new(limit: Option<NonZeroU64>) -> Self {
        let free = AtomicU64::new(limit.map_or(0, NonZeroU64::get));
        Self { limit, free, refused: AtomicU64::new(0) }
    }

    /// Returns whether the number of permits is limited.
    #[cfg(feature = "future")]
    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Takes a permit. Returns whether one was free.
    #[inline]
    pub(crate) fn acquire(&self) -> bool {
        if self.limit.is_none() {
            return true;
        }
        let take = |free: u64| free.checked_sub(1);
        let is_acquired =
            self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if !is_acquired {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_acquired
    }

    /// Takes at most `wanted` permits. Returns their number; the others count as refused.
    pub(super) fn acquire_up_to(&self, wanted: usize) -> usize {
        if self.limit.is_none() {
            return wanted;
        }
        let take = |free: u64| Some(free.saturating_sub(wanted as u64));
        let free = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let free = free.unwrap_or_else(|free| free);
        let acquired = usize::try_from(free).map_or(wanted, |free| free.min(wanted));
        debug_assert!(acquired <= wanted, "{acquired} permits for {wanted} timeouts");
        self.refused.fetch_add((wanted - acquired) as u64, Ordering::Relaxed);
        acquired
    }

    /// Releases permits.
    #[inline]
    pub(crate) fn release(&self, permits: usize) {
        let Some(limit) = self.limit else { return };
        let free = self.free.fetch_add(permits as u64, Ordering::Relaxed);
        debug_assert!(free + permits as u64 <= limit.get(), "a permit was released twice");
    }

    /// Releases the permits of timeouts that a shard refused, and counts these as refused.
    pub(super) fn release_refused(&self, permits: usize) {
        self.release(permits);
        self.refused.fetch_add(permits as u64, Ordering::Relaxed);
    }

    /// Returns the number of timeouts that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Checks that each pending timeout holds a permit, and nothing else does.
    pub(super) fn check_invariants(&self, pending: u64) {
        let Some(limit) = self.limit else { return };
        let free = self.free.load(Ordering::Relaxed);
        assert_eq!(free + pending, limit.get(), "each permit is free or held by a pending timeout");
    }
}
