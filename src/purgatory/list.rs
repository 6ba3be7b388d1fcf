//! The watchers of a key, in order: those of its events by registration, then those of its value by
//! threshold.
//!
//! Watchers of events come in order, so up to [`CHUNK`] of them share a chunk, and the first ones
//! are in the list itself: most keys need no chunk. Each watcher has a *spot*, which its operation
//! keeps, and where it leaves a vacancy. So it leaves a list of thousands without a search.
//!
//! The other part of a list is one ordered map, from the place of a chunk or of a threshold to its
//! number. A walk remembers the place where it goes on. So it needs no entry on the list, and any
//! watcher may leave meanwhile.

use std::{boxed::Box, collections::BTreeMap, slice};

use smallvec::SmallVec;

use crate::slab::{END, Slab};

/// Maximum number of operations that a thread takes out at once, and that end in one hold.
pub(super) const BATCH: usize = 32;

/// Watchers of events that a list holds without a map. Few in models, so that these need the map.
const FEW: u32 = if cfg!(loom) { 1 } else { 4 };

/// Watchers of events in a chunk.
const CHUNK: u32 = if cfg!(loom) { 1 } else { 8 };

/// Watchers of the events of one key. A slot of [`END`] is a vacancy.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The number of its first watcher.
    first: u64,
    /// The key in the table.
    pub(super) key: u32,
    /// Slots that were ever used.
    used: u32,
    slots: [u32; CHUNK as usize],
}

impl Chunk {
    /// Removes a watcher. Returns whether it was the last one.
    #[inline]
    fn remove(&mut self, index: usize) -> bool {
        debug_assert_ne!(self.slots[index], END, "a watcher leaves twice");
        self.slots[index] = END;
        self.slots.iter().all(|&slot| slot == END)
    }
}

/// Removes a watcher from a chunk. Returns the chunk if that was its last watcher.
#[inline]
pub(super) fn remove_from(chunks: &mut Slab<Chunk>, number: u32, index: usize) -> Option<Chunk> {
    let is_last = chunks.at_mut(number).remove(index);
    is_last.then(|| chunks.remove_at(number)).flatten().map(|(_, chunk)| chunk)
}

/// Where a watcher of events is: the number of its key or, with the highest bit set, of its chunk,
/// and the index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot(u32);

const IN_CHUNK: u32 = 1 << 31;

impl Spot {
    pub(super) const NONE: Self = Self(END);

    #[expect(clippy::cast_possible_truncation, reason = "an index is less than 8")]
    fn in_list(key: u32, index: usize) -> Self {
        assert!(key < IN_CHUNK / FEW, "a shard has more than 2^29 keys");
        Self(key * FEW + index as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "an index is less than 8")]
    fn in_chunk(chunk: u32, index: usize) -> Self {
        assert!(chunk < IN_CHUNK / CHUNK - 1, "a shard has 2^28 chunks");
        Self(IN_CHUNK | (chunk * CHUNK + index as u32))
    }

    /// Returns the key in the table.
    pub(super) fn key(self, chunks: &Slab<Chunk>) -> u32 {
        match self.chunk() {
            Some((chunk, _)) => chunks.at(chunk).key,
            None => self.few().0,
        }
    }

    /// Returns the number of the chunk, and the index there; `None` if the spot is in a list.
    #[inline]
    pub(super) const fn chunk(self) -> Option<(u32, usize)> {
        let spot = self.0 & !IN_CHUNK;
        if self.0 & IN_CHUNK == 0 {
            return None;
        }
        Some((spot / CHUNK, (spot % CHUNK) as usize))
    }

    /// Returns the number of the key, and the index in its list.
    #[inline]
    pub(super) const fn few(self) -> (u32, usize) {
        (self.0 / FEW, (self.0 % FEW) as usize)
    }
}

/// The place of a watcher on a list: its threshold, or 0 for events, and then its number in the
/// order of registration. Events come before thresholds, in whose numbers [`THRESHOLD`] is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u128);

const THRESHOLD: u64 = 1 << 63;

impl Place {
    /// The first place, and that of the watchers that are in the list itself.
    pub(super) const FIRST: Self = Self::new(0, 0);
    pub(super) const LAST_EVENT: Self = Self::new(0, THRESHOLD - 1);
    pub(super) const FIRST_THRESHOLD: Self = Self::new(0, THRESHOLD);
    pub(super) const LAST: Self = Self::last_of(u64::MAX);

    const fn new(at: u64, number: u64) -> Self {
        Self((at as u128) << 64 | number as u128)
    }

    pub(super) const fn of_event(number: u64) -> Self {
        Self::new(0, number)
    }

    pub(super) const fn of_threshold(at: u64, number: u64) -> Self {
        Self::new(at, number | THRESHOLD)
    }

    /// Returns the last place of a threshold.
    pub(super) const fn last_of(at: u64) -> Self {
        Self::new(at, u64::MAX)
    }

    pub(super) const fn is_threshold(self) -> bool {
        self.low() >= THRESHOLD
    }

    /// Returns the threshold; 0 for events.
    pub(super) const fn at(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Returns the number of the watcher.
    pub(super) const fn number(self) -> u64 {
        self.low() & !THRESHOLD
    }

    #[expect(clippy::cast_possible_truncation, reason = "the number is the lower half")]
    const fn low(self) -> u64 {
        self.0 as u64
    }
}

/// Where a walk goes on: a place, and an index among the watchers that share it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    place: Place,
    index: usize,
}

impl Position {
    pub(super) const fn at(place: Place) -> Self {
        Self { place, index: 0 }
    }

    pub(super) const fn is_at_event(self) -> bool {
        !self.place.is_threshold()
    }
}

