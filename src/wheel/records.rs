//! Records: deadline and slot of each timeout, 16 to a chunk.
//!
//! The chunks of a bucket form a list. A bucket adds records only to its newest chunk. A bit for
//! each record tells whether it is live. These bits are in one array, apart from the records, so a
//! cancelled timeout costs no access to its record or to other timeouts. A chunk is freed with its
//! last live record. A few live records would keep a chunk for long, so the wheel places these
//! records again.

use alloc::{boxed::Box, vec::Vec};
use core::mem;

use crate::{
    slab::{self, Key, Slab},
    tick::Tick,
};

/// Records of a chunk: three cache lines.
pub(super) const CHUNK: u32 = 16;

/// Greatest number of chunks of a small wheel, which does not place the last records again.
const SMALL: usize = 1024;

/// Chunks whose records are allocated together: 12 KiB.
const SEGMENT: usize = 64;

/// No chunk, and no position.
pub(super) const NIL: u32 = u32::MAX;

/// Owner of a chunk that is in no list.
const DETACHED: u32 = NIL;

/// A bucket: its level, and its index there, as one number below 2^18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BucketId(pub(super) u32);

impl BucketId {
    #[inline]
    pub(super) const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns the link of this bucket: the number by which its newest chunk names it, and the
    /// position of a record that the bucket itself holds. No chunk and no record in a chunk has
    /// this number.
    #[inline]
    pub(super) const fn link(self) -> u32 {
        slab::END + self.0
    }

    /// Returns the bucket that a link names; `None` for a chunk, or for a position in a chunk.
    #[inline]
    pub(super) fn of_link(link: u32) -> Option<Self> {
        link.checked_sub(slab::END).map(Self)
    }
}

/// Deadline and slot of a timeout, in 12 bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(super) struct Record {
    pub(super) deadline: Tick,
    pub(super) slot: u32,
}

const _: () = assert!(size_of::<Record>() == 12);

impl Record {
    /// Returns a copy, because a comparison takes references, and the field is not aligned.
    #[inline]
    pub(super) const fn deadline(self) -> Tick {
        self.deadline
    }
}

/// The records of a wheel. A record has a *position*: its chunk times 16, plus its offset.
#[derive(Debug)]
pub(super) struct Records {
    /// By chunk: the next older chunk, or `NIL`. The tag is the *owner*: the next newer chunk; for
    /// the newest chunk, the link of its bucket; or `DETACHED`.
    chunks: Slab<u32>,
    /// By chunk: a bit for each live record.
    live: Vec<u16>,
    /// The records by chunk. The first segment grows, and copies its records.
    segments: Vec<Box<[Record]>>,
}

impl Records {
    pub(super) const fn new() -> Self {
        Self { chunks: Slab::new(), live: Vec::new(), segments: Vec::new() }
    }

    #[inline]
    pub(super) fn get(&self, position: u32) -> Record {
        *self.record(position).expect("a position has a record")
    }

    /// Returns the slot of a record, live or not; 0 if there is no such position.
    #[inline]
    pub(super) fn slot(&self, position: u32) -> u32 {
        self.record(position).map_or(0, |record| record.slot)
    }

    #[inline]
    fn record(&self, position: u32) -> Option<&Record> {
        let position = position as usize;
        let segment = self.segments.get(position / (SEGMENT * CHUNK as usize))?;
        segment.get(position % (SEGMENT * CHUNK as usize))
    }

    /// Writes a record at the first free position of a chunk, and makes it live. Returns the
    /// position; `None` if the chunk is full, or if `chunk` is `NIL`.
    #[expect(clippy::inline_always, reason = "an insert makes no call on its usual path")]
    #[inline(always)]
    pub(super) fn add(&mut self, chunk: u32, record: Record) -> Option<u32> {
        let live = self.live.get_mut(chunk as usize).filter(|live| **live != u16::MAX)?;
        let offset = (!u32::from(*live)).trailing_zeros();
        *live |= *live + 1;
        let first = chunk as usize % SEGMENT * CHUNK as usize;
        self.segments[chunk as usize / SEGMENT][first + offset as usize] = record;
        Some(chunk * CHUNK + offset)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, position: u32) -> &mut Record {
        debug_assert!(self.is_live(position), "the record at {position} is dead");
        let position = position as usize;
        let segment = &mut self.segments[position / (SEGMENT * CHUNK as usize)];
        &mut segment[position % (SEGMENT * CHUNK as usize)]
    }

