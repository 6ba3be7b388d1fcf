//! Records of timeouts, 16 in a chunk, and which of them are live.
//!
//! A record holds the deadline and the slot of a timeout. A cancel does not touch the record. It
//! clears a bit of the chunk's *mask*. The masks have an array of their own, two bytes for 16
//! records, so that they stay in the cache.
//!
//! The bit is set for a live record and for a position that has no record yet. So an insert does not
//! touch the mask. A reader of the newest chunk's mask ignores the positions without a record.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::geometry::Place;
use crate::{segments::Segments, tick::Tick};

/// Records in a chunk: 192 bytes, three cache lines.
pub(super) const CHUNK: u32 = 16;

/// Cancelled records that are cleared together.
pub(super) const BATCH: usize = 16;

/// The first chunks belong to the nursery.
pub(super) const NURSERY: u32 = 4;

/// Chunk 0 is in no list, since it belongs to the nursery; so it can stand for the end of one.
pub(super) const NIL: u32 = 0;

/// Chunks that are allocated at a time: 48 KiB of records.
const SEGMENT: usize = 256;

/// A deadline, in two halves, and the slot of a timeout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    low: u32,
    high: u32,
    pub(super) slot: u32,
}

const _: () = assert!(size_of::<Record>() == 12);

impl Record {
    const EMPTY: Self = Self { low: 0, high: 0, slot: 0 };

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the deadline is cut in two halves")]
    fn new(deadline: Tick, slot: u32) -> Self {
        let deadline = deadline.get();
        Self { low: deadline as u32, high: (deadline >> 32) as u32, slot }
    }

    #[inline]
    pub(super) fn deadline(self) -> Tick {
        Tick::new(u64::from(self.high) << 32 | u64::from(self.low))
    }
}

/// Where a record is: its chunk, and which of the 16 it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(NonZeroU32);

impl Position {
    #[inline]
    pub(super) fn new(chunk: u32, offset: u32) -> Self {
        debug_assert!(offset < CHUNK);
        Self::from_number(chunk * CHUNK + offset)
    }

    #[inline]
    pub(super) fn from_number(number: u32) -> Self {
        Self(NonZeroU32::new(number).expect("record 0 is never used"))
    }

    #[inline]
    pub(super) const fn number(self) -> u32 {
        self.0.get()
    }

    #[inline]
    pub(super) const fn chunk(self) -> u32 {
        self.0.get() / CHUNK
    }

    #[inline]
    pub(super) const fn offset(self) -> u32 {
        self.0.get() % CHUNK
    }

    pub(super) const fn bit(self) -> u16 {
        1 << self.offset()
    }
}

/// Which list a chunk is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Of a bucket, of which it is the newest chunk.
    Newest(Place),
    /// Of a bucket, in which this chunk is newer by one.
    After(u32),
    /// Of a sorted run.
    Run,
    /// Of no bucket: it is free.
    Free,
}

/// A chunk's owner and the next chunk of the same list, which is older.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// `NEWEST` and a place, or the chunk before, or `RUN`, or `FREE`.
    owner: u32,
    next: u32,
}

const NEWEST: u32 = 1 << 31;
const RUN: u32 = u32::MAX;
const FREE: u32 = u32::MAX - 1;

impl Owner {
    fn encoded(self) -> u32 {
        match self {
            Self::Newest(place) => NEWEST | place.number(),
            Self::After(chunk) => chunk,
            Self::Run => RUN,
            Self::Free => FREE,
        }
    }

    const fn decoded(owner: u32) -> Self {
        match owner {
            RUN => Self::Run,
            FREE => Self::Free,
            _ if owner & NEWEST != 0 => Self::Newest(Place::from_number(owner & !NEWEST)),
            _ => Self::After(owner),
        }
    }
}

/// All chunks of a wheel.
#[derive(Debug)]
pub(super) struct Chunks {
    records: Segments<Record, { SEGMENT * CHUNK as usize }>,
    /// In one piece, which growing may copy: apart, they would be on as many pages of memory.
    masks: Vec<u16>,
    links: Segments<Link, SEGMENT>,
    /// Head of the list of free chunks, or `NIL`.
    free: u32,
}

impl Chunks {
    pub(super) const fn new() -> Self {
        Self { records: Segments::new(), masks: Vec::new(), links: Segments::new(), free: NIL }
    }

    /// Takes a free chunk into use, none of whose records is written, in front of `next`.
    #[inline]
    pub(super) fn allocate(&mut self, owner: Owner, next: u32) -> u32 {
        while self.free == NIL {
            self.grow();
        }
        let chunk = self.free;
        debug_assert_eq!(self.owner(chunk), Owner::Free, "chunk {chunk} is in use");
        let link = self.links.at_mut(chunk);
        self.free = link.next;
        *link = Link { owner: owner.encoded(), next };
        *self.mask_mut(chunk) = u16::MAX;
        if next != NIL && owner != Owner::Run {
            self.set_owner(next, Owner::After(chunk));
        }
        chunk
    }

