//! Merging: frees chunks that have few live records.
//!
//! Random cancels leave most chunks with a few live records. A full chunk with at most three is
//! *worn*: the wheel moves these to the newest chunk of their bucket and frees the chunk. A small
//! wheel does not, since it would save little. See `docs/decisions/0011-records-in-chunks.md`.
//!
//! A merge reads three cache lines, each of which may be a cache miss. So a batch of cancels only
//! notes the chunks to merge and reads their lines ahead. The next batches merge them, a few each.

use super::{
    TimingWheel,
    arena::Arena,
    chunks::{NIL, Owner, Position, bits},
    geometry::BucketId,
    hierarchy::{Hierarchy, NextDue, Source},
};

/// A wheel with fewer chunks, of 202 bytes each, does not merge them. The limit is lower in debug
/// builds, so that the model tests merge in small wheels.
const SMALL: usize = if cfg!(debug_assertions) { 8 } else { 1024 };

/// Maximum number of merges in one cancel.
const MERGES: usize = 4;

impl<T> TimingWheel<T> {
    /// Removes the record of a cancelled or moved timeout. Its bit is cleared at the latest with
    /// the 15th record that is removed after it.
    #[inline]
    pub(super) fn remove_record(&mut self, position: Position) {
        // Two branches, since only the second waits for the position, which may be a cache miss.
        if self.hierarchy.cancelled.push(position) {
            self.hierarchy.clear_and_merge(&mut self.arena);
        }
        self.hierarchy.forget(position);
    }
}

impl Hierarchy {
    /// Clears the bits of all cancelled records, and merges chunks of the batches before. Frees the
    /// chunks that are empty now, and notes those that are nearly empty.
    #[inline(never)]
    fn clear_and_merge<T>(&mut self, arena: &mut Arena<T>) {
        if self.chunks.len() < SMALL {
            return self.clear_cancelled();
        }
        let cancelled = self.cancelled.drain();
        let (worn, count) = self.chunks.clear_all(cancelled, is_worn);
        self.runs.remove_dead(cancelled.len(), &self.chunks);
        for _ in 0..MERGES {
            let Some(chunk) = self.worn.pop() else { break };
            self.merge(chunk, arena);
        }
        let mut previous = NIL;
        for &chunk in &worn[..count] {
            // Cancels in the order of insertion list the same chunk many times in a row.
            if core::mem::replace(&mut previous, chunk) == chunk {
                continue;
            }
            match (self.chunks.owner(chunk), self.chunks.mask(chunk)) {
                (Owner::After(newer), live) if live != 0 && has_few(live) => {
                    self.worn.push(chunk);
                    self.prefetch_merge(chunk, newer, live, arena);
                }
                _ => self.merge(chunk, arena),
            }
        }
    }

    /// Reads the lines and slots that a merge of a chunk will read, so that the cache misses
    /// overlap.
    fn prefetch_merge<T>(&self, chunk: u32, newer: u32, live: u16, arena: &Arena<T>) {
        let next = self.chunks.next(chunk);
        core::hint::black_box(self.chunks.next(newer) ^ self.chunks.next(next));
        let records = self.chunks.records(chunk);
        arena.prefetch(bits(live).map(|offset| records[offset as usize].slot));
    }

    /// Frees a chunk without live records. Merges a full chunk that has few.
    fn merge<T>(&mut self, chunk: u32, arena: &mut Arena<T>) {
        let (owner, live) = (self.chunks.owner(chunk), self.chunks.mask(chunk));
        match owner {
            Owner::Newest(_) | Owner::After(_) if live == 0 => self.free_chunk(chunk),
            Owner::Newest(_) => self.trim_last(chunk),
            Owner::After(_) if has_few(live) => self.move_records(chunk, live, arena),
            Owner::After(_) | Owner::NoBucket => {}
        }
        if let Owner::After(newer) = owner {
            self.trim_last(newer);
        }
    }

    /// Frees a chunk if it is the only one of its bucket and has no live record.
    ///
    /// Otherwise a search for the next bucket might pass many buckets without a live record.
    fn trim_last(&mut self, chunk: u32) {
        if let Owner::Newest(id) = self.chunks.owner(chunk) {
            if self.chunks.next(chunk) == NIL {
                self.trim(id);
            }
        }
    }

