//! The filter: shows, without a lock, which shards may have watchers of a key.
//!
//! # Protocol
//!
//! - A thread that registers a watcher (1) adds the watcher to the lists of its keys, and counts
//!   each key that had no watcher in the filter, all under the shard's lock; (2) executes a fence;
//!   (3) checks the operation once more.
//! - A thread that announces an event (1) has changed the state that the check reads; (2) executes
//!   a fence; (3) reads the filter. Unless the filter rules the key out, it takes the lock and
//!   checks the operations on the key.
//!
//! # Why no event is missed
//!
//! Both fences are sequentially consistent, so one comes first. If it is the watcher's, the
//! announcer sees a count, takes the lock later, and finds the watcher. If it is the announcer's,
//! the watcher's check sees the change.

use std::{boxed::Box, sync::Arc};

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of cells: 64 KiB of counts for up to 16 shards. With more cells, fewer keys share one, so
/// threads with different keys seldom write the same line.
const CELLS: usize = if cfg!(loom) { 1 } else { 1024 };

/// Number of shards whose bits are in a word.
const WORD: usize = 64;

/// Counts in a cache line.
const LINE: usize = if cfg!(loom) { 1 } else { 16 };

/// The bit of a count that is set once its shard is among those that events read.
const USED: u32 = 1 << 31;

/// The counts of a cell in 16 shards, which an event reads as one cache line. Another thread writes
/// this line only for keys of the same cell.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; LINE]);

/// The numbers of watched keys in all shards, by hash.
#[derive(Debug)]
pub(super) struct Filters {
    /// For each cell, a bit for each shard that ever had a watched key there. Bits are not cleared,
    /// so these words are seldom written. An event reads the counts of these shards only.
    used: Box<[AtomicU64]>,
    /// For each cell, the counts of all shards.
    lines: Box<[Line]>,
    /// Words, and lines, of each cell.
    words: usize,
    lines_of_cell: usize,
}

impl Filters {
    #[inline]
    pub(super) fn new(shards: usize) -> Self {
        let (words, lines_of_cell) = (shards.div_ceil(WORD), shards.div_ceil(LINE));
        let used = (0..CELLS * words).map(|_| AtomicU64::new(0)).collect();
        let lines = (0..CELLS * lines_of_cell).map(|_| Line::default()).collect();
        Self { used, lines, words, lines_of_cell }
    }

    /// Returns the shards that may have a watcher of a key. The caller has executed a fence.
    #[inline]
    pub(super) fn shards(&self, hash: u64) -> Watching<'_> {
        Watching { filters: self, cell: cell(hash), word: 0, left: 0 }
    }

    /// Returns whether a shard may have a watcher of a key. The caller has executed a
    /// fence.
    #[inline]
    pub(super) fn may_have(&self, hash: u64, shard: usize) -> bool {
        self.count(cell(hash), shard).load(Ordering::Relaxed) > USED
    }

    #[inline]
    fn count(&self, cell: usize, shard: usize) -> &AtomicU32 {
        &self.lines[cell * self.lines_of_cell + shard / LINE].0[shard % LINE]
    }

    /// Returns the word of a cell that has the bit of a shard.
    fn word(&self, cell: usize, shard: usize) -> &AtomicU64 {
        &self.used[cell * self.words + shard / WORD]
    }
}

/// The shards that may have a watcher of a key.
pub(super) struct Watching<'a> {
    filters: &'a Filters,
    cell: usize,
    /// The number of words that were read.
    word: usize,
    /// The shards of the last one that were not visited.
    left: u64,
}

impl Iterator for Watching<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let Self { filters, cell, word, left } = self;
        loop {
            while *left != 0 {
                let shard = (*word - 1) * WORD + left.trailing_zeros() as usize;
                *left &= *left - 1;
                if filters.count(*cell, shard).load(Ordering::Relaxed) > USED {
                    return Some(shard);
                }
            }
            if *word == filters.words {
                return None;
            }
            *left = filters.used[*cell * filters.words + *word].load(Ordering::Relaxed);
            *word += 1;
        }
    }
}

/// Returns the cell of a hash. The table of keys uses the lowest bits.
#[inline]
const fn cell(hash: u64) -> usize {
    (hash >> 24) as usize % CELLS
}

/// The numbers of watched keys in a shard, by hash. Written under the shard's lock.
#[derive(Debug)]
pub(super) struct Filter {
    filters: Arc<Filters>,
    shard: usize,
}

impl Filter {
    pub(super) const fn new(filters: Arc<Filters>, shard: usize) -> Self {
        Self { filters, shard }
    }

    #[inline]
    pub(super) fn add(&self, hash: u64) {
        let count = self.filters.count(cell(hash), self.shard);
        let mut before = count.load(Ordering::Relaxed);
        if before == 0 {
            before = self.begin_to_use(cell(hash));
        }
        count.store(before + 1, Ordering::Relaxed);
    }

    /// Lets events read the count of a cell. Returns the count.
    #[cold]
    fn begin_to_use(&self, cell: usize) -> u32 {
        let bit = 1 << (self.shard % WORD);
        self.filters.word(cell, self.shard).fetch_or(bit, Ordering::Relaxed);
        USED
    }

    #[inline]
    pub(super) fn remove(&self, hash: u64) {
        let count = self.filters.count(cell(hash), self.shard);
        let before = count.load(Ordering::Relaxed);
        debug_assert!(before > USED, "hash {hash:x} was removed twice");
        count.store(before - 1, Ordering::Relaxed);
    }

    /// Checks that each key is counted once, and that events read the counts that are not zero.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, hashes: impl Iterator<Item = u64>) {
        let mut keys = [0; CELLS];
        hashes.for_each(|hash| keys[cell(hash)] += 1);
        for (cell, keys) in keys.into_iter().enumerate() {
            let count = self.filters.count(cell, self.shard).load(Ordering::Relaxed);
            assert_eq!(count & !USED, keys, "the count of cell {cell} is wrong");
            let word = self.filters.word(cell, self.shard).load(Ordering::Relaxed);
            let is_used = word >> (self.shard % WORD) & 1 == 1;
            assert_eq!(is_used, count & USED > 0, "events pass over the {count} keys of {cell}");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_the_shards_that_have_watchers_of_it() {
        let filters = Arc::new(Filters::new(80));
        let of = |shard| Filter::new(Arc::clone(&filters), shard);
        let found = |hash| filters.shards(hash).collect::<std::vec::Vec<_>>();
        let watched = [0, 15, 16, 63, 64, 79];
        for shard in watched {
            of(shard).add(7 << 24);
            of(shard).check_invariants([7 << 24].into_iter());
        }
        assert_eq!(found(7 << 24), watched);
        assert_eq!(found(8 << 24), []);
        of(16).remove(7 << 24);
        assert_eq!(found(7 << 24), [0, 15, 63, 64, 79]);
    }
}
