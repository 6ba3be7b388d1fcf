//! The crate `priority-queue` as a timer: a binary heap with an index of the position of each item.
//!
//! Every operation takes *O*(log n) time; a cancelled timeout leaves at once.

use std::hash::BuildHasherDefault;

use priority_queue::PriorityQueue;
use rustc_hash::FxHasher;

use crate::prelude::*;

/// [`PriorityQueue`] from sequence number to deadline and payload, with the fastest of the usual
/// hashers.
#[derive(Default)]
pub struct IndexedHeap {
    queue: PriorityQueue<u64, (Reverse<u64>, u64), BuildHasherDefault<FxHasher>>,
    inserted: u64,
}

impl Timers for IndexedHeap {
    type Key = u64;

    const PROMISES: Promises = Promises { name: "priority_queue", ..Promises::STRICT };

    fn insert(&mut self, deadline: u64, payload: u64) -> u64 {
        let key = self.inserted;
        self.inserted += 1;
        self.queue.push(key, (Reverse(deadline), payload));
        key
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.queue.remove(&key).map(|(_, (_, payload))| payload)
    }

    fn reset(&mut self, key: u64, deadline: u64) -> Option<u64> {
        self.queue
            .change_priority_by(&key, |priority| priority.0 = Reverse(deadline))
            .then_some(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.queue.peek().map(|(_, (Reverse(deadline), _))| *deadline)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while self.next_expiration().is_some_and(|deadline| deadline <= now) {
            self.queue.pop().inspect(|(_, (_, payload))| expired(*payload));
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
