//! A hash table that grows by one chain at a time, so that a hold of a lock is short.
//!
//! A table that doubles moves all its elements at once; with three million keys that took 160 ms.
//! This one uses *linear hashing* (Litwin, 1980). There is about one chain for each element. An
//! insertion that exceeds the load splits the next chain in two. Chains are as long as those of a
//! table at a load between a half and one.

use core::mem;

use super::{blocks::Blocks, slab::Index};

/// Number of entries of a block.
const BLOCK: usize = 128;

/// Maximum number of entries, so that a position in the list of a key takes four bytes.
pub(super) const CAPACITY: u32 = 1 << 29;

/// Number of chains of a block.
const CHAINS: usize = 512;

#[derive(Debug)]
struct Entry<K, E> {
    hash: u64,
    /// The next entry of its chain, or of the list of vacant entries.
    next: Option<Index>,
    /// `None` if the entry is vacant.
    key: Option<K>,
    /// Unused while the entry is vacant. So an insertion does not write it.
    element: E,
}

/// Elements by their keys, with a number each. A removed element stays in its entry for the next
/// key, so the caller must leave it equal to `E::default()`.
#[derive(Debug)]
pub(super) struct Table<K, E> {
    entries: Blocks<Entry<K, E>, BLOCK>,
    /// The first vacant entry.
    vacant: Option<Index>,
    len: u32,
    /// The first entry of each chain.
    heads: Blocks<Option<Index>, CHAINS>,
    /// Number of chains: at most twice `mask` plus two, and more than `mask`.
    chains: u32,
    /// The bits of the hash that select a chain that this round has not split yet.
    mask: u32,
}

