//! The memory of all records together, and the policy for it: the oldest records are dropped first.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::log::Partition;

/// Part of the limit that is freed at once, as a divisor.
const SLACK: u64 = 16;

/// Bytes of records, of all partitions, and their limit.
#[derive(Debug, Default)]
pub(super) struct Storage {
    max_bytes: u64,
    used: AtomicU64,
    /// Batches that were ever appended.
    batches: AtomicU64,
}

impl Storage {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Counts a batch. Returns its number, which tells the older of two.
    pub(super) fn add(&self, bytes: u64) -> u64 {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether a batch has to be refused, because nothing older may be dropped.
    pub(super) fn is_full(&self, bytes: u64) -> bool {
        self.used() + bytes > self.max_bytes.saturating_mul(2)
    }

    /// Drops the oldest batches that are replicated, wherever they are, if there are too many
    /// bytes.
    pub(super) fn make_room(&self, partitions: impl FnOnce() -> Vec<Arc<Partition>>) {
        if self.used() <= self.max_bytes {
            return;
        }
        let goal = self.max_bytes - self.max_bytes / SLACK;
        let partitions = partitions();
        let oldest = |index: usize| {
            partitions[index].lock().droppable().map(|batch| Reverse((batch, index)))
        };
        let mut heap: BinaryHeap<_> = (0..partitions.len()).filter_map(oldest).collect();
        while self.used() > goal {
            let Some(Reverse((_, index))) = heap.pop() else { return };
            self.release(partitions[index].lock().drop_oldest());
            heap.extend(oldest(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{broker::batch::Batch, client::batch};

    #[test]
    fn the_oldest_batches_are_dropped_wherever_they_are() {
        let one = batch(1).len() as u64;
        let storage = Storage::new(32 * one);
        let partitions: Vec<Arc<Partition>> = (0..4).map(|_| Arc::default()).collect();
        let append = |index: usize| {
            let batch = Batch::check(&batch(1)).unwrap();
            let placed = partitions[index].lock().append(batch, &storage);
            storage.make_room(|| partitions.clone());
            placed.map(|placed| placed.base)
        };
        let append_replicated = |index: usize| {
            let base = append(index).unwrap();
            partitions[index].lock().replicated(base + 1);
        };
        [0, 0, 1, 1].into_iter().chain([2; 28]).for_each(append_replicated);
        assert_eq!(storage.used(), 32 * one, "all that is allowed");
        append(3).unwrap();
        assert_eq!(storage.used(), 30 * one);
        let starts: Vec<_> = partitions.iter().map(|partition| partition.lock().start).collect();
        assert_eq!(starts, [2, 1, 0, 0]);
        // Records that are not replicated stay, so they are refused in the end.
        let refused = (0..100).find_map(|_| append(3).err());
        assert_eq!(refused, Some(crate::prelude::ResponseError::NotEnoughReplicas));
        assert_eq!(storage.used(), 64 * one, "twice the limit");
        assert_eq!(partitions[3].lock().start, 0);
    }
}
