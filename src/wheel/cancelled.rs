//! The latest cancelled records, whose bits are not cleared yet, and the chunks that wait to be
//! merged.
//!
//! A slot holds the position of its record, and reading the slot is a cache miss. The address of
//! the bit depends on this miss. A store to it at once would stop the processor from starting the
//! next cancel, so the misses could not overlap. So the wheel collects 16 positions and clears
//! their bits together. See `docs/decisions/0012-cancelled-in-batches.md`.

use super::chunks::{BATCH, NIL, Position};

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

    /// Adds a position; the batch must not be full. Returns whether it is full now.
    #[inline]
    pub(super) fn push(&mut self, position: Position) -> bool {
        debug_assert!(self.len < BATCH, "the batch was not drained when it was full");
        debug_assert!(
            !self.positions[..self.len].contains(&position.number()),
            "{position:?} was removed before"
        );
        self.positions[self.len % BATCH] = position.number();
        self.len += 1;
        self.len == BATCH
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties the batch and returns its positions, as numbers.
    ///
    /// The caller reads them in place, one by one. A copy would read several at once. It would wait
    /// for the latest of them, which may depend on a cache miss that is still open.
    #[inline]
    pub(super) fn drain(&mut self) -> &[u32] {
        let len = core::mem::take(&mut self.len);
        &self.positions[..len.min(BATCH)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Position> {
        self.positions[..self.len].iter().copied().map(Position::from_number)
    }
}

/// Chunks that had few live records when they were noted. They wait to be merged.
#[derive(Debug)]
pub(super) struct Worn {
    chunks: [u32; BATCH],
    len: usize,
}

impl Worn {
    pub(super) const fn new() -> Self {
        Self { chunks: [NIL; BATCH], len: 0 }
    }

    /// Adds a chunk, unless the list is full. Then a later cancel in the chunk notes it again.
    pub(super) fn push(&mut self, chunk: u32) {
        if let Some(free) = self.chunks.get_mut(self.len) {
            *free = chunk;
            self.len += 1;
        }
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes the chunk that was added last.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        self.chunks.get(self.len).copied()
    }
}
