//! Storage that grows without moving what it holds.
//!
//! Elements live in segments of a fixed capacity. Growing allocates one more segment and touches
//! nothing that is there, so no insert ever pays for a copy. A segment whose elements are all unused
//! can be given back; its indices stay out of use until growth fills the hole again.

use alloc::vec::Vec;

/// A sequence of elements addressed by `u32`.
#[derive(Debug)]
pub(super) struct Segments<E> {
    /// Each is full, or the one at `filling`, or a hole: empty and without storage.
    directory: Vec<Vec<E>>,
    /// Which segment the next element goes into.
    filling: usize,
    /// The holes, to be filled before a segment is added.
    holes: Vec<usize>,
}

impl<E> Segments<E> {
    /// Logarithm of a segment's length: about 64 KiB, at least 16 elements.
    const SHIFT: u32 = {
        let size = if size_of::<E>() == 0 { 1 } else { size_of::<E>() };
        let fitting = (1 << 16) / size;
        if fitting < 16 { 4 } else { fitting.ilog2() }
    };
    const LEN: usize = 1 << Self::SHIFT;

    pub(super) const fn new() -> Self {
        Self { directory: Vec::new(), filling: 0, holes: Vec::new() }
    }

    /// The most elements that `u32` can address, less the last index, which lists use as their end.
    pub(super) const INDEX_SPACE: u32 = u32::MAX;

    /// Adds an element, unless every index is in use, and returns its index.
    pub(super) fn push(&mut self, element: E) -> Result<u32, E> {
        if self.directory.get(self.filling).is_none_or(|segment| segment.len() == Self::LEN) {
            self.filling = self.holes.pop().unwrap_or(self.directory.len());
            if self.filling == self.directory.len() {
                self.directory.push(Vec::new());
            }
            self.directory[self.filling].reserve_exact(Self::LEN);
        }
        let offset = self.directory[self.filling].len();
        match u32::try_from((self.filling << Self::SHIFT) + offset) {
            Ok(index) if index < Self::INDEX_SPACE => {
                self.directory[self.filling].push(element);
                Ok(index)
            }
            _ => Err(element),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&E> {
        let (segment, offset) = Self::split(index);
        self.directory.get(segment)?.get(offset)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        let (segment, offset) = Self::split(index);
        self.directory.get_mut(segment)?.get_mut(offset)
    }

    /// Elements with their indices, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        self.directory.iter().enumerate().flat_map(|(segment, elements)| {
            elements
                .iter()
                .enumerate()
                .map(move |(offset, element)| (Self::join(segment, offset), element))
        })
    }

    /// One more than the greatest index in use, or 0.
    pub(super) fn end(&self) -> u32 {
        let last = self.directory.iter().rposition(|segment| !segment.is_empty());
        last.map_or(0, |segment| Self::join(segment, self.directory[segment].len()))
    }

    /// Gives back every full segment for which `is_unused` holds, and the room of the directory.
    pub(super) fn release(&mut self, mut is_unused: impl FnMut(&[E]) -> bool) {
        for segment in &mut self.directory {
            if is_unused(segment) {
                *segment = Vec::new();
            }
        }
        let kept = self.directory.iter().rposition(|segment| !segment.is_empty());
        self.directory.truncate(kept.map_or(0, |last| last + 1));
        self.directory.shrink_to_fit();
        let is_partial = |segment: &Vec<E>| !segment.is_empty() && segment.len() < Self::LEN;
        self.filling = self.directory.iter().position(is_partial).unwrap_or(self.directory.len());
        let holes = self.directory.iter().enumerate().rev();
        self.holes = holes.filter(|(_, s)| s.is_empty()).map(|(index, _)| index).collect();
    }

    #[inline]
    const fn split(index: u32) -> (usize, usize) {
        (index as usize >> Self::SHIFT, index as usize & (Self::LEN - 1))
    }

    #[expect(clippy::cast_possible_truncation, reason = "`push` hands out no index past u32")]
    fn join(segment: usize, offset: usize) -> u32 {
        ((segment << Self::SHIFT) + offset) as u32
    }
}
