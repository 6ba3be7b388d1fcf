//! Records of timeouts, 16 in a chunk, and which of them are live.
//!
//! A record holds the deadline and the slot of a timeout. A cancel does not touch the record. It
//! clears a bit of the chunk's *mask*. The masks have an array of their own, two bytes for 16
//! records, so that they stay in the cache.
//!
//! The bit is set for a live record and for a position that has no record yet. So an insert does
//! not touch the mask. A reader of the newest chunk's mask ignores the positions without a record.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::geometry::BucketId;
use crate::{segments::Segments, tick::Tick};

/// Records in a chunk: 192 bytes, three cache lines.
pub(super) const CHUNK: u32 = 16;

/// Cancelled records that are cleared together.
pub(super) const BATCH: usize = 16;

/// The first chunks belong to the nursery.
pub(super) const NURSERY: u32 = 4;

/// End of a list. Chunk 0 belongs to the nursery and is in no list, so its number is free for this
/// use.
pub(super) const NIL: u32 = 0;

/// Chunks that are allocated at a time: 48 KiB of records.
const SEGMENT: usize = 256;

/// The deadline of a timeout, in two halves, and its slot.
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

/// The position of a record: its chunk, and its offset of 0 to 15 in the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(NonZeroU32);

impl Position {
    #[inline]
    pub(super) fn new(chunk: u32, offset: u32) -> Self {
        debug_assert!(offset < CHUNK, "a chunk has no offset {offset}");
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

/// Returns the numbers of the bits that are set in a mask, least first.
#[inline]
pub(super) fn bits(mask: impl Into<u64>) -> impl Iterator<Item = u32> {
    let mut left = mask.into();
    core::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros())?;
        left &= left - 1;
        Some(bit)
    })
}

/// The list that a chunk is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The list of a bucket; this is its newest chunk.
    Newest(BucketId),
    /// The list of a bucket; the chunk with this number is the next newer one.
    After(u32),
    /// The list of a run, or the free list.
    NoBucket,
}

/// A chunk's owner and the next chunk of the same list, which is older.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// `NEWEST` combined with the id of a bucket, the number of the next newer chunk, or
    /// `NO_BUCKET`.
    owner: u32,
    next: u32,
}

const NEWEST: u32 = 1 << 31;
const NO_BUCKET: u32 = u32::MAX;

impl Owner {
    fn encoded(self) -> u32 {
        match self {
            Self::Newest(id) => NEWEST | id.number(),
            Self::After(chunk) => chunk,
            Self::NoBucket => NO_BUCKET,
        }
    }

    const fn decoded(owner: u32) -> Self {
        match owner {
            NO_BUCKET => Self::NoBucket,
            _ if owner & NEWEST != 0 => Self::Newest(BucketId::from_number(owner & !NEWEST)),
            _ => Self::After(owner),
        }
    }
}

/// All chunks of a wheel.
#[derive(Debug)]
pub(super) struct Chunks {
    records: Segments<Record, { SEGMENT * CHUNK as usize }>,
    /// One vector, although growth may copy it: separate segments would spread the masks over more
    /// pages of memory.
    masks: Vec<u16>,
    links: Segments<Link, SEGMENT>,
    /// Head of the list of free chunks, or `NIL`.
    free: u32,
}

impl Chunks {
    pub(super) const fn new() -> Self {
        Self { records: Segments::new(), masks: Vec::new(), links: Segments::new(), free: NIL }
    }

    /// Takes a chunk from the free list and puts it in front of `next`. None of its records is
    /// written.
    #[inline]
    pub(super) fn allocate(&mut self, owner: Owner, next: u32) -> u32 {
        while self.free == NIL {
            self.grow();
        }
        let chunk = self.free;
        debug_assert_eq!(self.owner(chunk), Owner::NoBucket, "chunk {chunk} is in use");
        debug_assert_eq!(self.mask(chunk), 0, "chunk {chunk} has live records");
        let link = self.links.at_mut(chunk);
        self.free = link.next;
        *link = Link { owner: owner.encoded(), next };
        *self.mask_mut(chunk) = u16::MAX;
        if next != NIL && owner != Owner::NoBucket {
            self.set_owner(next, Owner::After(chunk));
        }
        chunk
    }

