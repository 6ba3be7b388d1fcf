//! The opened bucket: the crowded bucket of level 1 that is due, its records listed by tick.
//!
//! To move each record to level 0 would access its slot once more. Instead the chunks leave the
//! bucket, and the position of each record goes into the list of its tick. A list entry is a
//! *hint*: its record may have died since, and the wheel removes the hint when it gets there. So a
//! cancel changes no list, unless the record was in *front*. A record of another bucket may take
//! the position of a dead one. The wheel does not mistake it for the record of the hint: its chunk
//! belongs to a bucket, while the chunks of the opened bucket are detached.

use alloc::vec::Vec;
use core::mem;

use super::{
    queue::Occupied,
    records::{NIL, Records},
};
use crate::tick::Tick;

/// Positions of records by tick.
#[derive(Debug)]
pub(super) struct Opened {
    /// First tick of the bucket's range.
    start: Tick,
    /// For each tick of the range, the index of its last hint; `NIL` if there is none.
    lists: Vec<u32>,
    /// Ticks with hints.
    occupied: Occupied,
    /// Lines of 16 numbers: the index of the last hint in an earlier line of the same tick, or
    /// `NIL`, and then up to 15 hints. So a cache line has 15 hints of one tick.
    hints: Vec<u32>,
    /// The live record with the least tick. `NIL` if there is none.
    front: u32,
    /// The tick of the front record.
    front_tick: Tick,
}

/// Length of a line of hints.
const LINE: u32 = 16;

/// The hints of a line.
type Line = [u32; LINE as usize - 1];

impl Opened {
    pub(super) const fn new() -> Self {
        Self {
            start: Tick::ZERO,
            lists: Vec::new(),
            occupied: Occupied::new(),
            hints: Vec::new(),
            front: NIL,
            front_tick: Tick::ZERO,
        }
    }

    /// Returns the front record and its tick.
    #[inline]
    pub(super) fn front(&self) -> Option<(Tick, u32)> {
        (self.front != NIL).then_some((self.front_tick, self.front))
    }

    /// Returns whether a record is in front.
    #[inline]
    pub(super) const fn is_front(&self, position: u32) -> bool {
        self.front == position
    }

    /// Prepares for the records of a bucket of `size` ticks. Those of an earlier bucket have left.
    pub(super) fn begin(&mut self, start: Tick, size: usize) {
        if self.start != start || self.front == NIL {
            debug_assert_eq!(self.front, NIL, "a record from {} on is left", self.start);
            self.start = start;
            self.hints.clear();
            self.lists.resize(size, NIL);
        }
    }

    /// Adds a hint. Returns `false` if the tick is beyond the range.
    #[expect(clippy::cast_possible_truncation, reason = "4 billion records take 100 GB")]
    pub(super) fn push(&mut self, deadline: Tick, position: u32) -> bool {
        let offset = deadline.saturating_since(self.start);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(last) = self.lists.get_mut(offset) else { return false };
        if last.wrapping_add(1) % LINE == 0 {
            if *last == NIL {
                self.occupied.set(offset);
            }
            let line = self.hints.len() as u32;
            self.hints.resize(self.hints.len() + LINE as usize, NIL);
            self.hints[line as usize] = mem::replace(last, line);
        }
        *last += 1;
        self.hints[*last as usize] = position;
        true
    }

    /// Finds the front record, and removes the hints for dead records before it.
    #[inline(never)]
    pub(super) fn find_front(&mut self, records: &Records) {
        self.front = NIL;
        while let Some(offset) = self.occupied.first() {
            while let Some(&position) = self.hints.get(self.lists[offset] as usize) {
                if records.is_detached(position) {
                    self.front = position;
                    self.front_tick = self.start.saturating_add(offset as u64);
                    return;
                }
                self.lists[offset] = self.before(self.lists[offset]);
            }
            self.occupied.clear(offset);
        }
    }

    /// Frees the memory of hints for dead records.
    pub(super) fn shrink(&mut self, records: &Records) {
        let before = mem::replace(self, Self::new());
        if before.front == NIL {
            return;
        }
        self.begin(before.start, before.lists.len());
        for (tick, position) in before.hints() {
            if records.is_detached(position) {
                self.push(tick, position);
            }
        }
        self.hints.shrink_to_fit();
        self.find_front(records);
    }

    /// Returns the index of the hint before this one in its list, or `NIL`.
    fn before(&self, index: u32) -> u32 {
        if index % LINE == 1 { self.hints[index as usize - 1] } else { index - 1 }
    }

    /// Returns the hints of the front record's line, if the line is full and no hint has left it.
    #[inline]
    pub(super) fn full_line(&self) -> Option<Line> {
        let last = self.lists[self.occupied.first()?] as usize;
        let is_full = last % LINE as usize == LINE as usize - 1;
        is_full.then(|| self.hints[..=last].last_chunk().copied())?
    }

    /// Returns all hints: tick and position.
    pub(super) fn hints(&self) -> impl Iterator<Item = (Tick, u32)> {
        let ticks = (0..).map(|offset| self.start.saturating_add(offset));
        let some = |index: u32| (index != NIL).then_some(index);
        ticks.zip(&self.lists).flat_map(move |(tick, &last)| {
            let list = core::iter::successors(some(last), move |&index| some(self.before(index)));
            list.map(move |index| (tick, self.hints[index as usize]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_full_with_fifteen_hints() {
        let mut opened = Opened::new();
        opened.begin(Tick::ZERO, 4);
        for position in 0..40 {
            assert!(opened.push(Tick::new(1), position));
            let ends = opened.full_line().map(|line| (line[0], line[14]));
            assert_eq!(ends, (position % 15 == 14).then(|| (position - 14, position)));
        }
        // Also where a word has 32 bits.
        assert!([4, 1 << 32].map(Tick::new).iter().all(|&beyond| !opened.push(beyond, 40)));
    }
}
