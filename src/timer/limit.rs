//! How many timeouts may be pending in all shards together; exact, also under concurrency.

use std::num::NonZeroU64;

use crate::sync::{AtomicU64, Ordering};

/// A number of places, of which each pending timeout takes one.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Places that are free, or `None` if there is no limit and nothing to count.
    free: Option<AtomicU64>,
    /// How often there was none.
    refused: AtomicU64,
}

impl Limit {
    pub(crate) fn new(places: Option<NonZeroU64>) -> Self {
        let free = places.map(|places| AtomicU64::new(places.get()));
        Self { free, refused: AtomicU64::new(0) }
    }

    /// Whether there is a limit.
    pub(crate) const fn is_limited(&self) -> bool {
        self.free.is_some()
    }

    /// Takes a place, if one is free.
    #[inline]
    pub(crate) fn admit(&self) -> bool {
        let Some(free) = &self.free else { return true };
        let take = |places: u64| places.checked_sub(1);
        let is_admitted = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if !is_admitted {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// How often no place was free.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Gives places back.
    #[inline]
    pub(crate) fn release(&self, places: u64) {
        if let Some(free) = &self.free {
            free.fetch_add(places, Ordering::Relaxed);
        }
    }
}
