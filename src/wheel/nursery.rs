//! The nursery: the latest timeouts, which wait outside the levels.
//!
//! Most timeouts of a server that answers at once are cancelled before 60 others have come. Such a
//! timeout never gets to a bucket: its record is in one of the first four chunks, which take turns.
//! When a chunk's turn comes again, the timeouts that are still live are placed in the levels.
//!
//! Where most timeouts survive, the nursery costs time and saves none. So it *closes* if more than
//! half of a chunk survives, and opens again later to try. While it is closed it is empty, and timeouts are
//! placed at once. See `docs/decisions/0020-the-latest-timeouts-wait-in-a-nursery.md`.

use super::chunks::{CHUNK, NURSERY, Position};
use crate::tick::Tick;

/// Survivors of a chunk from which on the nursery closes.
const MOST_SURVIVORS: u32 = CHUNK / 2;

/// Records that are placed the slow way until the nursery opens again; about one of 16 is.
const PAUSE: u32 = 256;

#[derive(Debug)]
pub(super) struct Nursery {
    /// The number of the next free position, which is never the first of a chunk; 0 while the
    /// nursery is closed. A multiple of 16 only until the next chunk is begun, which ends an insert.
    open: u32,
    /// Number of live records.
    len: u32,
    /// Not after any live record's deadline.
    least: Tick,
    /// The number of the live record that is due at `least`, or 0 if it has left.
    witness: u32,
    /// Until the nursery opens.
    pause: u32,
}

impl Nursery {
    /// Makes a closed nursery. It opens with the first timeout of the wheel.
    pub(super) const fn new() -> Self {
        Self { open: 0, len: 0, least: Tick::ZERO, witness: 0, pause: PAUSE }
    }

    /// Returns whether the record is one of the nursery.
    #[inline]
    pub(super) const fn contains(position: Position) -> bool {
        position.number() < NURSERY * CHUNK
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether new timeouts go into the nursery.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.open != 0
    }

    /// Returns whether the next chunk is to be begun.
    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.open % CHUNK == 0
    }

    /// Takes the next free position, of which there is one, for a record that is due at `deadline`.
    #[inline]
    pub(super) fn take(&mut self, deadline: Tick) -> Position {
        debug_assert!(!self.is_full(), "there is no room for a record");
        let position = Position::from_number(self.open);
        self.open += 1;
        if self.len == 0 || deadline < self.least {
            self.least = deadline;
            self.witness = position.number();
        }
        self.len += 1;
        position
    }

    /// Notes that a record has left.
    ///
    /// Has no branch that waits for the position, which may be a cache miss.
    #[inline]
    pub(super) fn depart(&mut self, position: Position) {
        if self.is_open() {
            self.len -= u32::from(Self::contains(position));
            self.witness = if self.witness == position.number() { 0 } else { self.witness };
        }
    }

    /// Notes that a live record has another deadline.
    #[inline]
    pub(super) fn move_to(&mut self, position: Position, deadline: Tick) {
        if deadline < self.least {
            self.least = deadline;
            self.witness = position.number();
        } else if self.witness == position.number() && deadline > self.least {
            self.witness = 0;
        }
    }

    /// A tick that is not after any deadline; `None` if the nursery is empty.
    #[inline]
    pub(super) fn bound(&self) -> Option<Tick> {
        (self.len > 0).then_some(self.least)
    }

    /// Returns whether the bound is the least deadline.
    #[inline]
    pub(super) const fn is_exact(&self) -> bool {
        self.witness != 0 || self.len == 0
    }

    pub(super) fn set_least(&mut self, position: Position, deadline: Tick) {
        debug_assert!(self.bound().is_some_and(|bound| bound <= deadline));
        self.least = deadline;
        self.witness = position.number();
    }

    /// The records of a chunk that have been written, as a mask.
    pub(super) const fn written(&self, chunk: u32) -> u16 {
        if !self.is_full() && self.open / CHUNK == chunk {
            (1 << (self.open % CHUNK)) - 1
        } else {
            u16::MAX
        }
    }

    /// The chunk whose turn comes next.
    pub(super) const fn next_chunk(&self) -> u32 {
        self.open / CHUNK % NURSERY
    }

    /// Has the next chunk take records. Returns the mask of those that it has room for.
    pub(super) fn begin(&mut self) -> u16 {
        self.open = self.next_chunk() * CHUNK + 1;
        u16::MAX << 1
    }

    /// Returns whether so many survivors of a chunk are too many.
    pub(super) const fn is_useless(survivors: u32) -> bool {
        survivors > MOST_SURVIVORS
    }

    /// Closes the nursery, which is empty.
    pub(super) fn close(&mut self) {
        debug_assert_eq!(self.len, 0);
        (self.open, self.pause) = (0, PAUSE);
    }

    /// Notes that a record was placed the slow way. Returns whether the nursery is to open.
    #[inline]
    pub(super) fn count_down(&mut self) -> bool {
        self.pause -= u32::from(!self.is_open());
        self.pause == 0 && !self.is_open()
    }
}
