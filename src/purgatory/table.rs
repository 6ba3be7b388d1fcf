//! From a key to its list.
//!
//! A table of all keys would have to move all of them at once when it grows, under the lock: with
//! three million keys that took 160 ms. So there are many small tables, each for keys whose hashes
//! begin alike; and each entry has a part of the hash, so that growing looks at nothing else.

use std::boxed::Box;

use hashbrown::HashTable;

use super::slab::Index;

/// Small tables.
const PARTS: usize = if cfg!(loom) { 1 } else { 256 };

/// A list, and the lower half of its key's hash.
#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    list: Index,
}

/// Lists by the hashes of their keys.
pub(super) struct Table {
    parts: Box<[HashTable<Entry>]>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect(), len: 0 }
    }

    /// Number of lists.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The list of a key with this hash for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Index) -> bool) -> Option<Index> {
        let (part, hash) = split(hash);
        let entry = self.parts[part].find(spread(hash), |entry| is_it(entry.list))?;
        Some(entry.list)
    }

    /// Adds the list of a key that has none.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, list: Index) {
        let (part, hash) = split(hash);
        let entry = Entry { hash, list };
        self.parts[part].insert_unique(spread(hash), entry, |entry| spread(entry.hash));
        self.len += 1;
    }

    /// Takes out a list that is there.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, list: Index) {
        let (part, hash) = split(hash);
        let entry = self.parts[part].find_entry(spread(hash), |entry| entry.list == list);
        entry.expect("a list is in the table").remove();
        self.len -= 1;
    }

    /// Gives back the room of what was taken out. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        for part in &mut self.parts {
            part.shrink_to_fit(|entry| spread(entry.hash));
        }
    }
}

/// The part for a hash, and what tells it from others there.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "they are two parts of it")]
const fn split(hash: u64) -> (usize, u32) {
    ((hash >> 56) as usize % PARTS, hash as u32)
}

/// A hash of all bits from half of them; the table uses the uppermost and the lowest.
#[inline]
const fn spread(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}
