//! The parts of a long run: a list of entries for each tick of its bucket.
//!
//! A run of more than [`LONGEST`] entries is not sorted at once. The wheel adds each entry to the
//! list of its tick, and the run takes over one list after the other. Only a bucket of level 1 has
//! a long run: it spans one tick for each list.
//!
//! # Dead entries
//!
//! A cancel leaves a dead entry, which the run skips later. In a long run, one late cancel might
//! have to skip very many. So for each timeout that is cancelled or reset, the wheel visits
//! `VISITS` entries of the run, all in turn, and removes the dead ones. A round of visits ends
//! after at most `(MOST + 256) / VISITS` cancels. So besides the latest batch of cancels, at most
//! that many entries are dead.

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

/// Maximum number of entries for which an empty list keeps memory. Otherwise bursts at different
/// ticks would leave each list with memory for all entries of a run.
const KEPT: usize = if cfg!(debug_assertions) { 256 } else { 4096 };

/// Entries that are visited for each cancelled timeout.
const VISITS: usize = 16;

/// Ticks since the start of the bucket in the upper half, position of the record in the lower half.
pub(super) type Entry = u64;

/// Returns the ticks of an entry since the start of the bucket.
#[inline]
fn ticks_of(entry: Entry) -> usize {
    (entry >> 32) as usize
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the position is the lower half")]
pub(super) fn position_of(entry: Entry) -> Position {
    Position::from_number(entry as u32)
}

/// The lists of the long run. They keep memory for the next one, at most for `KEPT` entries each.
#[derive(Debug, Default)]
pub(super) struct Parts {
    are_used: bool,
    lists: Vec<Vec<Entry>>,
    /// Lists that the run has taken over. The run holds the rest of the last of these.
    taken: usize,
    /// Entries that have been added.
    added: usize,
    /// The list and the index in it of the next visit.
    next_visit: (usize, usize),
}

impl Parts {
    pub(super) const fn new() -> Self {
        Self { are_used: false, lists: Vec::new(), taken: 0, added: 0, next_visit: (0, 0) }
    }

    /// Returns whether there is a long run.
    #[inline]
    pub(super) fn are_used(&self) -> bool {
        self.are_used
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

        self.are_used = true;
        self.lists.resize_with(usize::try_from(span).unwrap_or(usize::MAX), Vec::new);
        for entry in entries.drain(..).filter(|&entry| chunks.is_live(position_of(entry))) {
            self.add(entry);
        }
    }

    #[inline]
    pub(super) fn add(&mut self, entry: Entry) {
        self.lists[ticks_of(entry)].push(entry);
        self.added += 1;
    }

    /// Replaces the entries of the run by the next list that is not empty. Returns `false` if none
    /// is left.
    #[cold]
    pub(super) fn take_next(&mut self, entries: &mut Vec<Entry>) -> bool {
        while let Some(list) = self.lists.get_mut(self.taken) {
            self.taken += 1;
            let is_found = !list.is_empty();
            if is_found {
                entries.clear();
                core::mem::swap(entries, list);
            }
            list.shrink_to(KEPT);
            if is_found {
                return true;
            }
        }
        false
    }

    /// Ends the long run, whose entries are all dead. It holds `entries`.
    #[cold]
    pub(super) fn end(&mut self, entries: &mut Vec<Entry>) {
        entries.clear();
        entries.shrink_to(KEPT.max(LONGEST));
        for list in &mut self.lists[self.taken..] {
            list.clear();
            list.shrink_to(KEPT);
        }
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
        let (mut tick, mut index) = self.next_visit;
        for _ in 0..cancelled * VISITS {
            let is_taken = tick + 1 == self.taken;
            let (list, first) =
                if is_taken { (&mut *entries, next) } else { (&mut self.lists[tick], 0) };
            index = index.max(first);
            match list.get(index) {
                Some(&entry) if chunks.is_live(position_of(entry)) => index += 1,
                Some(_) => _ = list.swap_remove(index),
                None => (tick, index) = ((tick + 1) % self.lists.len(), 0),
            }
        }
        self.next_visit = (tick, index);
    }

    /// Returns the entries that the run has not taken over.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Entry> {
        self.lists.iter().flatten()
    }

    /// Returns these lists, for a change of the positions of their entries.
    pub(super) fn lists_mut(&mut self) -> impl Iterator<Item = &mut Vec<Entry>> {
        self.lists.iter_mut()
    }

    /// Panics unless each entry is in the list of its tick, and `dead` entries are few enough.
    pub(super) fn check_invariants(&self, dead: usize) {
        for (tick, list) in self.lists.iter().enumerate() {
            let is_here = |&entry: &Entry| ticks_of(entry) == tick;
            assert!(list.iter().all(is_here), "the list of tick {tick} has another entry");
            assert!(
                tick >= self.taken || list.is_empty(),
                "the list of tick {tick} is passed over"
            );
        }
        let most = (MOST + self.lists.len()) / VISITS + 2 * BATCH;
        assert!(dead <= most || !self.are_used(), "{dead} entries of a long run are dead");
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{
        tick::Tick,
        wheel::{Key, TimingWheel},
    };

    /// A wheel with a bucket of level 1 that makes a long run, of ticks 256 to 511, and the keys in
    /// random order.
    fn crowd_of(count: u64) -> (TimingWheel<u64>, Vec<Key>, fastrand::Rng) {
        let (mut wheel, mut random) = (TimingWheel::new(Tick::ZERO), fastrand::Rng::with_seed(1));
        let insert = |_| {
            let deadline = random.u64(256..512);
            wheel.insert(Tick::new(deadline), deadline).unwrap()
        };
        let mut keys: Vec<_> = (0..count).map(insert).collect();
        random.shuffle(&mut keys);
        (wheel, keys, random)
    }

    #[test]
    fn a_long_run_expires_in_order_beside_cancels_and_resets() {
        for count in [LONGEST + 1, MOST / 2, MOST + LONGEST] {
            let (mut wheel, mut keys, mut random) = crowd_of(count as u64);
            let (mut now, mut ended, mut last) = (256, 0, 0);
            while !wheel.is_empty() {
                for due in wheel.advance(Tick::new(now)).limit(random.u64(..count as u64 / 4)) {
                    assert!((last..=now).contains(&due.deadline.get()));
                    (last, ended) = (due.deadline.get(), ended + 1);
                }
                wheel.check_invariants();
                for _ in 0..random.usize(..count / 8) {
                    let Some(key) = keys.pop() else { break };
                    match wheel.deadline(key) {
                        Some(at) if random.bool() => drop(wheel.reset(key, at.max(wheel.now()))),
                        Some(_) => ended += usize::from(wheel.cancel(key).is_some()),
                        None => {}
                    }
                }
                wheel.check_invariants();
                if random.u8(..8) == 0 {
                    wheel.shrink();
                    let levels = wheel.shape().levels;
                    let buckets = levels.iter().flat_map(|level| &level.buckets);
                    assert_eq!(buckets.map(|bucket| bucket.pending).sum::<usize>(), wheel.len());
                }
                now += random.u64(..16);
            }
            assert_eq!(ended, count);
            assert!(!wheel.hierarchy.runs.has_parts());
        }
    }
}
