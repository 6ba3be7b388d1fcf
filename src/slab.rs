//! A slab: values in numbered slots that never move, named by keys that are never used again.
//!
//! Each slot has room for one number beside the value, the *tag*, in which the owner of the slab
//! keeps a place in another structure.
//!
//! Slots live in segments of a fixed length, so growth copies no value. Only the first segment
//! starts small and grows by factors of four up to that length. [`Slab::shrink`] frees the segments
//! without values. Their slots return when the slab grows again.
//!
//! A [`Key`] is the index of a slot and the generation of its value. Removing a value starts the
//! next generation, so a key whose value was removed is dead for good. A slot that has used up its
//! generations is retired.

use alloc::{boxed::Box, vec::Vec};
use core::{
    fmt, mem,
    num::{NonZeroU32, NonZeroU64},
};

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
/// use delaywheel::{Tick, wheel::TimingWheel};
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

    /// Returns the index of the slot.
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
enum Slot<V> {
    Occupied {
        generation: NonZeroU32,
        tag: u32,
        value: V,
    },
    /// `next` is the next slot in the list of vacant slots. A retired slot has no generation and is
    /// in no list.
    Vacant {
        generation: Option<NonZeroU32>,
        next: u32,
    },
}

const _: () = assert!(size_of::<Slot<u64>>() == 16, "a slot takes one word beside its value");
const _: () = assert!(size_of::<Option<Key>>() == 8);

/// Slots of a segment: 16 KiB if a value takes 8 bytes.
const SEGMENT: usize = 1 << 10;

/// Slots of a new slab's first segment.
const FIRST: usize = 1 << 0;

/// No slot has this index or a greater one, so lists through slots can mark their ends.
pub(crate) const END: u32 = u32::MAX << 20;

/// Values in numbered slots.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    /// The segments. The first may be shorter than `SEGMENT`, and freed ones are empty.
    segments: Vec<Box<[Slot<V>]>>,
    /// Number of empty segments, which return before the slab gets another.
    holes: usize,
    /// First slot of the list of vacant slots, or `END`.
    vacant: u32,
    len: u32,
    /// First generation of a new slot. It is above those of all dead keys in freed slots.
    first_generation: NonZeroU32,
    /// The greatest generation that any slot has reached.
    newest: NonZeroU32,
}

impl<V> Slab<V> {
    pub(crate) const fn new() -> Self {
        Self::starting_at(NonZeroU32::MIN)
    }

    const fn starting_at(generation: NonZeroU32) -> Self {
        Self {
            segments: Vec::new(),
            holes: 0,
            vacant: END,
            len: 0,
            first_generation: generation,
            newest: generation,
        }
    }

