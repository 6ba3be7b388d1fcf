//! A slab: values in numbered slots, named by keys that the slab never issues twice.
//!
//! Each slot has room for one number beside the value, the *tag*. The owner of the slab stores
//! there the position that the value has in another structure.
//!
//! Slots live in segments of a fixed length, so growth copies no value. Only the first segment
//! starts small and grows by factors of four up to that length.
//!
//! After a burst, most slots are vacant, but nearly every segment has a value. The slab frees a
//! segment without values, and *packs* a sparse one with large values: these move into a short
//! list. A bit for each slot of the segment shows whether its value is in the list, so the slot
//! keeps its number and its key. [`Slab::shrink`] does this for all segments, and
//! [`Slab::close_sparse`] for a segment from which a value was removed. A slab that grows reopens
//! such segments before it adds new ones.
//!
//! A [`Key`] is the index of a slot and the generation of its value. Removing a value starts the
//! next generation, so a key whose value was removed is dead for good. A slot that has used up its
//! generations is retired. A closed segment remembers the greatest generation of its freed slots.

mod segments;

use alloc::vec::Vec;
use core::{
    fmt, iter, mem,
    num::{NonZeroU32, NonZeroU64},
};

use self::segments::{LAST, SEGMENT, Segment, Slot};

/// Key of one timeout in one wheel.
///
/// A key is valid from `insert` until its timeout expires, is cancelled or is drained. After that
/// it is dead: every method treats it as unknown, and the wheel does not use it for another
/// timeout. A key is eight bytes long, and so is `Option<Key>`.
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

/// Greatest share of slots with values, in quarters, at which [`Slab::shrink`] packs a segment.
const QUARTERS: usize = 3;

/// Denominator of the shares of slots that [`Slab::is_sparse`] takes.
const PARTS: usize = 512;

/// Vacant slots of a slab that [`Slab::close_sparse`] keeps.
#[cfg(any(feature = "std", test))]
const SPARE: usize = 2 * SEGMENT;

/// Slots of at most this many bytes are not packed. In a sparse wheel, the records take as much
/// memory as such slots, and packing does not free records.
const UNPACKED: usize = 32;

/// Slots of a new slab's first segment.
const FIRST: usize = 1;

/// No slot has this index or a greater one, so it can mark the end of a list of slots.
pub(crate) const END: u32 = u32::MAX << 20;

/// Values in numbered slots.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    /// The segments. Only the first may be shorter than `SEGMENT`.
    segments: Vec<Segment<V>>,
    /// First segment of the list of segments with vacant slots, or `LAST`. If such a segment is
    /// closed, it stays in this list until the slab grows: the list has links in one direction
    /// only.
    open: usize,
    /// First segment of the list of closed segments that are not in the list of `open`, or `LAST`.
    closed: usize,
    len: u32,
    /// Number of slots, without the vacant ones of closed segments.
    room: usize,
    /// Number of packed segments.
    packed: usize,
    /// First generation of a new segment. It is above the generations of all dead keys of removed
    /// segments.
    first_generation: NonZeroU32,
}

impl<V> Slab<V> {
    pub(crate) const fn new() -> Self {
        Self::starting_at(NonZeroU32::MIN)
    }

