//! Where timeouts live: a slot each, reused under a new generation, never moved.
//!
//! A [`Key`] is a slot's index and the generation of its occupant. Taking a timeout out starts the next
//! generation, so a dead key finds nothing, whoever lives in the slot by then. A slot whose generations
//! are used up is retired instead of starting again from the first.

use core::{fmt, mem, num::NonZeroU32};

use super::{geometry::Place, segments::Segments};
use crate::{InsertError, Tick};

/// The name of one timeout in one wheel.
///
/// A key answers for its timeout from `insert` until that expires, is cancelled or is drained. After
/// that it is dead for ever: every operation takes it for unknown, and no later timeout answers to it. It
/// is eight bytes long, and so is `Option<Key>`.
///
/// A key means something only to the wheel that made it. Another wheel does not know whose a key is: to
/// it the key names either nothing or some timeout of its own. That is never a panic, but it is a mistake.
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
pub struct Key {
    index: u32,
    generation: NonZeroU32,
}

impl Key {
    #[inline]
    pub(super) const fn new(index: u32, generation: NonZeroU32) -> Self {
        Self { index, generation }
    }

    #[inline]
    pub(super) const fn index(self) -> u32 {
        self.index
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}.{})", self.index, self.generation)
    }
}

/// A timeout that has not ended.
#[derive(Debug)]
pub(super) struct Pending<T> {
    pub(super) deadline: Tick,
    pub(super) value: T,
    generation: NonZeroU32,
    /// The bucket that it rests in, in two fields so that `phase` fits beside them.
    bucket: u16,
    level: u8,
    /// Which half of a sweep has seen it; see [`Bucket`](super::bucket::Bucket).
    pub(super) phase: bool,
}

impl<T> Pending<T> {
    #[inline]
    pub(super) fn place(&self) -> Place {
        Place { level: self.level, bucket: self.bucket }
    }

    #[inline]
    pub(super) fn generation(&self) -> NonZeroU32 {
        self.generation
    }

    #[inline]
    pub(super) fn set_place(&mut self, place: Place) {
        (self.level, self.bucket) = (place.level, place.bucket);
    }
}

#[derive(Debug)]
enum Slot<T> {
    /// Holds a timeout.
    Pending(Pending<T>),
    /// Waits in the list of vacant slots, of which `next` is the rest.
    Vacant { generation: NonZeroU32, next: u32 },
    /// Has used up its generations.
    Retired,
}

// Generation and place share a word with the tag, so that a slot costs 16 bytes besides the value.
const _: () = assert!(size_of::<Slot<u64>>() == 24);
const _: () = assert!(size_of::<Option<Key>>() == 8);

/// The end of the list of vacant slots.
const NIL: u32 = u32::MAX;

/// The slots of a wheel.
#[derive(Debug)]
pub(super) struct Arena<T> {
    slots: Segments<Slot<T>>,
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

    /// Takes in a timeout; its place is to be set. *O*(1), and at most one allocation.
    #[inline]
    pub(super) fn insert(&mut self, deadline: Tick, value: T) -> Result<Key, InsertError<T>> {
        if self.len >= self.max_pending {
            return Err(InsertError::Full(value));
        }
        let pending = |generation| {
            Slot::Pending(Pending {
                deadline,
                value,
                generation,
                bucket: 0,
                level: 0,
                phase: false,
            })
        };
        let key = if let Some(slot) = self.slots.get_mut(self.vacant) {
            let Slot::Vacant { generation, next } = *slot else {
                unreachable!("only vacant slots are listed")
            };
            *slot = pending(generation);
            Key { index: mem::replace(&mut self.vacant, next), generation }
        } else {
            let generation = self.first_generation;
            match self.slots.push(pending(generation)) {
                Ok(index) => Key { index, generation },
                Err(Slot::Pending(refused)) => return Err(InsertError::Full(refused.value)),
                Err(_) => unreachable!("what was pushed was pending"),
            }
        };
        self.len += 1;
        Ok(key)
    }