impl<K, E: Default> Table<K, E> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Blocks::new(),
            vacant: None,
            len: 0,
            heads: Blocks::new(),
            chains: 0,
            mask: 0,
        }
    }

    /// Returns the number of elements.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns the element with this hash for which `is_it` returns `true`.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(Index, &K, &E) -> bool) -> Option<Index> {
        let mut next = *self.heads.get(self.chain(hash))?;
        while let Some(index) = next {
            let entry = self.entry(index);
            let is_found = |key| is_it(index, key, &entry.element);
            if entry.hash == hash && entry.key.as_ref().is_some_and(is_found) {
                break;
            }
            next = entry.next;
        }
        next
    }

    /// Returns the element of a key, and adds one if there is none. Also returns the given key if
    /// the table already has an equal one.
    #[inline]
    pub(super) fn find_or_insert(&mut self, hash: u64, key: K) -> (Index, &mut E, Option<K>)
    where
        K: Eq,
    {
        if self.len >= self.chains {
            self.split();
        }
        let chain = self.chain(hash);
        let head = self.heads.at_mut(chain);
        let mut next = *head;
        while let Some(index) = next {
            let entry = self.entries.at(index.position());
            if entry.hash == hash && entry.key.as_ref() == Some(&key) {
                return (index, &mut self.entries.at_mut(index.position()).element, Some(key));
            }
            next = entry.next;
        }
        let index = match self.vacant {
            Some(index) => index,
            None => Self::grow(&mut self.entries),
        };
        let entry = self.entries.at_mut(index.position());
        debug_assert!(entry.key.is_none(), "vacant entry {index:?} has a key");
        (entry.hash, entry.key) = (hash, Some(key));
        self.vacant = mem::replace(&mut entry.next, head.replace(index));
        self.len += 1;
        (index, &mut entry.element, None)
    }

    /// Adds a block of vacant entries, and returns the first.
    #[cold]
    fn grow(entries: &mut Blocks<Entry<K, E>, BLOCK>) -> Index {
        let start = entries.grow(|position| {
            let is_last = (position as usize + 1) % BLOCK == 0;
            let next = (!is_last).then(|| Index::at(position + 1));
            Entry { hash: 0, next, key: None, element: E::default() }
        });
        assert!(start < CAPACITY, "a shard has too many keys");
        Index::at(start)
    }

    /// Runs `change` on an element, with its hash. Removes the element if that returns `true`, and
    /// returns its hash and its key.
    #[inline]
    pub(super) fn change(
        &mut self,
        index: Index,
        change: impl FnOnce(u64, &mut E) -> bool,
    ) -> Option<(u64, K)> {
        let entry = self.entries.at_mut(index.position());
        let hash = entry.hash;
        if !change(hash, &mut entry.element) {
            return None;
        }
        let key = entry.key.take();
        debug_assert!(key.is_some(), "the element of {index:?} is removed twice");
        let next = mem::replace(&mut entry.next, self.vacant.replace(index));
        self.len -= 1;
        let head = self.heads.at_mut(self.chain(hash));
        if *head == Some(index) {
            *head = next;
        } else {
            let head = *head;
            self.unlink(head, index, next);
        }
        Some((hash, key?))
    }

    /// Removes the link to an entry from a chain.
    fn unlink(&mut self, head: Option<Index>, index: Index, next: Option<Index>) {
        let mut previous = head.expect(CHAINED);
        loop {
            let link = &mut self.entries.at_mut(previous.position()).next;
            if *link == Some(index) {
                *link = next;
                return;
            }
            previous = link.expect("an entry is in its chain");
        }
    }

    /// Returns the hash of an element.
    #[inline]
    pub(super) fn hash(&self, index: Index) -> u64 {
        self.entry(index).hash
    }

    #[inline]
    fn entry(&self, index: Index) -> &Entry<K, E> {
        self.entries.at(index.position())
    }

    /// Returns the elements, with their numbers and hashes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Index, u64, &E)> {
        (0..self.entries.end()).filter_map(|position| {
            let entry = self.entries.get(position).filter(|entry| entry.key.is_some())?;
            Some((Index::at(position), entry.hash, &entry.element))
        })
    }

    /// Checks that every entry has a key or is listed as vacant, and that the elements of vacant
    /// ones are unused.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, is_unused: impl Fn(&E) -> bool) {
        let (mut vacant, mut next) = (0, self.vacant);
        while let Some(index) = next {
            let entry = self.entry(index);
            assert!(entry.key.is_none(), "{index:?} has a key but is listed as vacant");
            assert!(is_unused(&entry.element), "the element of vacant {index:?} is in use");
            vacant += 1;
            next = entry.next;
        }
        let present = (0..self.entries.end()).filter(|&at| self.entries.get(at).is_some());
        assert_eq!(present.count(), vacant + self.len as usize, "a vacant entry is not listed");
        assert_eq!(self.iter().count(), self.len as usize, "the count of elements is wrong");
    }

    /// Frees the memory of removed elements. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.entries.release(|_, block| block.iter().all(|entry| entry.key.is_none()));
        self.heads = Blocks::new();
        (self.chains, self.mask) = (0, 0);
        while self.chains < self.len {
            self.split();
        }
        // Chains and vacant entries are linked again, as the freed blocks had some of both.
        self.vacant = None;
        for position in (0..self.entries.end()).rev() {
            let Some(entry) = self.entries.get(position) else { continue };
            let head = match entry.key {
                Some(_) => self.heads.at_mut(self.chain(entry.hash)),
                None => &mut self.vacant,
            };
            let next = head.replace(Index::at(position));
            self.entries.at_mut(position).next = next;
        }
    }

    /// Returns the chain for a hash.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits serve as well as all")]
    const fn chain(&self, hash: u64) -> u32 {
        let chain = hash as u32 & (self.mask << 1 | 1);
        if chain < self.chains { chain } else { chain & self.mask }
    }

    /// Adds a chain. Moves the entries of the split chain that belong to the new one.
    fn split(&mut self) {
        let new = self.chains;
        if new > self.mask << 1 | 1 {
            self.mask = self.mask << 1 | 1;
        }
        self.chains += 1;
        debug_assert!(
            self.mask <= new && new <= self.mask << 1 | 1,
            "chain {new} is not for the mask {:x}",
            self.mask
        );
        if self.heads.end() < self.chains {
            self.heads.grow(|_| None);
        }
        let Some(mut rest) = self.heads.get_mut(new & self.mask).and_then(Option::take) else {
            return;
        };
        // Each entry is prepended, in either chain.
        loop {
            let chain = self.chain(self.entry(rest).hash);
            let head = self.heads.at_mut(chain);
            let entry = self.entries.at_mut(rest.position());
            let next = mem::replace(&mut entry.next, head.replace(rest));
            let Some(next) = next else { return };
            rest = next;
        }
    }
}

