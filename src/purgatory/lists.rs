//! The lists of a shard: for each key, the watchers of its events in the order of registration, and
//! the watchers of its value in the order of thresholds.
//!
//! A new watcher of events is always the last one of its list. So up to [`GROUP`] of them share a
//! group. The first few are in the list itself, so most keys need no group. An operation knows the
//! *spot* of each of its watchers. So a watcher leaves a list of thousands without a search.
//!
//! Groups and thresholds are in ordered maps. Between two holds, a walk remembers the number of the
//! group, or the threshold, where it continues. So the walk needs no entry on the list, and any
//! watcher may leave meanwhile.

use std::{any::Any, boxed::Box, collections::BTreeMap, mem, ops::Bound, sync::Arc, vec::Vec};

use super::{
    calls::Calls,
    keys::{Filter, Table},
    limits::Limits,
    stats::PurgatoryStats,
};
use crate::slab::{END, Slab};

/// How many operations a thread takes out at once, or ends in one hold, at most. A late reaper may
/// end more. It is 1 in models, so that a walk takes several holds.
pub(super) const BATCH: usize = if cfg!(loom) { 1 } else { 32 };

/// The lists of a shard, and all that changes when an operation enters or leaves them: counts,
/// limits, the filter, and keys to drop. One type apart from the wheel, so that an operation can
/// leave its lists while it is borrowed from the wheel.
pub(super) struct Lists<K> {
    pub(super) keys: Table<K, List>,
    pub(super) groups: Slab<Group>,
    /// The slots of all operations by number, if the total limit displaces.
    pub(super) by_age: BTreeMap<u64, u32>,
    pub(super) filter: Filter,
    pub(super) limits: Arc<Limits>,
    /// The number of watchers, and the ends of operations.
    pub(super) stats: PurgatoryStats,
    pub(super) dropped: Option<Box<Dropped<K>>>,
    pub(super) calls: Calls,
}

/// Values that are dropped after the release of the lock.
pub(super) struct Dropped<K> {
    /// Keys that have lost their last watcher. Their drop is user code.
    keys: Vec<K>,
    /// Memory that may take long to free.
    memory: Vec<Box<dyn Any + Send>>,
    calls: Calls,
}

impl<K> Drop for Dropped<K> {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            self.calls.catch(|| drop(key));
        }
    }
}

impl<K> Lists<K> {
    pub(super) fn new(filter: Filter, limits: Arc<Limits>, calls: Calls) -> Self {
        Self {
            keys: Table::new(),
            groups: Slab::new(),
            by_age: BTreeMap::new(),
            filter,
            limits,
            stats: PurgatoryStats::default(),
            dropped: None,
            calls,
        }
    }

    /// Takes the memory of the lists, which must be empty.
    pub(super) fn take_memory(&mut self) -> impl Send + use<K>
    where
        K: Send,
    {
        debug_assert_eq!(self.stats.watched, 0, "a watcher is left");
        (mem::replace(&mut self.keys, Table::new()), mem::replace(&mut self.groups, Slab::new()))
    }

    /// Counts a watcher of a key. Adds the key to the table, unless it is there. Returns the number
    /// of the key. The caller adds the watcher to the list. If a comparison of keys panics, the
    /// caller still has the key.
    #[inline]
    pub(super) fn count_watcher(&mut self, hash: u64, key: &mut Option<K>) -> u32
    where
        K: Eq,
    {
        let is_it = |other: &K| key.as_ref().is_some_and(|key| other == key);
        let found = self.keys.find(hash, is_it).map(|(index, _)| index);
        let key = key.take().expect("an operation is registered once");
        self.stats.watched += 1;
        if let Some(index) = found {
            self.discard(key);
            return index;
        }
        self.filter.add(hash);
        self.keys.insert(hash, key, List::new())
    }

    /// Returns the number of the key of a watcher; `None` if the watcher is on no list.
    pub(super) fn key_of(&self, watcher: Watcher) -> Option<u32> {
        match watcher {
            Watcher::Event(spot) => Some(spot.key(&self.groups)),
            Watcher::Threshold(key, _) => Some(key),
            Watcher::Reached => None,
        }
    }

    /// Removes a watcher of events, and releases its permit.
    #[inline]
    pub(super) fn remove_event(&mut self, spot: Spot, is_counted: bool) {
        self.stats.watched -= 1;
        if self.limits.per_key.is_some() {
            self.release_permit(spot.key(&self.groups), is_counted);
        }
        let (is_in_group, key, index) = spot.split();
        if is_in_group {
            return self.remove_from_group(key, index);
        }
        let list = &mut self.keys.entries.at_mut(key).list;
        debug_assert_ne!(list.few[index], END, "a watcher leaves twice");
        list.few[index] = END;
        if list.is_empty() {
            self.remove_key(key);
        }
    }

