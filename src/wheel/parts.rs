//! The parts of a long run: a list of entries for each tick of its bucket.
//!
//! A run of more than [`LONGEST`] entries is not sorted at once. The wheel adds each entry to the
//! list of its tick, and the run takes over one list after the other. Only a bucket of level 1 has
//! a long run: it spans one tick for each list. A list that is full makes way for a new one, so its
//! growth copies few entries.
//!
//! # Dead entries
//!
//! A cancel leaves a dead entry, which the run skips later. In a long run, one late cancel might
//! have to skip very many. So for each timeout that is cancelled or reset, the wheel visits
//! `VISITS` entries of the run, all in turn, and removes the dead ones. A round of visits ends
//! after at most `(MOST + 256 + MOST / FULL) / VISITS` cancels. So besides the latest batch of
//! cancels and the list that the run holds, at most that many entries are dead.

use alloc::vec::Vec;

use super::chunks::{BATCH, CHUNK, Chunks, Position};

/// Maximum number of timeouts that are sorted together. Sorting them takes about 40 us. Further
/// timeouts of the bucket make the run long, or cascade. The limit is lower in debug builds, so
/// that the model tests have long runs.
pub(super) const LONGEST: usize = if cfg!(debug_assertions) { 64 } else { 8192 };

/// The level whose runs may be long.
pub(super) const LEVEL: usize = 1;

/// Maximum number of lists, one for each tick of the bucket.
const TICKS: u64 = 256;

/// Maximum number of timeouts of a long run. Further timeouts of the bucket cascade.
const MOST: usize = 32 * LONGEST;

/// Entries of a full list, which take 32 KiB. The growth of a list copies fewer. In debug builds it
/// has as many as the least memory of a `Vec`, so that the tests have full lists.
const FULL: usize = if cfg!(debug_assertions) { 4 } else { 4096 };

/// Entries that are visited for each cancelled timeout.
const VISITS: usize = 16;

/// Ticks since the start of the bucket in the upper half, position of the record in the lower half.
pub(super) type Entry = u64;

/// Returns the ticks of an entry since the start of the bucket.
#[inline]
fn ticks_of(entry: Entry) -> usize {
    (entry >> 32) as usize
}

/// Returns whether a full list has entries left, and is one of a tick.
fn is_of_tick(list: &[Entry], tick: usize) -> bool {
    list.first().is_some_and(|&first| ticks_of(first) == tick)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the position is the lower half")]
pub(super) fn position_of(entry: Entry) -> Position {
    Position::from_number(entry as u32)
}

/// The lists of the long run. They keep memory for the next one.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// A list for each tick, to which entries are added. The full lists follow, of which a tick may
    /// have several, and then empty ones.
    lists: Vec<Vec<Entry>>,
    /// Ticks of the bucket; 0 if there is no long run.
    ticks: usize,
    /// Full lists.
    full: usize,
    /// Ticks whose lists the run has begun to take over. It holds the rest of a list of the last.
    taken: usize,
    /// Entries that have been added.
    added: usize,
    /// The list, and the index in it of the next visit.
    next_visit: (usize, usize),
}

impl Parts {
    pub(super) const fn new() -> Self {
        Self { lists: Vec::new(), ticks: 0, full: 0, taken: 0, added: 0, next_visit: (0, 0) }
    }

    /// Returns whether there is a long run.
    #[inline]
    pub(super) fn are_used(&self) -> bool {
        self.ticks > 0
    }

    /// Returns whether a run of this level, of a bucket that spans `span` ticks, may become long.
    pub(super) fn may_hold(level: usize, span: u64) -> bool {
        level == LEVEL && span <= TICKS
    }

    /// Returns whether the timeouts of another chunk may be added.
    pub(super) fn have_room(&self) -> bool {
        self.added + CHUNK as usize <= MOST
    }

    pub(super) fn added(&self) -> usize {
        self.added
    }

    /// Takes over the live entries of a run that becomes long.
    #[cold]
    pub(super) fn begin(&mut self, entries: &mut Vec<Entry>, span: u64, chunks: &Chunks) {
        debug_assert!(!self.are_used(), "another run is long");

        self.ticks = usize::try_from(span).unwrap_or(usize::MAX);
        self.lists.resize_with(self.ticks.max(self.lists.len()), Vec::new);
        for entry in entries.drain(..) {
            if chunks.is_live(position_of(entry)) {
                self.add(entry);
                self.added += 1;
            }
        }
    }

