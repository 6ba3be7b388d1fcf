//! The opened bucket: the crowded bucket of level 1 that is due, its records listed by tick.
//!
//! To move each record to level 0 would access its slot once more. Instead the chunks leave the
//! bucket, and the position of each record goes into the list of its tick. A list entry is a hint:
//! its record may have died since, and the wheel removes the hint when it gets there. So a cancel
//! costs nothing here, unless the record was in *front*.

use alloc::vec::Vec;

use super::{
    occupied::Occupied,
    records::{CHUNK, NIL, Records},
};
use crate::tick::{Tick, TickSpan};

/// Positions of records by tick.
#[derive(Debug)]
pub(super) struct Opened {
    /// First tick of the bucket's range.
    start: Tick,
    /// For each tick of the range, the first hint of its list; `NIL` if there is none.
    lists: Vec<u32>,
    /// Ticks with hints.
    occupied: Occupied,
    hints: Vec<Hint>,
    /// The live record with the least tick. `NIL` if there is none.
    front: u32,
    /// Its tick.
    front_tick: Tick,
}

#[derive(Debug, Clone, Copy)]
struct Hint {
    position: u32,
    /// The next hint of the same tick, or `NIL`.
    next: u32,
}

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

    /// Prepares for the records of a bucket of `size` ticks. Those of the bucket before have left.
    pub(super) fn begin(&mut self, start: Tick, size: usize) {
        if self.start != start || self.front == NIL {
            debug_assert_eq!(self.front, NIL, "a record from {} on is left", self.start);
            self.start = start;
            self.hints.clear();
            self.lists.resize(size, NIL);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a bucket has fewer records than slots")]
    pub(super) fn push(&mut self, deadline: Tick, position: u32) {
        let offset = deadline.saturating_since(self.start).get() as usize;
        self.occupied.set(offset);
        let next = core::mem::replace(&mut self.lists[offset], self.hints.len() as u32);
        self.hints.push(Hint { position, next });
    }

    /// Finds the front record, past hints for dead ones.
    pub(super) fn find_front(&mut self, records: &Records) {
        self.front = NIL;
        while let Some(offset) = self.occupied.first() {
            while let Some(&Hint { position, next }) = self.hints.get(self.lists[offset] as usize) {
                // The chunk may have been freed and be of a bucket now.
                if records.is_live(position) && records.is_detached(position / CHUNK) {
                    self.front = position;
                    self.front_tick = self.start.saturating_add(TickSpan::new(offset as u64));
                    return;
                }
                self.lists[offset] = next;
            }
            self.occupied.clear(offset);
        }
    }

    /// Returns all hints: tick and position.
    pub(super) fn hints(&self) -> impl Iterator<Item = (Tick, u32)> {
        let ticks = (0..).map(|offset| self.start.saturating_add(TickSpan::new(offset)));
        let hint = |&at: &u32| self.hints.get(at as usize);
        ticks.zip(&self.lists).flat_map(move |(tick, first)| {
            let list = core::iter::successors(hint(first), move |last| hint(&last.next));
            list.map(move |hint| (tick, hint.position))
        })
    }
}