    #[cold]
    fn grow(&mut self) {
        let added = self.records.grow(|_| Record::EMPTY);
        added.expect("there are more positions than timeouts");
        let added = self.links.grow(|id| Link { owner: FREE, next: id + 1 });
        let added = added.expect("there are fewer chunks than positions");
        self.masks.resize(added.end as usize, 0);
        self.links.at_mut(added.end - 1).next = NIL;
        let first = added.start.max(NURSERY);
        self.free = if first < added.end { first } else { NIL };
    }

    /// Returns whether no chunk has been made.
    pub(super) fn is_empty(&self) -> bool {
        self.masks.is_empty()
    }

    /// Makes sure that there are the chunks of the nursery.
    pub(super) fn make_nursery(&mut self) {
        while self.masks.len() < NURSERY as usize {
            self.grow();
        }
    }

    /// Gives back a chunk that is in no list.
    pub(super) fn free(&mut self, chunk: u32) {
        *self.mask_mut(chunk) = 0;
        *self.links.at_mut(chunk) = Link { owner: FREE, next: self.free };
        self.free = chunk;
    }

    /// Gives back all chunks of a list.
    pub(super) fn free_all(&mut self, mut chunk: u32) {
        while chunk != NIL {
            let next = self.next(chunk);
            self.free(chunk);
            chunk = next;
        }
    }

    #[inline]
    pub(super) fn write(&mut self, position: Position, deadline: Tick, slot: u32) {
        *self.records.at_mut(position.number()) = Record::new(deadline, slot);
    }

    #[inline]
    pub(super) fn record(&self, position: Position) -> Record {
        *self.records.at(position.number())
    }

    /// The records of a chunk.
    #[inline]
    pub(super) fn records(&self, chunk: u32) -> &[Record] {
        self.records.range(chunk * CHUNK, CHUNK as usize)
    }

    /// Takes out a record. Returns the mask of its chunk.
    #[inline]
    pub(super) fn clear(&mut self, position: Position) -> u16 {
        let mask = self.mask_mut(position.chunk());
        debug_assert!(*mask & position.bit() != 0, "{position:?} was taken out before");
        *mask &= !position.bit();
        *mask
    }

    /// Takes out records, given by the numbers of their positions. Returns the chunks that have none
    /// left, and their number.
    ///
    /// The loop has no branch but its own, so that misses of masks overlap.
    #[inline]
    pub(super) fn clear_all(&mut self, positions: &[u32]) -> ([u32; BATCH], usize) {
        let masks = &mut self.masks[..];
        let mut emptied = [NIL; BATCH];
        let mut count = 0;
        for &number in positions {
            let (chunk, bit) = (number / CHUNK, 1 << (number % CHUNK));
            let mask = &mut masks[chunk as usize];
            debug_assert!(*mask & bit != 0, "record {number} was taken out before");
            *mask &= !bit;
            emptied[count % BATCH] = chunk;
            count += usize::from(*mask == 0);
        }
        (emptied, count.min(BATCH))
    }

    #[inline]
    pub(super) fn is_live(&self, position: Position) -> bool {
        self.mask(position.chunk()) & position.bit() != 0
    }

    #[inline]
    pub(super) fn mask(&self, chunk: u32) -> u16 {
        self.masks[chunk as usize]
    }

    #[inline]
    fn mask_mut(&mut self, chunk: u32) -> &mut u16 {
        &mut self.masks[chunk as usize]
    }

    /// Leaves just these records of a chunk live.
    pub(super) fn set_mask(&mut self, chunk: u32, mask: u16) {
        *self.mask_mut(chunk) = mask;
    }

    #[inline]
    pub(super) fn owner(&self, chunk: u32) -> Owner {
        Owner::decoded(self.links.at(chunk).owner)
    }

    #[inline]
    pub(super) fn next(&self, chunk: u32) -> u32 {
        self.links.at(chunk).next
    }

    pub(super) fn set_owner(&mut self, chunk: u32, owner: Owner) {
        self.links.at_mut(chunk).owner = owner.encoded();
    }

    pub(super) fn set_next(&mut self, chunk: u32, next: u32) {
        self.links.at_mut(chunk).next = next;
    }

    /// The chunks of a list.
    pub(super) fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        let link = |chunk| (chunk != NIL).then_some(chunk);
        core::iter::successors(link(first), move |&chunk| link(self.next(chunk)))
    }

    /// Panics unless every chunk is listed as free or is among the `used`, which are counted.
    pub(super) fn check_invariants(&self, used: usize) {
        let mut free = 0;
        for chunk in self.list(self.free) {
            assert_eq!(self.owner(chunk), Owner::Free, "chunk {chunk} is listed as free");
            assert_eq!(self.mask(chunk), 0, "free chunk {chunk} has live records");
            free += 1;
        }
        let all = self.links.iter().count();
        let of_nursery = if all == 0 { 0 } else { NURSERY as usize };
        assert_eq!(all, of_nursery + used + free, "chunks of records leaked");
    }
}
