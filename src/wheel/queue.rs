//! The bucket delay queue: which buckets of a level are non-empty, and the levels with such
//! buckets, least expiration first.
//!
//! The buckets of a level are in the order of time, so the first non-empty one stands for its
//! level. One level stands before the heap, usually the level that is due first. A level that
//! empties keeps this place until another level takes it. So a bucket that empties and fills again
//! and again, as the bucket of a single request in flight does, costs no heap operation.

use alloc::vec::Vec;
use core::{
    cmp::Reverse,
    hash::{BuildHasherDefault, Hasher},
};

use priority_queue::PriorityQueue;

use crate::tick::Tick;

/// A min-heap of levels by expiration.
#[derive(Debug)]
pub(super) struct BucketQueue {
    /// The level before the heap.
    front: u32,
    /// The expiration of this level; `None` if the level is empty.
    front_expiration: Option<Tick>,
    /// All other levels with non-empty buckets.
    heap: PriorityQueue<u32, Reverse<Tick>, BuildHasherDefault<LevelHasher>>,
}

impl BucketQueue {
    pub(super) const fn new() -> Self {
        let heap = PriorityQueue::with_hasher(BuildHasherDefault::new());
        Self { front: 0, front_expiration: None, heap }
    }

    /// Adds a level, or changes its expiration. *O*(log n).
    #[inline]
    pub(super) fn set(&mut self, level: u32, expiration: Tick) {
        if self.front == level {
            self.front_expiration = Some(expiration);
        } else {
            self.set_other(level, expiration);
        }
    }

    #[inline(never)]
    fn set_other(&mut self, level: u32, expiration: Tick) {
        if self.front_expiration.is_some_and(|front| front <= expiration) {
            self.heap.push(level, Reverse(expiration));
            return;
        }
        self.heap.remove(&level);
        if let Some(front) = self.front_expiration.replace(expiration) {
            self.heap.push(self.front, Reverse(front));
        }
        self.front = level;
    }

    /// Removes a level, which has become empty. *O*(log n).
    #[inline]
    pub(super) fn remove(&mut self, level: u32) {
        if self.front == level {
            self.front_expiration = None;
        } else {
            self.heap.remove(&level);
        }
    }

    /// Returns the level with the least expiration. *O*(1).
    #[inline]
    pub(super) fn first(&self) -> Option<(u32, Tick)> {
        let first = self.heap.peek().map(|(&level, &Reverse(expiration))| (level, expiration));
        match self.front_expiration {
            Some(front) if first.is_none_or(|(_, first)| front <= first) => {
                Some((self.front, front))
            }
            _ => first,
        }
    }

    #[inline]
    pub(super) fn shrink(&mut self) {
        self.heap.shrink_to_fit();
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len() + usize::from(self.front_expiration.is_some())
    }

    pub(super) fn expiration(&self, level: u32) -> Option<Tick> {
        if self.front == level {
            return self.front_expiration;
        }
        self.heap.get_priority(&level).map(|expiration| expiration.0)
    }
}

/// Hashes the number of a level with one multiplication.
#[derive(Debug, Default)]
struct LevelHasher(u64);

impl Hasher for LevelHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a level is a `u32`");
    }

    #[inline]
    fn write_u32(&mut self, level: u32) {
        self.0 = u64::from(level).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A set of numbers, of buckets or of ticks in a range: a bit for each, and the least number.
#[derive(Debug)]
pub(super) struct Occupied {
    words: Vec<u64>,
    first: Option<usize>,
}

impl Occupied {
    pub(super) const fn new() -> Self {
        Self { words: Vec::new(), first: None }
    }

    #[inline]
    pub(super) const fn first(&self) -> Option<usize> {
        self.first
    }

    /// Adds a number. Returns whether it is the least.
    #[inline]
    pub(super) fn set(&mut self, number: usize) -> bool {
        if number / 64 >= self.words.len() {
            self.words.resize(number / 64 + 1, 0);
        }
        self.words[number / 64] |= 1 << (number % 64);
        let is_first = self.first.is_none_or(|first| number <= first);
        if is_first {
            self.first = Some(number);
        }
        is_first
    }

    /// Removes a number. Returns whether it was the least.
    pub(super) fn clear(&mut self, number: usize) -> bool {
        self.words[number / 64] &= !(1 << (number % 64));
        let was_first = self.first == Some(number);
        if was_first {
            self.first = self.after(number);
        }
        was_first
    }

    /// Returns the least number of the set after this one.
    fn after(&self, number: usize) -> Option<usize> {
        let (mut at, mut rest) = (number / 64, self.words[number / 64] & (!1 << (number % 64)));
        while rest == 0 {
            at += 1;
            rest = *self.words.get(at)?;
        }
        Some(at * 64 + rest.trailing_zeros() as usize)
    }

    pub(super) fn check_invariants(&self) {
        let mut words = (0..).zip(&self.words).filter(|&(_, &word)| word != 0);
        let first = words.next().map(|(at, word)| at * 64 + word.trailing_zeros() as usize);
        assert_eq!(self.first, first, "the least number is not the first");
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use core::hash::BuildHasher;

    use super::*;

    #[test]
    fn each_level_has_another_hash() {
        let hash = |level: u32| BuildHasherDefault::<LevelHasher>::new().hash_one(level);
        assert_eq!((0..64).map(hash).collect::<BTreeSet<_>>().len(), 64);
    }

    #[test]
    fn only_an_earlier_level_takes_the_place_before_the_heap() {
        let mut queue = BucketQueue::new();
        let mut front = |level, expiration| {
            queue.set(level, Tick::new(expiration));
            (queue.front, queue.heap.len())
        };
        assert_eq!([front(0, 5), front(1, 5), front(2, 6)], [(0, 0), (0, 1), (0, 2)]);
        assert_eq!([front(0, 7), front(2, 4), front(0, 3)], [(0, 2), (2, 2), (0, 2)]);
    }

    #[test]
    fn occupied_numbers_agree_with_a_sorted_set() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut occupied, mut set) = (Occupied::new(), BTreeSet::new());
        for _ in 0..10_000 {
            let number = random.usize(..300);
            if random.bool() {
                occupied.set(number);
                set.insert(number);
                assert_eq!(occupied.after(number), set.range(number + 1..).next().copied());
            } else if set.contains(&number) {
                assert_eq!(occupied.clear(number), set.first() == Some(&number));
                set.remove(&number);
            }
            assert_eq!(occupied.first(), set.first().copied());
        }
    }
}
