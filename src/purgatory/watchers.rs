//! The watchers of a list, in the order of registration, many to a cache line.
//!
//! The first watchers of a key are in the entry of the key. Further ones are in *chunks* of a cache
//! line each. So a walk finds the next operations without a look at the present one, and the
//! processor loads several of them at once.
//!
//! A watcher stays at its position, and leaves a hole. A chunk leaves with its last watcher.

use core::num::NonZeroU32;
use std::{boxed::Box, vec::Vec};

use smallvec::SmallVec;

use super::{
    batch::BATCH,
    slab::{Index, Slab},
    table::CAPACITY,
};

/// Number of watchers in the entry of a key. Few in models, so that these have chunks.
pub(super) const FEW: usize = if cfg!(loom) { 1 } else { 3 };

/// Number of watchers in a chunk.
const CHUNK: usize = if cfg!(loom) { 1 } else { 12 };

/// The position of a watcher in a list. `Option<Position>` takes four bytes as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Position(
    /// The number of the position plus one. The number is 4 * key index + slot, or `CHUNKS` + 16 *
    /// chunk index + slot. A slot may be just past the last one.
    NonZeroU32,
);

const CHUNKS: u32 = 1 << 31;

const _: () = assert!(CAPACITY * 4 <= CHUNKS, "each key has a number");

/// The storage of a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Home {
    /// The entry of a key.
    Key(Index),
    Chunk(Index),
}

impl Position {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it is less than four")]
    pub(super) fn in_key(key: Index, slot: usize) -> Self {
        debug_assert!(key.position() < CAPACITY, "the table has a capacity");
        Self(NonZeroU32::MIN.saturating_add(key.position() * 4 + slot as u32))
    }

    #[inline]
    pub(super) fn start_of(chunk: Index) -> Self {
        Self::in_chunk(chunk, 0)
    }

    #[inline]
    fn in_chunk(chunk: Index, slot: u32) -> Self {
        debug_assert!(chunk.position() < CHUNKS / 16, "memory ends before that");
        Self(NonZeroU32::MIN.saturating_add(CHUNKS + chunk.position() * 16 + slot))
    }

    /// Returns the storage and the slot there.
    #[inline]
    pub(super) fn home(self) -> (Home, usize) {
        let number = self.0.get() - 1;
        if number < CHUNKS {
            (Home::Key(Index::at(number / 4)), (number % 4) as usize)
        } else {
            let number = number - CHUNKS;
            (Home::Chunk(Index::at(number / 16)), (number % 16) as usize)
        }
    }

    /// Returns the position after that of a watcher.
    #[inline]
    pub(super) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Operations that a walk found in one hold.
pub(super) type Gathered = SmallVec<[Index; BATCH]>;

/// The next step of a walk.
pub(super) enum Step {
    /// The next watcher is at this position.
    At(Position),
    /// The chunk has no further watcher. The next chunk of its list follows; the first one after
    /// the last.
    After { list: Option<Index>, next: Index },
}

/// The watchers of a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Chunk {
    /// The key; `None` for the list of all operations.
    list: Option<Index>,
    /// The chunk before; that of the first chunk is the last one.
    previous: Index,
    /// The chunk after; that of the last chunk is the first one.
    next: Index,
    /// Number of slots that are or were in use. Further ones follow in order.
    used: u16,
    /// Number of slots in use, at least one.
    live: u16,
    waiters: [Option<Index>; CHUNK],
}

const _: () = assert!(size_of::<Chunk>() == 64, "a cache line");

/// The chunks of all lists of a shard. Each list knows its last one.
#[derive(Debug)]
pub(super) struct Chunks(Slab<Chunk>);

impl Chunks {
    pub(super) const fn new() -> Self {
        Self(Slab::new())
    }

    /// Appends an operation to a list.
    #[inline]
    pub(super) fn append(
        &mut self,
        list: Option<Index>,
        tail: &mut Option<Index>,
        waiter: Index,
    ) -> Position {
        if let Some(index) = *tail {
            let chunk = &mut self.0[index];
            debug_assert_eq!(chunk.list, list, "chunk {index:?} belongs to another list");
            if let Some(slot) = chunk.waiters.get_mut(usize::from(chunk.used)) {
                *slot = Some(waiter);
                chunk.used += 1;
                chunk.live += 1;
                return Position::in_chunk(index, u32::from(chunk.used) - 1);
            }
        }
        self.add(list, tail, waiter)
    }