    #[inline]
    pub(super) fn is_live(&self, position: u32) -> bool {
        let live = self.live.get((position / CHUNK) as usize);
        live.is_some_and(|live| live >> (position % CHUNK) & 1 != 0)
    }

    /// Returns whether a record is live and in a chunk that has left its bucket.
    #[inline]
    pub(super) fn is_detached(&self, position: u32) -> bool {
        self.is_live(position) && self.chunks.tag_at(position / CHUNK) == DETACHED
    }

    /// Returns the positions of the live records of a chunk.
    #[inline]
    pub(super) fn live(&self, chunk: u32) -> impl Iterator<Item = u32> + use<> {
        let mut live = self.live[chunk as usize];
        core::iter::from_fn(move || {
            let offset = live.trailing_zeros();
            live &= live.wrapping_sub(1);
            (offset < CHUNK).then_some(chunk * CHUNK + offset)
        })
    }

    /// Returns the deadlines and positions of the live records of a chunk.
    #[inline]
    pub(super) fn deadlines(&self, chunk: u32) -> impl Iterator<Item = (Tick, u32)> {
        let (segment, first) =
            (chunk as usize / SEGMENT, chunk as usize % SEGMENT * CHUNK as usize);
        let records = &self.segments[segment][first..][..CHUNK as usize];
        self.live(chunk).map(|position| (records[(position % CHUNK) as usize].deadline(), position))
    }

    /// Makes the live records of a chunk dead, and returns them.
    pub(super) fn take(&mut self, chunk: u32) -> impl Iterator<Item = Record> + Clone + use<> {
        let mut records = [Record::default(); CHUNK as usize];
        let live = self.live(chunk).map(|position| self.get(position));
        let count = records.iter_mut().zip(live).map(|(at, record)| *at = record).count();
        self.live[chunk as usize] = 0;
        records.into_iter().take(count)
    }

    /// Makes a record dead. Returns the bits of the live records in its chunk.
    #[inline]
    pub(super) fn clear(&mut self, position: u32) -> u16 {
        debug_assert!(self.is_live(position), "the record at {position} is dead");
        let live = &mut self.live[(position / CHUNK) as usize];
        *live &= !(1 << (position % CHUNK));
        *live
    }

    /// Returns whether these live records of a chunk are at most three, which the wheel should move
    /// if the bucket has a newer chunk.
    #[inline]
    pub(super) fn are_few(&self, live: u16) -> bool {
        let without_least = |live: u16| live & live.wrapping_sub(1);
        self.chunks.len() > SMALL && without_least(without_least(without_least(live))) == 0
    }

    /// Adds a chunk to the front of a bucket's list.
    pub(super) fn allocate(&mut self, id: BucketId, next: u32) -> u32 {
        let key = self.chunks.insert(id.link(), next).expect("there are fewer chunks than slots");
        let chunk = key.index();
        assert!(chunk < slab::END / CHUNK, "more than 2^28 - 2^16 chunks of records");
        let room = self.segments.get(chunk as usize / SEGMENT).map_or(0, |segment| segment.len());
        if (chunk as usize % SEGMENT) * CHUNK as usize >= room {
            self.grow(chunk as usize);
        }
        if next != NIL {
            self.chunks.set_tag(next, chunk);
        }
        chunk
    }

    /// Makes room for the records of a chunk. The first segment grows with the slots for chunks.
    #[cold]
    fn grow(&mut self, chunk: usize) {
        let len = (self.chunks.slots() as usize).min((chunk + 1).next_multiple_of(SEGMENT));
        self.live.resize(len.max(self.live.len()), 0);
        let segment = chunk / SEGMENT;
        let needed = self.segments.len().max(segment + 1);
        self.segments.resize_with(needed, Box::default);
        let mut records = mem::take(&mut self.segments[segment]).into_vec();
        let len = (len - segment * SEGMENT) * CHUNK as usize;
        debug_assert!(records.len() < len, "chunk {chunk} has records");
        records.resize(len, Record::default());
        self.segments[segment] = records.into();
    }

    /// Returns the next newer chunk, if there is one, and the next older one or `NIL`.
    #[inline]
    pub(super) fn neighbours(&self, chunk: u32) -> (Option<u32>, u32) {
        let owner = self.chunks.tag_at(chunk);
        (Some(owner).filter(|&owner| BucketId::of_link(owner).is_none()), *self.chunks.at(chunk))
    }