    const fn starting_at(generation: NonZeroU32) -> Self {
        Self {
            segments: Vec::new(),
            open: LAST,
            closed: LAST,
            len: 0,
            room: 0,
            packed: 0,
            first_generation: generation,
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

    /// Adds slots if none is vacant; returns `false` if all indices are in use. *O*(1), amortized.
    #[inline]
    pub(crate) fn make_room(&mut self) -> bool {
        self.vacant() != END || self.grow()
    }

    /// Returns the slot that the next value gets; `END` if the slab has to grow.
    #[inline]
    pub(crate) fn vacant(&self) -> u32 {
        self.segments.get(self.open).map_or(END, |segment| segment.vacant)
    }

    /// Adds a value with its tag; `None` if all indices are in use. *O*(1), amortized.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u32, value: V) -> Option<Key> {
        self.make_room().then(|| self.fill(tag, value))
    }

    /// Adds a value with its tag. The slab must have room.
    #[inline]
    pub(crate) fn fill(&mut self, tag: u32, value: V) -> Key {
        let Some(segment) = self.segments.get_mut(self.open) else { no_room() };
        let index = segment.vacant;
        let Some(slot) = segment.slots.get_mut(index as usize % SEGMENT) else { no_room() };
        let &mut Slot::Vacant { generation: Some(generation), next } = slot else { no_room() };
        *slot = Slot::Occupied { generation, tag, value };
        segment.vacant = next;
        segment.len += 1;
        self.len += 1;
        if next == END {
            self.open = segment.next;
        }
        Key::new(index, generation)
    }

    /// Removes the value of a slot; with `only`, only a value that has this key. Returns the key,
    /// the tag and the value; `None` if no value was removed.
    ///
    /// It takes the value out itself, not in one function for each of the two cases: where the
    /// results of two calls meet, the compiler copies the value once more.
    #[expect(clippy::inline_always, reason = "a value that a call returns is copied once more")]
    #[inline(always)]
    pub(crate) fn remove(&mut self, index: u32, only: Option<Key>) -> Option<(Key, u32, V)> {
        let number = index as usize / SEGMENT;
        let segment = self.segments.get_mut(number)?;
        let (slot, is_here) = match segment.slots.get_mut(index as usize % SEGMENT) {
            None if Self::PACKS => (segment.packed.as_mut()?.slot_mut(index)?, false),
            slot => (slot?, true),
        };
        let &mut Slot::Occupied { generation, .. } = slot else { return None };
        // The key `only` is at hand, while the load of the slot may be a cache miss.
        let key = only.unwrap_or_else(|| Key::new(index, generation));
        if key.generation() != generation.get() {
            return None;
        }
        let following = NonZeroU32::new(key.generation().wrapping_add(1));
        let mut next = END;
        if is_here && following.is_some() {
            next = mem::replace(&mut segment.vacant, index);
            if next == END {
                segment.next = mem::replace(&mut self.open, number);
            }
        } else if !is_here {
            self.room -= 1;
        }
        segment.len -= 1;
        self.len -= 1;
        match mem::replace(slot, Slot::Vacant { generation: following, next }) {
            Slot::Occupied { tag, value, .. } => Some((key, tag, value)),
            Slot::Vacant { .. } => no_value(index),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        self.live(key.index()).filter(|live| live.0.get() == key.generation()).map(|live| live.2)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        self.live_mut(key.index())
            .filter(|live| live.0.get() == key.generation())
            .map(|live| live.2)
    }

    /// Returns the value of a slot, which must be occupied.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &V {
        self.live(index).unwrap_or_else(|| no_value(index)).2
    }

    /// Returns the value of a slot, which must be occupied.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut V {
        self.live_mut(index).unwrap_or_else(|| no_value(index)).2
    }

    /// Returns the tag of the value of a key; `None` if the key is dead.
    #[inline]
    pub(crate) fn tag(&self, key: Key) -> Option<u32> {
        self.live(key.index()).filter(|live| live.0.get() == key.generation()).map(|live| live.1)
    }

    /// Returns the tag of the value in a slot, which must be occupied.
    #[inline]
    pub(crate) fn tag_at(&self, index: u32) -> u32 {
        self.live(index).unwrap_or_else(|| no_value(index)).1
    }

    /// Sets the tag of the value in a slot, which must be occupied.
    #[inline]
    pub(crate) fn set_tag(&mut self, index: u32, new: u32) {
        *self.live_mut(index).unwrap_or_else(|| no_value(index)).1 = new;
    }

