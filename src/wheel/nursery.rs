//! The nursery: the latest timeouts, which are not in a level yet.
//!
//! A server that answers fast cancels most timeouts before it inserts 60 others. Such a timeout
//! never gets to a bucket. Its record is in one of the first four chunks, which the wheel fills in
//! turn. Before the wheel fills a chunk again, it places the timeouts that are still live in the
//! levels.
//!
//! Where most timeouts survive, the nursery costs time and saves none. So it *closes* if more than
//! half of a chunk survives, and opens again later to try. While it is closed it is empty, and new
//! timeouts go into the levels at once. See
//! `docs/decisions/0020-the-latest-timeouts-wait-in-a-nursery.md`.

use super::{
    Key, TimingWheel,
    chunks::{CHUNK, NURSERY, Position, bits},
};
use crate::tick::Tick;

/// The nursery closes if more timeouts than this survive in a chunk.
const MOST_SURVIVORS: u32 = CHUNK / 2;

/// The nursery opens again after this many slow placements. About one placement in 16 is slow.
const PAUSE: u32 = 256;

#[derive(Debug)]
pub(super) struct Nursery {
    /// Number of the next free position, or 0 while the nursery is closed. The first position of a
    /// chunk is not used. So a multiple of 16 means that the chunk is full; the insert then begins
    /// the next chunk before it returns.
    next_free: u32,
    /// Number of live records.
    len: u32,
    /// Not after any live record's deadline.
    least: Tick,
    /// The number of the live record that is due at `least`, or 0 if it was removed.
    witness: u32,
    /// Slow placements until the nursery opens.
    pause: u32,
}

impl Nursery {
    /// Makes a closed nursery. It opens with the first timeout of the wheel.
    pub(super) const fn new() -> Self {
        Self { next_free: 0, len: 0, least: Tick::ZERO, witness: 0, pause: PAUSE }
    }

    /// Returns whether a record is in the nursery.
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
        self.next_free != 0
    }

    /// Returns whether the chunk is full and the next one must begin.
    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.next_free % CHUNK == 0
    }

    /// Reserves the next free position for a record with this deadline. The nursery must not be
    /// full.
    #[inline]
    pub(super) fn reserve(&mut self, deadline: Tick) -> Position {
        debug_assert!(!self.is_full(), "the chunk before position {} is full", self.next_free);
        let position = Position::from_number(self.next_free);
        self.next_free += 1;
        if self.len == 0 || deadline < self.least {
            self.least = deadline;
            self.witness = position.number();
        }
        self.len += 1;
        position
    }

    /// Updates the count and the witness after a record of any chunk was removed.
    ///
    /// Has no branch that waits for the position, which may be a cache miss.
    #[inline]
    pub(super) fn forget(&mut self, position: Position) {
        if self.is_open() {
            debug_assert!(self.len > 0 || !Self::contains(position), "{position:?} is not counted");
            self.len -= u32::from(Self::contains(position));
            self.witness = if self.witness == position.number() { 0 } else { self.witness };
        }
    }

    /// Updates the bound after a live record got another deadline.
    #[inline]
    pub(super) fn move_to(&mut self, position: Position, deadline: Tick) {
        if deadline < self.least {
            self.least = deadline;
            self.witness = position.number();
        } else if self.witness == position.number() && deadline > self.least {
            self.witness = 0;
        }
    }

    /// Returns a tick that is not after any deadline, or `None` if the nursery is empty.
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
        debug_assert!(self.len > 0 && self.least <= deadline, "{deadline} is before the bound");
        self.least = deadline;
        self.witness = position.number();
    }

    /// Returns the mask of the written records of a chunk.
    pub(super) const fn written(&self, chunk: u32) -> u16 {
        if !self.is_full() && self.next_free / CHUNK == chunk {
            (1 << (self.next_free % CHUNK)) - 1
        } else {
            u16::MAX
        }
    }

    /// Returns the chunk to fill next.
    pub(super) const fn next_chunk(&self) -> u32 {
        self.next_free / CHUNK % NURSERY
    }

    /// Begins to fill the next chunk. Returns the mask of its usable positions.
    pub(super) fn begin(&mut self) -> u16 {
        self.next_free = self.next_chunk() * CHUNK + 1;
        u16::MAX << 1
    }

    /// Returns whether this number of survivors of a chunk is so high that the nursery saves no
    /// time.
    pub(super) const fn is_useless(survivors: u32) -> bool {
        survivors > MOST_SURVIVORS
    }

    /// Closes the nursery, which must be empty.
    pub(super) fn close(&mut self) {
        debug_assert_eq!(self.len, 0, "a nursery that closes is empty");
        (self.next_free, self.pause) = (0, PAUSE);
    }

    /// Counts a slow placement. Returns whether the nursery is to open.
    #[inline]
    pub(super) fn count_down(&mut self) -> bool {
        self.pause -= u32::from(!self.is_open());
        self.pause == 0 && !self.is_open()
    }
}