    /// Takes a chunk out of its list, and frees it if it has no live record. If it was the newest
    /// of a bucket, returns the bucket and its next older chunk.
    pub(super) fn detach(&mut self, chunk: u32) -> Option<(BucketId, u32)> {
        let owner = self.chunks.tag_at(chunk);
        let older = mem::replace(self.chunks.at_mut(chunk), NIL);
        if self.is_dead(chunk) {
            self.chunks.remove(chunk, None);
        } else {
            self.chunks.set_tag(chunk, DETACHED);
        }
        if older != NIL {
            self.chunks.set_tag(older, owner);
        }
        let id = BucketId::of_link(owner);
        if id.is_none() {
            *self.chunks.at_mut(owner) = older;
        }
        Some((id.filter(|_| owner != DETACHED)?, older))
    }

    /// Returns whether a chunk has no live record.
    #[inline]
    pub(super) fn is_dead(&self, chunk: u32) -> bool {
        self.live.get(chunk as usize) == Some(&0)
    }

    /// Returns the position of a live record of a bucket with this newest chunk.
    #[inline]
    pub(super) fn any_of(&self, newest: u32) -> u32 {
        let chunk = if self.is_dead(newest) { *self.chunks.at(newest) } else { newest };
        self.live(chunk).next().expect("only the newest chunk may have no live record")
    }

    /// Returns the positions of the live records from this chunk on, newest first.
    #[inline]
    pub(super) fn list(&self, newest: u32) -> impl Iterator<Item = u32> {
        let some = |chunk: u32| (chunk != NIL).then_some(chunk);
        let chunks =
            core::iter::successors(some(newest), move |&chunk| some(*self.chunks.at(chunk)));
        chunks.flat_map(|chunk| self.live(chunk))
    }

    /// Frees the segments without live records.
    #[inline]
    pub(super) fn shrink(&mut self) {
        // No key of a chunk is kept, so the slab of chunks can start again, with all generations.
        if self.chunks.is_empty() {
            *self = Self::new();
        }
        self.chunks.shrink();
        let segments = self.segments.iter_mut().zip(self.live.chunks(SEGMENT)).skip(1);
        for (segment, live) in segments {
            if live.iter().all(|&live| live == 0) {
                *segment = Box::default();
            }
        }
        let last = self.segments.iter().rposition(|segment| !segment.is_empty());
        self.segments.truncate(last.map_or(0, |last| last + 1));
        self.segments.shrink_to_fit();
        self.live.truncate(self.segments.len() * SEGMENT);
        self.live.shrink_to_fit();
    }

    /// Panics unless each chunk has a live record, or is the newest of several, and its list is
    /// linked in both directions. Returns the number of live records.
    pub(super) fn check_invariants(&self) -> usize {
        self.chunks.check_invariants();
        let mut count = 0;
        for chunk in self.chunks.keys_from(0).map(Key::index) {
            let may_be_dead = matches!(self.neighbours(chunk), (None, older) if older != NIL);
            assert!(may_be_dead || !self.is_dead(chunk), "chunk {chunk} has no live record");
            let next = *self.chunks.at(chunk);
            let is_linked = self.chunks.tag_at(chunk) == DETACHED
                || next == NIL
                || self.chunks.tag_at(next) == chunk;
            assert!(is_linked, "the list is broken after chunk {chunk}");
            count += self.live(chunk).count();
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_survivors_of_a_chunk_move_unless_the_wheel_is_small() {
        let mut records = Records::new();
        for _ in 0..SMALL {
            records.allocate(BucketId(0), NIL);
        }
        assert!(!records.are_few(1));
        let chunk = records.allocate(BucketId(0), NIL);
        assert!(records.are_few(0b111) && !records.are_few(0b1111));
        let position = records.add(chunk, Record { deadline: Tick::ZERO, slot: 7 }).unwrap();
        assert_eq!([position, NIL].map(|position| records.slot(position)), [7, 0]);
    }

    #[test]
    fn chunks_start_again_even_if_one_was_used_very_often() {
        let mut records = Records::new();
        for chunk in 0..1_500 {
            assert_eq!(records.allocate(BucketId(0), NIL), chunk);
        }
        for chunk in (0..1_500).rev() {
            records.detach(chunk);
        }
        records.chunks.wear(1_400);
        records.shrink();
        assert_eq!((records.segments.len(), records.live.len()), (0, 0));
        assert_eq!(records.allocate(BucketId(0), NIL), 0);
    }
}