    /// Returns the number of values.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether a slot is vacant.
    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        self.vacant != END
    }

    /// Adds slots if none is vacant; returns `false` if all indices are in use. *O*(1), amortized.
    #[inline]
    pub(crate) fn make_room(&mut self) -> bool {
        self.has_room() || self.grow()
    }

    /// Returns the slot that the next value gets. The slab must have room.
    #[inline]
    pub(crate) const fn vacant(&self) -> u32 {
        self.vacant
    }

    /// Adds a value with its tag; `None` if all indices are in use. *O*(1), amortized.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u32, value: V) -> Option<Key> {
        self.make_room().then(|| self.fill(tag, value))
    }

    /// Adds a value with its tag. The slab must have room.
    #[inline]
    pub(crate) fn fill(&mut self, tag: u32, value: V) -> Key {
        let index = self.vacant;
        let Some(slot) = self.slot_mut(index) else { unreachable!("a listed slot exists") };
        let &mut Slot::Vacant { generation: Some(generation), next } = slot else {
            unreachable!("only vacant slots are listed")
        };
        *slot = Slot::Occupied { generation, tag, value };
        self.vacant = next;
        self.len += 1;
        Key::new(index, generation)
    }

    /// Removes the value of a key, and its tag; `None` if the key is dead.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<(u32, V)> {
        self.get(key)?;
        // The load of the slot may be a cache miss, and the generation of the key is at hand.
        let generation = NonZeroU32::new(key.generation())?;
        Some(self.vacate(key.index(), generation))
    }

    /// Removes the value of a slot. Returns its key as well; `None` if the slot is vacant.
    #[inline]
    pub(crate) fn remove_at(&mut self, index: u32) -> Option<(Key, V)> {
        let &Slot::Occupied { generation, .. } = self.slot(index)? else { return None };
        Some((Key::new(index, generation), self.vacate(index, generation).1))
    }

    /// Removes the value of a slot, which must be occupied, and its tag.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn take_at(&mut self, index: u32) -> (u32, V) {
        match self.slot(index) {
            Some(&Slot::Occupied { generation, .. }) => self.vacate(index, generation),
            _ => unreachable!("slot {index} is vacant"),
        }
    }

    /// Takes the value out of an occupied slot of this generation.
    #[inline]
    fn vacate(&mut self, index: u32, generation: NonZeroU32) -> (u32, V) {
        let following = generation.checked_add(1);
        let next = if following.is_some() { mem::replace(&mut self.vacant, index) } else { END };
        self.newest = self.newest.max(following.unwrap_or(generation));
        self.len -= 1;
        let vacant = Slot::Vacant { generation: following, next };
        match self.slot_mut(index).map(|slot| mem::replace(slot, vacant)) {
            Some(Slot::Occupied { tag, value, .. }) => (tag, value),
            _ => unreachable!("slot {index} was seen to be occupied"),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        match self.slot(key.index())? {
            Slot::Occupied { value, generation, .. } if generation.get() == key.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        match self.slot_mut(key.index())? {
            Slot::Occupied { value, generation, .. } if generation.get() == key.generation() => {
                Some(value)
            }
            _ => None,
        }
    }

    /// Returns the key and the value of a slot; `None` if the slot is vacant.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn get_at_mut(&mut self, index: u32) -> Option<(Key, &mut V)> {
        match self.slot_mut(index)? {
            Slot::Occupied { value, generation, .. } => Some((Key::new(index, *generation), value)),
            Slot::Vacant { .. } => None,
        }
    }

    /// Returns the tag and the value of a slot; `None` if the slot is vacant or does not exist.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn get_at(&self, index: u32) -> Option<(u32, &V)> {
        match self.slot(index)? {
            Slot::Occupied { tag, value, .. } => Some((*tag, value)),
            Slot::Vacant { .. } => None,
        }
    }

    /// Returns the value of a slot, which must be occupied.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        match self.slot(index) {
            Some(Slot::Occupied { value, .. }) => value,
            _ => unreachable!("slot {index} is vacant"),
        }
    }

    /// Returns the value of a slot, which must be occupied.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        match self.slot_mut(index) {
            Some(Slot::Occupied { value, .. }) => value,
            _ => unreachable!("slot {index} is vacant"),
        }
    }

    /// Returns the tag of the value of a key; `None` if the key is dead.
    #[inline]
    pub(crate) fn tag(&self, key: Key) -> Option<u32> {
        match *self.slot(key.index())? {
            Slot::Occupied { tag, generation, .. } if generation.get() == key.generation() => {
                Some(tag)
            }
            _ => None,
        }
    }

    /// Returns the tag of the value in a slot, which must be occupied.
    #[inline]
    pub(crate) fn tag_at(&self, index: u32) -> u32 {
        match self.slot(index) {
            Some(&Slot::Occupied { tag, .. }) => tag,
            _ => unreachable!("slot {index} is vacant"),
        }
    }

    /// Sets the tag of the value in a slot, which must be occupied.
    #[inline]
    pub(crate) fn set_tag(&mut self, index: u32, new: u32) {
        match self.slot_mut(index) {
            Some(Slot::Occupied { tag, .. }) => *tag = new,
            _ => unreachable!("slot {index} is vacant"),
        }
    }

    /// Returns the key of the value in a slot; `None` if the slot is vacant.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        match self.slot(index)? {
            Slot::Occupied { generation, .. } => Some(Key::new(index, *generation)),
            Slot::Vacant { .. } => None,
        }
    }

    /// Returns whether a slot has a value.
    #[inline]
    pub(crate) fn is_occupied(&self, index: u32) -> bool {
        matches!(self.slot(index), Some(Slot::Occupied { .. }))
    }

    /// Returns the keys of all values from this slot on, in the order of slots.
    pub(crate) fn keys_from(&self, index: u32) -> impl Iterator<Item = Key> {
        (index..self.slots()).filter_map(|index| self.key_at(index))
    }

    /// Returns one more than the greatest index of a slot, or 0.
    #[expect(clippy::cast_possible_truncation, reason = "`grow` makes no index past `END`")]
    pub(crate) fn slots(&self) -> u32 {
        let Some(last) = self.segments.last() else { return 0 };
        ((self.segments.len() - 1) * SEGMENT + last.len()) as u32
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<V>> {
        self.segments.get(index as usize / SEGMENT)?.get(index as usize % SEGMENT)
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        self.segments.get_mut(index as usize / SEGMENT)?.get_mut(index as usize % SEGMENT)
    }

    /// Adds vacant slots: more of the first segment, or a segment. Returns `false` if that would
    /// take indices from [`END`] on.
    #[cold]
    fn grow(&mut self) -> bool {
        let find = || self.segments.iter().position(|segment| segment.is_empty());
        let hole = if self.holes > 0 { find() } else { None };
        let number = match (hole, &*self.segments) {
            (Some(hole), _) => hole,
            (None, [first]) if first.len() < SEGMENT => 0,
            (None, all) => all.len(),
        };
        if number >= END as usize / SEGMENT {
            return false;
        }
        if number == self.segments.len() {
            self.segments.push(Box::default());
        }
        let mut slots = mem::take(&mut self.segments[number]).into_vec();
        let present = slots.len();
        let len = match present {
            0 if self.segments.len() == 1 => FIRST,
            0 => SEGMENT,
            _ => SEGMENT.min(present * 4),
        };
        let generation = Some(self.first_generation);
        #[expect(clippy::cast_possible_truncation, reason = "all indices are below `END`")]
        let first = (number * SEGMENT + present) as u32;
        let mut next = first;
        slots.reserve_exact(len - present);
        slots.resize_with(len, || {
            next += 1;
            Slot::Vacant { generation, next }
        });
        if let Some(Slot::Vacant { next, .. }) = slots.last_mut() {
            *next = mem::replace(&mut self.vacant, first);
        }
        self.segments[number] = slots.into();
        self.holes -= usize::from(hole.is_some());
        true
    }

    /// Frees the segments that hold no value. *O*(slots).
    ///
    /// New slots start with the greatest generation of the freed ones, so dead keys stay dead. A
    /// segment stays if it has used more than half of all generations.
    pub(crate) fn shrink(&mut self) {
        for segment in &mut self.segments {
            let newest = segment.iter().map(|slot| match slot {
                Slot::Vacant { generation: Some(next), .. } => next.get(),
                _ => u32::MAX,
            });
            let newest = newest.max().and_then(NonZeroU32::new).filter(|&newest| is_young(newest));
            if let Some(newest) = newest {
                self.first_generation = self.first_generation.max(newest);
                *segment = Box::default();
            }
        }
        let kept = self.segments.iter().rposition(|segment| !segment.is_empty());
        self.segments.truncate(kept.map_or(0, |last| last + 1));
        self.segments.shrink_to_fit();
        let holes = self.segments.iter().filter(|segment| segment.is_empty());
        self.holes = holes.count();
        self.vacant = END;
        for index in (0..self.slots()).rev() {
            let listed = self.vacant;
            if let Some(Slot::Vacant { generation: Some(_), next }) = self.slot_mut(index) {
                *next = listed;
                self.vacant = index;
            }
        }
    }

    /// Returns the slots of an empty slab, so that the caller can free them without a lock; dead
    /// keys stay dead. *O*(1). `None` if there is a value, or if a slot has used more than half of
    /// all generations.
    #[cfg(any(feature = "std", test))]
    pub(crate) fn take(&mut self) -> Option<Self> {
        let is_free = self.is_empty() && is_young(self.newest);
        is_free.then(|| mem::replace(self, Self::starting_at(self.newest)))
    }

    /// Panics unless every slot is occupied, listed as vacant or retired. *O*(slots).
    pub(crate) fn check_invariants(&self) {
        let holes = self.segments.iter().filter(|segment| segment.is_empty()).count();
        assert_eq!(holes, self.holes, "another number of segments is empty");
        let (mut listed, mut index) = (0, self.vacant);
        while let Some(slot) = self.slot(index) {
            let Slot::Vacant { generation: Some(generation), next } = slot else {
                panic!("slot {index} is listed as vacant")
            };
            assert!(*generation <= self.newest, "slot {index} is newer than {}", self.newest);
            listed += 1;
            index = *next;
        }
        assert_eq!(index, END, "the list of vacant slots leads out of the slab");
        let slots = || self.segments.iter().flatten();
        let vacant = |slot: &&Slot<V>| matches!(slot, Slot::Vacant { generation: Some(_), .. });
        assert_eq!(slots().filter(vacant).count(), listed, "vacant slots are not listed");
        let occupied = slots().filter(|slot| matches!(slot, Slot::Occupied { .. })).count();
        assert_eq!(occupied, self.len(), "another number of slots is occupied");
    }
}

