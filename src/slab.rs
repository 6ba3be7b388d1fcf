//! A slab: values in numbered slots, named by keys that are never used again.
//!
//! Each slot has room for one number beside the value, the *tag*, in which the owner of the slab
//! keeps a place in another structure.
//!
//! Slots live in segments of a fixed length, so growth copies no value. Only the first segment
//! starts small and grows by factors of four up to that length.
//!
//! After a burst, most slots are vacant, but nearly every segment has a value. A *sweep* visits all
//! segments. It frees those without values, and *packs* sparse ones if their values are large: the
//! values move into a short list. A bit for each slot of the segment shows whether its value is in
//! the list, so the slot keeps its number and its key. [`Slab::shrink`] sweeps all segments in one
//! call. A slab that grows restores the vacant slots of these segments before it adds others.
//!
//! A [`Key`] is the index of a slot and the generation of its value. Removing a value starts the
//! next generation, so a key whose value was removed is dead for good. A slot that has used up its
//! generations is retired.

mod segments;

use alloc::{boxed::Box, vec::Vec};
use core::{
    fmt, mem,
    num::{NonZeroU32, NonZeroU64},
};

use self::segments::{Elsewhere, Packed, SEGMENT, Segments, Slot, here};

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

const _: () = assert!(size_of::<Option<Key>>() == 8);

/// The most occupied slots, in quarters of a segment, with which [`Slab::shrink`] packs it.
const QUARTERS_ON_REQUEST: usize = 3;

/// The same for a sweep in steps beside other calls.
const QUARTERS_IN_STEPS: usize = 2;

/// Slots of at most this many bytes are not packed: a wheel's records take as much.
const UNPACKED: usize = 32;

/// Slots of a new slab's first segment.
const FIRST: usize = 1;

/// No slot has this index or a greater one, so lists through slots can mark their ends.
pub(crate) const END: u32 = u32::MAX << 20;

