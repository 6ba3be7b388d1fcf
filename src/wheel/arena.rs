//! The arena: one slot for each timeout. A timeout keeps its slot until it ends.
//!
//! A [`Key`] is a slot's index and the generation of its occupant. Removing a timeout starts the
//! next generation. So a lookup with a dead key returns `None`, even if another timeout uses the
//! slot now. A slot that has used up its generations is retired.

use core::{
    fmt, mem,
    num::{NonZeroU32, NonZeroU64},
};

use super::chunks::Position;
use crate::segments::Segments;

/// Key of one timeout in one wheel.
///
/// A key is valid from `insert` until its timeout expires, is cancelled or is drained. After that
/// it is dead: every method treats it as unknown, and the wheel does not use it for another
/// timeout. It is eight bytes long, and so is `Option<Key>`.
///
/// Do not pass a key to another wheel: there it may refer to an unrelated timeout. The wheel does
/// not detect this, and does not panic.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel};
///
/// let mut wheel = TimingWheel::new(Tick::ZERO);
/// let first = wheel.insert(Tick::new(5), "first")?;
/// assert_eq!(wheel.cancel(first), Some("first"));
///
/// let second = wheel.insert(Tick::new(5), "second")?;
/// assert_eq!(wheel.cancel(first), None);
/// assert_eq!(wheel.get(second), Some(&"second"));
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(
    /// The generation in the upper half and the index in the lower half of one word. Two separate
    /// stores, followed by one load of both, would stall the processor.
    NonZeroU64,
);

impl Key {
    #[inline]
    pub(crate) fn new(index: u32, generation: NonZeroU32) -> Self {
        let word = u64::from(generation.get()) << 32 | u64::from(index);
        Self(NonZeroU64::new(word).expect("a generation is not 0"))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the index is the lower half")]
    pub(crate) const fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}.{})", self.index(), self.generation())
    }
}

#[derive(Debug)]
enum Slot<T> {
    /// Holds a timeout, whose record is at `position`.
    Pending { value: T, generation: NonZeroU32, position: Position },
    /// Vacant. `next` is the next slot in the list of vacant slots. A retired slot has no
    /// generation and is in no list.
    Vacant { generation: Option<NonZeroU32>, next: u32 },
}

// A position is never 0, so the compiler uses 0 to mark a vacant slot. A slot takes 8 bytes plus
// the value.
const _: () = assert!(size_of::<Slot<u64>>() == 16);
const _: () = assert!(size_of::<Option<Key>>() == 8);

/// The end of the list of vacant slots.
const END: u32 = u32::MAX;

/// Slots that are allocated at a time: 16 KiB if a value takes 8 bytes.
const SEGMENT: usize = 1024;

/// The slots of a wheel.
#[derive(Debug)]
pub(super) struct Arena<T> {
    slots: Segments<Slot<T>, SEGMENT>,
    /// Head of the list of vacant slots, or `END`.
    vacant: u32,
    /// Number of timeouts.
    len: u32,
    /// The most timeouts it may hold.
    max_pending: u32,
    /// First generation of a new slot. It is not less than the next generation of any released
    /// slot.
    first_generation: NonZeroU32,
}

/// A vacant slot of an arena.
pub(super) struct Vacancy<'a, T> {
    slot: &'a mut Slot<T>,
    generation: NonZeroU32,
    /// The next slot in the list of vacant slots.
    next: u32,
    pub(super) index: u32,
    vacant: &'a mut u32,
    len: &'a mut u32,
}

impl<T> Vacancy<'_, T> {
    /// Adds a timeout whose record is at `position`.
    #[expect(clippy::inline_always, reason = "a call costs 30 of 130 instructions")]
    #[inline(always)]
    pub(super) fn fill(self, value: T, position: Position) -> Key {
        *self.slot = Slot::Pending { value, generation: self.generation, position };
        *self.vacant = self.next;
        *self.len += 1;
        Key::new(self.index, self.generation)
    }
}

impl<T> Arena<T> {
    pub(super) const fn new(max_pending: u32) -> Self {
        let first_generation = NonZeroU32::MIN;
        Self { slots: Segments::new(), vacant: END, len: 0, max_pending, first_generation }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether a vacant slot exists and the limit allows another timeout.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.vacant != END && self.len < self.max_pending
    }

