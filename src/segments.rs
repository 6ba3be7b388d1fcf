//! Storage that grows without moving what it holds.
//!
//! Elements live in segments of a fixed length. Growing allocates one more segment and touches
//! nothing that is there, so no insert ever pays for a copy. A segment whose elements are all
//! unused can be given back; its indices are out of use until growth fills the hole.

use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

/// A sequence of elements addressed by `u32`, allocated `LEN` at a time; a power of two.
#[derive(Debug)]
pub(crate) struct Segments<E, const LEN: usize> {
    /// `None` stands for a hole.
    directory: Vec<Option<Box<[E; LEN]>>>,
}

impl<E, const LEN: usize> Segments<E, LEN> {
    const SHIFT: u32 = {
        assert!(LEN.is_power_of_two());
        LEN.ilog2()
    };

    pub(crate) const fn new() -> Self {
        Self { directory: Vec::new() }
    }

    /// Adds a segment of elements made from their indices, and returns those; `None` if `u32` has
    /// no more.
    ///
    /// `u32::MAX` is never an index, so that it can stand for the end of a list.
    pub(crate) fn grow(&mut self, make: impl FnMut(u32) -> E) -> Option<Range<u32>> {
        let hole = self.directory.iter().position(Option::is_none);
        let segment = hole.unwrap_or(self.directory.len());
        let start = u32::try_from(segment.checked_mul(LEN)?).ok()?;
        let end = start.checked_add(u32::try_from(LEN).ok()?)?;
        let elements: Box<[E]> = (start..end).map(make).collect();
        let Ok(elements) = elements.try_into() else {
            unreachable!("a segment is as long as its range")
        };
        if hole.is_none() {
            self.directory.push(None);
        }
        self.directory[segment] = Some(elements);
        Some(start..end)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&E> {
        let segment = self.directory.get(index as usize >> Self::SHIFT)?.as_ref()?;
        Some(&segment[index as usize % LEN])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        let segment = self.directory.get_mut(index as usize >> Self::SHIFT)?.as_mut()?;
        Some(&mut segment[index as usize % LEN])
    }

    /// Elements with their indices, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        (0..self.end()).filter_map(|index| self.get(index).map(|element| (index, element)))
    }

    /// One more than the greatest index in use, or 0.
    #[expect(clippy::cast_possible_truncation, reason = "`grow` makes no index past u32")]
    pub(crate) fn end(&self) -> u32 {
        (self.directory.len() << Self::SHIFT) as u32
    }

    /// Gives back every segment for which `is_unused` holds, and the room of the directory.
    pub(crate) fn release(&mut self, mut is_unused: impl FnMut(&[E; LEN]) -> bool) {
        for segment in &mut self.directory {
            segment.take_if(|elements| is_unused(elements));
        }
        let kept = self.directory.iter().rposition(Option::is_some);
        self.directory.truncate(kept.map_or(0, |last| last + 1));
        self.directory.shrink_to_fit();
    }
}