    /// Returns the key of the value in a slot; `None` if the slot is vacant.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        self.live(index).map(|live| Key::new(index, live.0))
    }

    /// Returns the keys of all values from this slot on, in the order of slots.
    pub(crate) fn keys_from(&self, index: u32) -> impl Iterator<Item = Key> {
        (index..self.slots()).filter_map(|index| self.key_at(index))
    }

    /// Returns one more than the greatest index of a slot, or 0.
    #[expect(clippy::cast_possible_truncation, reason = "`grow` makes no index past `END`")]
    pub(crate) fn slots(&self) -> u32 {
        let Some(last) = self.segments.last() else { return 0 };
        let last = if last.is_closed() { SEGMENT } else { last.slots.len() };
        ((self.segments.len() - 1) * SEGMENT + last) as u32
    }

    /// Returns the generation, the tag and the value of a slot; `None` if the slot is vacant or
    /// does not exist.
    #[inline]
    pub(crate) fn live(&self, index: u32) -> Option<(NonZeroU32, u32, &V)> {
        let segment = self.segments.get(index as usize / SEGMENT)?;
        let slot = match segment.slots.get(index as usize % SEGMENT) {
            None if Self::PACKS => segment.packed.as_ref()?.slot(index),
            slot => slot,
        };
        match slot? {
            Slot::Occupied { generation, tag, value } => Some((*generation, *tag, value)),
            Slot::Vacant { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn live_mut(&mut self, index: u32) -> Option<(NonZeroU32, &mut u32, &mut V)> {
        let segment = self.segments.get_mut(index as usize / SEGMENT)?;
        let slot = match segment.slots.get_mut(index as usize % SEGMENT) {
            None if Self::PACKS => segment.packed.as_mut()?.slot_mut(index),
            slot => slot,
        };
        match slot? {
            Slot::Occupied { generation, tag, value } => Some((*generation, tag, value)),
            Slot::Vacant { .. } => None,
        }
    }

    /// Whether sparse segments are packed.
    const PACKS: bool = size_of::<Slot<V>>() > UNPACKED;

    /// Finds a segment with vacant slots. If there is none, opens a closed segment, lengthens the
    /// first one, or adds a segment. Returns `false` if a new one would have indices from [`END`]
    /// on.
    #[cold]
    fn grow(&mut self) -> bool {
        while let Some(first) = self.segments.get_mut(self.open) {
            if !first.is_closed() {
                return true;
            }
            let next = mem::replace(&mut first.next, self.closed);
            self.closed = mem::replace(&mut self.open, next);
        }
        let (mut number, mut len) = (self.segments.len(), SEGMENT);
        // A closed segment without a generation gets no further slots.
        while self.segments.get(self.closed).is_some_and(|closed| closed.generation.is_none()) {
            self.closed = self.segments[self.closed].next;
        }
        if let Some(closed) = self.segments.get(self.closed) {
            number = mem::replace(&mut self.closed, closed.next);
        } else if number == 1 && (1..SEGMENT).contains(&self.segments[0].slots.len()) {
            (number, len) = (0, SEGMENT.min(self.segments[0].slots.len() * 4));
        } else if number == END as usize / SEGMENT {
            return false;
        } else {
            len = if number == 0 { FIRST } else { SEGMENT };
            self.segments.push(Segment::new(self.first_generation));
        }
        self.change(number, |segment| segment.open(number, len));
        self.segments[number].next = mem::replace(&mut self.open, number);
        true
    }

    /// Frees the segments that hold no value, and packs the sparse ones. *O*(slots).
    ///
    /// Removes free segments from the end. New segments start with the greatest generation of
    /// removed ones, so dead keys stay dead. A free segment that has used more than half of all
    /// generations stays: else new segments would start with few generations, and use these up.
    pub(crate) fn shrink(&mut self) {
        for number in 0..self.segments.len() {
            if Self::is_sparse(&self.segments[number], PARTS / 4 * QUARTERS) {
                self.change(number, Segment::close);
            }
        }
        let is_young = |&generation: &NonZeroU32| generation.get() <= u32::MAX / 2;
        let goes = |one: &Segment<V>| one.generation.filter(is_young).filter(|_| one.held() == 0);
        while let Some(generation) = self.segments.last().and_then(goes) {
            self.first_generation = self.first_generation.max(generation);
            self.segments.pop();
        }
        self.segments.shrink_to_fit();
        (self.open, self.closed) = (LAST, LAST);
        for (number, segment) in self.segments.iter_mut().enumerate().rev() {
            if segment.is_closed() {
                segment.next = mem::replace(&mut self.closed, number);
            } else if segment.vacant != END {
                segment.next = mem::replace(&mut self.open, number);
            }
        }
    }

    /// Packs or frees the segment of a removed value, if few of its slots have values and the slab
    /// has many vacant slots. *O*(1), amortized over the removals.
    #[cfg(any(feature = "std", test))]
    #[inline]
    pub(crate) fn close_sparse(&mut self, index: u32) {
        let has_spare = self.room - self.len() > SPARE;
        if has_spare || self.packed > 0 {
            let number = index as usize / SEGMENT;
            let Some(segment) = self.segments.get(number) else { return };
            // The limit is an eighth to a quarter of the slots, and differs between segments. So
            // not all segments are packed at the same time.
            let is_sparse = Self::is_sparse(segment, 64 + number % 64);
            if is_sparse && (has_spare || segment.is_closed()) {
                self.change(number, Segment::close);
            }
        }
    }

    /// Returns whether a segment takes memory, and at most `parts` of [`PARTS`] of its slots have
    /// values. If values are too small to be packed, none may have one.
    #[inline]
    fn is_sparse(segment: &Segment<V>, parts: usize) -> bool {
        let few = if Self::PACKS { segment.held() * parts / PARTS } else { 0 };
        usize::from(segment.len) <= few && segment.held() > 0
    }

    /// Opens or closes a segment, and updates the counts of the slab.
    #[inline(never)]
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Segment<V>)) {
        let segment = &mut self.segments[number];
        self.room -= segment.room();
        self.packed -= usize::from(segment.packed.is_some());
        change(segment);
        self.room += segment.room();
        self.packed += usize::from(segment.packed.is_some());
    }

    /// Panics unless each segment with vacant slots is in the list of open segments, and each
    /// closed one in one of the two lists. *O*(slots).
    pub(crate) fn check_invariants(&self) {
        let list = |first| {
            let number = |&number: &usize| (number != LAST).then(|| self.segments[number].next);
            iter::successors(Some(first), number).take_while(|&number| number != LAST)
        };
        let is_closed = |number: usize| self.segments[number].is_closed();
        assert!(list(self.closed).all(is_closed), "an open segment is in the list of closed ones");
        let mut listed: Vec<_> = list(self.open).chain(list(self.closed)).collect();
        listed.sort_unstable();
        // A closed segment that gets no further slots may be listed or not.
        let has_slots = |number: &usize| {
            let segment = &self.segments[*number];
            segment.vacant != END || segment.is_closed() && segment.generation.is_some()
        };
        listed.retain(has_slots);
        assert!((0..self.segments.len()).filter(has_slots).eq(listed), "a segment is not listed");
        self.segments.iter().for_each(Segment::check_invariants);
        let room: usize = self.segments.iter().map(Segment::room).sum();
        let packed = self.segments.iter().filter(|segment| segment.packed.is_some()).count();
        assert_eq!(packed, self.packed, "another number of segments is packed");
        assert_eq!((self.keys_from(0).count(), room), (self.len(), self.room));
    }
}