const CHAINED: &str = "there is a chain for every hash";

impl<K, E> core::ops::Index<Index> for Table<K, E> {
    type Output = E;

    #[inline]
    fn index(&self, index: Index) -> &E {
        &self.entries.at(index.position()).element
    }
}

impl<K, E> core::ops::IndexMut<Index> for Table<K, E> {
    #[inline]
    fn index_mut(&mut self, index: Index) -> &mut E {
        &mut self.entries.at_mut(index.position()).element
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use super::*;

    /// A hash of the same quality as that of the keys.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    /// A table whose elements are the keys.
    type Numbers = Table<u64, u64>;

    fn insert(table: &mut Numbers, hash: u64, number: u64) -> Index {
        let (index, element, unused) = table.find_or_insert(hash, number);
        assert_eq!((*element, unused), (0, None));
        *element = number;
        index
    }

    fn remove(table: &mut Numbers, index: Index) -> Option<(u64, u64)> {
        table.change(index, |_, element| {
            *element = 0;
            true
        })
    }

    fn check(table: &Numbers, present: &BTreeMap<u64, Index>) {
        table.check_invariants(|&element| element == 0);
        assert_eq!(table.len() as usize, present.len());
        for (&number, &index) in present {
            assert_eq!(table.find(hash(number), |_, &key, _| key == number), Some(index));
            assert_eq!((table[index], table.hash(index)), (number, hash(number)));
        }
    }

    #[test]
    fn an_element_is_found_after_splits_removals_and_shrinks() {
        let mut table = Numbers::new();
        let mut present = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(11);
        for step in 0..40_000_u32 {
            let number = random.u64(..4_000);
            if let Some(index) = present.remove(&number) {
                assert_eq!(remove(&mut table, index), Some((hash(number), number)));
            } else if step % 20_000 < 12_000 {
                present.insert(number, insert(&mut table, hash(number), number));
            }
            assert!(!present.contains_key(&number) || table.chains >= table.len());
            if step % 5_000 == 0 {
                table.shrink();
                assert_eq!(table.chains, table.len());
            }
            if step % 500 == 0 {
                check(&table, &present);
                assert_eq!(table.find(hash(9_999), |_, _, _| true), None);
            }
        }
        for index in present.into_values() {
            assert_eq!(table.change(index, |_, _| false), None);
            remove(&mut table, index);
        }
        table.shrink();
        assert_eq!((table.heads.end(), table.entries.end()), (0, 0));
    }

    #[test]
    fn elements_of_one_hash_are_told_apart() {
        let mut table = Numbers::new();
        let indices: Vec<_> = (0..100_u64).map(|number| insert(&mut table, 7, number)).collect();
        let find = |table: &Numbers, number| table.find(7, |_, &key, _| key == number);
        for (number, &index) in (0..).zip(&indices) {
            assert_eq!(find(&table, number), Some(index));
            assert_eq!(table.find_or_insert(7, number).2, Some(number), "the key is there");
        }
        for &index in indices.iter().skip(1).step_by(2) {
            remove(&mut table, index);
        }
        let left = (0..100).filter(|&number| find(&table, number).is_some());
        assert!(left.eq((0..100).step_by(2)));
    }
}
