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
}

impl Permits {
    /// Makes `limit` permits; without a number there is no limit.
    pub(crate) fn new(limit: Option<NonZeroU64>) -> Self {
        let free = AtomicU64::new(limit.map_or(0, NonZeroU64::get));
        Self { limit, free }
    }

    /// Returns whether the number of permits is limited.
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
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Releases permits.
    #[inline]
    pub(crate) fn release(&self, permits: usize) {
        let Some(limit) = self.limit.filter(|_| permits > 0) else { return };
        let free = self.free.fetch_add(permits as u64, Ordering::Relaxed);
        debug_assert!(free + permits as u64 <= limit.get(), "a permit was released twice");
    }

    /// Checks that each pending timeout holds a permit, and nothing else does.
    pub(super) fn check_invariants(&self, pending: u64) {
        let Some(limit) = self.limit else { return };
        let free = self.free.load(Ordering::Relaxed);
        assert_eq!(free + pending, limit.get(), "each permit is free or held by a pending timeout");
    }
}
