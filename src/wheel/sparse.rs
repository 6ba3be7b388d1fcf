//! The order of the sparse bucket that expires at present: its timeouts, sorted by deadline.
//!
//! The records of a sparse bucket fit into one chunk, so their order takes 16 words. To sort it
//! costs less than to set up a run, and the records stay in the bucket. The order is a cache. The
//! wheel drops it when it writes a record of the chunk again or frees the chunk. If the bucket is
//! still due, the wheel then sorts it again.

use super::chunks::{CHUNK, Chunks, NIL, Position, bits};
use crate::tick::Tick;

/// Bits of an entry that hold the offset of the record in its chunk.
const OFFSET: u32 = CHUNK.ilog2();

/// Logarithm of the widest bucket, in ticks, whose entries fit into a word.
pub(super) const WIDEST: u32 = u64::BITS - OFFSET - 1;

/// The order of the timeouts of one sparse bucket.
#[derive(Debug)]
pub(super) struct SparseOrder {
    /// The only chunk of the bucket, or `NIL` if no order is known.
    chunk: u32,
    /// Index of the next entry to visit.
    next: u32,
    len: u32,
    /// The first tick of the bucket.
    start: Tick,
    /// Ticks since the start, and the offset of the record in the lowest bits; least first.
    entries: [u64; CHUNK as usize],
}

impl SparseOrder {
    pub(super) const fn new() -> Self {
        let entries = [0; CHUNK as usize];
        Self { chunk: NIL, next: 0, len: 0, start: Tick::ZERO, entries }
    }

    /// Returns whether the order is that of this chunk.
    #[inline]
    pub(super) const fn is_of(&self, chunk: u32) -> bool {
        self.chunk == chunk
    }

    /// Sorts the live records of a chunk, the only one of a bucket that begins at `start` and spans
    /// `2^shift` ticks. Returns `false` if a deadline is beyond the bucket.
    pub(super) fn sort(
        &mut self,
        chunk: u32,
        live: u16,
        start: Tick,
        shift: u32,
        chunks: &Chunks,
    ) -> bool {
        debug_assert!(shift <= WIDEST, "an entry has no room for {shift} bits of ticks");
        let records = chunks.records(chunk);
        let mut len = 0;
        for offset in bits(live) {
            let ticks = records[offset as usize].deadline().get() ^ start.get();
            if ticks >> shift != 0 {
                self.chunk = NIL;
                return false;
            }
            let entry = ticks << OFFSET | u64::from(offset);
            let mut hole = len;
            while hole > 0 && self.entries[hole - 1] > entry {
                self.entries[hole] = self.entries[hole - 1];
                hole -= 1;
            }
            self.entries[hole] = entry;
            len += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a chunk has 16 records")]
        let len = len as u32;
        *self = Self { chunk, next: 0, len, start, ..*self };
        debug_assert!(self.entries[..len as usize].is_sorted(), "an insertion lost the order");
        true
    }

    /// Drops the order if it is that of this chunk.
    #[inline]
    pub(super) fn drop_order(&mut self, chunk: u32) {
        if self.chunk == chunk {
            self.chunk = NIL;
        }
    }

    /// Returns whether a live record is that of the next entry, and due at `tick`.
    #[inline]
    pub(super) fn is_due(&self, position: Position, tick: Tick) -> bool {
        if self.chunk != position.chunk() || self.next >= self.len {
            return false;
        }
        let (deadline, next) = self.entry(self.next);
        next == position && deadline <= tick
    }

    /// Skips the next entry, whose timeout has expired.
    #[inline]
    pub(super) fn skip_entry(&mut self) {
        debug_assert!(self.next < self.len, "entry {} of {} is skipped", self.next, self.len);
        self.next += 1;
    }

    /// Returns the live record that is due first, or `None` if none is left.
    #[inline]
    pub(super) fn head(&mut self, chunks: &Chunks) -> Option<(Tick, Position)> {
        debug_assert!(self.chunk != NIL, "no bucket is sorted");
        let mask = chunks.mask(self.chunk);
        while self.next < self.len {
            let (deadline, position) = self.entry(self.next);
            if mask & position.bit() != 0 {
                return Some((deadline, position));
            }
            self.next += 1;
        }
        None
    }

    #[inline]
    fn entry(&self, index: u32) -> (Tick, Position) {
        let entry = self.entries[index as usize % self.entries.len()];
        #[expect(clippy::cast_possible_truncation, reason = "an offset is less than 16")]
        let offset = entry as u32 % CHUNK;
        (Tick::new(self.start.get() | entry >> OFFSET), Position::new(self.chunk, offset))
    }

    /// Returns the chunk of the sorted bucket, and the entries that have not been visited.
    pub(super) fn entries(&self) -> Option<(u32, impl Iterator<Item = (Tick, Position)>)> {
        let entries = (self.next..self.len).map(|index| self.entry(index));
        (self.chunk != NIL).then_some((self.chunk, entries))
    }
}
