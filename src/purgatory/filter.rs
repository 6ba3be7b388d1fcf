//! The filter of a shard: shows, without the lock, whether a key may have watchers there.
//!
//! # Protocol
//!
//! - A thread that registers a watcher (1) counts those of its keys that had no watcher in the
//!   filter, and adds the watcher to the lists of its keys, all under the shard's lock; (2)
//!   executes a fence; (3) checks the operation once more.
//! - A thread that announces an event (1) has changed the state that the check reads; (2) executes
//!   a fence; (3) reads the filter. Unless the filter rules the key out, it takes the lock and
//!   checks the operations on the key.
//!
//! # Why no event is missed
//!
//! Both fences are sequentially consistent, so one comes first. If it is the watcher's, the
//! announcer sees a count, takes the lock later, and finds the watcher. If it is the announcer's,
//! the watcher's check sees the change.

use std::sync::Arc;

use crate::sync::{AtomicU32, Ordering, fence};

/// Number of counts. With more counts, fewer keys share one.
const LEN: usize = if cfg!(loom) { 1 } else { 256 };

/// A count on a cache line of its own. An event on one key does not wait for a line that another
/// thread has just written for a different key.
#[derive(Debug)]
#[repr(align(64))]
struct Count(AtomicU32);

/// The number of watched keys in a shard, by hash. Written under the shard's lock. Clones share the
/// counts.
#[derive(Debug, Clone)]
pub(super) struct Filter(Arc<[Count]>);

impl Filter {
    pub(super) fn new() -> Self {
        Self((0..LEN).map(|_| Count(AtomicU32::new(0))).collect())
    }

    /// Returns whether a key may have a watcher. The caller has executed [`fence_event`].
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.count(hash).load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(super) fn add(&self, hash: u64) {
        let count = self.count(hash);
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn remove(&self, hash: u64) {
        let count = self.count(hash);
        let before = count.load(Ordering::Relaxed);
        debug_assert_ne!(before, 0, "hash {hash:x} was removed twice");
        count.store(before - 1, Ordering::Relaxed);
    }

    /// Checks that each key is counted once.
    ///
    /// # Panics
    ///
    /// Panics if it is not.
    pub(super) fn check_invariants(&self, hashes: &[u64]) {
        let counted = self.0.iter().map(|count| count.0.load(Ordering::Relaxed) as usize);
        assert_eq!(
            counted.sum::<usize>(),
            hashes.len(),
            "the filter and the keys differ in number"
        );
        for &hash in hashes {
            assert!(self.may_have(hash), "the filter rules out the watched hash {hash:x}");
        }
    }

    #[inline]
    fn count(&self, hash: u64) -> &AtomicU32 {
        // The table of keys uses the lowest and the uppermost bits.
        &self.0[(hash >> 24) as usize % LEN].0
    }
}

/// The fence between the registration on the lists and the check that follows.
#[inline]
pub(super) fn fence_watch() {
    fence(Ordering::SeqCst);
}

/// The fence between the change that an event announces and the search for watchers.
#[inline]
pub(super) fn fence_event() {
    fence(Ordering::SeqCst);
}
