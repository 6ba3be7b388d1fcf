//! The slots of a segment: whole, or packed.

use alloc::{boxed::Box, vec::Vec};
use core::{mem, num::NonZeroU32};

use super::END;

#[derive(Debug)]
pub(super) enum Slot<V> {
    Occupied {
        generation: NonZeroU32,
        tag: u32,
        value: V,
    },
    /// `next` is the next slot in the segment's list of vacant slots. A retired slot has no
    /// generation and is not listed.
    Vacant {
        generation: Option<NonZeroU32>,
        next: u32,
    },
}

const _: () = assert!(size_of::<Slot<u64>>() == 16, "a slot takes one word beside its value");

/// Slots of a segment: 16 KiB if a value takes 8 bytes.
pub(super) const SEGMENT: usize = 1 << 10;

/// The end of a list of segments.
pub(super) const LAST: usize = usize::MAX;

/// A segment of slots. It is *closed* when it is packed, or freed.
#[derive(Debug)]
pub(super) struct Segment<V> {
    /// Empty if the segment is closed.
    pub(super) slots: Box<[Slot<V>]>,
    /// The slots that a closed segment keeps, if it has values.
    pub(super) packed: Option<Box<Packed<V>>>,
    /// The next segment in a list of the slab, or `LAST`.
    pub(super) next: usize,
    /// First slot of the list of vacant slots, or `END`. The list of a closed segment is empty.
    pub(super) vacant: u32,
    /// First generation of slots that the segment gets. It is above the generations of all dead
    /// keys of its freed slots. `None` if a freed slot had used up its generations: the segment
    /// gets no further slots.
    pub(super) generation: Option<NonZeroU32>,
    /// Number of values.
    pub(super) len: u16,
}

impl<V> Segment<V> {
    pub(super) fn new(generation: NonZeroU32) -> Self {
        let generation = Some(generation);
        Self { slots: Box::default(), packed: None, next: LAST, vacant: END, generation, len: 0 }
    }

    #[inline]
    pub(super) const fn is_closed(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of slots that take memory.
    pub(super) fn held(&self) -> usize {
        self.packed.as_ref().map_or(self.slots.len(), |packed| packed.slots.len())
    }

    /// Returns the number of slots, without the vacant ones of a closed segment.
    pub(super) fn room(&self) -> usize {
        if self.is_closed() { self.len.into() } else { self.slots.len() }
    }

    /// Opens the segment, or makes it longer, and lists its vacant slots.
    #[expect(clippy::cast_possible_truncation, reason = "all indices are below `END`")]
    pub(super) fn open(&mut self, number: usize, len: usize) {
        let new = || Slot::Vacant { generation: self.generation, next: END };
        let mut slots = mem::take(&mut self.slots).into_vec();
        slots.reserve_exact(len - slots.len());
        slots.resize_with(len, new);
        if let Some(packed) = self.packed.take() {
            packed.into_slots().for_each(|(offset, slot)| slots[offset] = slot);
        }
        for (offset, slot) in slots.iter_mut().enumerate().rev() {
            if let Slot::Vacant { generation: Some(_), next } = slot {
                *next = mem::replace(&mut self.vacant, (number * SEGMENT + offset) as u32);
            }
        }
        self.slots = slots.into();
    }

    /// Closes the segment: packs it, or frees it if it has no values.
    pub(super) fn close(&mut self) {
        let mut newest = self.generation;
        let values = self.take_slots().filter_map(|(offset, slot)| {
            if let Slot::Vacant { generation, .. } = slot {
                newest = newest.zip(generation).map(|(one, other)| one.max(other));
                return None;
            }
            Some((offset, slot))
        });
        let packed = Packed::new(self.len, values);
        self.packed = (self.len > 0).then(|| Box::new(packed));
        (self.generation, self.vacant) = (newest, END);
    }

    /// Takes the slots, with their offsets in order.
    fn take_slots(&mut self) -> impl Iterator<Item = (usize, Slot<V>)> + use<V> {
        let packed = self.packed.take().into_iter().flat_map(|packed| packed.into_slots());
        packed.chain(mem::take(&mut self.slots).into_iter().enumerate())
    }

    /// Panics unless the vacant slots are listed, except retired ones.
    pub(super) fn check_invariants(&self) {
        let (mut listed, mut index) = (0, self.vacant);
        while index != END {
            let slot = &self.slots[index as usize % SEGMENT];
            let Slot::Vacant { generation: Some(_), next } = slot else {
                panic!("slot {index} is listed as vacant")
            };
            (listed, index) = (listed + 1, *next);
        }
        let vacant = |slot: &&Slot<V>| matches!(slot, Slot::Vacant { generation: Some(_), .. });
        assert_eq!(self.slots.iter().filter(vacant).count(), listed, "vacant slots are not listed");
        assert!(self.is_closed() || self.packed.is_none(), "a segment is packed and not");
    }
}

/// The slots of a closed segment that had values when it was packed.
#[derive(Debug)]
pub(super) struct Packed<V> {
    pub(super) slots: Box<[Slot<V>]>,
    /// For each 64 slots of the segment: a bit for each packed slot, and the number of packed slots
    /// before these 64.
    words: [(u64, u16); SEGMENT / 64],
}

impl<V> Packed<V> {
    /// Packs slots, which must be in the order of their offsets.
    fn new(len: u16, values: impl Iterator<Item = (usize, Slot<V>)>) -> Self {
        let (mut slots, mut words) = (Vec::with_capacity(len.into()), [(0, 0); SEGMENT / 64]);
        values.for_each(|(offset, slot)| {
            words[offset / 64].0 |= 1_u64 << (offset % 64);
            slots.push(slot);
        });
        let mut before = 0;
        for (bits, sum) in &mut words {
            *sum = before;
            #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
            let count = bits.count_ones() as u16;
            before += count;
        }
        Self { slots: slots.into(), words }
    }

    /// Returns the position of a slot in `slots`; `None` if the slot was freed.
    fn position(&self, index: u32) -> Option<usize> {
        let offset = index as usize % SEGMENT;
        let (bits, before) = self.words[offset / 64];
        let bit = 1 << (offset % 64);
        (bits & bit != 0).then(|| usize::from(before) + (bits & (bit - 1)).count_ones() as usize)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn slot(&self, index: u32) -> Option<&Slot<V>> {
        self.position(index).map(|position| &self.slots[position])
    }

    #[cold]
    #[inline(never)]
    pub(super) fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        self.position(index).map(|position| &mut self.slots[position])
    }

    /// Returns the slots, with their offsets in the segment.
    fn into_slots(self) -> impl Iterator<Item = (usize, Slot<V>)> {
        let words = self.words;
        let is_here = move |offset: &usize| words[offset / 64].0 >> (offset % 64) & 1 != 0;
        (0..SEGMENT).filter(is_here).zip(self.slots)
    }
}