    /// Adds a chunk with one watcher.
    #[cold]
    fn add(&mut self, list: Option<Index>, tail: &mut Option<Index>, waiter: Index) -> Position {
        let index = self.0.next_index();
        assert!(index.position() < CHUNKS / 16, "a shard has too many watchers");
        let previous = tail.replace(index).unwrap_or(index);
        let next = if previous == index { index } else { self.0[previous].next };
        let mut waiters = [None; CHUNK];
        waiters[0] = Some(waiter);
        self.0.insert(Chunk { list, previous, next, used: 1, live: 1, waiters });
        self.0[previous].next = index;
        self.0[next].previous = index;
        Position::start_of(index)
    }

    /// Removes a watcher. Returns its list, and whether the chunk is now empty. Then the caller
    /// must [remove](Self::remove_chunk) the chunk.
    #[inline]
    pub(super) fn remove(
        &mut self,
        chunk: Index,
        slot: usize,
        waiter: Index,
    ) -> (Option<Index>, bool) {
        let chunk = &mut self.0[chunk];
        let removed = chunk.waiters[slot].take();
        debug_assert_eq!(removed, Some(waiter), "another watcher is in slot {slot}");
        chunk.live -= 1;
        (chunk.list, chunk.live == 0)
    }

    /// Removes an empty chunk from a list. Returns the chunk after it.
    pub(super) fn remove_chunk(&mut self, index: Index, tail: &mut Option<Index>) -> Option<Index> {
        let Chunk { previous, next, live, .. } = self.0.remove(index);
        debug_assert_eq!(live, 0, "a removed chunk has watchers");
        let is_last = *tail == Some(index);
        if next == index {
            *tail = None;
            return None;
        }
        self.0[previous].next = next;
        self.0[next].previous = previous;
        if is_last {
            *tail = Some(previous);
        }
        (!is_last).then_some(next)
    }

    /// Returns the list of a chunk.
    pub(super) fn list(&self, chunk: Index) -> Option<Index> {
        self.0[chunk].list
    }

    /// Returns the operation at a slot, unless the slot is a hole.
    pub(super) fn at(&self, chunk: Index, slot: usize) -> Option<Index> {
        self.0.get(chunk)?.waiters[slot]
    }

    /// Returns whether there is a chunk with this index.
    pub(super) fn has(&self, chunk: Index) -> bool {
        self.0.get(chunk).is_some()
    }

    /// Returns the first chunk of a list.
    #[inline]
    pub(super) fn first(&self, tail: Option<Index>) -> Option<Index> {
        tail.map(|tail| self.0[tail].next)
    }

    /// Appends the operations of a chunk from a slot on to `waiters`, up to `len` in all. Returns
    /// the next step of the walk.
    #[inline]
    pub(super) fn gather(
        &self,
        index: Index,
        start: usize,
        len: usize,
        waiters: &mut Gathered,
    ) -> Step {
        let chunk = &self.0[index];
        for (slot, waiter) in (0..).zip(&chunk.waiters).skip(start) {
            let Some(waiter) = *waiter else { continue };
            if waiters.len() == len {
                return Step::At(Position::in_chunk(index, slot));
            }
            waiters.push(waiter);
        }
        Step::After { list: chunk.list, next: chunk.next }
    }

    /// Frees the memory of removed chunks. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.0.shrink();
    }

    /// Returns the number of chunks of all lists. *O*(capacity).
    pub(super) fn count(&self) -> usize {
        self.0.count()
    }

    /// Checks the chunks of a list. Returns the numbers of its chunks and its watchers there.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(
        &self,
        list: Option<Index>,
        tail: Option<Index>,
    ) -> (usize, u64) {
        let (mut chunks, mut watchers, mut next) = (0, 0, self.first(tail));
        while let Some(index) = next {
            let chunk = &self.0[index];
            assert_eq!(chunk.list, list, "chunk {index:?} belongs to another list");
            assert_eq!(
                self.0[chunk.next].previous, index,
                "the chunk after {index:?} has another one before it"
            );
            let live = chunk.waiters.iter().flatten().count();
            assert!(
                live > 0 && live == usize::from(chunk.live),
                "chunk {index:?} has {live} watchers, and counts {}",
                chunk.live
            );
            let unused = &chunk.waiters[usize::from(chunk.used)..];
            assert!(
                unused.iter().all(Option::is_none),
                "chunk {index:?} uses a slot after its last"
            );
            (chunks, watchers) = (chunks + 1, watchers + live as u64);
            next = (Some(index) != tail).then_some(chunk.next);
        }
        (chunks, watchers)
    }
}