    /// Counts entries that the caller adds.
    pub(super) fn count(&mut self, added: u32) {
        self.added += added as usize;
    }

    /// Adds an entry, which the caller counts.
    #[inline]
    pub(super) fn add(&mut self, entry: Entry) {
        let tick = ticks_of(entry);
        self.lists[tick].push(entry);
        if self.lists[tick].len() == FULL {
            self.replace(tick);
        }
    }

    /// Puts a full list behind the others, and an empty one in its place.
    #[cold]
    fn replace(&mut self, tick: usize) {
        let number = self.ticks + self.full;
        if number == self.lists.len() {
            self.lists.push(Vec::with_capacity(FULL));
        }
        self.lists.swap(tick, number);
        self.full += 1;
    }

    /// Replaces the entries of the run by those of the next list that is not empty. Returns `false`
    /// if none is left. The run keeps its large buffer, and the list its small one. So this
    /// copies at most `FULL` entries.
    #[cold]
    pub(super) fn take_next(&mut self, entries: &mut Vec<Entry>) -> bool {
        loop {
            let (lists, full) = self.lists.split_at_mut(self.ticks);
            let held = self.taken.checked_sub(1);
            let mut full = full.iter_mut();
            let of_held = full.find(|list| held.is_some_and(|tick| is_of_tick(list, tick)));
            let list = if let Some(list) = of_held {
                list
            } else {
                let Some(list) = lists.get_mut(self.taken) else { return false };
                self.taken += 1;
                list
            };
            if !list.is_empty() {
                entries.clear();
                entries.append(list);
                return true;
            }
        }
    }

    /// Ends the long run, whose entries are all dead.
    #[cold]
    pub(super) fn end(&mut self) {
        self.lists.iter_mut().for_each(Vec::clear);
        *self = Self { lists: core::mem::take(&mut self.lists), ..Self::new() };
    }

    /// Removes dead entries after so many timeouts were cancelled. The run holds `entries`, and
    /// has visited those before `next`.
    #[inline(never)]
    pub(super) fn remove_dead(
        &mut self,
        cancelled: usize,
        entries: &mut Vec<Entry>,
        next: usize,
        chunks: &Chunks,
    ) {
        let (mut number, mut index) = self.next_visit;
        for _ in 0..cancelled * VISITS {
            let is_held = number + 1 == self.taken;
            let list = if is_held { &mut *entries } else { &mut self.lists[number] };
            index = index.max(if is_held { next } else { 0 });
            match list.get(index) {
                Some(&entry) if chunks.is_live(position_of(entry)) => index += 1,
                Some(_) => _ = list.swap_remove(index),
                None => (number, index) = ((number + 1) % (self.ticks + self.full), 0),
            }
        }
        self.next_visit = (number, index);
    }

    /// Returns the entries that the run has not taken over, by tick.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Entry> {
        let (lists, full) = self.lists.split_at(self.ticks);
        lists.iter().enumerate().flat_map(move |(tick, list)| {
            let full = full.iter().filter(move |list| is_of_tick(list, tick));
            list.iter().chain(full.flatten())
        })
    }

    /// Returns these lists, for a change of the positions of their entries.
    pub(super) fn lists_mut(&mut self) -> impl Iterator<Item = &mut Vec<Entry>> {
        self.lists.iter_mut()
    }

    /// Panics unless each entry is in the list of its tick, and `dead` entries are few enough.
    pub(super) fn check_invariants(&self, dead: usize) {
        for (number, list) in self.lists.iter().enumerate() {
            let Some(&first) = list.first() else { continue };
            let tick = ticks_of(first);
            let is_here = |&entry: &Entry| ticks_of(entry) == tick;
            assert!(list.iter().all(is_here), "a list of tick {tick} has another entry");
            let is_full = number >= self.ticks;
            assert!(is_full || number == tick, "the list of tick {number} has one of tick {tick}");
            let is_left = tick + usize::from(is_full) >= self.taken;
            assert!(is_left, "a list of tick {tick} is passed over");
        }
        let mut lists = self.lists.iter();
        assert!(lists.all(|list| list.capacity() < 2 * FULL), "a list grew beyond a full one");
        let most = (MOST + self.lists.len()) / VISITS + 2 * BATCH + FULL;
        assert!(dead <= most || !self.are_used(), "{dead} entries of a long run are dead");
    }
}
