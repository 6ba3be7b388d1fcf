//! The bucket delay queue: the non-empty buckets, least expiration first.
//!
//! An indexed heap, so that a bucket which empties leaves as soon as that is known, and one whose
//! expiration changes moves in place. Nothing in here is out of date but for the few departures
//! that are yet to be counted, which
//! [`TimingWheel::next_expiration`](super::TimingWheel::next_expiration) looks past.

use core::{cmp::Reverse, hash::BuildHasherDefault};

use priority_queue::PriorityQueue;
use rustc_hash::FxHasher;

use super::geometry::Place;
use crate::Tick;

/// A min-heap of buckets by absolute expiration.
#[derive(Debug, Default)]
pub(super) struct BucketQueue {
    heap: PriorityQueue<Place, Reverse<Tick>, BuildHasherDefault<FxHasher>>,
}

impl BucketQueue {
    /// Adds a bucket that was empty, or changes the expiration of one that is queued. *O*(log n).
    #[inline]
    pub(super) fn set(&mut self, place: Place, expiration: Tick) {
        self.heap.push(place, Reverse(expiration));
    }

    /// Takes out a bucket that has emptied. *O*(log n).
    #[inline]
    pub(super) fn remove(&mut self, place: Place) {
        let removed = self.heap.remove(&place);
        debug_assert!(removed.is_some(), "{place:?} was not queued");
    }

    /// The bucket that is due first. *O*(1).
    #[inline]
    pub(super) fn first(&self) -> Option<(Place, Tick)> {
        self.heap.peek().map(|(&place, &Reverse(expiration))| (place, expiration))
    }

    /// All buckets, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, Tick)> {
        self.heap.iter().map(|(&place, &Reverse(expiration))| (place, expiration))
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn expiration(&self, place: Place) -> Option<Tick> {
        self.heap.get_priority(&place).map(|&Reverse(expiration)| expiration)
    }

    pub(super) fn shrink(&mut self) {
        self.heap.shrink_to_fit();
    }
}
