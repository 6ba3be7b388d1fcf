//! The bucket delay queue: the non-empty buckets, least expiration first.
//!
//! An indexed heap, so that a bucket which empties leaves as soon as that is known, and one whose
//! expiration changes moves in place. Nothing in here is out of date but for the few departures
//! that are yet to be counted, which
//! [`TimingWheel::next_expiration`](super::TimingWheel::next_expiration) looks past.
//!
//! Places are small numbers, so the index is an array and nothing is hashed. A node has four
//! children, which lie together: the heap is half as deep as a binary one, and moving a bucket up
//! touches half as many nodes.

use alloc::vec::Vec;

use super::geometry::Place;
use crate::Tick;

/// Children of a node.
const ARITY: usize = 4;

/// The position of a bucket that is not queued.
const ABSENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    expiration: Tick,
    place: Place,
}

/// A min-heap of buckets by absolute expiration.
#[derive(Debug, Default)]
pub(super) struct BucketQueue {
    /// None is due before its parent.
    heap: Vec<Entry>,
    /// Where each place is in the heap, or `ABSENT`.
    positions: Vec<u32>,
}

impl BucketQueue {
    /// Adds a bucket that was empty, or changes the expiration of one that is queued. *O*(log n).
    #[inline]
    pub(super) fn set(&mut self, place: Place, expiration: Tick) {
        let entry = Entry { expiration, place };
        if let Some(position) = self.position(place) {
            self.restore(position, entry);
        } else {
            self.reach(place);
            self.heap.push(entry);
            self.rise(self.heap.len() - 1, entry);
        }
    }

    /// Takes out a bucket that has emptied. *O*(log n).
    #[inline]
    pub(super) fn remove(&mut self, place: Place) {
        let Some(position) = self.position(place) else {
            debug_assert!(false, "{place:?} was not queued");
            return;
        };
        self.positions[place.number() as usize] = ABSENT;
        let last = self.heap.pop().expect("a place that is queued has an entry");
        if position < self.heap.len() {
            self.restore(position, last);
        }
    }

    /// The bucket that is due first. *O*(1).
    #[inline]
    pub(super) fn first(&self) -> Option<(Place, Tick)> {
        self.heap.first().map(|entry| (entry.place, entry.expiration))
    }

    /// All buckets, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, Tick)> {
        self.heap.iter().map(|entry| (entry.place, entry.expiration))
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn expiration(&self, place: Place) -> Option<Tick> {
        self.position(place).map(|position| self.heap[position].expiration)
    }

    /// Gives back the room that the queued buckets do not need.
    pub(super) fn shrink(&mut self) {
        let last = self.positions.iter().rposition(|&position| position != ABSENT);
        self.positions.truncate(last.map_or(0, |last| last + 1));
        self.positions.shrink_to_fit();
        self.heap.shrink_to_fit();
    }

    #[inline]
    fn position(&self, place: Place) -> Option<usize> {
        let position = *self.positions.get(place.number() as usize)?;
        (position != ABSENT).then_some(position as usize)
    }

    /// Makes sure that a place has a position.
    #[inline]
    fn reach(&mut self, place: Place) {
        let place = place.number() as usize;
        if place >= self.positions.len() {
            self.positions.resize(place + 1, ABSENT);
        }
    }

    /// Puts an entry where another was, or moves it up or down from there to where it belongs.
    #[inline]
    fn restore(&mut self, position: usize, entry: Entry) {
        if self.rise(position, entry) == position {
            self.sink(position, entry);
        }
    }

    /// Puts an entry at a position, or above it if it is due before what is there. Returns where.
    #[inline]
    fn rise(&mut self, mut position: usize, entry: Entry) -> usize {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent].expiration <= entry.expiration {
                break;
            }
            self.put(position, self.heap[parent]);
            position = parent;
        }
        self.put(position, entry);
        position
    }

    /// Puts an entry at a position, or below it if what is there is due before.
    fn sink(&mut self, mut position: usize, entry: Entry) {
        while let Some(child) = self.first_child(position) {
            if entry.expiration <= self.heap[child].expiration {
                break;
            }
            self.put(position, self.heap[child]);
            position = child;
        }
        self.put(position, entry);
    }

    /// The child of a node that is due first.
    #[inline]
    fn first_child(&self, position: usize) -> Option<usize> {
        let start = position * ARITY + 1;
        let end = self.heap.len().min(start + ARITY);
        (start..end).min_by_key(|&child| self.heap[child].expiration)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer places than 2^32")]
    fn put(&mut self, position: usize, entry: Entry) {
        self.heap[position] = entry;
        self.positions[entry.place.number() as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    impl BucketQueue {
        fn check_invariants(&self) {
            for (position, entry) in self.heap.iter().enumerate() {
                let parent = position.saturating_sub(1) / ARITY;
                assert!(self.heap[parent].expiration <= entry.expiration, "{position} is too low");
                assert_eq!(self.position(entry.place), Some(position));
            }
            let queued = self.positions.iter().filter(|&&position| position != ABSENT);
            assert_eq!(queued.count(), self.heap.len(), "a place is queued twice, or not at all");
        }
    }

    #[test]
    fn the_first_is_due_first_whatever_comes_goes_and_changes() {
        let mut queue = BucketQueue::default();
        let mut model = BTreeMap::new();
        let mut random = 1_u64;
        for step in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = Place::new((random >> 33) as u32 % if step < 50_000 { 300 } else { 9 });
            let expiration = Tick::new((random >> 50) % 1000);
            match (random >> 40) % 8 {
                0..4 => {
                    queue.set(place, expiration);
                    model.insert(place, expiration);
                }
                4..7 if model.remove(&place).is_some() => queue.remove(place),
                4..7 => assert_eq!(queue.expiration(place), None),
                _ if random % 64 == 0 => queue.shrink(),
                _ => queue.check_invariants(),
            }
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.expiration(place), model.get(&place).copied());
            let least = model.values().min().copied();
            assert_eq!(queue.first().map(|(_, expiration)| expiration), least);
        }
        let mut all: Vec<_> = queue.iter().collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(model));
    }

    #[test]
    fn an_empty_queue_gives_back_all_its_room() {
        let mut queue = BucketQueue::default();
        (0..100).for_each(|number| queue.set(Place::new(number), Tick::new(7)));
        (0..100).for_each(|number| queue.remove(Place::new(number)));
        queue.shrink();
        assert_eq!((queue.heap.capacity(), queue.positions.capacity()), (0, 0));
    }
}
