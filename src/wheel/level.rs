//! A level: its buckets, and which of them are occupied.
//!
//! A bucket is due at its `expiration`:
//!
//! - While it is *sparse*, the expiration is its least deadline, or less if that timeout has left.
//!   A single timeout a year ahead expires from its coarse bucket, without an earlier wake-up.
//! - Once it is *crowded*, because its records filled a chunk, the expiration is the start of its
//!   range, as in Kafka. So the wheel sorts its timeouts before the first of them is due, and a
//!   burst is not late. See `docs/decisions/0013-due-buckets-are-sorted.md`.

use alloc::{boxed::Box, vec, vec::Vec};

use super::{
    chunks::{CHUNK, Chunks, NIL, Owner, Position},
    geometry::BucketId,
};
use crate::tick::Tick;

/// Buckets that are made at a time: 1 KiB.
const STEP: usize = 64;

/// Timeouts of one level whose deadlines fall into one range of ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    /// Expiration of the bucket; not after any deadline in it. Meaningless while it is empty.
    pub(super) expiration: Tick,
    /// Number of the next free position. It is a multiple of 16 if the newest chunk is full, and 0
    /// if the bucket has no chunk.
    next_free: u32,
    /// Whether the bucket has received more than one chunk of records since it was empty.
    pub(super) is_crowded: bool,
}

const _: () = assert!(size_of::<Bucket>() == 16);

impl Bucket {
    pub(super) const EMPTY: Self = Self { expiration: Tick::ZERO, next_free: 0, is_crowded: false };

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.next_free == 0
    }

    /// Returns whether the next record needs another chunk.
    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.next_free % CHUNK == 0
    }

    /// Returns the chunk that takes new records, or `NIL`.
    #[inline]
    pub(super) const fn newest(&self) -> u32 {
        if self.is_empty() { NIL } else { (self.next_free - 1) / CHUNK }
    }

    /// Returns the mask of the written records of the newest chunk.
    #[inline]
    pub(super) const fn written(&self) -> u16 {
        match self.next_free % CHUNK {
            0 => u16::MAX,
            written => (1 << written) - 1,
        }
    }

    /// Reserves the next free position. The bucket must not be full.
    #[inline]
    pub(super) fn reserve(&mut self) -> Position {
        debug_assert!(!self.is_full(), "the chunk before position {} is full", self.next_free);
        let position = Position::from_number(self.next_free);
        self.next_free += 1;
        position
    }

    /// Reserves the next free position of the bucket with this id. Allocates another chunk if the
    /// bucket is full.
    #[inline]
    pub(super) fn reserve_or_allocate(&mut self, id: BucketId, chunks: &mut Chunks) -> Position {
        if self.is_full() {
            self.next_free = chunks.allocate(Owner::Newest(id), self.newest()) * CHUNK;
        }
        let position = Position::from_number(self.next_free);
        self.next_free += 1;
        position
    }

    /// Makes a full chunk, or none, the newest.
    pub(super) fn set_newest(&mut self, chunk: u32) {
        self.next_free = if chunk == NIL { 0 } else { (chunk + 1) * CHUNK };
    }
}

/// The buckets of one level.
#[derive(Debug)]
pub(super) struct Level {
    /// The buckets up to the last that was ever used, rounded up to `STEP`.
    buckets: Vec<Bucket>,
    occupied: Occupied,
    /// The level's expiration in the bucket queue, if it is queued.
    pub(super) queued: Option<Tick>,
}

impl Level {
    /// Makes a level without buckets.
    pub(super) fn new() -> Self {
        Self { buckets: Vec::new(), occupied: Occupied::default(), queued: None }
    }

    /// Makes the buckets up to this one, rounded up to `STEP`. `size` is the maximum.
    #[cold]
    pub(super) fn ensure_bucket(&mut self, bucket: usize, size: usize) {
        if self.occupied.words.is_empty() {
            self.occupied = Occupied::new(size);
        }
        let len = (bucket + 1).next_multiple_of(STEP).min(size);
        self.buckets.reserve_exact(len - self.buckets.len());
        self.buckets.resize(len, Bucket::EMPTY);
    }

    /// Returns the bucket, or `None` if it has not been made.
    #[inline]
    pub(super) fn get_mut(&mut self, bucket: usize) -> Option<&mut Bucket> {
        self.buckets.get_mut(bucket)
    }

    pub(super) fn get(&self, bucket: usize) -> Option<&Bucket> {
        self.buckets.get(bucket)
    }

    #[inline]
    pub(super) fn bucket(&self, bucket: usize) -> &Bucket {
        &self.buckets[bucket]
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, bucket: usize) -> &mut Bucket {
        &mut self.buckets[bucket]
    }

    pub(super) fn mark_occupied(&mut self, bucket: usize) {
        debug_assert!(!self.buckets[bucket].is_empty(), "bucket {bucket} is empty");
        self.occupied.set(bucket);
    }

    pub(super) fn mark_empty(&mut self, bucket: usize) {
        debug_assert!(self.buckets[bucket].is_empty(), "bucket {bucket} is occupied");
        self.occupied.clear(bucket);
    }

    /// Returns the occupied bucket that is due first.
    #[inline]
    pub(super) fn first(&self) -> Option<usize> {
        self.occupied.first()
    }

    pub(super) fn is_occupied(&self, bucket: usize) -> bool {
        self.occupied.contains(bucket)
    }

    /// Returns the buckets that have been made, including empty ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.buckets.iter_mut()
    }
}

/// A bit for each bucket, and a bit for each 64 of those.
#[derive(Debug, Default)]
struct Occupied {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl Occupied {
    fn new(size: usize) -> Self {
        let words = size.div_ceil(64);
        Self { words: vec![0; words].into(), summary: vec![0; words.div_ceil(64)].into() }
    }

    fn set(&mut self, bucket: usize) {
        let word = bucket / 64;
        self.words[word] |= 1 << (bucket % 64);
        self.summary[word / 64] |= 1 << (word % 64);
    }

    fn clear(&mut self, bucket: usize) {
        let word = bucket / 64;
        self.words[word] &= !(1 << (bucket % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
    }

    #[inline]
    fn first(&self) -> Option<usize> {
        let lowest = |word: u64| word.trailing_zeros() as usize;
        let group = self.summary.iter().position(|&group| group != 0)?;
        let word = group * 64 + lowest(self.summary[group]);
        Some(word * 64 + lowest(self.words[word]))
    }

    fn contains(&self, bucket: usize) -> bool {
        self.words[bucket / 64] >> (bucket % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_first_occupied_bucket_is_the_least_of_a_set() {
        for size in [2, 64, 256, 65536] {
            let (mut occupied, mut model) = (Occupied::new(size), BTreeSet::new());
            let mut random = 1_u64;
            for step in 0..20_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bucket = (random >> 33) as usize % size.min(if step < 9000 { size } else { 9 });
                if (random >> 20) % 4 == 0 {
                    occupied.set(bucket);
                    model.insert(bucket);
                } else {
                    occupied.clear(bucket);
                    model.remove(&bucket);
                }
                assert_eq!(occupied.first(), model.first().copied());
                assert_eq!(occupied.contains(bucket), model.contains(&bucket));
            }
        }
    }
}
