//! Storage that grows without moving its elements.
//!
//! Elements live in segments of a fixed length. Growth allocates a segment and copies no element,
//! so no insert pays for a copy. Only the first segment starts small and grows by factors of four
//! up to that length, so that few elements take little memory. A segment without used elements can
//! be freed. Its indices are unused until growth fills the hole.

use alloc::{boxed::Box, vec::Vec};
use core::{mem, ops::Range};

/// A sequence of elements addressed by `u32`. `LEN`, a power of two, is the length of a segment.
#[derive(Debug)]
pub(crate) struct Segments<E, const LEN: usize> {
    /// The segments. The first may be shorter than `LEN`, and freed ones are empty.
    directory: Vec<Box<[E]>>,
}

impl<E, const LEN: usize> Segments<E, LEN> {
    const SHIFT: u32 = {
        assert!(LEN.is_power_of_two());
        LEN.ilog2()
    };

    /// Initial length of the first segment.
    const FIRST: usize = LEN.div_ceil(64);

    pub(crate) const fn new() -> Self {
        Self { directory: Vec::new() }
    }

    /// Adds elements, each made from its index. Returns their indices, or `None` if no `u32` index
    /// is left.
    ///
    /// `u32::MAX` is never an index, so callers can use it for the end of a list.
    pub(crate) fn grow(&mut self, make: impl FnMut(u32) -> E) -> Option<Range<u32>> {
        let hole = self.directory.iter().position(|segment| segment.is_empty());
        let segment = match (hole, &*self.directory) {
            (Some(hole), _) => hole,
            (None, [first]) if first.len() < LEN => 0,
            (None, all) => all.len(),
        };
        let present = self.directory.get(segment).map_or(0, |segment| segment.len());
        let len = match present {
            0 if self.directory.is_empty() => Self::FIRST,
            0 => LEN,
            _ => LEN.min(present * 4),
        };
        let start = u32::try_from(segment.checked_mul(LEN)?).ok()?;
        let end = start.checked_add(u32::try_from(len).ok()?)?;
        let added = start + u32::try_from(present).ok()?..end;
        if segment == self.directory.len() {
            self.directory.push(Box::default());
        }
        let mut elements = mem::take(&mut self.directory[segment]).into_vec();
        elements.reserve_exact(len - present);
        elements.extend(added.clone().map(make));
        self.directory[segment] = elements.into();
        Some(added)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&E> {
        self.directory.get(index as usize >> Self::SHIFT)?.get(index as usize % LEN)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        self.directory.get_mut(index as usize >> Self::SHIFT)?.get_mut(index as usize % LEN)
    }

    /// Returns the element at an index in use.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &E {
        &self.directory[index as usize >> Self::SHIFT][index as usize % LEN]
    }

    /// Returns the element at an index in use, mutably.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut E {
        &mut self.directory[index as usize >> Self::SHIFT][index as usize % LEN]
    }

    /// Returns `len` elements from an index in use. All must be in one segment.
    #[inline]
    pub(crate) fn range(&self, start: u32, len: usize) -> &[E] {
        &self.directory[start as usize >> Self::SHIFT][start as usize % LEN..][..len]
    }

    /// Returns the elements with their indices, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        (0..self.end()).filter_map(|index| self.get(index).map(|element| (index, element)))
    }

    /// Returns one more than the greatest index in use, or 0.
    #[expect(clippy::cast_possible_truncation, reason = "`grow` makes no index past u32")]
    pub(crate) fn end(&self) -> u32 {
        let Some(last) = self.directory.last() else { return 0 };
        (((self.directory.len() - 1) << Self::SHIFT) + last.len()) as u32
    }

    /// Frees every segment for which `is_unused` holds, and the spare capacity of the directory.
    pub(crate) fn release(&mut self, mut is_unused: impl FnMut(&[E]) -> bool) {
        for segment in self.directory.iter_mut().filter(|segment| !segment.is_empty()) {
            if is_unused(segment) {
                *segment = Box::default();
            }
        }
        let kept = self.directory.iter().rposition(|segment| !segment.is_empty());
        self.directory.truncate(kept.map_or(0, |last| last + 1));
        self.directory.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_elements_at_their_indices_and_starts_small() {
        let mut segments: Segments<u32, 256> = Segments::new();
        let mut end = 0;
        for expected in [4, 16, 64, 256, 512, 768] {
            assert_eq!(segments.grow(|index| index), Some(end..expected));
            end = expected;
            assert_eq!(segments.end(), end);
            assert!(segments.iter().all(|(index, &element)| index == element));
            assert_eq!(segments.iter().count(), end as usize);
            assert!(segments.get(end).is_none());
        }
    }

    #[test]
    fn a_segment_given_back_is_a_hole_that_growth_fills() {
        let mut segments: Segments<u32, 64> = Segments::new();
        while segments.end() < 256 {
            segments.grow(|index| index);
        }
        segments.release(|elements| elements[0] == 64 || elements[0] == 192);
        assert_eq!((segments.end(), segments.iter().count()), (192, 128));
        assert!(segments.get(64).is_none() && segments.get(127).is_none());
        assert_eq!(segments.grow(|index| index + 1), Some(64..128));
        *segments.at_mut(128) += 1;
        assert_eq!([63, 64, 128].map(|index| *segments.at(index)), [63, 65, 129]);
        segments.release(|_| true);
        assert_eq!((segments.end(), segments.directory.capacity()), (0, 0));
    }
}
