//! The filter: shows, without a lock, which shards may have watchers of a key.
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

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of cells: 64 KiB of counts for up to 16 shards. With more cells, fewer keys share one, so
/// threads with different keys seldom write the same line.
const CELLS: usize = if cfg!(loom) { 1 } else { 1024 };

/// Counts in a cache line.
const LINE: usize = if cfg!(loom) { 1 } else { 16 };

/// The counts of a cell in 16 shards, which an event reads as one cache line. Another thread writes
/// this line only for keys of the same cell.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; LINE]);

/// The numbers of watched keys in all shards, by hash. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    /// For each cell, the counts of the shards.
    lines: Arc<[Line]>,
    /// Lines of a cell.
    width: usize,
    /// For each cell, a bit for each shard that ever had a watched key there. Bits are not cleared,
    /// so these words are seldom written. An event reads the counts of these shards only.
    used: Arc<[AtomicU64]>,
    /// Words of a cell.
    words: usize,
}

impl Filters {
    pub(super) fn new(shards: usize) -> Self {
        let (width, words) = (shards.div_ceil(LINE), shards.div_ceil(64));
        let lines = (0..CELLS * width).map(|_| Line::default()).collect();
        let used = (0..CELLS * words).map(|_| AtomicU64::new(0)).collect();
        Self { lines, width, used, words }
    }

    /// Calls `act` with each shard that may have a watcher of a key. The caller has executed
    /// [`fence_event`].
    #[inline]
    pub(super) fn for_each(&self, hash: u64, mut act: impl FnMut(usize)) {
        let cell = cell(hash);
        let words = &self.used[cell * self.words..(cell + 1) * self.words];
        for (word, used) in words.iter().enumerate() {
            let mut bits = used.load(Ordering::Relaxed);
            while bits != 0 {
                let shard = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.may_have(hash, shard) {
                    act(shard);
                }
            }
        }
    }

    /// Returns whether a shard may have a watcher of a key. The caller has executed
    /// [`fence_event`].
    #[inline]
    pub(super) fn may_have(&self, hash: u64, shard: usize) -> bool {
        self.count(cell(hash), shard).load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn count(&self, cell: usize, shard: usize) -> &AtomicU32 {
        &self.lines[cell * self.width + shard / LINE].0[shard % LINE]
    }

    /// Returns the counts of a shard.
    pub(super) fn of(&self, shard: usize) -> Filter {
        Filter { filters: self.clone(), shard }
    }
}

/// Returns the cell of a hash. The table of keys uses the lowest and the uppermost bits.
#[inline]
const fn cell(hash: u64) -> usize {
    (hash >> 24) as usize % CELLS
}

/// The numbers of watched keys in a shard, by hash. Written under the shard's lock.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) filters: Filters,
    shard: usize,
}

impl Filter {
    #[inline]
    pub(super) fn add(&self, hash: u64) {
        let count = self.count(hash);
        let before = count.load(Ordering::Relaxed);
        if before == 0 {
            let used = &self.filters.used[cell(hash) * self.filters.words + self.shard / 64];
            if used.load(Ordering::Relaxed) >> (self.shard % 64) & 1 == 0 {
                used.fetch_or(1 << (self.shard % 64), Ordering::Relaxed);
            }
        }
        count.store(before + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn remove(&self, hash: u64) {
        let count = self.count(hash);
        let before = count.load(Ordering::Relaxed);
        debug_assert_ne!(before, 0, "hash {hash:x} was removed twice");
        count.store(before - 1, Ordering::Relaxed);
    }

    /// Checks that each key is counted once, and that events read the counts that are not zero.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, hashes: &[u64]) {
        let mut keys = [0; CELLS];
        for &hash in hashes {
            keys[cell(hash)] += 1;
        }
        for (cell, keys) in keys.into_iter().enumerate() {
            let count = self.filters.count(cell, self.shard).load(Ordering::Relaxed);
            assert_eq!(count, keys, "the count of cell {cell} is wrong");
            let used = &self.filters.used[cell * self.filters.words + self.shard / 64];
            let is_used = used.load(Ordering::Relaxed) >> (self.shard % 64) & 1 == 1;
            assert!(is_used || count == 0, "events pass over the {count} keys of cell {cell}");
        }
    }

    #[inline]
    fn count(&self, hash: u64) -> &AtomicU32 {
        self.filters.count(cell(hash), self.shard)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_the_shards_that_have_watchers_of_it() {
        let filters = Filters::new(80);
        let found = |hash| {
            let mut shards = std::vec::Vec::new();
            filters.for_each(hash, |shard| shards.push(shard));
            shards
        };
        let watched = [0, 15, 16, 63, 64, 79];
        for shard in watched {
            filters.of(shard).add(7 << 24);
            filters.of(shard).check_invariants(&[7 << 24]);
        }
        assert_eq!(found(7 << 24), watched);
        assert_eq!(found(8 << 24), []);
        filters.of(16).remove(7 << 24);
        assert_eq!(found(7 << 24), [0, 15, 63, 64, 79]);
    }
}
