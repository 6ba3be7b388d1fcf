//! The keys that operations watch. Each shard has a table of its keys. The filter counts the keys
//! of all shards, and shows without a lock which shards may have watchers of a key.
//!
//! # The table
//!
//! The table grows by one chain at a time, so that a hold of the shard's lock is short. A table
//! that doubles would move all its entries at once. This table uses *linear hashing* (Litwin,
//! 1980). It has at least one chain for each entry, and at least a block of chains. If an insertion
//! makes the entries outnumber the chains, it splits the next chain in two.
//!
//! # The protocol of the filter
//!
//! - A thread that registers an operation (1) adds watchers to the lists of its keys, and counts in
//!   the filter each key that had no watcher in this shard, all under the shard's lock; (2)
//!   executes a fence; (3) checks the operation once more.
//! - A thread that announces an event (1) has changed the state that the check reads; (2) executes
//!   a fence; (3) reads the filter. It takes the lock of each shard for which the filter does not
//!   rule the key out, and checks the operations on the key there.
//!
//! ## Why no event is missed
//!
//! Both fences are sequentially consistent, so one comes first. If the fence of the registration is
//! first, the announcing thread sees the count, takes the lock later, and finds the watcher.
//! Otherwise the last check of the registration sees the changed state.

use std::{boxed::Box, iter, mem, sync::Arc, vec::Vec};

use crate::{
    slab::{END, Slab},
    sync::{AtomicU32, Ordering},
};

/// Number of chains whose heads share a block.
const HEADS: usize = 256;

/// A key with its list of watchers.
#[derive(Debug)]
pub(super) struct Entry<K, L> {
    pub(super) hash: u64,
    key: K,
    pub(super) list: L,
}

/// Keys with their lists of watchers. The number of a key is the index of its entry.
#[derive(Debug)]
pub(super) struct Table<K, L> {
    /// The tag of an entry is the number of the next entry in its chain, or `END`. Only this file
    /// adds and removes entries.
    pub(super) entries: Slab<Entry<K, L>>,
    /// The number of the first entry of each chain, or `END`.
    #[expect(clippy::vec_box, reason = "a vector that grows then copies pointers only")]
    heads: Vec<Box<[u32; HEADS]>>,
    chains: u32,
    /// The number of chains, rounded up to a power of two, minus one.
    mask: u32,
}

impl<K, L> Table<K, L> {
    pub(super) const fn new() -> Self {
        Self { entries: Slab::new(), heads: Vec::new(), chains: 0, mask: 0 }
    }