    /// Takes out the timeout of a key, unless the key is dead.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<Pending<T>> {
        self.get(key)?;
        self.take(key.index)
    }

    /// Takes out whichever timeout is in a slot.
    #[inline]
    pub(super) fn take(&mut self, index: u32) -> Option<Pending<T>> {
        let slot = self.slots.get_mut(index)?;
        let Slot::Pending(pending) = slot else { return None };
        let vacated = match pending.generation.checked_add(1) {
            Some(generation) => {
                Slot::Vacant { generation, next: mem::replace(&mut self.vacant, index) }
            }
            None => Slot::Retired,
        };
        self.len -= 1;
        match mem::replace(slot, vacated) {
            Slot::Pending(pending) => Some(pending),
            _ => unreachable!("the slot was seen to be pending"),
        }
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Pending<T>> {
        self.at(key.index).filter(|pending| pending.generation == key.generation)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Pending<T>> {
        self.at_mut(key.index).filter(|pending| pending.generation == key.generation)
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&Pending<T>> {
        match self.slots.get(index)? {
            Slot::Pending(pending) => Some(pending),
            Slot::Vacant { .. } | Slot::Retired => None,
        }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Pending<T>> {
        match self.slots.get_mut(index)? {
            Slot::Pending(pending) => Some(pending),
            Slot::Vacant { .. } | Slot::Retired => None,
        }
    }

    /// The timeout in a slot if it rests at `place`: whether a record found there is good.
    #[inline]
    pub(super) fn resting(&mut self, index: u32, place: Place) -> Option<&mut Pending<T>> {
        self.at_mut(index).filter(|pending| pending.place() == place)
    }

    /// Whether a sweep that is in `phase` shall keep a record found at `place`; marks that it did.
    #[inline]
    pub(super) fn keep(&mut self, index: u32, place: Place, phase: bool) -> bool {
        let unseen = self.resting(index, place).filter(|pending| pending.phase == phase);
        unseen.map(|pending| pending.phase = !phase).is_some()
    }

    /// All timeouts, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Pending<T>)> {
        self.slots.iter().filter_map(|(index, slot)| match slot {
            Slot::Pending(pending) => {
                Some((Key { index, generation: pending.generation }, pending))
            }
            Slot::Vacant { .. } | Slot::Retired => None,
        })
    }

    /// The first timeout at or after a slot. *O*(number of vacant slots passed over).
    pub(super) fn next_from(&self, index: u32) -> Option<Key> {
        (index..self.slots.end()).find_map(|index| {
            self.at(index).map(|pending| Key { index, generation: pending.generation })
        })
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
                    Slot::Vacant { generation, .. } => newest = newest.max(*generation),
                    Slot::Pending(_) | Slot::Retired => return false,
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
            if let Some(Slot::Vacant { next, .. }) = self.slots.get_mut(index) {
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
        let vacant = |(_, slot): &(_, &_)| matches!(slot, Slot::Vacant { .. });
        assert_eq!(self.slots.iter().filter(vacant).count(), listed, "vacant slots are not listed");
        assert_eq!(self.iter().count(), self.len(), "pending timeouts were miscounted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(arena: &mut Arena<u64>, value: u64) -> Key {
        arena.insert(Tick::ZERO, value).unwrap()
    }

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut arena = Arena::new(u32::MAX);
        arena.first_generation = NonZeroU32::MAX;
        let last = insert(&mut arena, 1);
        assert_eq!(last.generation, NonZeroU32::MAX);
        assert_eq!(arena.remove(last).map(|p| p.value), Some(1));
        arena.first_generation = NonZeroU32::MIN;
        let next = insert(&mut arena, 2);
        assert_ne!(next.index, last.index);
        assert!(arena.get(last).is_none());
        arena.remove(next);
        arena.shrink();
        arena.check_invariants();
        assert_ne!(insert(&mut arena, 3).index, last.index, "a retired slot stays retired");
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
