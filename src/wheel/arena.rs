//! Where timeouts live: a slot each, reused under a new generation, never moved.
//!
//! A [`Key`] is a slot's index and the generation of its occupant. Taking a timeout out starts the
//! next generation, so a dead key finds nothing, whoever lives in the slot by then. A slot whose
//! generations are used up is retired instead of starting again from the first.

use core::{
    fmt, mem,
    num::{NonZeroU32, NonZeroU64},
};

use super::geometry::Place;
use crate::{Tick, segments::Segments};

/// The name of one timeout in one wheel.
///
/// A key answers for its timeout from `insert` until that expires, is cancelled or is drained.
/// After that it is dead for ever: every operation takes it for unknown, and no later timeout
/// answers to it. It is eight bytes long, and so is `Option<Key>`.
///
/// A key means something only to the wheel that made it. Another wheel does not know whose a key
/// is: to it the key names either nothing or some timeout of its own. That is never a panic, but it
/// is a mistake.
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
    /// The generation above the index, in one word: two halves that are stored apart and read
    /// together would stall.
    NonZeroU64,
);

impl Key {
    #[inline]
    pub(super) fn new(index: u32, generation: NonZeroU32) -> Self {
        let word = u64::from(generation.get()) << 32 | u64::from(index);
        Self(NonZeroU64::new(word).expect("a generation is not 0"))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the index is the lower half")]
    pub(super) const fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    const fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}.{})", self.index(), self.generation())
    }
}

/// A timeout that has not ended.
#[derive(Debug)]
pub(super) struct Pending<T> {
    pub(super) deadline: Tick,
    pub(super) value: T,
    generation: NonZeroU32,
    spot: Spot,
}

impl<T> Pending<T> {
    /// The bucket that it rests in.
    #[inline]
    pub(super) fn place(&self) -> Place {
        self.spot.place()
    }

    pub(super) fn spot(&self) -> Spot {
        self.spot
    }

    #[inline]
    pub(super) fn generation(&self) -> NonZeroU32 {
        self.generation
    }
}

/// A place, and which half of a sweep has seen the timeout there; see
/// [`Bucket`](super::bucket::Bucket).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot(
    /// The place above the phase; the uppermost bit is set, which leaves 0 for slots without a
    /// timeout.
    NonZeroU32,
);

impl Spot {
    const MARK: NonZeroU32 = NonZeroU32::new(1 << 31).unwrap();

    #[inline]
    pub(super) fn new(place: Place, phase: bool) -> Self {
        Self(Self::MARK | place.number() << 1 | u32::from(phase))
    }

    #[inline]
    pub(super) const fn place(self) -> Place {
        Place::new(self.0.get() << 1 >> 2)
    }

    #[inline]
    pub(super) const fn phase(self) -> bool {
        self.0.get() & 1 != 0
    }

    /// The other phase, if `condition` holds.
    #[inline]
    fn flipped_if(self, condition: bool) -> Self {
        Self(Self::MARK | self.0.get() ^ u32::from(condition))
    }
}

const _: () = assert!(Place::END < 1 << 30);

#[derive(Debug)]
enum Slot<T> {
    /// Holds a timeout.
    Pending(Pending<T>),
    /// Waits in the list of vacant slots, of which `next` is the rest; or has used up its
    /// generations and waits for nothing.
    Vacant { generation: Option<NonZeroU32>, next: u32 },
}

// The spot is never 0, which tells the slots apart, so that one costs 16 bytes besides the value.
const _: () = assert!(size_of::<Slot<u64>>() == 24);
const _: () = assert!(size_of::<Option<Key>>() == 8);

/// The end of the list of vacant slots.
const NIL: u32 = u32::MAX;

/// Slots that are allocated at a time: 24 KiB if a value takes 8 bytes.
const SEGMENT: usize = 1024;

/// The slots of a wheel.
#[derive(Debug)]
pub(super) struct Arena<T> {
    slots: Segments<Slot<T>, SEGMENT>,
    /// Head of the list of vacant slots, or `NIL`.
    vacant: u32,
    /// Number of timeouts.
    len: u32,
    /// The most timeouts it may hold.
    max_pending: u32,
    /// What a new slot starts with: greater than any generation of a slot that was given back.
    first_generation: NonZeroU32,
}

impl<T> Arena<T> {
    pub(super) const fn new(max_pending: u32) -> Self {
        let first_generation = NonZeroU32::MIN;
        Self { slots: Segments::new(), vacant: NIL, len: 0, max_pending, first_generation }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Makes sure that there is a vacant slot; returns whether there can be. *O*(1), amortized.
    #[inline]
    pub(super) fn make_room(&mut self) -> bool {
        self.len < self.max_pending && (self.vacant != NIL || self.grow())
    }

    /// Takes in a timeout that rests at `spot`, for which there is room.
    #[inline]
    pub(super) fn insert(&mut self, deadline: Tick, value: T, spot: Spot) -> Key {
        let index = self.vacant;
        let Some(vacant @ &mut Slot::Vacant { generation: Some(generation), next }) =
            self.slots.get_mut(index)
        else {
            unreachable!("only vacant slots are listed")
        };
        *vacant = Slot::Pending(Pending { deadline, value, generation, spot });
        self.vacant = next;
        self.len += 1;
        Key::new(index, generation)
    }

    /// Adds a segment of vacant slots, unless every index is in use.
    #[cold]
    fn grow(&mut self) -> bool {
        let generation = Some(self.first_generation);
        let added = self.slots.grow(|index| Slot::Vacant { generation, next: index + 1 });
        let Some(added) = added else { return false };
        if let Some(Slot::Vacant { next, .. }) = self.slots.get_mut(added.end - 1) {
            *next = mem::replace(&mut self.vacant, added.start);
        }
        true
    }

    /// Takes out the timeout of a key, unless the key is dead.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<Pending<T>> {
        self.take_if(key.index(), |pending| pending.generation.get() == key.generation())
    }

