//! A binary heap whose cancelled entries stay until they come up: the cheapest baseline.
//!
//! Cancelling touches one slot of a slab. The entries that it leaves behind are dropped when they
//! reach the top, or all at once when they outnumber the live ones, so that memory stays in
//! proportion.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use crate::{Promises, Timers};

/// Stale entries that are kept in addition to one for each live entry.
const STALE_BESIDES: usize = 64;

/// The end of the list of vacant slots.
const NIL: u32 = u32::MAX;

/// [`BinaryHeap`] with lazy cancellation.
#[derive(Debug)]
pub struct LazyHeap {
    heap: BinaryHeap<Reverse<Entry>>,
    slots: Vec<Slot>,
    /// Head of the list of vacant slots, or `NIL`.
    vacant: u32,
    live: usize,
}

impl Default for LazyHeap {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), vacant: NIL, live: 0 }
    }
}

impl LazyHeap {
    #[inline]
    fn occupy(&mut self, payload: u64) -> Key {
        self.live += 1;
        if let Some(slot) = self.slots.get_mut(self.vacant as usize) {
            let key = Key { slot: self.vacant, generation: slot.generation };
            self.vacant = slot.next_vacant;
            slot.payload = payload;
            return key;
        }
        let slot = u32::try_from(self.slots.len()).expect("there are less than 2^32 slots");
        self.slots.push(Slot { payload, generation: 0, next_vacant: NIL });
        Key { slot, generation: 0 }
    }

    #[inline]
    fn vacate(&mut self, key: Key) -> Option<u64> {
        let slot = &mut self.slots[key.slot as usize];
        if slot.generation != key.generation {
            return None;
        }
        slot.generation += 1;
        slot.next_vacant = self.vacant;
        self.vacant = key.slot;
        self.live -= 1;
        Some(slot.payload)
    }

    #[inline]
    fn pop_due(&mut self, now: u64) -> Option<Entry> {
        let top = self.heap.peek_mut().filter(|top| top.0.deadline <= now)?;
        Some(PeekMut::pop(top).0)
    }

    #[inline]
    fn sweep_if_littered(&mut self) {
        if self.heap.len() > 2 * self.live + STALE_BESIDES {
            let slots = &self.slots;
            self.heap.retain(|Reverse(entry)| entry.key.is_live(slots));
        }
    }
}

impl Timers for LazyHeap {
    type Key = Key;

    const NAME: &'static str = "lazy_heap";

    const PROMISES: Promises =
        Promises { scheme: "scheme 3: binary heap with lazy cancel", ..Promises::STRICT };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Key {
        let key = self.occupy(payload);
        self.heap.push(Reverse(Entry { deadline, key }));
        key
    }

    #[inline]
    fn cancel(&mut self, key: Key) -> bool {
        let is_cancelled = self.vacate(key).is_some();
        self.sweep_if_littered();
        is_cancelled
    }

    #[inline]
    fn reset(&mut self, key: Key, deadline: u64) -> Option<Key> {
        let payload = self.vacate(key)?;
        self.sweep_if_littered();
        Some(self.insert(deadline, payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        while let Some(top) = self.heap.peek_mut() {
            let Reverse(entry) = &*top;
            if entry.key.is_live(&self.slots) {
                return Some(entry.deadline);
            }
            PeekMut::pop(top);
        }
        None
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.live;
        while let Some(entry) = self.pop_due(now) {
            if let Some(payload) = self.vacate(entry.key) {
                expired(payload);
            }
        }
        before - self.live
    }

    fn len(&self) -> usize {
        self.live
    }
}

/// Names an occupant of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    slot: u32,
    generation: u32,
}

impl Key {
    #[inline]
    fn is_live(self, slots: &[Slot]) -> bool {
        slots[self.slot as usize].generation == self.generation
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: u64,
    key: Key,
}

/// Holds a payload, or is in the list of vacant slots under the generation of its next occupant.
#[derive(Debug)]
struct Slot {
    payload: u64,
    generation: u32,
    next_vacant: u32,
}

const _: () = assert!(size_of::<Entry>() == 16 && size_of::<Slot>() == 16);
