//! The keys that operations watch, with their watchers or their number. A hash table that grows by
//! one chain at a time, so that a hold of a lock is short.
//!
//! A table that doubles moves all its entries at once. This one uses *linear hashing* (Litwin,
//! 1980). There is about one chain for each entry, but at least a block of chains. An insertion
//! that exceeds the load splits the next chain in two.

use std::{boxed::Box, mem, vec::Vec};

use crate::slab::{END, Slab};

/// Chains whose heads share a block.
const HEADS: usize = 256;

/// A key with its list of watchers.
#[derive(Debug)]
pub(super) struct Entry<K, L> {
    pub(super) hash: u64,
    key: K,
    pub(super) list: L,
}

/// Keys with their lists of watchers, each with a number.
#[derive(Debug)]
pub(super) struct Table<K, L> {
    /// The tag of an entry is the next one of its chain, or `END`.
    entries: Slab<Entry<K, L>>,
    /// The first entry of each chain, or `END`.
    #[expect(clippy::vec_box, reason = "a growing vector moves no heads")]
    heads: Vec<Box<[u32; HEADS]>>,
    chains: u32,
    /// The number of chains, rounded up to a power of two, minus one.
    mask: u32,
}

impl<K, L> Table<K, L> {
    pub(super) const fn new() -> Self {
        Self { entries: Slab::new(), heads: Vec::new(), chains: 0, mask: 0 }
    }

    /// Returns the number of keys.
    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of keys that it has memory for.
    pub(super) fn slots(&self) -> u32 {
        self.entries.slots()
    }

    pub(super) fn at(&self, index: u32) -> &Entry<K, L> {
        self.entries.at(index)
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut Entry<K, L> {
        self.entries.at_mut(index)
    }

    /// Returns the number of the key with this hash for which `is_it` returns `true`.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<u32> {
        if self.chains == 0 {
            return None;
        }
        let chain = self.chain(hash);
        let mut next = self.heads[chain / HEADS][chain % HEADS];
        while let Some((after, entry)) = self.entries.get_at(next) {
            if entry.hash == hash && is_it(&entry.key) {
                return Some(next);
            }
            next = after;
        }
        None
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
        (hash, key)
    }

    /// Takes the entry at an index out of a chain.
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

    /// Begins a sweep, which frees memory of removed keys.
    pub(super) fn begin_sweep(&mut self) {
        self.entries.begin_sweep();
    }

    /// Sweeps the next segment. Returns `false` if there is none.
    pub(super) fn sweep(&mut self) -> bool {
        self.entries.sweep()
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

    /// Returns the chain for a hash: its lower bits, one bit less if that chain has not been added.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits serve as well as all")]
    const fn chain(&self, hash: u64) -> usize {
        let chain = hash as u32 & self.mask;
        (if chain < self.chains { chain } else { chain & (self.mask >> 1) }) as usize
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

    /// Adds a chain. Moves the entries of the split chain that belong to the new one.
    #[cold]
    fn split(&mut self) {
        let new = self.chains;
        self.add_chains(1);
        // The new chain without its highest bit.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A hash of the same quality as that of the keys.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    fn check(table: &Table<u64, ()>, present: &BTreeMap<u64, u32>) {
        assert_eq!(table.len(), present.len());
        assert!(table.chains as usize >= table.len());
        for (&number, &index) in present {
            assert_eq!(table.find(hash(number), |&key| key == number), Some(index));
            assert_eq!(table.at(index).hash, hash(number));
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
                assert_eq!(table.chains as usize, table.len().max(HEADS));
            }
            if step % 500 == 0 {
                check(&table, &present);
                assert_eq!(table.find(hash(9_999), |_| true), None);
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
}