impl<T> TimingWheel<T> {
    /// Allocates room for another timeout if none is left. Returns `false` if the wheel is full.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let has_room = self.arena.make_room();
        if has_room && self.hierarchy.chunks.is_empty() {
            self.hierarchy.open_nursery();
        }
        has_room
    }

    /// Adds a timeout to the nursery, which must be open. The arena must have a vacant slot.
    ///
    /// Not inlined: with it, `insert` would be too long to be inlined into its callers.
    #[inline(never)]
    pub(super) fn insert_into_nursery(&mut self, deadline: Tick, value: T) -> Key {
        let Self { arena, hierarchy } = self;
        let vacancy = arena.vacancy();
        let position = hierarchy.nursery.reserve(deadline);
        hierarchy.chunks.write(position, deadline, vacancy.index);
        let key = vacancy.fill(value, position);
        if hierarchy.nursery.is_full() {
            self.rotate_nursery();
        }
        key
    }

    /// Places the oldest chunk of the nursery in the levels. Closes the nursery if too many of its
    /// timeouts survived.
    #[inline(never)]
    fn rotate_nursery(&mut self) {
        self.hierarchy.clear_cancelled();
        debug_assert!(self.hierarchy.nursery.is_full(), "the chunk has room");
        let survivors = self.place_chunk_of_nursery(self.hierarchy.nursery.next_chunk());
        if Nursery::is_useless(survivors) {
            self.place_nursery();
            self.hierarchy.nursery.close();
        } else {
            self.hierarchy.begin_chunk_of_nursery();
        }
    }

    /// Places all timeouts of the nursery in the levels.
    #[inline(never)]
    pub(super) fn place_nursery(&mut self) {
        self.hierarchy.clear_cancelled();
        let next = self.hierarchy.next_expiration().unwrap_or(Tick::ZERO);
        self.hierarchy.expired_to = self.hierarchy.expired_to.max(next.min(self.hierarchy.now));
        for chunk in 0..NURSERY {
            self.place_chunk_of_nursery(chunk);
        }
    }

    /// Places the timeouts of a chunk of the nursery in the levels. Returns their number.
    fn place_chunk_of_nursery(&mut self, chunk: u32) -> u32 {
        let Self { arena, hierarchy } = self;
        if hierarchy.nursery.len() == 0 {
            return 0;
        }
        let written = hierarchy.nursery.written(chunk);
        let live = hierarchy.chunks.mask(chunk) & written;
        for offset in bits(live) {
            let position = Position::new(chunk, offset);
            let record = hierarchy.chunks.record(position);
            let moved = hierarchy.place_again(record.deadline(), record.slot);
            arena.set_position(record.slot, moved);
            hierarchy.nursery.forget(position);
        }
        hierarchy.chunks.set_mask(chunk, !written);
        live.count_ones()
    }
}
