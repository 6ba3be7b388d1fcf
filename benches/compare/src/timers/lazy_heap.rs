//! A binary heap whose cancelled entries stay until they reach the top: the cheapest baseline.
//!
//! A cancel touches one slot of a slot map. A stale entry leaves the heap when it reaches the top.
//! Once stale entries outnumber live ones, all leave at once, so memory stays in proportion.

use std::collections::binary_heap::PeekMut;

use crate::prelude::*;

/// Stale entries that are kept in addition to one for each live entry.
const STALE_BESIDES: usize = 64;

/// [`BinaryHeap`] with lazy cancellation.
#[derive(Default)]
pub struct LazyHeap {
    /// Deadlines, and keys of which some are stale.
    heap: BinaryHeap<Reverse<(u64, DefaultKey)>>,
    payloads: SlotMap<DefaultKey, u64>,
}

const _: () = assert!(size_of::<(u64, DefaultKey)>() == 16);

impl LazyHeap {
    fn pop_due(&mut self, now: u64) -> Option<DefaultKey> {
        let top = self.heap.peek_mut().filter(|top| top.0.0 <= now)?;
        Some(PeekMut::pop(top).0.1)
    }
}

impl Timers for LazyHeap {
    type Key = DefaultKey;

    const PROMISES: Promises = Promises { name: "lazy_heap", ..Promises::STRICT };

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let key = self.payloads.insert(payload);
        self.heap.push(Reverse((deadline, key)));
        key
    }

    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        let payload = self.payloads.remove(key);
        if self.heap.len() > 2 * self.payloads.len() + STALE_BESIDES {
            self.heap.retain(|Reverse((_, key))| self.payloads.contains_key(*key));
        }
        payload
    }

    fn next_expiration(&mut self) -> Option<u64> {
        while let Some(top) = self.heap.peek_mut() {
            let Reverse((deadline, key)) = *top;
            if self.payloads.contains_key(key) {
                return Some(deadline);
            }
            PeekMut::pop(top);
        }
        None
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while let Some(key) = self.pop_due(now) {
            self.payloads.remove(key).inspect(|&payload| expired(payload));
        }
    }

    fn len(&self) -> usize {
        self.payloads.len()
    }
}