    /// Moves the live records of a full chunk to the newest chunk of their bucket, and frees the
    /// chunk. Allocates no memory.
    fn move_records<T>(&mut self, chunk: u32, live: u16, arena: &mut Arena<T>) {
        let Some(id) = self.common_bucket(chunk, live) else { return };
        if self.has_witness_of_other(id, chunk, live) {
            return;
        }
        self.free_chunk(chunk);
        // The freed chunk may become the newest. A record then moves to its own or a lower offset,
        // so it overwrites none that has yet to move.
        for offset in bits(live) {
            let from = Position::new(chunk, offset);
            let record = self.chunks.record(from);
            let bucket = self.levels[id.level()].bucket_mut(id.index());
            let to = bucket.reserve_or_allocate(id, &mut self.chunks);
            self.chunks.write(to, record.deadline(), record.slot);
            arena.set_position(record.slot, to);
            if let Some(next) = self.next_due.as_mut().filter(|next| next.witness == from) {
                next.witness = to;
            }
        }
    }

    /// Returns whether one of these records of a chunk is the witness of another bucket than `id`.
    ///
    /// It has to stay in that bucket: without it, `next_due` could be a bucket that is empty.
    fn has_witness_of_other(&self, id: BucketId, chunk: u32, live: u16) -> bool {
        self.next_due.is_some_and(|NextDue { witness, source, .. }| {
            let is_here = witness.chunk() == chunk && live & witness.bit() != 0;
            is_here && !matches!(source, Source::Bucket(first) if first == id)
        })
    }

    /// Returns the bucket to which all these records of a chunk belong, if it has a chunk and is
    /// due no later than any deadline in its range.
    ///
    /// It may differ from the bucket that the records are in: a reset may have moved deadlines.
    fn common_bucket(&self, chunk: u32, live: u16) -> Option<BucketId> {
        let bucket_of = |offset| {
            let deadline = self.chunks.record(Position::new(chunk, offset)).deadline();
            self.geometry.bucket(self.expired_to, deadline)
        };
        let mut ids = bits(live).map(bucket_of);
        let id = ids.next()?;
        let bucket = self.levels.get(id.level())?.get(id.index())?;
        let takes_records = !bucket.is_empty() && (id.level() == 0 || bucket.is_crowded);
        (takes_records && ids.all(|other| other == id)).then_some(id)
    }
}

/// Returns whether a chunk with this mask has at most three live records, or the bits of all its
/// records may be clear. The bits of unwritten positions, which are the last, are set.
fn is_worn(mask: u16) -> bool {
    let cleared = !mask;
    has_few(mask) | (cleared & cleared.wrapping_add(1) == 0)
}