    #[cold]
    fn grow(&mut self) {
        let added = self.records.grow(|_| Record::EMPTY);
        added.expect("a wheel has at most 2^32 positions for timeouts");
        let added = self.links.grow(|id| Link { owner: NO_BUCKET, next: id + 1 });
        let added = added.expect("there are fewer chunks than positions");
        self.masks.resize(added.end as usize, 0);
        self.links.at_mut(added.end - 1).next = NIL;
        let first = added.start.max(NURSERY);
        self.free = if first < added.end { first } else { NIL };
    }

    /// Returns the number of allocated chunks.
    pub(super) fn len(&self) -> usize {
        self.masks.len()
    }

    /// Returns whether no chunk has been allocated.
    pub(super) fn is_empty(&self) -> bool {
        self.masks.is_empty()
    }

    /// Allocates the chunks of the nursery, unless they exist.
    pub(super) fn make_nursery(&mut self) {
        while self.masks.len() < NURSERY as usize {
            self.grow();
        }
    }

    /// Adds a chunk that is in no list to the free list.
    pub(super) fn free(&mut self, chunk: u32) {
        debug_assert!(chunk >= NURSERY, "chunk {chunk} belongs to the nursery");
        debug_assert!(self.owner(chunk) != Owner::NoBucket, "chunk {chunk} is free already");
        *self.mask_mut(chunk) = 0;
        *self.links.at_mut(chunk) = Link { owner: NO_BUCKET, next: self.free };
        self.free = chunk;
    }

    /// Adds all chunks of a run's list to the free list. None of their records may be live.
    pub(super) fn free_all(&mut self, first: u32, last: u32) {
        debug_assert!(self.list(first).all(|chunk| self.mask(chunk) == 0), "a record is live");
        if first != NIL {
            debug_assert_eq!(self.list(first).last(), Some(last), "{last} is not the last chunk");
            self.set_next(last, self.free);
            self.free = first;
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

    /// Returns the records of a chunk.
    #[inline]
    pub(super) fn records(&self, chunk: u32) -> &[Record] {
        self.records.range(chunk * CHUNK, CHUNK as usize)
    }

    /// Marks a record as removed. Returns the mask of its chunk.
    #[inline]
    pub(super) fn clear(&mut self, position: Position) -> u16 {
        let mask = self.mask_mut(position.chunk());
        debug_assert!(*mask & position.bit() != 0, "{position:?} was removed before");
        *mask &= !position.bit();
        *mask
    }

    /// Marks the records at these positions as removed. Returns the chunks for whose mask
    /// `is_listed` returns `true`, and their number. A chunk may be listed twice.
    ///
    /// The loop body has no branch, so the cache misses of the masks overlap.
    #[inline]
    pub(super) fn clear_all(
        &mut self,
        positions: &[u32],
        is_listed: impl Fn(u16) -> bool,
    ) -> ([u32; BATCH], usize) {
        let masks = &mut self.masks[..];
        let mut listed = [NIL; BATCH];
        let mut count = 0;
        for &number in positions {
            let (chunk, bit) = (number / CHUNK, 1 << (number % CHUNK));
            let mask = &mut masks[chunk as usize];
            debug_assert!(*mask & bit != 0, "record {number} was removed before");
            *mask &= !bit;
            listed[count % BATCH] = chunk;
            count += usize::from(is_listed(*mask));
        }
        (listed, count.min(BATCH))
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

    /// Sets the mask of a chunk.
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

    /// Returns the chunks of a list.
    pub(super) fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        let link = |chunk| (chunk != NIL).then_some(chunk);
        core::iter::successors(link(first), move |&chunk| link(self.next(chunk)))
    }

    /// Panics unless the chunks of the nursery, the free chunks and the `used` chunks add up to all
    /// chunks.
    pub(super) fn check_invariants(&self, used: usize) {
        let mut free = 0;
        for chunk in self.list(self.free) {
            assert_eq!(
                self.owner(chunk),
                Owner::NoBucket,
                "chunk {chunk} is listed as free but in use"
            );
            assert_eq!(self.mask(chunk), 0, "free chunk {chunk} has live records");
            free += 1;
        }
        let all = self.links.iter().count();
        let of_nursery = if all == 0 { 0 } else { NURSERY as usize };
        assert_eq!(all, of_nursery + used + free, "{used} chunks are used and {free} are free");
    }
}