/// Returns whether at most half of all generations are used up.
const fn is_young(generation: NonZeroU32) -> bool {
    generation.get() <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut slab = Slab::starting_at(NonZeroU32::MAX);
        let last = slab.insert(0, 1).unwrap();
        assert_eq!((last.generation(), slab.remove(last)), (u32::MAX, Some((0, 1))));
        slab.first_generation = NonZeroU32::MIN;
        let next = slab.insert(0, 2).unwrap();
        assert_ne!(next.index(), last.index());
        assert_eq!(slab.get(last), None);
        assert_eq!(slab.remove(next), Some((0, 2)));
        assert!(slab.take().is_none(), "a retired slot would start again");
        slab.shrink();
        slab.check_invariants();
        assert_ne!(
            slab.insert(0, 3).unwrap().index(),
            last.index(),
            "a retired slot stays retired"
        );
    }

    #[test]
    fn a_slot_that_is_often_used_keeps_only_its_own_segment() {
        let mut slab = Slab::starting_at(NonZeroU32::new(u32::MAX / 2).unwrap());
        let hot = slab.insert(0, 0).unwrap();
        slab.first_generation = NonZeroU32::MIN;
        for _ in 0..2 {
            let crowd: Vec<_> = (0..8 * 1024).map(|value| slab.insert(0, value).unwrap()).collect();
            slab.remove(hot);
            assert!(crowd.into_iter().all(|key| slab.remove(key).is_some()));
            assert!(slab.take().is_none(), "new slots would start at half of all generations");
            slab.shrink();
            slab.check_invariants();
            assert_eq!(slab.slots(), 1024);
            assert!(is_young(slab.first_generation));
        }
    }

    #[test]
    fn no_key_is_given_out_twice_whatever_memory_was_freed() {
        for seed in 0..20 {
            let (mut slab, mut random) = (Slab::new(), fastrand::Rng::with_seed(seed));
            let (mut live, mut seen) = (Vec::new(), BTreeSet::new());
            for step in 0..4_000 {
                match random.u8(..64) {
                    0 if random.u8(..4) == 0 => live.drain(..).for_each(|key| {
                        assert!(slab.remove(key).is_some());
                    }),
                    0 => slab.shrink(),
                    1 => assert_eq!(slab.take().is_some(), live.is_empty()),
                    2..40 => {
                        let key = slab.insert(0, step).unwrap();
                        assert!(seen.insert(key), "{key:?} was given out twice");
                        live.push(key);
                    }
                    _ if live.is_empty() => {}
                    _ => {
                        let key = live.swap_remove(random.usize(..live.len()));
                        assert!(slab.remove(key).is_some() && slab.remove(key).is_none());
                    }
                }
                assert_eq!(slab.len(), live.len());
            }
            slab.check_invariants();
            assert_eq!(slab.keys_from(0).collect::<BTreeSet<_>>(), live.iter().copied().collect());
            assert!(seen.iter().all(|&key| slab.get(key).is_some() == live.contains(&key)));
        }
    }

    #[test]
    fn growth_starts_small_and_fills_the_holes_of_freed_segments() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..4 * 1024).map(|value| slab.insert(0, value).unwrap()).collect();
        assert!(keys.iter().zip(0..).all(|(key, index)| key.index() == index));
        for key in keys.iter().filter(|key| key.index() / 1024 % 2 == 1) {
            slab.remove(*key);
        }
        slab.shrink();
        slab.check_invariants();
        assert_eq!((slab.slots(), slab.segments.iter().flatten().count()), (3 * 1024, 2 * 1024));
        let filled: Vec<_> =
            (0..1024).map(|value| slab.insert(0, value).unwrap().index()).collect();
        assert!(filled.into_iter().eq(1024..2048));
        for key in slab.keys_from(0).collect::<Vec<_>>() {
            slab.remove(key);
        }
        slab.shrink();
        assert_eq!((slab.slots(), slab.segments.capacity()), (0, 0));
        assert_eq!((slab.insert(0, 0).unwrap().index(), slab.slots()), (0, 1));
    }
}
