//! A slab: numbered elements. The number of a removed element is reused.
//!
//! It grows by blocks, so that growth copies no element and is short under a lock.

use core::num::NonZeroU32;

use super::blocks::Blocks;

/// The number of an element. `Option<Index>` takes four bytes as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Index(
    /// The position plus one.
    NonZeroU32,
);

impl Index {
    pub(super) fn at(position: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(position))
    }

    #[inline]
    pub(super) const fn position(self) -> u32 {
        self.0.get() - 1
    }
}

/// Number of elements of a block.
const BLOCK: usize = 128;

#[derive(Debug)]
enum Entry<E> {
    Occupied(E),
    /// In the list of vacant entries; `next` is the next one.
    Vacant {
        next: Option<Index>,
    },
}

/// Elements addressed by their [`Index`].
#[derive(Debug)]
pub(super) struct Slab<E> {
    entries: Blocks<Entry<E>, BLOCK>,
    vacant: Option<Index>,
}

impl<E> Slab<E> {
    pub(super) const fn new() -> Self {
        Self { entries: Blocks::new(), vacant: None }
    }

    /// Adds an element.
    ///
    /// # Panics
    ///
    /// Panics if there are 2^31 elements; memory ends before that.
    #[inline]
    pub(super) fn insert(&mut self, element: E) -> (Index, &mut E) {
        let index = self.next_index();
        let entry = self.entries.at_mut(index.position());
        let Entry::Vacant { next } = *entry else { unreachable!("only vacant entries are listed") };
        self.vacant = next;
        *entry = Entry::Occupied(element);
        let Entry::Occupied(element) = entry else {
            unreachable!("an added element is in its entry")
        };
        (index, element)
    }

    /// Removes an element.
    #[inline]
    pub(super) fn remove(&mut self, index: Index) -> E {
        let entry = self.entries.at_mut(index.position());
        match core::mem::replace(entry, Entry::Vacant { next: self.vacant }) {
            Entry::Occupied(element) => {
                debug_assert_ne!(self.vacant, Some(index), "{index:?} was vacant");
                self.vacant = Some(index);
                element
            }
            Entry::Vacant { .. } => unreachable!("an element is removed once"),
        }
    }

    /// Returns the index of the next element.
    #[inline]
    pub(super) fn next_index(&mut self) -> Index {
        match self.vacant {
            Some(index) => index,
            None => self.grow(),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: Index) -> Option<&E> {
        match self.entries.get(index.position())? {
            Entry::Occupied(element) => Some(element),
            Entry::Vacant { .. } => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: Index) -> Option<&mut E> {
        match self.entries.get_mut(index.position())? {
            Entry::Occupied(element) => Some(element),
            Entry::Vacant { .. } => None,
        }
    }

    /// Returns the number of elements. *O*(capacity).
    pub(super) fn count(&self) -> usize {
        let all = (0..self.entries.end()).filter_map(|position| self.entries.get(position));
        all.filter(|entry| matches!(entry, Entry::Occupied(_))).count()
    }

    /// Frees the blocks without an element. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.entries
            .release(|_, block| block.iter().all(|entry| matches!(entry, Entry::Vacant { .. })));
        // The list of vacant entries had entries in the freed blocks, so it is rebuilt.
        self.vacant = None;
        for position in (0..self.entries.end()).rev() {
            let next = self.vacant;
            if let Some(entry @ Entry::Vacant { .. }) = self.entries.get_mut(position) {
                *entry = Entry::Vacant { next };
                self.vacant = Some(Index::at(position));
            }
        }
    }

    /// Adds a block, and returns the first index in it.
    #[cold]
    fn grow(&mut self) -> Index {
        debug_assert!(self.vacant.is_none(), "a slab grows although an entry is vacant");
        let start = self.entries.grow(|position| {
            let is_last = (position as usize + 1) % BLOCK == 0;
            Entry::Vacant { next: (!is_last).then(|| Index::at(position + 1)) }
        });
        let first = Index::at(start);
        self.vacant = Some(first);
        first
    }
}

impl<E> Default for Slab<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> core::ops::Index<Index> for Slab<E> {
    type Output = E;

    #[inline]
    fn index(&self, index: Index) -> &E {
        self.get(index).expect("a link leads to an element")
    }
}

impl<E> core::ops::IndexMut<Index> for Slab<E> {
    #[inline]
    fn index_mut(&mut self, index: Index) -> &mut E {
        self.get_mut(index).expect("a link leads to an element")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_room_is_given_back() {
        let mut slab = Slab::new();
        let indices: std::vec::Vec<_> = (0..3000_u32).map(|number| slab.insert(number).0).collect();
        assert!(indices.iter().enumerate().all(|(number, &index)| slab[index] as usize == number));
        for &index in &indices[..2999] {
            slab.remove(index);
        }
        slab.shrink();
        assert_eq!(slab[indices[2999]], 2999);
        let reused: std::vec::Vec<_> = (0..600_u32).map(|number| slab.insert(number).0).collect();
        assert!(reused.iter().enumerate().all(|(number, &index)| slab[index] as usize == number));
        for &index in reused.iter().chain([&indices[2999]]) {
            slab.remove(index);
        }
        slab.shrink();
        assert_eq!(slab.entries.end(), 0);
    }
}
