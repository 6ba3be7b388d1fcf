//! Cursors: positions in lists of watchers that stay valid when watchers leave.
//!
//! A walk releases the lock from time to time, and the chunk of its position may leave meanwhile.
//! Then the cursor moves on to the next chunk.

use std::collections::{HashMap, hash_map::Entry};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::{
    slab::{Index, Slab},
    watchers::{Home, Position},
};

/// A position in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(Index);

/// The cursors of a shard.
pub(super) struct Cursors {
    /// The position of each cursor; `None` at the end.
    positions: Slab<Option<Position>>,
    /// The cursors in each key or chunk that has one.
    marks: HashMap<Home, SmallVec<[Index; 2]>, FixedState>,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Self { positions: Slab::new(), marks: HashMap::default() }
    }

    /// Adds a cursor at a position. The caller must [close](Self::close) it.
    pub(super) fn open(&mut self, position: Position) -> Cursor {
        let (cursor, _) = self.positions.insert(Some(position));
        self.marks.entry(position.home().0).or_default().push(cursor);
        Cursor(cursor)
    }

    /// Removes a cursor, and returns its position.
    pub(super) fn close(&mut self, Cursor(cursor): Cursor) -> Option<Position> {
        let position = self.positions.remove(cursor)?;
        let Entry::Occupied(mut marks) = self.marks.entry(position.home().0) else {
            unreachable!("a cursor marks its key or chunk")
        };
        marks.get_mut().retain(|other| *other != cursor);
        if marks.get().is_empty() {
            marks.remove();
        }
        Some(position)
    }

    /// Moves the cursors in a key or chunk that leaves.
    #[inline]
    pub(super) fn move_from(&mut self, from: Home, to: Option<Position>) {
        if !self.marks.is_empty() {
            self.move_marks(from, to);
        }
    }

    #[cold]
    fn move_marks(&mut self, from: Home, to: Option<Position>) {
        let Some(cursors) = self.marks.remove(&from) else { return };
        for &cursor in &cursors {
            debug_assert!(
                self.is_in(cursor, from),
                "cursor {cursor:?} is not at its mark {from:?}"
            );
            self.positions[cursor] = to;
        }
        if let Some(to) = to {
            self.marks.entry(to.home().0).or_default().extend(cursors);
        }
    }

    fn is_in(&self, cursor: Index, home: Home) -> bool {
        self.positions[cursor].is_some_and(|position| position.home().0 == home)
    }

    /// Frees the memory of closed cursors.
    pub(super) fn shrink(&mut self) {
        self.positions.shrink();
        self.marks.shrink_to_fit();
    }

    /// Checks that cursors and marks agree, and that `exists` holds for each key and chunk.
    ///
    /// # Panics
    ///
    /// Panics if they do not.
    pub(super) fn check_invariants(&self, exists: impl Fn(Home) -> bool) {
        for (&home, cursors) in &self.marks {
            assert!(exists(home), "cursors mark {home:?}, which has left");
            assert!(!cursors.is_empty(), "the mark {home:?} has no cursor");
            for &cursor in cursors {
                assert!(self.is_in(cursor, home), "cursor {cursor:?} is not at its mark {home:?}");
            }
        }
        let marked = self.marks.values().map(SmallVec::len).sum::<usize>();
        assert!(marked <= self.positions.count(), "{marked} marks are of closed cursors");
    }
}