    /// Removes a watcher of events from its group. Also removes a group that is empty then.
    #[inline(never)]
    fn remove_from_group(&mut self, number: u32, index: usize) {
        let slots = &mut self.groups.at_mut(number).slots;
        debug_assert_ne!(slots[index], END, "a watcher leaves twice");
        slots[index] = END;
        if slots.iter().any(|&slot| slot != END) {
            return;
        }
        let emptied = self.groups.remove(number, None);
        self.groups.close_sparse(number);
        let (.., Group { first, key, .. }) = emptied.expect("the group is there");
        let list = &mut self.keys.entries.at_mut(key).list;
        list.remove_group(number, first);
        if list.is_empty() {
            self.remove_key(key);
        }
    }

    /// Removes a watcher of a threshold, and releases its permit.
    #[inline]
    pub(super) fn remove_threshold(&mut self, key: u32, threshold: Threshold, is_counted: bool) {
        self.stats.watched -= 1;
        if self.limits.per_key.is_some() {
            self.release_permit(key, is_counted);
        }
        let list = &mut self.keys.entries.at_mut(key).list;
        list.remove_threshold(threshold);
        if list.is_empty() {
            self.remove_key(key);
        }
    }

    /// Releases the permit of a watcher of a key, if the limit per key counts it.
    #[cold]
    fn release_permit(&mut self, key: u32, is_counted: bool) {
        if self.limits.count_on_keys(is_counted) {
            if let Some(memory) = self.limits.release_key(self.keys.entries.at(key).hash) {
                self.free_later(memory);
            }
        }
    }

    /// Removes a key, which has no watchers left.
    #[inline]
    fn remove_key(&mut self, key: u32) {
        let (hash, key) = self.keys.remove(key);
        self.filter.remove(hash);
        self.discard(key);
    }

    /// Drops a key after the release of the lock.
    #[inline]
    fn discard(&mut self, key: K) {
        if mem::needs_drop::<K>() {
            self.dropped().keys.push(key);
        }
    }

    /// Frees memory after the release of the lock.
    pub(super) fn free_later(&mut self, memory: impl Send + 'static) {
        self.dropped().memory.push(Box::new(memory));
    }

    fn dropped(&mut self) -> &mut Dropped<K> {
        let new = || Dropped { keys: Vec::new(), memory: Vec::new(), calls: self.calls.clone() };
        self.dropped.get_or_insert_with(|| Box::new(new()))
    }
}

/// A watcher of an operation. On the lists, a watcher of events has the number of its operation.
/// The threshold at index `i` of `Pending::further` has this number plus `i` plus 1.
#[derive(Debug, Clone, Copy)]
pub(super) enum Watcher {
    Event(Spot),
    /// The number of the key, and the value to reach.
    Threshold(u32, u64),
    /// A threshold that has been reached.
    Reached,
}

/// Watchers of events that a list holds without a map. One in models, so that models use the map.
const IN_LIST: u32 = if cfg!(loom) { 1 } else { 4 };

/// Watchers of events that a group has room for.
const GROUP: u32 = if cfg!(loom) { 1 } else { 8 };

/// Watchers of the events of one key. A slot of [`END`] is a vacancy.
#[derive(Debug)]
pub(super) struct Group {
    /// The number of its first watcher.
    first: u64,
    /// The key in the table.
    pub(super) key: u32,
    /// Number of slots that were ever used.
    used: u32,
    slots: [u32; GROUP as usize],
}

/// Where a watcher of events is: the number of its key and the index in the list or, with the
/// highest bit set, the number of its group and the index in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot(u32);

const IN_GROUP: u32 = 1 << 31;

impl Spot {
    pub(super) const NONE: Self = Self(END);

    #[expect(clippy::cast_possible_truncation, reason = "an index is less than 8")]
    #[inline]
    fn in_list(key: u32, index: usize) -> Self {
        assert!(key < IN_GROUP / IN_LIST, "a shard has more than 2^29 keys");
        Self(key * IN_LIST + index as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "an index is less than 8")]
    fn in_group(group: u32, index: usize) -> Self {
        // So that the spot is less than `NONE`.
        assert!(group < (END - IN_GROUP) / GROUP, "a shard has too many groups");
        Self(IN_GROUP | (group * GROUP + index as u32))
    }

    /// Returns the key in the table.
    pub(super) fn key(self, groups: &Slab<Group>) -> u32 {
        let (is_in_group, number, _) = self.split();
        if is_in_group { groups.at(number).key } else { number }
    }

    /// Returns whether the spot is in a group, the number of the group or of the key, and the index
    /// in the group or in the list.
    #[inline]
    const fn split(self) -> (bool, u32, usize) {
        let (is_in_group, spot) = (self.0 & IN_GROUP != 0, self.0 & !IN_GROUP);
        // Two branches, so that each divides by a power of two that the compiler knows.
        if is_in_group {
            (true, spot / GROUP, (spot % GROUP) as usize)
        } else {
            (false, spot / IN_LIST, (spot % IN_LIST) as usize)
        }
    }
}

/// A value to reach, and the number of its watcher in the order of registration.
pub(super) type Threshold = (u64, u64);