    /// Takes out whichever timeout is in a slot.
    #[inline]
    pub(super) fn take(&mut self, index: u32) -> Option<Pending<T>> {
        self.take_if(index, |_| true)
    }

    #[inline]
    fn take_if(
        &mut self,
        index: u32,
        condition: impl FnOnce(&Pending<T>) -> bool,
    ) -> Option<Pending<T>> {
        let slot = self.slots.get_mut(index)?;
        let Slot::Pending(pending) = slot else { return None };
        if !condition(pending) {
            return None;
        }
        let generation = pending.generation.checked_add(1);
        let next = if generation.is_some() { mem::replace(&mut self.vacant, index) } else { NIL };
        self.len -= 1;
        match mem::replace(slot, Slot::Vacant { generation, next }) {
            Slot::Pending(pending) => Some(pending),
            Slot::Vacant { .. } => unreachable!("the slot was seen to be pending"),
        }
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Pending<T>> {
        self.at(key.index()).filter(|pending| pending.generation.get() == key.generation())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Pending<T>> {
        match self.slots.get_mut(key.index())? {
            Slot::Pending(pending) if pending.generation.get() == key.generation() => Some(pending),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&Pending<T>> {
        match self.slots.get(index)? {
            Slot::Pending(pending) => Some(pending),
            Slot::Vacant { .. } => None,
        }
    }

    /// The deadline of the timeout in a slot if it rests at `place`, so that a record found there
    /// is good.
    #[inline]
    pub(super) fn deadline_at(&self, index: u32, place: Place) -> Option<Tick> {
        let pending = self.at(index)?;
        (pending.place() == place).then_some(pending.deadline)
    }

    /// Has the timeout in a slot rest elsewhere.
    #[inline]
    pub(super) fn settle(&mut self, index: u32, spot: Spot) {
        if let Some(Slot::Pending(pending)) = self.slots.get_mut(index) {
            pending.spot = spot;
        }
    }

    /// Whether a sweep shall keep a record of the timeout in a slot, which it has not seen if that
    /// rests at `unseen`; marks that it has.
    #[inline]
    pub(super) fn keep(&mut self, index: u32, unseen: Spot) -> bool {
        let Some(Slot::Pending(pending)) = self.slots.get_mut(index) else { return false };
        let is_kept = pending.spot == unseen;
        pending.spot = pending.spot.flipped_if(is_kept);
        is_kept
    }

    /// Has the slots of some records fetched, so that their cache misses overlap.
    #[inline]
    pub(super) fn touch(&self, records: &[u32]) {
        let read = |&record: &u32| {
            self.at(record)
                .map_or(0, |pending| pending.deadline.get() ^ u64::from(pending.spot.0.get()))
        };
        core::hint::black_box(records.iter().map(read).fold(0, u64::wrapping_add));
    }

    /// All timeouts, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Pending<T>)> {
        self.slots.iter().filter_map(|(index, slot)| match slot {
            Slot::Pending(pending) => Some((Key::new(index, pending.generation), pending)),
            Slot::Vacant { .. } => None,
        })
    }

    /// The first timeout at or after a slot. *O*(number of vacant slots passed over).
    pub(super) fn next_from(&self, index: u32) -> Option<Key> {
        (index..self.slots.end())
            .find_map(|index| self.at(index).map(|pending| Key::new(index, pending.generation)))
    }

    /// Gives back the segments without a timeout. *O*(slots).
    ///
    /// Their generations are remembered as the first of any slot to come. A segment stays if that
    /// would use up more than half of all generations, so that retired slots stay retired.
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

    /// Lists the vacant slots anew, lowest index first.
    fn relink_vacant(&mut self) {
        self.vacant = NIL;
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
                panic!("slot {index} is listed as vacant")
            };
            listed += 1;
            index = *next;
        }
        assert_eq!(index, NIL, "the list of vacant slots leads out of the arena");
        let vacant = |(_, slot): &(_, &_)| matches!(slot, Slot::Vacant { generation: Some(_), .. });
        assert_eq!(self.slots.iter().filter(vacant).count(), listed, "vacant slots are not listed");
        assert_eq!(self.iter().count(), self.len(), "pending timeouts were miscounted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(arena: &mut Arena<u64>, value: u64) -> Key {
        assert!(arena.make_room());
        arena.insert(Tick::ZERO, value, Spot::new(Place::new(0), false))
    }

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut arena = Arena::new(u32::MAX);
        arena.first_generation = NonZeroU32::MAX;
        let last = insert(&mut arena, 1);
        assert_eq!(last.generation(), u32::MAX);
        assert_eq!(arena.remove(last).map(|p| p.value), Some(1));
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
    fn shrink_gives_back_what_holds_no_timeout() {
        let mut arena = Arena::new(u32::MAX);
        let keys: std::vec::Vec<_> = (0..10_000).map(|i| insert(&mut arena, i)).collect();
        for key in keys {
            arena.remove(key);
        }
        arena.shrink();
        assert_eq!(arena.slots.end(), 0);
    }
}
