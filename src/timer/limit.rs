//! How many timeouts may be pending in all shards together; exact, also under concurrency.

use std::num::NonZeroU64;

use crate::sync::{AtomicU64, Ordering};

/// A number of places, of which each pending timeout takes one.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Places that are free, or `None` if there is no limit and nothing to count.
    free: Option<AtomicU64>,
    /// How many timeouts found none, or were refused having taken one in a batch.
    refused: AtomicU64,
}

impl Limit {
    pub(crate) fn new(places: Option<NonZeroU64>) -> Self {
        let free = places.map(|places| AtomicU64::new(places.get()));
        Self { free, refused: AtomicU64::new(0) }
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

    /// Takes as many of `wanted` places as are free, and returns how many these are.
    pub(crate) fn admit_some(&self, wanted: u64) -> u64 {
        let Some(free) = &self.free else { return wanted };
        let take = |places: u64| Some(places.saturating_sub(wanted));
        let places = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let admitted = places.map_or(0, |places| places.min(wanted));
        self.refused.fetch_add(wanted - admitted, Ordering::Relaxed);
        admitted
    }

    /// Gives places back that were taken for what has then been refused.
    pub(crate) fn refuse(&self, places: u64) {
        self.release(places);
        self.refused.fetch_add(places, Ordering::Relaxed);
    }

    /// How many were refused.
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