/// The watchers of a key. A slot of [`END`] is a vacancy.
#[derive(Debug)]
pub(super) struct List {
    few: [u32; IN_LIST as usize],
    /// The last group, or `END`.
    last: u32,
    /// Boxed, because it is `None` for most keys.
    more: Option<Box<More>>,
}

/// The watchers of a key that are not in the list itself.
#[derive(Debug, Default)]
struct More {
    /// The groups, by the number of the first watcher.
    groups: BTreeMap<u64, u32>,
    /// The slots of the operations that wait for thresholds.
    thresholds: BTreeMap<Threshold, u32>,
}

impl List {
    const fn new() -> Self {
        Self { few: [END; IN_LIST as usize], last: END, more: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |more: &More| more.groups.is_empty() && more.thresholds.is_empty();
        self.few.iter().all(|&slot| slot == END) && self.more.as_deref().is_none_or(is_empty)
    }

    /// Adds a watcher of the events of a key. The `number` of the watcher must be the greatest so
    /// far.
    #[inline]
    pub(super) fn add_event(
        &mut self,
        groups: &mut Slab<Group>,
        key: u32,
        number: u64,
        slot: u32,
    ) -> Spot {
        if self.last == END {
            let used = self.few.iter().rposition(|&slot| slot != END).map_or(0, |last| last + 1);
            if let Some(vacancy) = self.few.get_mut(used) {
                *vacancy = slot;
                return Spot::in_list(key, used);
            }
        } else {
            let group = groups.at_mut(self.last);
            let used = group.used as usize;
            if let Some(vacancy) = group.slots.get_mut(used) {
                *vacancy = slot;
                group.used += 1;
                return Spot::in_group(self.last, used);
            }
        }
        self.add_group(groups, key, number, slot)
    }

    /// Adds a group with a watcher.
    #[cold]
    #[inline]
    fn add_group(&mut self, groups: &mut Slab<Group>, key: u32, number: u64, slot: u32) -> Spot {
        let mut slots = [END; GROUP as usize];
        slots[0] = slot;
        let group = Group { first: number, key, used: 1, slots };
        self.last = groups.insert(0, group).expect("2^32 slots are in use").index();
        self.more.get_or_insert_default().groups.insert(number, self.last);
        Spot::in_group(self.last, 0)
    }

    /// Removes a group, which has no watchers left.
    #[inline]
    fn remove_group(&mut self, number: u32, first: u64) {
        let More { groups, .. } = self.more.as_deref_mut().expect("a list has its groups");
        groups.remove(&first);
        if self.last == number {
            self.last = groups.last_key_value().map_or(END, |(_, &last)| last);
        }
    }

    /// Adds a watcher of a threshold.
    #[inline]
    pub(super) fn add_threshold(&mut self, threshold: Threshold, slot: u32) {
        let before = self.more.get_or_insert_default().thresholds.insert(threshold, slot);
        debug_assert!(before.is_none(), "two watchers have threshold {threshold:?}");
    }

    /// Removes a watcher of a threshold.
    #[inline]
    fn remove_threshold(&mut self, threshold: Threshold) {
        let more = self.more.as_deref_mut();
        let removed = more.and_then(|more| more.thresholds.remove(&threshold));
        debug_assert!(removed.is_some(), "no watcher has threshold {threshold:?}");
    }

    /// Returns the groups of watchers of events in order, from the one with number `first` on: the
    /// number of each and its slots. The number of a group is that of its first watcher. The
    /// watchers in the list itself come first, as a group with number 0.
    #[inline]
    pub(super) fn events<'a>(
        &'a self,
        groups: &'a Slab<Group>,
        first: u64,
    ) -> impl Iterator<Item = (u64, &'a [u32])> {
        let few = (first == 0).then_some((0, &self.few[..]));
        let more = self.more.iter().flat_map(move |more| more.groups.range(first..));
        few.into_iter().chain(more.map(|(&first, &group)| (first, &groups.at(group).slots[..])))
    }

    /// Returns the watchers of thresholds, in order: their thresholds, and their slots.
    #[inline]
    pub(super) fn thresholds(&self) -> impl DoubleEndedIterator<Item = (Threshold, u32)> {
        let all = self.more.iter().flat_map(|more| &more.thresholds);
        all.map(|(&threshold, &slot)| (threshold, slot))
    }

    /// Returns the watchers of thresholds after `last`, in order. Returns none if all are above
    /// `value`.
    #[inline]
    pub(super) fn thresholds_after(
        &self,
        last: Threshold,
        value: u64,
    ) -> impl Iterator<Item = (Threshold, u32)> {
        let thresholds = self.more.as_deref().map(|more| &more.thresholds);
        let first = thresholds.and_then(BTreeMap::first_key_value);
        let reached = thresholds.filter(|_| first.is_some_and(|((at, _), _)| *at <= value));
        let after = (Bound::Excluded(last), Bound::Unbounded);
        let reached = reached.into_iter().flat_map(move |reached| reached.range(after));
        reached.map(|(&threshold, &slot)| (threshold, slot))
    }
}
