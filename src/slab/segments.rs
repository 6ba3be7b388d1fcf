//! Slots, and the segments in which they are: whole, packed, or not yet swept.

use alloc::{boxed::Box, vec::Vec};
use core::num::NonZeroU32;

#[derive(Debug)]
pub(super) enum Slot<V> {
    Occupied {
        generation: NonZeroU32,
        tag: u32,
        value: V,
    },
    /// `next` is the next slot in the list of vacant slots. A retired slot has no generation and is
    /// in no list.
    Vacant {
        generation: Option<NonZeroU32>,
        next: u32,
    },
}

const _: () = assert!(size_of::<Slot<u64>>() == 16, "a slot takes one word beside its value");

/// Slots of a segment: 16 KiB if a value takes 8 bytes.
pub(super) const SEGMENT: usize = 1 << 10;

pub(super) type Segments<V> = Vec<Box<[Slot<V>]>>;

/// Packed segments, and those that a sweep has not reached. Empty in most slabs.
#[derive(Debug)]
pub(super) struct Elsewhere<V> {
    /// The packed segments, by number.
    pub(super) packed: Vec<Option<Box<Packed<V>>>>,
    /// The segments that a sweep has not reached, from the first one on.
    pub(super) unswept: Segments<V>,
}

/// The slots of a sparse segment that had values when it was packed.
#[derive(Debug)]
pub(super) struct Packed<V> {
    pub(super) slots: Box<[Slot<V>]>,
    /// For each 64 slots of the segment: a bit for each packed slot, and the number of packed slots
    /// before these 64.
    words: [(u64, u16); SEGMENT / 64],
}

impl<V> Packed<V> {
    /// Packs the occupied slots among `all`, which are in the order of their offsets.
    pub(super) fn new(values: usize, all: impl Iterator<Item = (usize, Slot<V>)>) -> Self {
        let (mut slots, mut words) = (Vec::with_capacity(values), [(0, 0); SEGMENT / 64]);
        for (offset, slot) in all.filter(|(_, slot)| matches!(slot, Slot::Occupied { .. })) {
            words[offset / 64].0 |= 1_u64 << (offset % 64);
            slots.push(slot);
        }
        let mut before = 0;
        for (bits, sum) in &mut words {
            *sum = before;
            #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
            let count = bits.count_ones() as u16;
            before += count;
        }
        Self { slots: slots.into(), words }
    }

    /// Returns the position of a slot; `None` if it was vacant.
    pub(super) fn position(&self, index: u32) -> Option<usize> {
        let offset = index as usize % SEGMENT;
        let (bits, before) = self.words[offset / 64];
        let bit = 1 << (offset % 64);
        (bits & bit != 0).then(|| usize::from(before) + (bits & (bit - 1)).count_ones() as usize)
    }

    /// Returns the slots, with their offsets in the segment.
    pub(super) fn into_slots(self) -> impl Iterator<Item = (usize, Slot<V>)> {
        let words = self.words;
        let is_here = move |offset: &usize| words[offset / 64].0 >> (offset % 64) & 1 != 0;
        (0..SEGMENT).filter(is_here).zip(self.slots)
    }
}

/// Returns a slot of a segment that is not packed.
#[inline]
pub(super) fn here<V>(segments: &[Box<[Slot<V>]>], index: u32) -> Option<&Slot<V>> {
    segments.get(index as usize / SEGMENT)?.get(index as usize % SEGMENT)
}

impl<V> Elsewhere<V> {
    /// Returns a slot of a packed segment, or of an unswept one; `None` for a vacant slot of a
    /// packed segment.
    #[cold]
    #[inline(never)]
    pub(super) fn slot(&self, index: u32) -> Option<&Slot<V>> {
        match self.packed.get(index as usize / SEGMENT) {
            Some(Some(packed)) => packed.position(index).map(|position| &packed.slots[position]),
            _ => here(&self.unswept, index),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        match self.packed.get_mut(index as usize / SEGMENT) {
            Some(Some(packed)) => {
                packed.position(index).map(|position| &mut packed.slots[position])
            }
            _ => self.unswept.get_mut(index as usize / SEGMENT)?.get_mut(index as usize % SEGMENT),
        }
    }
}