#[cold]
fn no_room() -> ! {
    unreachable!("only vacant slots are listed")
}

#[cold]
fn no_value(index: u32) -> ! {
    unreachable!("slot {index} is vacant")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use fastrand::Rng;

    use super::*;

    impl<V> Slab<V> {
        /// Makes an empty slab whose only slot has had almost 2^31 values.
        pub(crate) fn worn() -> Self {
            let mut slab = Self::starting_at(NonZeroU32::new(u32::MAX / 2).unwrap());
            assert!(slab.make_room());
            slab.first_generation = NonZeroU32::MIN;
            slab
        }

        /// Changes a vacant slot as if it had had 2^31 values.
        pub(crate) fn wear(&mut self, index: u32) {
            let Some(segment) = self.segments.get_mut(index as usize / SEGMENT) else { return };
            let slot = segment.slots.get_mut(index as usize % SEGMENT);
            let slot = slot.or_else(|| segment.packed.as_mut()?.slot_mut(index));
            if let Some(Slot::Vacant { generation, .. }) = slot {
                *generation = NonZeroU32::new(u32::MAX / 2 + 1);
            }
        }

        /// Returns the number of slots that take memory.
        pub(crate) fn held(&self) -> usize {
            self.segments.iter().map(Segment::held).sum()
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
            slab.shrink();
            slab.check_invariants();
            assert_eq!(slab.slots(), 1024);
            assert!(slab.first_generation.get() <= u32::MAX / 2);
        }
    }

    #[test]
    fn a_slab_of_which_slots_were_used_very_often_frees_the_memory_of_each_crowd() {
        for first in [u32::MAX / 2, u32::MAX - 1] {
            let mut slab = Slab::starting_at(NonZeroU32::new(first).unwrap());
            for _ in 0..4 {
                let insert = |value| slab.insert(0, value).unwrap();
                let crowd: Vec<_> = (0..2 * 1024).map(insert).collect();
                assert!(crowd.into_iter().all(|key| take(&mut slab, key).is_some()));
                slab.shrink();
                slab.check_invariants();
                assert_eq!(slab.held(), 0);
            }
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
        let first = [1, u32::MAX / 2, u32::MAX - random.u32(..20)][random.usize(..3)];
        let (is_worn, renewed) = (first > u32::MAX / 2, random.usize(..64));
        let mut slab = Slab::<[u64; WORDS]>::starting_at(NonZeroU32::new(first).unwrap());
        let (mut live, mut used) = (BTreeMap::<u32, (Key, u32)>::new(), BTreeSet::new());
        for phase in 0..32 {
            if is_worn && phase == renewed {
                // The slots so far are almost used up, others are not.
                slab.first_generation = NonZeroU32::MIN;
            }
            let (order, pause, others) = (random.u8(..3), 1 << random.u8(..11), random.u8(..4));
            let count = random.usize(..16 * SEGMENT) >> random.u8(..8);
            while live.len() != count {
                if (live.len() < count) ^ (random.u8(..8) < others) {
                    let tag = random.u32(..);
                    let key = slab.insert(tag, [tag.into(); WORDS]).unwrap();
                    assert!(used.insert(key), "{key:?} was given out twice");
                    assert_eq!(live.insert(key.index(), (key, tag)), None, "it is occupied");
                } else if let Some((index, (key, tag))) = pop(&mut live, order, &mut random) {
                    let removed = slab.remove(index, random.bool().then_some(key));
                    assert_eq!(removed, Some((key, tag, [tag.into(); WORDS])), "it is lost");
                    if random.u32(..pause) == 0 {
                        slab.close_sparse(index);
                    }
                }
                if random.u32(..1_000) == 0 {
                    slab.check_invariants();
                }
            }
            if random.bool() {
                slab.shrink();
                let most = live.len() * 4 / QUARTERS + SEGMENT;
                assert!(!packs || is_worn || slab.held() <= most, "{} slots", slab.held());
            } else if packs && pause == 1 && !is_worn {
                let most = live.len() * 8 + SPARE + SEGMENT;
                assert!(slab.held() <= most, "{} slots for {}", slab.held(), live.len());
            }
            slab.check_invariants();
            assert_eq!(slab.len(), live.len());
            assert!(slab.keys_from(0).eq(live.values().map(|(key, _)| *key)));
            for (&index, (key, tag)) in &mut live {
                let value = [u64::from(*tag); WORDS];
                assert_eq!((slab.get(*key), slab.tag(*key)), (Some(&value), Some(*tag)));
                assert_eq!((slab.at(index), slab.tag_at(index)), (&value, *tag));
                assert_eq!(slab.key_at(index), Some(*key));
                *tag ^= 1;
                slab.set_tag(index, *tag);
                slab.at_mut(index)[0] ^= 1;
                slab.get_mut(*key).unwrap()[1..].fill((*tag).into());
            }
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
        assert_eq!((slab.slots(), slab.held()), (3 * 1024, 2 * 1024));
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