    /// Returns the key with this hash for which `is_it` returns `true`: its number and its entry.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
    ) -> Option<(u32, &Entry<K, L>)> {
        self.of_hash(hash).find(|(_, entry)| is_it(&entry.key))
    }

    /// Returns the keys with this hash: their numbers and their entries.
    #[inline]
    pub(super) fn of_hash(&self, hash: u64) -> impl Iterator<Item = (u32, &Entry<K, L>)> {
        let chain = self.chain(hash);
        let mut next = self.heads.get(chain / HEADS).map_or(END, |heads| heads[chain % HEADS]);
        let chained = iter::from_fn(move || {
            let index = next;
            let (_, after, entry) = self.entries.live(index)?;
            next = after;
            Some((index, entry))
        });
        chained.filter(move |(_, entry)| entry.hash == hash)
    }

    /// Adds a key that the table does not have, with its watchers. Returns its number.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, key: K, list: L) -> u32 {
        if self.chains == 0 {
            self.add_chains(HEADS);
        }
        let chain = self.chain(hash);
        let head = &mut self.heads[chain / HEADS][chain % HEADS];
        let added = self.entries.insert(*head, Entry { hash, key, list });
        let index = added.expect("2^32 slots are in use").index();
        *head = index;
        if self.entries.len() > self.chains as usize {
            self.split();
        }
        index
    }

    /// Removes a key. Returns it with its hash.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> (u64, K) {
        let Some((_, next, Entry { hash, key, .. })) = self.entries.remove(index, None) else {
            unreachable!("entry {index} is vacant")
        };
        let head = self.head(hash);
        if *head == index {
            *head = next;
        } else {
            let before = *head;
            self.unlink(before, index, next);
        }
        self.entries.close_sparse(index);
        (hash, key)
    }

    /// Takes the entry at `index` out of the chain that begins with the entry at `before`.
    #[cold]
    fn unlink(&mut self, mut before: u32, index: u32, next: u32) {
        while self.entries.tag_at(before) != index {
            before = self.entries.tag_at(before);
        }
        self.entries.set_tag(before, next);
    }

    /// Returns the numbers of all keys, with their entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<K, L>)> {
        self.entries.keys_from(0).map(|key| (key.index(), self.entries.at(key.index())))
    }

    /// Frees the memory of removed keys. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.entries.shrink();
        (self.heads, self.chains, self.mask) = (Vec::new(), 0, 0);
        if !self.entries.is_empty() {
            self.add_chains(self.entries.len().max(HEADS));
        }
        for index in 0..self.entries.slots() {
            if self.entries.key_at(index).is_some() {
                self.prepend(index);
            }
        }
    }

    /// Makes an entry the first of its chain.
    fn prepend(&mut self, index: u32) {
        let head = self.head(self.entries.at(index).hash);
        let next = mem::replace(head, index);
        self.entries.set_tag(index, next);
    }

    #[inline]
    fn head(&mut self, hash: u64) -> &mut u32 {
        let chain = self.chain(hash);
        &mut self.heads[chain / HEADS][chain % HEADS]
    }

    /// Returns the chain for a hash: the lower bits of the hash, one bit less if there is no such
    /// chain yet.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits serve as well as all")]
    const fn chain(&self, hash: u64) -> usize {
        (match hash as u32 & self.mask {
            chain if chain < self.chains => chain,
            beyond => beyond & (self.mask >> 1),
        }) as usize
    }

    #[cold]
    fn add_chains(&mut self, count: usize) {
        for _ in 0..count {
            if self.chains as usize % HEADS == 0 {
                self.heads.push(Box::new([END; HEADS]));
            }
            self.chains += 1;
            self.mask = self.chains.next_power_of_two() - 1;
        }
    }

    /// Adds a chain. Moves the entries of the split chain that belong to the new chain.
    #[cold]
    fn split(&mut self) {
        let new = self.chains;
        self.add_chains(1);
        // The number of the new chain without its highest bit.
        let split = new & !(1 << new.ilog2());
        let head = &mut self.heads[split as usize / HEADS][split as usize % HEADS];
        let mut rest = mem::replace(head, END);
        while rest != END {
            let next = self.entries.tag_at(rest);
            self.prepend(rest);
            rest = next;
        }
    }
}

/// Number of cells of the filter. For up to 16 shards, their counts take 64 KiB. With many cells,
/// few keys share one, so threads with different keys seldom write the same line.
const CELLS: usize = if cfg!(loom) { 1 } else { 1024 };

/// Counts in a cache line.
const LINE: usize = if cfg!(loom) { 1 } else { 16 };

/// The counts of a cell in 16 shards, which an event reads as one cache line. Another thread writes
/// this line only for keys of the same cell.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU32; LINE]);

/// The numbers of watched keys in all shards, by hash.
#[derive(Debug)]
pub(super) struct Filters {
    /// For each cell, the counts of all shards.
    lines: Box<[Line]>,
    /// Lines of each cell.
    lines_of_cell: usize,
}

impl Filters {
    #[inline]
    pub(super) fn new(shards: usize) -> Self {
        let lines_of_cell = shards.div_ceil(LINE);
        let lines = (0..CELLS * lines_of_cell).map(|_| Line::default()).collect();
        Self { lines, lines_of_cell }
    }