    /// Allocates slots if none is vacant. Returns `false` if the arena is full. *O*(1), amortized.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        self.len < self.max_pending && (self.vacant != END || self.grow())
    }

    /// Returns a vacant slot for a timeout; one must exist. The caller [fills](Vacancy::fill) it.
    #[expect(clippy::inline_always, reason = "a call costs 30 of 130 instructions")]
    #[inline(always)]
    pub(super) fn vacancy(&mut self) -> Vacancy<'_, T> {
        debug_assert!(self.has_room(), "{} of {} are pending", self.len, self.max_pending);
        let index = self.vacant;
        let slot = self.slots.at_mut(index);
        let &mut Slot::Vacant { generation: Some(generation), next } = slot else {
            unreachable!("only vacant slots are listed")
        };
        Vacancy { slot, generation, next, index, vacant: &mut self.vacant, len: &mut self.len }
    }

    /// Adds a segment of vacant slots, unless every index is in use.
    fn grow(&mut self) -> bool {
        let generation = Some(self.first_generation);
        let added = self.slots.grow(|index| Slot::Vacant { generation, next: index + 1 });
        let Some(added) = added else { return false };
        if let Some(Slot::Vacant { next, .. }) = self.slots.get_mut(added.end - 1) {
            *next = mem::replace(&mut self.vacant, added.start);
        }
        true
    }

    /// Removes the timeout of a key. Returns its value and its record's position, or `None` if the
    /// key is dead.
    ///
    /// The next generation is computed from the key, not from the slot. The load of the slot may be
    /// a cache miss, and the key is available at once. So the next access to the slot need not wait
    /// for that load.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<(T, Position)> {
        let slot = self.slots.get_mut(key.index())?;
        let &mut Slot::Pending { generation, position, .. } = slot else { return None };
        if generation.get() != key.generation() {
            return None;
        }
        let generation = NonZeroU32::new(key.generation())?;
        debug_assert!(self.len > 0, "{key:?} is pending, but no timeout is");
        let value = vacate(slot, key.index(), generation, &mut self.vacant);
        self.len -= 1;
        Some((value, position))
    }

    /// Removes the timeout in a slot, of any generation. Returns its key and its value.
    #[inline]
    pub(super) fn remove_at(&mut self, index: u32) -> Option<(Key, T)> {
        let slot = self.slots.get_mut(index)?;
        let &mut Slot::Pending { generation, .. } = slot else { return None };
        let value = vacate(slot, index, generation, &mut self.vacant);
        self.len -= 1;
        Some((Key::new(index, generation), value))
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.index())? {
            Slot::Pending { value, generation, .. } if generation.get() == key.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index())? {
            Slot::Pending { value, generation, .. } if generation.get() == key.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    /// Returns the position of a timeout's record, or `None` if the key is dead.
    #[inline]
    pub(super) fn position(&self, key: Key) -> Option<Position> {
        match *self.slots.get(key.index())? {
            Slot::Pending { generation, position, .. } if generation.get() == key.generation() => {
                Some(position)
            }
            _ => None,
        }
    }

    /// Returns the key of the timeout in a slot, and the position of its record.
    pub(super) fn at(&self, index: u32) -> Option<(Key, Position)> {
        match *self.slots.get(index)? {
            Slot::Pending { generation, position, .. } => {
                Some((Key::new(index, generation), position))
            }
            Slot::Vacant { .. } => None,
        }
    }

    /// Sets the position of the record of the timeout in a slot.
    #[inline]
    pub(super) fn set_position(&mut self, index: u32, moved: Position) {
        match self.slots.at_mut(index) {
            Slot::Pending { position, .. } => *position = moved,
            Slot::Vacant { .. } => debug_assert!(false, "slot {index} has a record but is vacant"),
        }
    }

    /// Reads some slots, so that their cache misses overlap.
    #[inline]
    pub(super) fn prefetch(&self, indices: impl Iterator<Item = u32>) {
        let read = |index: u32| match self.slots.get(index) {
            Some(Slot::Pending { generation, .. }) => generation.get(),
            _ => 0,
        };
        core::hint::black_box(indices.map(read).fold(0, u32::wrapping_add));
    }

    /// Returns the slots and positions of all timeouts, in slot order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Position)> {
        self.slots.iter().filter_map(|(index, slot)| match slot {
            Slot::Pending { position, .. } => Some((index, *position)),
            Slot::Vacant { .. } => None,
        })
    }

    /// Returns the number of slots, with or without a timeout.
    #[cfg(feature = "future")]
    pub(super) fn slots(&self) -> u32 {
        self.slots.end()
    }

    /// Returns the first timeout at or after a slot. *O*(number of skipped vacant slots).
    pub(super) fn next_from(&self, index: u32) -> Option<Key> {
        (index..self.slots.end()).find_map(|index| self.at(index).map(|(key, _)| key))
    }

    /// Frees the segments that hold no timeout. *O*(slots).
    ///
    /// New slots start with the highest generation of the freed ones, so dead keys stay dead. A
    /// segment stays if it has used more than half of all generations, or if it has a retired slot.
    pub(super) fn shrink(&mut self) {
        let mut first_generation = self.first_generation;
        self.slots.release(|slots| {
            let mut newest = NonZeroU32::MIN;
            for slot in slots {
                match slot {
                    Slot::Vacant { generation: Some(next), .. } => newest = newest.max(*next),
                    _ => return false,
                }
            }
            let is_released = newest.get() <= u32::MAX / 2;
            if is_released {
                first_generation = first_generation.max(newest);
            }
            is_released
        });
        self.first_generation = first_generation;
        self.relink_vacant();
    }

    /// Returns an arena without slots, in which the keys of this one are dead. `newest` is the
    /// highest generation that they had. Returns `None` if a timeout is pending, or if that is more
    /// than half of all generations.
    #[cfg(feature = "std")]
    pub(super) fn without_slots(&self, newest: u32) -> Option<Self> {
        let first_generation = self.first_generation.max(NonZeroU32::MIN.saturating_add(newest));
        if self.len > 0 || first_generation.get() > u32::MAX / 2 {
            return None;
        }
        let is_older = |slot: &Slot<T>| match slot {
            Slot::Vacant { generation: Some(next), .. } => *next <= first_generation,
            _ => false,
        };
        debug_assert!(
            self.slots.iter().all(|(_, slot)| is_older(slot)),
            "a key had a generation above {newest}"
        );
        Some(Self { first_generation, ..Self::new(self.max_pending) })
    }

    /// Rebuilds the list of vacant slots, lowest index first.
    fn relink_vacant(&mut self) {
        self.vacant = END;
        for index in (0..self.slots.end()).rev() {
            if let Some(Slot::Vacant { generation: Some(_), next }) = self.slots.get_mut(index) {
                *next = mem::replace(&mut self.vacant, index);
            }
        }
    }

    /// Panics unless every slot is pending, listed as vacant or retired. *O*(slots).
    pub(super) fn check_invariants(&self) {
        let mut listed = 0;
        let mut index = self.vacant;
        while let Some(slot) = self.slots.get(index) {
            let Slot::Vacant { next, .. } = slot else {
                panic!("slot {index} is pending but listed as vacant")
            };
            listed += 1;
            index = *next;
        }
        assert_eq!(index, END, "the list of vacant slots leads out of the arena");
        let vacant = |(_, slot): &(_, &_)| matches!(slot, Slot::Vacant { generation: Some(_), .. });
        assert_eq!(self.slots.iter().filter(vacant).count(), listed, "vacant slots are not listed");
        assert_eq!(self.iter().count(), self.len(), "another number of slots is pending");
    }
}

