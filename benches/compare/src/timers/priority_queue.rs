//! The crate `priority-queue` used as a timer: a binary heap with an index of where each item is.
//!
//! Everything takes *O*(log n) time. A cancelled timeout leaves at once.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use priority_queue::PriorityQueue;
use rustc_hash::FxHasher;

use crate::{Promises, Timers};

/// [`PriorityQueue`] from timeout to deadline, with the fastest of the usual hashers.
#[derive(Debug, Default)]
pub struct IndexedHeap {
    queue: PriorityQueue<Item, Reverse<u64>, BuildHasherDefault<FxHasher>>,
    inserted: u64,
}

/// A timeout, which is known by its number.
#[derive(Debug, Clone, Copy)]
struct Item {
    number: u64,
    payload: u64,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Item {}

impl Hash for Item {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Borrow<u64> for Item {
    fn borrow(&self) -> &u64 {
        &self.number
    }
}

impl Timers for IndexedHeap {
    type Key = u64;

    const NAME: &'static str = "priority_queue";

    const PROMISES: Promises =
        Promises { scheme: "scheme 3: indexed binary heap, priority-queue", ..Promises::STRICT };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> u64 {
        let number = self.inserted;
        self.inserted += 1;
        self.queue.push(Item { number, payload }, Reverse(deadline));
        number
    }

    #[inline]
    fn cancel(&mut self, key: u64) -> bool {
        self.queue.remove(&key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: u64, deadline: u64) -> Option<u64> {
        self.queue.change_priority(&key, Reverse(deadline)).map(|_| key)
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        self.queue.peek().map(|(_, deadline)| deadline.0)
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.queue.len();
        while self.next_expiration().is_some_and(|deadline| deadline <= now) {
            self.queue.pop().inspect(|(item, _)| expired(item.payload));
        }
        before - self.queue.len()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