/// Values in numbered slots.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    /// The segments. The first may be shorter than `SEGMENT`. Freed segments are empty here, and so
    /// are those in `elsewhere`.
    segments: Segments<V>,
    elsewhere: Elsewhere<V>,
    /// Number of empty segments, which return before the slab gets another.
    holes: usize,
    /// First slot of the list of vacant slots, or `END`. The list has no slots of `elsewhere`.
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
            elsewhere: Elsewhere { packed: Vec::new(), unswept: Vec::new() },
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

    #[cfg(any(feature = "std", test))]
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
        let segment = self.segments.get_mut(index as usize / SEGMENT);
        let slot = segment.and_then(|segment| segment.get_mut(index as usize % SEGMENT));
        let Some(&mut Slot::Vacant { generation: Some(generation), next }) = slot else {
            unreachable!("only vacant slots are listed")
        };
        if let Some(slot) = slot {
            *slot = Slot::Occupied { generation, tag, value };
        }
        self.vacant = next;
        self.len += 1;
        Key::new(index, generation)
    }

    /// Removes the value of a slot, if it has the key `only`, or whatever its key. Returns the key,
    /// the tag and the value; `None` if there is none such.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32, only: Option<Key>) -> Option<(Key, u32, V)> {
        let Self { segments, elsewhere, vacant, .. } = self;
        let segment = segments.get_mut(index as usize / SEGMENT)?;
        let (slot, is_here) = match segment.get_mut(index as usize % SEGMENT) {
            None if Self::PACKS => (elsewhere.slot_mut(index)?, false),
            slot => (slot?, true),
        };
        let &mut Slot::Occupied { generation, .. } = slot else { return None };
        // The load of the slot may be a cache miss, and a key is at hand.
        let key = only.unwrap_or_else(|| Key::new(index, generation));
        if key.generation() != generation.get() {
            return None;
        }
        let following = NonZeroU32::new(key.generation().wrapping_add(1));
        let is_listed = is_here && following.is_some();
        let next = if is_listed { mem::replace(vacant, index) } else { END };
        self.newest = self.newest.max(following.unwrap_or(generation));
        self.len -= 1;
        match mem::replace(slot, Slot::Vacant { generation: following, next }) {
            Slot::Occupied { tag, value, .. } => Some((key, tag, value)),
            Slot::Vacant { .. } => unreachable!("slot {index} was seen to be occupied"),
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
            _ => no_value(index),
        }
    }

    /// Returns the value of a slot, which must be occupied.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        match self.slot_mut(index) {
            Some(Slot::Occupied { value, .. }) => value,
            _ => no_value(index),
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
            _ => no_value(index),
        }
    }

    /// Sets the tag of the value in a slot, which must be occupied.
    #[inline]
    pub(crate) fn set_tag(&mut self, index: u32, new: u32) {
        match self.slot_mut(index) {
            Some(Slot::Occupied { tag, .. }) => *tag = new,
            _ => no_value(index),
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
        // The last one is not empty, unless it is packed or to be swept.
        let last = if last.is_empty() { SEGMENT } else { last.len() };
        ((self.segments.len() - 1) * SEGMENT + last) as u32
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<V>> {
        match self.segments.get(index as usize / SEGMENT)?.get(index as usize % SEGMENT) {
            None if Self::PACKS => self.elsewhere.slot(index),
            slot => slot,
        }
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<V>> {
        match self.segments.get_mut(index as usize / SEGMENT)?.get_mut(index as usize % SEGMENT) {
            None if Self::PACKS => self.elsewhere.slot_mut(index),
            slot => slot,
        }
    }

    /// Whether a sweep packs sparse segments.
    const PACKS: bool = size_of::<Slot<V>>() > UNPACKED;

    /// Adds vacant slots: more of the first segment, those of an empty one, or a segment. Returns
    /// `false` if that would take indices from [`END`] on.
    #[cold]
    fn grow(&mut self) -> bool {
        self.sweep_one(QUARTERS_IN_STEPS);
        if self.has_room() {
            return true;
        }
        let unswept = self.elsewhere.unswept.len();
        let hole = || self.segments[unswept..].iter().position(|segment| segment.is_empty());
        let hole = if self.holes > 0 { hole().map(|hole| unswept + hole) } else { None };
        let number = match (hole, &*self.segments) {
            (Some(hole), _) => hole,
            // In a sweep, the slots of this segment may be in `unswept`, and its place here empty.
            (None, [first]) if first.len() < SEGMENT && unswept == 0 => 0,
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
            0 if self.segments.len() == 1 && hole.is_none() => FIRST,
            0 => SEGMENT,
            _ => SEGMENT.min(present * 4),
        };
        let generation = Some(self.first_generation);
        slots.reserve_exact(len - present);
        slots.resize_with(len, || Slot::Vacant { generation, next: END });
        if let Some(packed) = self.elsewhere.packed.get_mut(number).and_then(Option::take) {
            for (offset, slot) in packed.into_slots() {
                slots[offset] = slot;
            }
        }
        self.segments[number] = slots.into();
        self.holes -= usize::from(hole.is_some());
        self.list(number);
        true
    }

    /// Lists the vacant slots of a segment, except retired ones.
    #[expect(clippy::cast_possible_truncation, reason = "all indices are below `END`")]
    fn list(&mut self, number: usize) {
        for (offset, slot) in self.segments[number].iter_mut().enumerate().rev() {
            if let Slot::Vacant { generation: Some(_), next } = slot {
                *next = mem::replace(&mut self.vacant, (number * SEGMENT + offset) as u32);
            }
        }
    }

    /// Frees the segments that hold no value, and packs the sparse ones. *O*(slots).
    ///
    /// New slots start with the greatest generation of the freed ones, so dead keys stay dead. A
    /// segment stays if it has used more than half of all generations.
    pub(crate) fn shrink(&mut self) {
        while self.sweep_one(QUARTERS_ON_REQUEST) {}
        self.begin_sweep();
        while self.sweep_one(QUARTERS_ON_REQUEST) {}
        self.segments.shrink_to_fit();
        self.elsewhere.packed.shrink_to_fit();
    }

    /// Begins a sweep from the last segment to the first, with a new list of vacant slots. Takes
    /// time for each segment.
    pub(crate) fn begin_sweep(&mut self) {
        debug_assert!(self.elsewhere.unswept.is_empty(), "a sweep is in progress");
        let mut empty = Vec::new();
        empty.resize_with(self.segments.len(), Box::default);
        self.elsewhere.unswept = mem::replace(&mut self.segments, empty);
        self.vacant = END;
    }

    /// Sweeps the next segment. Returns `false` if there is none.
    #[cfg(feature = "std")]
    pub(crate) fn sweep(&mut self) -> bool {
        debug_assert!(Self::PACKS, "a lookup of small values skips what is not swept");
        self.sweep_one(QUARTERS_IN_STEPS)
    }

    /// Sweeps the next segment: packs it if at most this many quarters of its slots have values.
    /// Otherwise lists its vacant slots. Returns `false` if there is no next one.
    fn sweep_one(&mut self, quarters: usize) -> bool {
        let Some(segment) = self.elsewhere.unswept.pop() else { return false };
        let number = self.elsewhere.unswept.len();
        if number == 0 {
            self.elsewhere.unswept = Vec::new();
        }
        let slots = match self.elsewhere.packed.get(number) {
            Some(Some(packed)) => &packed.slots,
            _ => &segment,
        };
        let (mut values, mut newest) = (0, NonZeroU32::MIN);
        for slot in slots {
            match slot {
                Slot::Occupied { .. } => values += 1,
                Slot::Vacant { generation, .. } => {
                    newest = newest.max(generation.unwrap_or(NonZeroU32::MAX));
                }
            }
        }
        let is_sparse = values == 0 || Self::PACKS && values * 4 <= slots.len() * quarters;
        if is_sparse && is_young(newest) {
            self.first_generation = self.first_generation.max(newest);
            self.holes += usize::from(!segment.is_empty());
            self.pack(number, segment, values);
        } else {
            self.segments[number] = segment;
            self.list(number);
        }
        true
    }

    /// Packs a segment, or frees it if it has no values.
    fn pack(&mut self, number: usize, segment: Box<[Slot<V>]>, values: usize) {
        let packed = &mut self.elsewhere.packed;
        let before = packed.get_mut(number).and_then(Option::take);
        if values > 0 {
            if packed.len() <= number {
                packed.resize_with(number + 1, || None);
            }
            let before = before.into_iter().flat_map(|packed| packed.into_slots());
            let slots = segment.into_iter().enumerate().chain(before);
            packed[number] = Some(Box::new(Packed::new(values, slots)));
        } else if number + 1 == self.segments.len() {
            self.segments.pop();
            packed.truncate(number);
            self.holes -= 1;
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

    /// Panics unless every slot is occupied, listed as vacant, retired, packed or to be swept.
    /// *O*(slots).
    pub(crate) fn check_invariants(&self) {
        let Elsewhere { packed, unswept } = &self.elsewhere;
        let swept = &self.segments[unswept.len()..];
        let holes = swept.iter().chain(unswept).filter(|segment| segment.is_empty()).count();
        assert_eq!(holes, self.holes, "another number of segments is empty");
        let (mut listed, mut index) = (0, self.vacant);
        while let Some(slot) = self.slot(index) {
            let Slot::Vacant { generation: Some(generation), next } = slot else {
                panic!("slot {index} is listed as vacant")
            };
            assert!(*generation <= self.newest, "slot {index} is newer than {}", self.newest);
            assert!(here(&self.segments, index).is_some(), "slot {index} is listed");
            listed += 1;
            index = *next;
        }
        assert_eq!(index, END, "the list of vacant slots leads out of the slab");
        let vacant = |slot: &&Slot<V>| matches!(slot, Slot::Vacant { generation: Some(_), .. });
        assert_eq!(
            swept.iter().flatten().filter(vacant).count(),
            listed,
            "vacant slots are not listed"
        );
        assert_eq!(self.keys_from(0).count(), self.len(), "another number of slots is occupied");
        for (number, packed) in packed.iter().enumerate() {
            let segment = unswept.get(number).unwrap_or(&self.segments[number]);
            assert!(packed.is_none() || segment.is_empty(), "segment {number} is packed and not");
        }
    }
}

#[cold]
fn no_value(index: u32) -> ! {
    unreachable!("slot {index} is vacant")
}

/// Returns whether at most half of all generations are used up.
const fn is_young(generation: NonZeroU32) -> bool {
    generation.get() <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use fastrand::Rng;

    use super::*;

    impl<V> Slab<V> {
        /// Makes an empty slab whose slot 0 has had almost 2^31 values, and has the next one.
        pub(crate) fn worn() -> Self {
            let mut slab = Self::starting_at(NonZeroU32::new(u32::MAX / 2).unwrap());
            assert!(slab.make_room());
            slab.first_generation = NonZeroU32::MIN;
            slab
        }

        /// Makes a vacant slot one that has had 2^31 values.
        pub(crate) fn wear(&mut self, index: u32) {
            self.newest = NonZeroU32::new(u32::MAX / 2 + 1).unwrap();
            let newest = self.newest;
            if let Some(Slot::Vacant { generation, .. }) = self.slot_mut(index) {
                *generation = Some(newest);
            }
        }

        /// Returns the number of slots that take memory.
        pub(crate) fn held(&self) -> usize {
            let Elsewhere { packed, unswept } = &self.elsewhere;
            let segments = self.segments.iter().chain(unswept).map(|segment| segment.len());
            segments.chain(packed.iter().flatten().map(|packed| packed.slots.len())).sum()
        }
    }

    fn take<V>(slab: &mut Slab<V>, key: Key) -> Option<(u32, V)> {
        slab.remove(key.index(), Some(key)).map(|(_, tag, value)| (tag, value))
    }

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut slab = Slab::starting_at(NonZeroU32::MAX);
        let last = slab.insert(0, 1).unwrap();
        assert_eq!((last.generation(), take(&mut slab, last)), (u32::MAX, Some((0, 1))));
        slab.first_generation = NonZeroU32::MIN;
        let next = slab.insert(0, 2).unwrap();
        assert_ne!(next.index(), last.index());
        assert_eq!(slab.get(last), None);
        assert_eq!(take(&mut slab, next), Some((0, 2)));
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
        let mut slab = Slab::worn();
        let hot = slab.insert(0, 0).unwrap();
        for _ in 0..2 {
            let crowd: Vec<_> = (0..8 * 1024).map(|value| slab.insert(0, value).unwrap()).collect();
            take(&mut slab, hot);
            assert!(crowd.into_iter().all(|key| take(&mut slab, key).is_some()));
            assert!(slab.take().is_none(), "new slots would start at half of all generations");
            slab.shrink();
            slab.check_invariants();
            assert_eq!(slab.slots(), 1024);
            assert!(is_young(slab.first_generation));
        }
    }

    /// Takes a slot from a map: the first one, the last one, or any.
    fn pop<V>(map: &mut BTreeMap<u32, V>, order: u8, random: &mut Rng) -> Option<(u32, V)> {
        match order {
            0 => map.pop_first(),
            1 => map.pop_last(),
            _ => {
                let from = random.u32(..=*map.last_key_value()?.0);
                let index = *map.range(from..).next()?.0;
                map.remove_entry(&index)
            }
        }
    }

    /// Compares a slab with a map from slots to keys and tags, while crowds come, and leave in any
    /// order.
    fn check_against_a_map<const WORDS: usize>(seed: u64) {
        let packs = Slab::<[u64; WORDS]>::PACKS;
        let mut random = Rng::with_seed(seed);
        let is_worn = random.u8(..4) == 0;
        let first = if is_worn { u32::MAX - random.u32(..20) } else { 1 };
        let mut slab = Slab::<[u64; WORDS]>::starting_at(NonZeroU32::new(first).unwrap());
        let (mut live, mut used) = (BTreeMap::<u32, (Key, u32)>::new(), BTreeSet::new());
        for phase in 0..32 {
            if is_worn && phase == 1 {
                // The slots so far are almost used up, others are not.
                slab.first_generation = NonZeroU32::MIN;
            }
            let (order, pause, others) = (random.u8(..3), 1 << random.u8(..11), random.u8(..4));
            let count = random.usize(..6 * SEGMENT) >> random.u8(..8);
            while live.len() != count {
                if (live.len() < count) ^ (random.u8(..8) < others) {
                    let tag = random.u32(..);
                    let key = slab.insert(tag, [tag.into(); WORDS]).unwrap();
                    assert!(used.insert(key), "{key:?} was given out twice");
                    assert_eq!(live.insert(key.index(), (key, tag)), None, "it is occupied");
                } else if let Some((index, (key, tag))) = pop(&mut live, order, &mut random) {
                    let removed = slab.remove(index, random.bool().then_some(key));
                    assert_eq!(removed, Some((key, tag, [tag.into(); WORDS])), "it is lost");
                }
                if packs && random.u32(..pause) == 0 && !slab.sweep_one(QUARTERS_IN_STEPS) {
                    slab.begin_sweep();
                }
                if random.u32(..1_000) == 0 {
                    slab.check_invariants();
                }
            }
            // Leaves a sweep as it is, or ends it and sweeps all segments.
            let quarters = [0, QUARTERS_IN_STEPS, QUARTERS_ON_REQUEST][random.usize(..3)];
            if quarters == QUARTERS_ON_REQUEST {
                slab.shrink();
            } else if quarters == QUARTERS_IN_STEPS && packs {
                while slab.sweep_one(quarters) {}
                slab.begin_sweep();
                while slab.sweep_one(quarters) {}
            }
            slab.check_invariants();
            if quarters > 0 && packs && !is_worn {
                let (held, mut packed) = (slab.held(), slab.elsewhere.packed.iter().flatten());
                let most = live.len() * 4 / quarters + SEGMENT;
                assert!(held <= most, "{held} slots for {}", live.len());
                let is_sparse = |packed: &Packed<_>| packed.slots.len() * 4 <= SEGMENT * 3;
                assert!(packed.all(|packed| is_sparse(packed)), "full ones stay");
            }
            assert_eq!(slab.len(), live.len());
            assert!(slab.keys_from(0).eq(live.values().map(|(key, _)| *key)));
            for (&index, (key, tag)) in &mut live {
                let value = [u64::from(*tag); WORDS];
                assert_eq!((slab.get(*key), slab.tag(*key)), (Some(&value), Some(*tag)));
                assert_eq!((slab.at(index), slab.tag_at(index)), (&value, *tag));
                #[cfg(feature = "std")]
                assert_eq!(slab.get_at(index), Some((*tag, &value)));
                assert!(slab.is_occupied(index));
                *tag ^= 1;
                slab.set_tag(index, *tag);
                slab.at_mut(index)[0] ^= 1;
                slab.get_mut(*key).unwrap()[1..].fill((*tag).into());
            }
            assert!(slab.take().is_none_or(|taken| live.is_empty() && taken.is_empty()));
        }
        let is_live = |key: &Key| live.get(&key.index()).is_some_and(|(live, _)| live == key);
        assert!(used.iter().all(|key| slab.get_mut(*key).is_some() == is_live(key)));
    }

    #[test]
    fn a_slab_is_a_map_that_uses_no_key_twice_whatever_it_frees() {
        for seed in 0..8 {
            check_against_a_map::<1>(seed);
            check_against_a_map::<5>(seed);
        }
    }

    #[test]
    fn growth_starts_small_and_fills_the_holes_of_freed_segments() {
        let mut slab = Slab::new();
        let mut sizes = BTreeSet::new();
        let insert = |value| {
            let key = slab.insert(0, value).unwrap();
            sizes.insert(slab.slots());
            key
        };
        let keys: Vec<_> = (0..4 * 1024).map(insert).collect();
        assert!(sizes.into_iter().eq([1, 4, 16, 64, 256, 1024, 2048, 3072, 4096]));
        assert!(keys.iter().zip(0..).all(|(key, index)| key.index() == index));
        for key in keys.iter().filter(|key| key.index() / 1024 % 2 == 1) {
            take(&mut slab, *key);
        }
        slab.shrink();
        slab.check_invariants();
        assert_eq!((slab.slots(), slab.segments.iter().flatten().count()), (3 * 1024, 2 * 1024));
        let filled: Vec<_> =
            (0..1024).map(|value| slab.insert(0, value).unwrap().index()).collect();
        assert!(filled.into_iter().eq(1024..2048));
        for key in slab.keys_from(0).collect::<Vec<_>>() {
            take(&mut slab, key);
        }
        slab.shrink();
        assert_eq!((slab.slots(), slab.segments.capacity()), (0, 0));
        assert_eq!((slab.insert(0, 0).unwrap().index(), slab.slots()), (0, 1));
    }
}