/// Watchers that a walk found in one hold: their places, and the slots of their operations.
pub(super) type Found = SmallVec<[(Place, u32); BATCH]>;

/// The watchers of a key. A slot of [`END`] is a vacancy.
#[derive(Debug)]
pub(super) struct List {
    few: [u32; FEW as usize],
    /// The last chunk, or `END`.
    last: u32,
    /// The chunks, and the slots of the operations that wait for thresholds.
    #[expect(clippy::box_collection, reason = "most keys have none, and a word is a third")]
    more: Option<Box<BTreeMap<Place, u32>>>,
}

impl List {
    pub(super) const fn new() -> Self {
        Self { few: [END; FEW as usize], last: END, more: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.few.iter().all(|&slot| slot == END)
            && self.more.as_ref().is_none_or(|more| more.is_empty())
    }

    /// Adds a watcher of the events of a key. Its number must be the greatest so far.
    #[inline]
    pub(super) fn add_event(
        &mut self,
        chunks: &mut Slab<Chunk>,
        key: u32,
        number: u64,
        slot: u32,
    ) -> Spot {
        if self.last == END {
            let used = self.few.iter().rposition(|&slot| slot != END).map_or(0, |last| last + 1);
            if let Some(vacancy) = self.few.get_mut(used) {
                *vacancy = slot;
                return Spot::in_list(key, used);
            }
        } else {
            let chunk = chunks.at_mut(self.last);
            let used = chunk.used as usize;
            if let Some(vacancy) = chunk.slots.get_mut(used) {
                *vacancy = slot;
                chunk.used += 1;
                return Spot::in_chunk(self.last, used);
            }
        }
        self.add_chunk(chunks, key, number, slot)
    }

    /// Adds a chunk with a watcher.
    #[inline(never)]
    fn add_chunk(&mut self, chunks: &mut Slab<Chunk>, key: u32, number: u64, slot: u32) -> Spot {
        let mut slots = [END; CHUNK as usize];
        slots[0] = slot;
        let chunk = Chunk { first: number, key, used: 1, slots };
        self.last = chunks.insert(0, chunk).expect("memory ends before that").index();
        self.more.get_or_insert_default().insert(Place::of_event(number), self.last);
        Spot::in_chunk(self.last, 0)
    }

    /// Adds a watcher of a threshold.
    pub(super) fn add_threshold(&mut self, place: Place, slot: u32) {
        let before = self.more.get_or_insert_default().insert(place, slot);
        debug_assert!(before.is_none(), "two watchers are at {place:?}");
    }

    /// Removes a watcher of a threshold.
    pub(super) fn remove_threshold(&mut self, place: Place) {
        let removed = self.more.as_mut().and_then(|more| more.remove(&place));
        debug_assert!(removed.is_some(), "no watcher is at {place:?}");
    }

    /// Removes the watcher at an index in the list itself.
    #[inline]
    pub(super) fn remove_few(&mut self, index: usize) {
        debug_assert_ne!(self.few[index], END, "a watcher leaves twice");
        self.few[index] = END;
    }

    /// Removes a chunk, which has no watchers left.
    #[inline(never)]
    pub(super) fn remove_chunk(&mut self, number: u32, chunk: &Chunk) {
        let more = self.more.as_mut().expect("a list has its chunks");
        more.remove(&Place::of_event(chunk.first));
        if self.last == number {
            let before = more.range(..=Place::LAST_EVENT).next_back();
            self.last = before.map_or(END, |(_, &before)| before);
        }
    }

    /// Appends the watchers from a position to the place `end` to `found`, until there are `most`.
    /// Returns where to go on, and the slot there; `None` at the end.
    #[inline]
    pub(super) fn gather(
        &self,
        chunks: &Slab<Chunk>,
        from: Position,
        end: Place,
        most: usize,
        found: &mut Found,
    ) -> Option<(Position, u32)> {
        if from.place == Place::FIRST {
            let next = add(from, Place::FIRST, &self.few, most, found);
            if next.is_some() || self.more.is_none() {
                return next;
            }
        }
        let mut more = self.more.as_ref()?.range(from.place..=end);
        more.find_map(|(place, number)| {
            add(from, *place, slots(chunks, *place, number), most, found)
        })
    }

    /// Returns all watchers: their places, and the slots of their operations.
    pub(super) fn iter<'a>(
        &'a self,
        chunks: &'a Slab<Chunk>,
    ) -> impl DoubleEndedIterator<Item = (Place, u32)> {
        let few = self.few.iter().map(|&slot| (Place::FIRST, slot));
        let more = self.more.iter().flat_map(|more| more.iter());
        let more = more.flat_map(|(&place, number)| {
            slots(chunks, place, number).iter().map(move |&slot| (place, slot))
        });
        few.chain(more).filter(|&(_, slot)| slot != END)
    }
}

/// Returns the slots of the operations at a place of the map.
#[inline]
fn slots<'a>(chunks: &'a Slab<Chunk>, place: Place, number: &'a u32) -> &'a [u32] {
    if place.is_threshold() { slice::from_ref(number) } else { &chunks.at(*number).slots }
}

/// Appends the watchers at a place, from a position on, until there are `most`. Returns where to go
/// on, and the slot there; `None` if all are added.
#[inline]
fn add(
    from: Position,
    place: Place,
    slots: &[u32],
    most: usize,
    found: &mut Found,
) -> Option<(Position, u32)> {
    let start = if place == from.place { from.index } else { 0 };
    for (index, &slot) in slots.iter().enumerate().skip(start) {
        if slot != END {
            if found.len() == most {
                return Some((Position { place, index }, slot));
            }
            found.push((place, slot));
        }
    }
    None
}
