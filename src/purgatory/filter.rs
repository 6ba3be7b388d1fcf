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

use std::{iter, sync::Arc};

use crate::sync::{AtomicU32, Ordering, fence};

/// Number of cells. With more cells, fewer keys share one.
const CELLS: usize = if cfg!(loom) { 1 } else { 256 };

/// Counts in a cache line.
const LINE: usize = if cfg!(loom) { 1 } else { 16 };

/// The counts of a cell in 16 shards. An event reads one line for all of them. It does not wait for
/// a line that another thread has just written for a different key, unless the keys share the cell.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; LINE]);

impl Line {
    /// Returns a bit for each count that is not 0.
    #[inline]
    fn bits(&self) -> u16 {
        let bit =
            |bits, count: &AtomicU32| bits << 1 | u16::from(count.load(Ordering::Relaxed) > 0);
        self.0.iter().rev().fold(0, bit)
    }
}

/// The numbers of watched keys in all shards, by hash. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    /// For each cell, the counts of the shards.
    lines: Arc<[Line]>,
    /// Lines of a cell.
    width: usize,
}

impl Filters {
    pub(super) fn new(shards: usize) -> Self {
        let width = shards.div_ceil(LINE);
        Self { lines: (0..CELLS * width).map(|_| Line::default()).collect(), width }
    }

    /// Returns the shards that may have a watcher of a key. The caller has executed
    /// [`fence_event`].
    #[inline]
    pub(super) fn shards_with(&self, hash: u64) -> impl Iterator<Item = usize> {
        let first = cell(hash) * self.width;
        let lines = self.lines[first..first + self.width].iter().enumerate();
        lines.flat_map(|(line, counts)| {
            let mut bits = counts.bits();
            iter::from_fn(move || {
                let shard = (bits != 0).then(|| line * LINE + bits.trailing_zeros() as usize);
                bits &= bits.wrapping_sub(1);
                shard
            })
        })
    }

    /// Returns the counts of a shard.
    pub(super) fn of(&self, shard: usize) -> Filter {
        Filter { filters: self.clone(), line: shard / LINE, position: shard % LINE }
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
    /// The line of this shard within a cell.
    line: usize,
    /// The count of this shard within the line.
    position: usize,
}

impl Filter {
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
        let lines = self.filters.lines.iter().skip(self.line).step_by(self.filters.width);
        let counted = lines.map(|line| line.0[self.position].load(Ordering::Relaxed) as usize);
        assert_eq!(
            counted.sum::<usize>(),
            hashes.len(),
            "the filter and the keys differ in number"
        );
        for &hash in hashes {
            let count = self.count(hash).load(Ordering::Relaxed);
            assert_ne!(count, 0, "the filter rules out the watched hash {hash:x}");
        }
    }

    #[inline]
    fn count(&self, hash: u64) -> &AtomicU32 {
        let Self { filters, line, position } = self;
        &filters.lines[cell(hash) * filters.width + line].0[*position]
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
        let filters = Filters::new(40);
        let watched = [0, 15, 16, 31, 39];
        for shard in watched {
            filters.of(shard).add(7 << 24);
            filters.of(shard).check_invariants(&[7 << 24]);
        }
        assert!(filters.shards_with(7 << 24).eq(watched));
        assert_eq!(filters.shards_with(8 << 24).next(), None);
        filters.of(16).remove(7 << 24);
        assert!(filters.shards_with(7 << 24).eq([0, 15, 31, 39]));
    }
}
