//! A binary heap whose cancelled entries stay until they reach the top: the cheapest baseline.
//!
//! A cancel touches one slot of a plain slab. A stale entry leaves the heap when it reaches the
//! top. Once stale entries outnumber live ones, all leave at once, so memory stays in proportion.

use std::collections::binary_heap::PeekMut;

use crate::prelude::*;

/// Stale entries that are kept in addition to one for each live entry.
const STALE_BESIDES: usize = 64;

/// [`BinaryHeap`] with lazy cancellation.
#[derive(Default)]
pub struct LazyHeap {
    /// Deadlines, and keys of which some are stale.
    heap: BinaryHeap<Reverse<(u64, Key)>>,
    slots: Vec<Slot>,
    /// The free slot that is used next; a free slot holds the one after it in place of a payload.
    free: u32,
    len: usize,
}

/// A slot is used by a timeout while its generation is odd.
struct Slot {
    payload: u64,
    generation: u32,
}

/// A slot and its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    slot: u32,
    generation: u32,
}

impl LazyHeap {
    fn is_live(slots: &[Slot], key: Key) -> bool {
        slots[key.slot as usize].generation == key.generation
    }

    fn remove(&mut self, key: Key) -> Option<u64> {
        let slot = &mut self.slots[key.slot as usize];
        if slot.generation != key.generation {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.len -= 1;
        // The first free slot names a slot that does not exist yet.
        let payload = std::mem::replace(&mut slot.payload, self.free.into());
        self.free = key.slot;
        Some(payload)
    }

    fn pop_due(&mut self, now: u64) -> Option<Key> {
        let top = self.heap.peek_mut().filter(|top| top.0.0 <= now)?;
        Some(PeekMut::pop(top).0.1)
    }
}

impl Timers for LazyHeap {
    type Key = Key;

    const NAME: &'static str = "lazy_heap";

    fn insert(&mut self, deadline: u64, payload: u64) -> Key {
        let number = self.free;
        if let Some(slot) = self.slots.get_mut(number as usize) {
            self.free = u32::try_from(slot.payload).expect("a free slot names another");
            slot.payload = payload;
            slot.generation = slot.generation.wrapping_add(1);
        } else {
            self.slots.push(Slot { payload, generation: 1 });
            self.free += 1;
        }
        self.len += 1;
        let key = Key { slot: number, generation: self.slots[number as usize].generation };
        self.heap.push(Reverse((deadline, key)));
        key
    }

    fn cancel(&mut self, key: Key) -> Option<u64> {
        let payload = self.remove(key);
        if self.heap.len() > 2 * self.len + STALE_BESIDES {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, key))| Self::is_live(slots, *key));
        }
        payload
    }

    fn next_expiration(&mut self) -> Option<u64> {
        while let Some(top) = self.heap.peek_mut() {
            let Reverse((deadline, key)) = *top;
            if Self::is_live(&self.slots, key) {
                return Some(deadline);
            }
            PeekMut::pop(top);
        }
        None
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while let Some(key) = self.pop_due(now) {
            self.remove(key).inspect(|&payload| expired(payload));
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}