    /// Returns the shards that may have a watcher of a key. The caller has executed a fence.
    #[inline]
    pub(super) fn shards(&self, hash: u64) -> impl Iterator<Item = usize> {
        let lines = &self.lines[cell(hash) * self.lines_of_cell..][..self.lines_of_cell];
        let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
        // Most lines have only zeros. The fold finds this without a branch for each count.
        let has_some = move |line: &Line| line.0.iter().fold(0, |all, count| all | load(count)) > 0;
        lines.iter().zip(0..).filter(move |(line, _)| has_some(line)).flat_map(
            move |(line, index)| {
                let counts = line.0.iter().zip(index * LINE..);
                counts.filter(move |(count, _)| load(count) > 0).map(|(_, shard)| shard)
            },
        )
    }

    /// Returns whether a shard may have a watcher of a key. The caller has executed a fence.
    #[inline]
    pub(super) fn may_have(&self, hash: u64, shard: usize) -> bool {
        self.count(cell(hash), shard).load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn count(&self, cell: usize, shard: usize) -> &AtomicU32 {
        &self.lines[cell * self.lines_of_cell + shard / LINE].0[shard % LINE]
    }
}

/// Returns the cell of a hash. The table of keys uses the lowest bits of the hash.
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
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn remove(&self, hash: u64) {
        let count = self.filters.count(cell(hash), self.shard);
        let before = count.load(Ordering::Relaxed);
        debug_assert_ne!(before, 0, "hash {hash:x} was removed twice");
        count.store(before - 1, Ordering::Relaxed);
    }

    /// Checks that each key is counted once.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, hashes: impl Iterator<Item = u64>) {
        let mut keys = [0; CELLS];
        hashes.for_each(|hash| keys[cell(hash)] += 1);
        for (cell, keys) in keys.into_iter().enumerate() {
            let count = self.filters.count(cell, self.shard).load(Ordering::Relaxed);
            assert_eq!(count, keys, "the count of cell {cell} is wrong");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A hash of the same quality as that of the keys.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    fn check(table: &Table<u64, ()>, present: &BTreeMap<u64, u32>) {
        assert_eq!(table.entries.len(), present.len());
        assert!(table.chains as usize >= present.len());
        for (&number, &index) in present {
            let (found, entry) = table.find(hash(number), |&key| key == number).unwrap();
            assert_eq!((found, entry.hash), (index, hash(number)));
        }
    }

    #[test]
    fn a_key_is_found_after_splits_removals_and_shrinks() {
        let mut table = Table::new();
        let mut present = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(11);
        for step in 0..40_000_u32 {
            let number = random.u64(..4_000);
            if let Some(index) = present.remove(&number) {
                assert_eq!(table.remove(index), (hash(number), number));
            } else if step % 20_000 < 12_000 {
                present.insert(number, table.insert(hash(number), number, ()));
            }
            if step % 5_000 == 0 {
                table.shrink();
                assert_eq!(table.chains as usize, table.entries.len().max(HEADS));
            }
            if step % 500 == 0 {
                check(&table, &present);
                assert!(table.find(hash(9_999), |_| true).is_none());
            }
        }
        for index in present.into_values() {
            table.remove(index);
        }
        table.shrink();
        assert_eq!((table.heads.len(), table.entries.slots()), (0, 0));
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut table = Table::new();
        let indices: Vec<_> = (0..100_u64).map(|key| table.insert(7, key, ())).collect();
        for &index in indices.iter().skip(1).step_by(2) {
            table.remove(index);
        }
        let left = (0..100).filter(|&number| table.find(7, |&key| key == number).is_some());
        assert!(left.eq((0..100).step_by(2)));
    }

    #[test]
    fn a_key_is_found_in_the_shards_that_have_watchers_of_it() {
        let filters = Arc::new(Filters::new(80));
        let of = |shard| Filter::new(Arc::clone(&filters), shard);
        let found = |hash| filters.shards(hash).collect::<Vec<_>>();
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
