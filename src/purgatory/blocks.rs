//! Storage that grows without moving its elements, and finds an element in a few steps.
//!
//! Elements lie in blocks of a constant length, so an access checks only the number of the block.
//! A block can be freed. Its positions stay unused until growth fills the hole.

use std::{boxed::Box, vec::Vec};

/// A sequence of elements in blocks of `LEN`, which is a power of two.
#[derive(Debug)]
pub(super) struct Blocks<E, const LEN: usize> {
    /// `None` is a hole. The last block is not a hole.
    directory: Vec<Option<Box<[E; LEN]>>>,
    /// The number of a block before which there is no hole.
    full: usize,
}

impl<E, const LEN: usize> Blocks<E, LEN> {
    const SHIFT: u32 = {
        assert!(LEN.is_power_of_two());
        LEN.ilog2()
    };

    pub(super) const fn new() -> Self {
        Self { directory: Vec::new(), full: 0 }
    }

    /// Adds a block in the first hole or at the end. Makes each element from its position. Returns
    /// the first position.
    ///
    /// # Panics
    ///
    /// Panics if a position is 2^31 or more; memory ends before that.
    #[cold]
    pub(super) fn grow(&mut self, make: impl FnMut(u32) -> E) -> u32 {
        let mut further = self.full..self.directory.len();
        let hole = further.find(|&number| self.directory[number].is_none());
        let number = hole.unwrap_or(self.directory.len());
        self.full = number + 1;
        self.fill(number, make)
    }

    /// Returns the element at a position. Adds its block unless that exists, with elements from
    /// `make`.
    #[inline]
    pub(super) fn at_or_grow(&mut self, position: u32, make: impl Fn() -> E) -> &mut E {
        let number = position as usize >> Self::SHIFT;
        if !matches!(self.directory.get(number), Some(Some(_))) {
            self.fill(number, |_| make());
        }
        self.at_mut(position)
    }

    #[cold]
    fn fill(&mut self, number: usize, make: impl FnMut(u32) -> E) -> u32 {
        let end = u32::try_from((number + 1) << Self::SHIFT).expect("memory ends before that");
        assert!(end <= 1 << 31, "memory ends before that");
        let start = end - Self::LENGTH;
        let block: Box<[E]> = (start..end).map(make).collect();
        let Ok(block) = block.try_into() else { unreachable!("a block has its length") };
        if self.directory.len() <= number {
            self.directory.resize_with(number + 1, || None);
        }
        let replaced = self.directory[number].replace(block);
        debug_assert!(replaced.is_none(), "block {number} exists");
        start
    }

    #[expect(clippy::cast_possible_truncation, reason = "blocks are short")]
    const LENGTH: u32 = LEN as u32;

    #[inline]
    pub(super) fn get(&self, position: u32) -> Option<&E> {
        let block = self.directory.get(position as usize >> Self::SHIFT)?.as_deref()?;
        Some(&block[position as usize % LEN])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, position: u32) -> Option<&mut E> {
        let block = self.directory.get_mut(position as usize >> Self::SHIFT)?.as_deref_mut()?;
        Some(&mut block[position as usize % LEN])
    }

    /// Returns the element at a position in use.
    #[inline]
    pub(super) fn at(&self, position: u32) -> &E {
        self.get(position).expect("the position is in use")
    }

    /// Returns the element at a position in use, mutably.
    #[inline]
    pub(super) fn at_mut(&mut self, position: u32) -> &mut E {
        self.get_mut(position).expect("the position is in use")
    }

    /// Returns one more than the greatest position in use, or 0.
    #[expect(clippy::cast_possible_truncation, reason = "`fill` makes no position past 2^31")]
    pub(super) fn end(&self) -> u32 {
        (self.directory.len() << Self::SHIFT) as u32
    }

    /// Frees each block for which `is_unused` returns `true`, given its first position and its
    /// elements.
    pub(super) fn release(&mut self, mut is_unused: impl FnMut(u32, &[E; LEN]) -> bool) {
        for (number, place) in (0..).zip(&mut self.directory) {
            if place.as_deref().is_some_and(|block| is_unused(number << Self::SHIFT, block)) {
                *place = None;
            }
        }
        self.full = 0;
        let kept = self.directory.iter().rposition(Option::is_some);
        self.directory.truncate(kept.map_or(0, |last| last + 1));
        self.directory.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_given_back_is_a_hole_that_growth_fills() {
        let mut blocks: Blocks<u32, 64> = Blocks::new();
        assert_eq!([0, 64, 128].map(|_| blocks.grow(|position| position)), [0, 64, 128]);
        (192..256).for_each(|position| *blocks.at_or_grow(position, || 0) = position);
        assert!((0..256).all(|position| blocks.at(position) == &position));
        blocks.release(|start, block| {
            assert_eq!(block[0], start);
            start == 64 || start == 192
        });
        assert_eq!(blocks.end(), 192);
        assert!(blocks.get(64).is_none() && blocks.get(127).is_none() && blocks.get(192).is_none());
        assert_eq!(blocks.grow(|position| position + 1), 64);
        *blocks.at_mut(128) += 1;
        assert_eq!([63, 64, 128].map(|position| *blocks.at(position)), [63, 65, 129]);
        blocks.release(|_, _| true);
        assert_eq!((blocks.end(), blocks.directory.capacity()), (0, 0));
    }
}