/// The positions of an operation on the lists that it is on.
#[derive(Debug)]
pub(super) struct Positions {
    few: [Option<Position>; 4],
    #[expect(clippy::box_collection, reason = "most operations have none, and a word is a third")]
    further: Option<Box<Vec<Position>>>,
}

impl Positions {
    pub(super) const EMPTY: Self = Self { few: [None; 4], further: None };

    #[inline]
    pub(super) fn push(&mut self, position: Position) {
        match self.few.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(position),
            None => self.further.get_or_insert_default().push(position),
        }
    }

    /// Adds the first positions.
    #[inline]
    pub(super) fn fill(&mut self, positions: impl Iterator<Item = Position>) {
        debug_assert!(self.is_empty(), "an operation is registered once");
        for (number, position) in positions.enumerate() {
            match self.few.get_mut(number) {
                Some(slot) => *slot = Some(position),
                None => self.further.get_or_insert_default().push(position),
            }
        }
    }

    /// Removes the first positions, and calls a function with each, in the order in which they were
    /// added. Returns the further ones.
    #[inline]
    pub(super) fn take(&mut self, mut visit: impl FnMut(Position)) -> Option<Vec<Position>> {
        for slot in &mut self.few {
            visit(slot.take()?);
        }
        Some(*self.further.take()?)
    }

    /// Returns the positions, in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = Position> {
        self.first().chain(self.further.iter().flat_map(|further| further.iter().copied()))
    }

    /// Returns the first positions.
    #[inline]
    pub(super) fn first(&self) -> impl Iterator<Item = Position> {
        self.few.iter().map_while(|position| *position)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.few[0].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the operations of a list, by steps of a walk.
    fn walk(chunks: &Chunks, last: Option<Index>) -> Gathered {
        let mut waiters = Gathered::new();
        let mut position = chunks.first(last).map(Position::start_of);
        while let Some(here) = position {
            let (Home::Chunk(chunk), slot) = here.home() else { unreachable!("it has no key") };
            position = match chunks.gather(chunk, slot, waiters.len() + 1, &mut waiters) {
                Step::At(next) => Some(next),
                Step::After { next, .. } => (Some(chunk) != last).then(|| Position::start_of(next)),
            };
        }
        waiters
    }

    #[test]
    fn chunks_keep_the_order_of_registration_and_leave_with_their_last_watcher() {
        let (mut chunks, mut last) = (Chunks::new(), None);
        let mut present = Vec::new();
        let mut random = fastrand::Rng::with_seed(5);
        for number in 0..20_000_u32 {
            let waiter = Index::at(number);
            if present.is_empty() || random.usize(..60) > present.len() {
                present.push((waiter, chunks.append(None, &mut last, waiter)));
            } else {
                let (waiter, position) = present.remove(random.usize(..present.len()));
                let (Home::Chunk(chunk), slot) = position.home() else { unreachable!("no key") };
                assert_eq!(chunks.at(chunk, slot), Some(waiter));
                if chunks.remove(chunk, slot, waiter) == (None, true) {
                    chunks.remove_chunk(chunk, &mut last);
                }
            }
            let chunk_count = chunks.count();
            assert_eq!(chunks.check_invariants(None, last), (chunk_count, present.len() as u64));
            assert!(present.iter().map(|(waiter, _)| *waiter).eq(walk(&chunks, last)));
        }
    }

    #[test]
    fn an_operation_has_its_positions_however_many() {
        let mut positions = Positions::EMPTY;
        let added = |number| Position::in_key(Index::at(number), 2);
        for count in 0..10 {
            assert!(positions.iter().eq((0..count).map(added)));
            assert_eq!(positions.is_empty(), count == 0);
            positions.push(added(count));
        }
        assert_eq!(added(7).home(), (Home::Key(Index::at(7)), 2));
    }
}
