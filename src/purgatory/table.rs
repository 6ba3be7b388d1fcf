//! A hash table that grows by one chain at a time, so that a hold of a lock is short.
//!
//! A table that doubles moves all its elements at once; with three million keys that took 160 ms.
//! This one uses *linear hashing* (Litwin, 1980). There is about one chain for each element. An
//! insertion that exceeds the load splits the next chain in two. Chains are as long as those of a
//! table at a load between a half and one.

use super::{
    blocks::Blocks,
    slab::{Index, Slab},
};

/// Number of chains of a block.
const BLOCK: usize = 512;

#[derive(Debug)]
struct Entry<E> {
    hash: u64,
    /// The next entry of its chain.
    next: Option<Index>,
    element: E,
}

/// Elements by their hashes, with a number each.
#[derive(Debug)]
pub(super) struct Table<E> {
    entries: Slab<Entry<E>>,
    /// The first entry of each chain.
    heads: Blocks<Option<Index>, BLOCK>,
    /// Number of chains: at most twice `mask` plus two, and more than `mask`.
    chains: u32,
    /// The bits of the hash that select a chain that this round has not split yet.
    mask: u32,
}

impl<E> Table<E> {
    pub(super) const fn new() -> Self {
        Self { entries: Slab::new(), heads: Blocks::new(), chains: 0, mask: 0 }
    }

    /// Returns the number of elements.
    pub(super) const fn len(&self) -> u32 {
        self.entries.len()
    }

    /// Returns the element with this hash for which `is_it` returns `true`.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(Index, &E) -> bool) -> Option<Index> {
        let mut next = *self.heads.get(self.chain(hash))?;
        while let Some(index) = next {
            let entry = &self.entries[index];
            if entry.hash == hash && is_it(index, &entry.element) {
                break;
            }
            next = entry.next;
        }
        next
    }

    /// Returns the element with this hash for which `is_it` returns `true`, and the unused key.
    /// Adds an element, which `make` makes from the key, if there is none.
    #[inline]
    pub(super) fn find_or_insert<K>(
        &mut self,
        hash: u64,
        key: K,
        is_it: impl Fn(&E, &K) -> bool,
        make: impl FnOnce(K) -> E,
    ) -> (Index, &mut E, Option<K>) {
        if self.entries.len() >= self.chains {
            self.split();
        }
        let chain = self.chain(hash);
        let head = self.heads.at_mut(chain);
        let mut next = *head;
        while let Some(index) = next {
            let entry = &self.entries[index];
            if entry.hash == hash && is_it(&entry.element, &key) {
                return (index, &mut self.entries[index].element, Some(key));
            }
            next = entry.next;
        }
        let (index, entry) = self.entries.insert(Entry { hash, next: *head, element: make(key) });
        *head = Some(index);
        (index, &mut entry.element, None)
    }

    /// Runs `change` on an element. Removes it if `is_unused` returns `true` then, and returns
    /// it.
    #[inline]
    pub(super) fn change(
        &mut self,
        index: Index,
        change: impl FnOnce(u64, &mut E),
        is_unused: impl FnOnce(&E) -> bool,
    ) -> Option<(u64, E)> {
        let Entry { hash, next, element } = self.entries.change(
            index,
            |entry| change(entry.hash, &mut entry.element),
            |entry| is_unused(&entry.element),
        )?;
        let head = self.heads.at_mut(self.chain(hash));
        if *head == Some(index) {
            *head = next;
        } else {
            let head = *head;
            self.unlink(head, index, next);
        }
        Some((hash, element))
    }

    /// Removes the link to an entry from a chain.
    fn unlink(&mut self, head: Option<Index>, index: Index, next: Option<Index>) {
        let mut previous = head.expect(CHAINED);
        loop {
            let link = &mut self.entries[previous].next;
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
        self.entries[index].hash
    }

    /// Returns the elements, with their numbers and hashes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Index, u64, &E)> {
        (0..self.entries.end()).filter_map(|position| {
            let index = Index::at(position);
            let entry = self.entries.get(index)?;
            Some((index, entry.hash, &entry.element))
        })
    }

    /// Frees the memory of removed elements. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.entries.shrink();
        self.heads = Blocks::new();
        (self.chains, self.mask) = (0, 0);
        while self.chains < self.entries.len() {
            self.split();
        }
        for position in 0..self.entries.end() {
            let index = Index::at(position);
            let Some(entry) = self.entries.get(index) else { continue };
            let chain = self.chain(entry.hash);
            let head = self.heads.at_mut(chain);
            let next = head.replace(index);
            self.entries[index].next = next;
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
            let chain = self.chain(self.entries[rest].hash);
            let head = self.heads.at_mut(chain);
            let next = core::mem::replace(&mut self.entries[rest].next, head.replace(rest));
            let Some(next) = next else { return };
            rest = next;
        }
    }
}

const CHAINED: &str = "there is a chain for every hash";

impl<E> core::ops::Index<Index> for Table<E> {
    type Output = E;

    #[inline]
    fn index(&self, index: Index) -> &E {
        &self.entries[index].element
    }
}

impl<E> core::ops::IndexMut<Index> for Table<E> {
    #[inline]
    fn index_mut(&mut self, index: Index) -> &mut E {
        &mut self.entries[index].element
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

    fn insert(table: &mut Table<u64>, hash: u64, number: u64) -> Index {
        let (index, _, unused) =
            table.find_or_insert(hash, number, |one, two| one == two, |key| key);
        assert_eq!(unused, None);
        index
    }

    fn check(table: &Table<u64>, present: &BTreeMap<u64, Index>) {
        assert_eq!(table.len() as usize, present.len());
        for (&number, &index) in present {
            assert_eq!(table.find(hash(number), |_, &other| other == number), Some(index));
            assert_eq!((table[index], table.hash(index)), (number, hash(number)));
        }
    }

    #[test]
    fn an_element_is_found_after_splits_removals_and_shrinks() {
        let mut table = Table::new();
        let mut present = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(11);
        for step in 0..40_000_u32 {
            let number = random.u64(..4_000);
            if let Some(index) = present.remove(&number) {
                assert_eq!(table.change(index, |_, _| {}, |_| true), Some((hash(number), number)));
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
                assert_eq!(table.find(hash(9_999), |_, _| true), None);
            }
        }
        for index in present.into_values() {
            assert_eq!(table.change(index, |_, _| {}, |_| false), None);
            table.change(index, |_, _| {}, |_| true);
        }
        table.shrink();
        assert_eq!((table.heads.end(), table.entries.end()), (0, 0));
    }

    #[test]
    fn elements_of_one_hash_are_told_apart() {
        let mut table = Table::new();
        let indices: Vec<_> = (0..100_u64).map(|number| insert(&mut table, 7, number)).collect();
        for (number, &index) in (0..).zip(&indices) {
            assert_eq!(table.find(7, |_, &other| other == number), Some(index));
        }
        for &index in indices.iter().skip(1).step_by(2) {
            table.change(index, |_, _| {}, |_| true);
        }
        let left = (0..100).filter(|number| table.find(7, |_, other| other == number).is_some());
        assert!(left.eq((0..100).step_by(2)));
    }
}
