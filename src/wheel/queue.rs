//! The bucket delay queue: the first bucket of each level, least expiration first.
//!
//! A level's buckets are ordered by their ranges, and the level knows its first occupied bucket. So
//! the queue holds one entry for each level. An entry's expiration is never after that of the
//! level's first bucket. It may be earlier, because a bucket that empties does not update the
//! queue. The hierarchy corrects the entry when it reaches the front.

use core::{
    cmp::Reverse,
    hash::{BuildHasherDefault, Hasher},
};

use priority_queue::PriorityQueue;

use crate::tick::Tick;

/// A min-heap of levels by absolute expiration.
#[derive(Debug)]
pub(super) struct BucketQueue {
    levels: PriorityQueue<u8, Reverse<Tick>, BuildHasherDefault<LevelHasher>>,
}

impl BucketQueue {
    pub(super) const fn new() -> Self {
        Self { levels: PriorityQueue::with_hasher(BuildHasherDefault::new()) }
    }

    /// Adds a level, or changes its expiration. *O*(log n).
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 levels")]
    pub(super) fn set(&mut self, level: usize, expiration: Tick) {
        debug_assert!(level < 64, "there is no level {level}");
        self.levels.push(level as u8, Reverse(expiration));
    }

    /// Returns the level with the least expiration. *O*(1).
    #[inline]
    pub(super) fn first(&self) -> Option<(usize, Tick)> {
        self.levels.peek().map(|(&level, expiration)| (level.into(), expiration.0))
    }

    /// Removes the level with the least expiration. *O*(log n).
    pub(super) fn pop(&mut self) {
        self.levels.pop();
    }

    pub(super) fn len(&self) -> usize {
        self.levels.len()
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 levels")]
    pub(super) fn expiration(&self, level: usize) -> Option<Tick> {
        self.levels.get_priority(&(level as u8)).map(|expiration| expiration.0)
    }
}

/// Hashes a level number with one multiplication.
#[derive(Debug, Default)]
struct LevelHasher(u64);

impl Hasher for LevelHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u8(byte);
        }
    }

    #[inline]
    fn write_u8(&mut self, level: u8) {
        self.0 = (self.0 ^ u64::from(level)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_first_level_is_the_least_of_a_map() {
        let (mut queue, mut model) = (BucketQueue::new(), BTreeMap::new());
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let level = (random >> 33) as usize % 64;
            if (random >> 20) % 4 == 0 {
                let first = queue.first();
                queue.pop();
                if let Some((level, expiration)) = first {
                    assert_eq!(model.remove(&level), Some(expiration));
                    assert!(model.values().all(|&other| other >= expiration));
                }
            } else {
                let expiration = Tick::new(random >> 50);
                queue.set(level, expiration);
                model.insert(level, expiration);
            }
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.expiration(level), model.get(&level).copied());
        }
    }
}