/// Returns whether a mask has at most three bits.
fn has_few(mask: u16) -> bool {
    let without_lowest = |mask: u16| mask & mask.wrapping_sub(1);
    without_lowest(without_lowest(without_lowest(mask))) == 0
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{tick::Tick, wheel::arena::Key};

    /// A wheel that merges, with its keys in random order. The deadlines are 1 to `within` ahead.
    fn wheel_of(count: u64, within: u64) -> (TimingWheel<u64>, Vec<Key>) {
        let (mut wheel, mut random) = (TimingWheel::new(Tick::ZERO), fastrand::Rng::with_seed(1));
        let insert = |value| wheel.insert(Tick::new(random.u64(1..=within)), value).unwrap();
        let mut keys: Vec<_> = (0..count).map(insert).collect();
        random.shuffle(&mut keys);
        assert!(wheel.hierarchy.chunks.len() >= SMALL);
        (wheel, keys)
    }

    #[test]
    fn a_chunk_that_is_not_the_newest_keeps_more_than_three_timeouts() {
        let (mut wheel, mut keys) = wheel_of(40_000, 60_000);
        for key in keys.drain(2000..) {
            wheel.cancel(key).unwrap();
        }
        wheel.check_invariants();
        let chunks: usize =
            wheel.hierarchy.occupied().map(|id| wheel.hierarchy.chunks_of(id).count()).sum();
        // 235 newest chunks, and the rest with four timeouts or more.
        assert!(chunks < 235 + 2000 / 4, "{chunks} chunks for 2000 timeouts");
        let left = wheel.advance(Tick::new(60_000)).count();
        assert_eq!(left, keys.len());
    }

    #[test]
    fn a_merge_does_not_move_a_timeout_to_a_bucket_that_is_due_after_it() {
        let (mut wheel, mut keys) = wheel_of(40_000, 60_000);
        let mut random = fastrand::Rng::with_seed(2);
        let mut ahead = || {
            let power = random.u32(8..24);
            Tick::new(60_000 + random.u64(..1 << power))
        };
        for &key in &keys[..20_000] {
            wheel.reset(key, ahead()).unwrap();
        }
        for value in 0..400 {
            wheel.insert(ahead(), value).unwrap();
        }
        random.shuffle(&mut keys);
        for (count, key) in keys.drain(2000..).enumerate() {
            wheel.cancel(key).unwrap();
            if count % 4000 == 0 {
                wheel.check_invariants();
            }
        }
        assert_eq!(wheel.advance(Tick::MAX).count(), 2400);
    }

    #[test]
    fn a_merge_leaves_the_next_bucket_its_witness() {
        let mut wheel = TimingWheel::new(Tick::ZERO);
        let insert = |wheel: &mut TimingWheel<u64>, at| wheel.insert(Tick::new(at), at).unwrap();
        let mut pending = 0;
        while wheel.hierarchy.chunks.len() < SMALL {
            insert(&mut wheel, 600);
            pending += 1;
        }
        wheel.place_nursery();
        wheel.hierarchy.nursery.close();
        let keys: Vec<_> = (0..40).map(|_| insert(&mut wheel, 300)).collect();
        let next = wheel.hierarchy.next_due.unwrap();
        assert_eq!(wheel.arena.position(keys[16]), Some(next.witness));
        // A batch of 16 leaves three timeouts in the second chunk, which belong to another bucket.
        for &key in &keys[16..19] {
            wheel.reset(key, Tick::new(600)).unwrap();
        }
        for &key in keys[..3].iter().chain(&keys[19..32]) {
            wheel.cancel(key).unwrap();
        }
        wheel.check_invariants();
        for &key in keys[3..16].iter().chain(&keys[32..]) {
            wheel.cancel(key).unwrap();
        }
        wheel.check_invariants();
        assert_eq!(wheel.advance(Tick::new(599)).count(), 0);
        wheel.check_invariants();
        assert_eq!(wheel.advance(Tick::new(600)).count(), pending + 3);
        assert_eq!(wheel.next_expiration(), None);
    }

    #[test]
    fn a_cancel_moves_at_most_twelve_timeouts() {
        let (mut wheel, mut keys) = wheel_of(40_000, 60_000);
        for key in keys.drain(4000..) {
            wheel.cancel(key).unwrap();
        }
        let mut most = 0;
        for key in keys.split_off(3500) {
            let before: Vec<_> = keys.iter().map(|&key| wheel.arena.position(key)).collect();
            wheel.cancel(key).unwrap();
            let pairs = keys.iter().zip(before);
            let moved = pairs.filter(|&(&key, before)| wheel.arena.position(key) != before).count();
            most = most.max(moved);
        }
        assert!((1..=12).contains(&most), "a cancel moved {most} timeouts");
        wheel.check_invariants();
    }

    #[test]
    fn a_shrink_forgets_the_chunks_that_wait_for_a_merge() {
        let (mut wheel, mut keys) = wheel_of(40_000, 60_000);
        while wheel.hierarchy.worn.is_empty() {
            wheel.cancel(keys.pop().unwrap()).unwrap();
        }
        for key in keys.drain(8000..) {
            wheel.cancel(key).unwrap();
        }
        assert!(!wheel.hierarchy.worn.is_empty());
        wheel.shrink();
        for key in keys.drain(100..) {
            wheel.cancel(key).unwrap();
        }
        wheel.check_invariants();
        assert_eq!(wheel.advance(Tick::new(60_000)).count(), 100);
    }

    #[test]
    fn an_emptied_bucket_is_not_marked_as_occupied() {
        let (mut wheel, keys) = wheel_of(40_000, 2000);
        for (key, left) in keys.into_iter().zip((0..40_000).rev()) {
            wheel.cancel(key).unwrap();
            if left % 16 == 0 && left < 400 {
                let hierarchy = &wheel.hierarchy;
                let dead = hierarchy.occupied().filter(|&id| {
                    let newest = hierarchy.bucket(id).newest();
                    hierarchy.chunks.next(newest) == NIL && hierarchy.live_in(id, newest) == 0
                });
                assert!(dead.count() <= 1, "emptied buckets are occupied with {left} left");
            }
        }
        wheel.check_invariants();
    }
}
