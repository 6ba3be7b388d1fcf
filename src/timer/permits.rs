//! Permits: the limit on the number of pending timeouts, exact also under concurrency.

use std::num::NonZeroU64;

use crate::sync::{AtomicU64, Ordering};

/// A fixed number of permits. Each pending timeout holds one.
#[derive(Debug)]
pub(super) struct Permits {
    /// Permits that are free; `None` without a limit.
    free: Option<AtomicU64>,
    /// Timeouts that were refused for want of a permit, or in a batch, after they got one.
    refused: AtomicU64,
}

impl Permits {
    /// Makes `max` permits; without a number there is no limit.
    pub(super) fn new(max: Option<NonZeroU64>) -> Self {
        let free = max.map(|max| AtomicU64::new(max.get()));
        Self { free, refused: AtomicU64::new(0) }
    }

    /// Takes a permit. Returns whether one was free.
    #[inline]
    pub(super) fn acquire(&self) -> bool {
        let Some(free) = &self.free else { return true };
        let take = |free: u64| free.checked_sub(1);
        let is_acquired = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if !is_acquired {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_acquired
    }

    /// Takes at most `wanted` permits. Returns their number; the others count as refused.
    pub(super) fn acquire_up_to(&self, wanted: usize) -> usize {
        let Some(free) = &self.free else { return wanted };
        let take = |free: u64| Some(free.saturating_sub(wanted as u64));
        let free = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let free = free.unwrap_or_else(|free| free);
        let acquired = usize::try_from(free).map_or(wanted, |free| free.min(wanted));
        self.refused.fetch_add((wanted - acquired) as u64, Ordering::Relaxed);
        acquired
    }

    /// Gives permits back.
    #[inline]
    pub(super) fn release(&self, permits: usize) {
        if let Some(free) = &self.free {
            free.fetch_add(permits as u64, Ordering::Relaxed);
        }
    }

    /// Gives back the permits of timeouts that were refused after they got one.
    pub(super) fn release_refused(&self, permits: usize) {
        self.release(permits);
        self.refused.fetch_add(permits as u64, Ordering::Relaxed);
    }

    /// Returns the number of timeouts that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