/// Takes the value out of a slot. Adds the slot to the vacant list, or retires it after its last
/// generation.
#[inline]
fn vacate<T>(slot: &mut Slot<T>, index: u32, generation: NonZeroU32, vacant: &mut u32) -> T {
    let following = generation.checked_add(1);
    let next = if following.is_some() { mem::replace(vacant, index) } else { END };
    match mem::replace(slot, Slot::Vacant { generation: following, next }) {
        Slot::Pending { value, .. } => value,
        Slot::Vacant { .. } => unreachable!("the slot was seen to be pending"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(arena: &mut Arena<u64>, value: u64) -> Key {
        assert!(arena.make_room());
        arena.vacancy().fill(value, Position::new(1, 0))
    }

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut arena = Arena::new(u32::MAX);
        arena.first_generation = NonZeroU32::MAX;
        let last = insert(&mut arena, 1);
        assert_eq!(last.generation(), u32::MAX);
        assert_eq!(arena.remove(last).map(|(value, _)| value), Some(1));
        arena.first_generation = NonZeroU32::MIN;
        let next = insert(&mut arena, 2);
        assert_ne!(next.index(), last.index());
        assert!(arena.get(last).is_none());
        arena.remove(next);
        arena.shrink();
        arena.check_invariants();
        assert_ne!(insert(&mut arena, 3).index(), last.index(), "a retired slot stays retired");
    }

    #[test]
    fn keys_stay_dead_across_shrink() {
        let mut arena = Arena::new(u32::MAX);
        let mut dead = std::vec::Vec::new();
        for round in 0..5 {
            let keys: std::vec::Vec<_> = (0..10_000).map(|i| insert(&mut arena, i)).collect();
            let kept = keys[7000 - round];
            for &key in keys.iter().filter(|&&key| key != kept) {
                arena.remove(key);
            }
            arena.shrink();
            arena.check_invariants();
            assert!(arena.get(kept).is_some());
            dead.extend(keys.into_iter().filter(|&key| key != kept));
        }
        for _ in 0..20_000 {
            insert(&mut arena, 0);
        }
        arena.check_invariants();
        assert!(dead.iter().all(|&key| arena.get(key).is_none()));
    }

    #[test]
    fn shrink_frees_segments_without_a_timeout() {
        let mut arena = Arena::new(u32::MAX);
        let keys: std::vec::Vec<_> = (0..10_000).map(|i| insert(&mut arena, i)).collect();
        for key in keys {
            arena.remove(key);
        }
        arena.shrink();
        assert_eq!(arena.slots.end(), 0);
    }
}
