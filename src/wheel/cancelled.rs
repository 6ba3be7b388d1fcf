//! The latest cancelled records, whose bits are not cleared yet.
//!
//! A slot holds the position of its record, and reading the slot is a cache miss. To clear the bit
//! at once is a store to an address that depends on this miss. It stops the processor from starting
//! the next cancel, so their misses cannot overlap. So 16 positions are collected and cleared
//! together. See `docs/decisions/0012-cancelled-in-batches.md`.

use super::chunks::{BATCH, Position};

/// Up to 16 positions.
#[derive(Debug)]
pub(super) struct Cancelled {
    positions: [u32; BATCH],
    len: usize,
}

impl Cancelled {
    pub(super) const fn new() -> Self {
        Self { positions: [0; BATCH], len: 0 }
    }

    /// Adds a position, for which there is room. Returns whether that was the last room.
    #[inline]
    pub(super) fn push(&mut self, position: Position) -> bool {
        self.positions[self.len % BATCH] = position.number();
        self.len += 1;
        self.len == BATCH
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes out all positions, as numbers.
    ///
    /// They are read in place and one by one. A copy would read several at once, which has to wait
    /// until the latest of them, perhaps still a cache miss, are written.
    #[inline]
    pub(super) fn take(&mut self) -> &[u32] {
        let len = core::mem::take(&mut self.len);
        &self.positions[..len.min(BATCH)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Position> {
        self.positions[..self.len].iter().copied().map(Position::from_number)
    }
}
