//! The watchers of each key: a list for each key that has watchers, and none for others.
//!
//! The watchers of a key's events are in the order of registration. Those of its value are in a
//! tree by threshold. An operation knows its positions, so the time to leave all lists depends only
//! on its own keys. A key leaves with its last watcher.

use std::{borrow::Borrow, boxed::Box, collections::BTreeSet, ops::Bound, vec::Vec};

use smallvec::SmallVec;

use super::{
    conditions::Threshold,
    cursors::Cursors,
    filter::Filter,
    hold::Hold,
    slab::{Index, Slab},
    table::Table,
    watchers::{Chunks, FEW, Gathered, Home, Position, Positions, Step},
};

/// A watcher of a value.
#[derive(Debug)]
struct ThresholdNode {
    waiter: Index,
    /// The list that it is on; `None` once the value has been reached.
    list: Option<Index>,
    sibling: Option<Index>,
    at: u64,
}

/// A threshold on the list of its key, in the order of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ThresholdKey {
    pub(super) at: u64,
    pub(super) node: Index,
}

/// A borrowed key and its hash.
pub(super) struct HashedKey<'q, Q: ?Sized> {
    pub(super) hash: u64,
    pub(super) key: &'q Q,
}

impl<Q: ?Sized> Clone for HashedKey<'_, Q> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for HashedKey<'_, Q> {}

/// The watchers of a key.
#[derive(Debug, Default)]
struct List {
    /// The first watchers of its events. New ones are added here while there is no chunk.
    few: [Option<Index>; FEW],
    /// The last chunk of further watchers of its events.
    last_chunk: Option<Index>,
    /// `None` if no operation waits for the key's value.
    #[expect(clippy::box_collection, reason = "most keys have none, and a word is a third")]
    thresholds: Option<Box<BTreeSet<ThresholdKey>>>,
}

impl List {
    /// Returns whether the key has no watcher.
    #[inline]
    fn is_empty(&self) -> bool {
        self.few.iter().all(Option::is_none)
            && self.last_chunk.is_none()
            && self.thresholds.is_none()
    }

    /// Returns the slot in the entry for the next watcher; `None` if it must go to a chunk.
    #[inline]
    fn vacant_slot(&self) -> Option<usize> {
        let used = self.few.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        (used < FEW && self.last_chunk.is_none()).then_some(used)
    }
}

/// All lists of a shard.
pub(super) struct Lists<K> {
    keys: Table<K, List>,
    chunks: Chunks,
    thresholds: Slab<ThresholdNode>,
    /// The positions of walks.
    pub(super) cursors: Cursors,
    /// The last chunk of all operations in the order of registration, if the limits need it.
    last_of_all: Option<Index>,
    watching: u64,
}

impl<K> Lists<K> {
    pub(super) fn new() -> Self {
        Self {
            keys: Table::new(),
            chunks: Chunks::new(),
            thresholds: Slab::new(),
            cursors: Cursors::new(),
            last_of_all: None,
            watching: 0,
        }
    }

    /// Returns the number of watchers.
    pub(super) const fn watching(&self) -> u64 {
        self.watching
    }

    /// Returns the number of keys that have watchers.
    pub(super) const fn keys(&self) -> u32 {
        self.keys.len()
    }

    /// Returns the list of a key.
    #[inline]
    pub(super) fn find<Q>(&self, key: HashedKey<'_, Q>) -> Option<Index>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.keys.find(key.hash, |_, listed, _| listed.borrow() == key.key)
    }

    /// Adds an operation to the list of a key's events, and returns its position. The operation
    /// must not be on the list.
    #[inline]
    pub(super) fn watch_events(
        &mut self,
        (hash, key): (u64, K),
        waiter: Index,
        hold: &mut Hold<'_, K>,
    ) -> Position
    where
        K: Eq,
    {
        let (index, list, is_new) = Self::list_of(&mut self.keys, hash, key, hold);
        debug_assert!(!list.few.contains(&Some(waiter)), "{waiter:?} watches the key already");
        self.watching += 1;
        if let Some(slot) = if is_new { Some(0) } else { list.vacant_slot() } {
            list.few[slot] = Some(waiter);
            Position::in_key(index, slot)
        } else {
            self.chunks.append(Some(index), &mut list.last_chunk, waiter)
        }
    }

    /// Adds an operation to the list of a key's thresholds, and returns its node.
    pub(super) fn watch_threshold(
        &mut self,
        threshold: &mut Threshold<K>,
        waiter: Index,
        sibling: Option<Index>,
        hold: &mut Hold<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        let at = threshold.at;
        let key = threshold.listed.take().expect("an operation is registered once");
        let (index, list, _) = Self::list_of(&mut self.keys, threshold.hash, key, hold);
        let node = ThresholdNode { waiter, list: Some(index), sibling, at };
        let (node, _) = self.thresholds.insert(node);
        list.thresholds.get_or_insert_default().insert(ThresholdKey { at, node });
        self.watching += 1;
        threshold.node = Some(node);
        node
    }

    /// Appends an operation to the list of all operations.
    pub(super) fn append_to_all(&mut self, waiter: Index, positions: &mut Positions) {
        positions.push(self.chunks.append(None, &mut self.last_of_all, waiter));
    }

    /// Removes an operation from all of its lists. `is_counted` tells whether the limits of its
    /// keys count it.
    #[inline]
    pub(super) fn leave(
        &mut self,
        waiter: Index,
        positions: &mut Positions,
        mut thresholds: Option<Index>,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        let further =
            positions.take(|position| self.leave_events(waiter, position, is_counted, hold));
        if let Some(further) = further {
            self.leave_further(waiter, &further, is_counted, hold);
        }
        while let Some(node) = thresholds {
            self.mark_reached(node, is_counted, hold);
            thresholds = self.thresholds.remove(node).sibling;
        }
    }

    /// Removes a watcher of events at each of these positions.
    #[cold]
    fn leave_further(
        &mut self,
        waiter: Index,
        positions: &[Position],
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        for &position in positions {
            self.leave_events(waiter, position, is_counted, hold);
        }
    }

    /// Removes a threshold from its list. Returns whether it was on the list.
    pub(super) fn mark_reached(
        &mut self,
        node: Index,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) -> bool {
        let ThresholdNode { list, at, .. } = &mut self.thresholds[node];
        let (Some(list), at) = (list.take(), *at) else { return false };
        let remove = |list: &mut List| {
            if let Some(tree) = &mut list.thresholds {
                tree.remove(&ThresholdKey { at, node });
                if tree.is_empty() {
                    list.thresholds = None;
                }
            }
        };
        self.remove_watcher(list, remove, is_counted, hold);
        true
    }

    /// Returns the hashes of the keys that an operation watches, one for each watcher. Events come
    /// first, each kind in the order of registration.
    pub(super) fn hashes(
        &self,
        positions: &Positions,
        mut thresholds: Option<Index>,
    ) -> SmallVec<[u64; 4]> {
        let lists = positions.iter().filter_map(|position| self.list_at(position));
        let mut hashes: SmallVec<_> = lists.map(|list| self.keys.hash(list)).collect();
        let events = hashes.len();
        while let Some(node) = thresholds {
            let ThresholdNode { list, sibling, .. } = self.thresholds[node];
            hashes.extend(list.map(|list| self.keys.hash(list)));
            thresholds = sibling;
        }
        // The latest is at the head of the chain.
        hashes[events..].reverse();
        hashes
    }

    /// Returns the least threshold of a list, or the least after another one, and its operation.
    #[inline]
    pub(super) fn threshold_after(
        &self,
        list: Index,
        after: Option<ThresholdKey>,
    ) -> Option<(ThresholdKey, Index)> {
        let tree = self.keys[list].thresholds.as_ref()?;
        let &next = match after {
            None => tree.first()?,
            Some(after) => tree.range((Bound::Excluded(after), Bound::Unbounded)).next()?,
        };
        Some((next, self.thresholds[next.node].waiter))
    }

    /// Returns the greatest threshold of a list.
    pub(super) fn greatest_of(&self, list: Index) -> Option<u64> {
        Some(self.keys[list].thresholds.as_ref()?.last()?.at)
    }

    /// Calls `find` with the first position of events of each key with this hash, and returns the
    /// first result.
    pub(super) fn lists_of_hash<V>(
        &self,
        hash: u64,
        find: impl Fn(Position) -> Option<V>,
    ) -> Option<V> {
        let start = |list| Position::in_key(list, 0);
        let list = self.keys.find(hash, |list, _, _| find(start(list)).is_some())?;
        find(start(list))
    }

    /// Calls `find` with the operations that wait for values of a key with this hash, greatest
    /// threshold first. Returns the first result and its threshold.
    pub(super) fn greatest<V>(
        &self,
        hash: u64,
        find: impl Fn(Index) -> Option<V>,
    ) -> Option<(u64, V)> {
        let greatest = |list: &List| {
            let mut descending = list.thresholds.as_ref()?.iter().rev();
            descending.find_map(|&ThresholdKey { at, node }| {
                Some((at, find(self.thresholds[node].waiter)?))
            })
        };
        let list = self.keys.find(hash, |_, _, list| greatest(list).is_some())?;
        greatest(&self.keys[list])
    }

    /// Returns the first position of the list of all operations.
    pub(super) fn start_of_all(&self) -> Option<Position> {
        self.chunks.first(self.last_of_all).map(Position::start_of)
    }

    /// Returns the first watcher of a list from a position on: its position and its operation.
    #[inline]
    pub(super) fn seek(&self, position: Position) -> Option<(Position, Index)> {
        let here = self.gather(position, 0, &mut Gathered::new())?;
        Some((here, self.waiter_at(here)?))
    }

    /// Appends the operations of a list from a position on to `waiters`, up to `len` in all.
    /// Returns the position of the next one; `None` at the end.
    #[inline]
    pub(super) fn gather(
        &self,
        start: Position,
        len: usize,
        waiters: &mut Gathered,
    ) -> Option<Position> {
        let (mut chunk, mut slot) = match start.home() {
            (Home::Key(index), start) => {
                let list = &self.keys[index];
                for slot in start..FEW {
                    let Some(waiter) = list.few[slot] else { continue };
                    if waiters.len() == len {
                        return Some(Position::in_key(index, slot));
                    }
                    waiters.push(waiter);
                }
                (self.chunks.first(list.last_chunk)?, 0)
            }
            (Home::Chunk(chunk), start) => (chunk, start),
        };
        loop {
            match self.chunks.gather(chunk, slot, len, waiters) {
                Step::At(position) => return Some(position),
                Step::After { list, next } => {
                    let tail = list.map_or(self.last_of_all, |list| self.keys[list].last_chunk);
                    if tail == Some(chunk) {
                        return None;
                    }
                    (chunk, slot) = (next, 0);
                }
            }
        }
    }

    /// Returns the operation at a position, unless the position is a hole.
    #[inline]
    pub(super) fn waiter_at(&self, position: Position) -> Option<Index> {
        match position.home() {
            (Home::Key(list), slot) => self.keys[list].few[slot],
            (Home::Chunk(chunk), slot) => self.chunks.at(chunk, slot),
        }
    }

    /// Returns the key whose events a position watches; `None` for the list of all operations.
    fn list_at(&self, position: Position) -> Option<Index> {
        match position.home().0 {
            Home::Key(list) => Some(list),
            Home::Chunk(chunk) => self.chunks.list(chunk),
        }
    }

    /// Frees the memory of watchers that have left. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.keys.shrink();
        self.chunks.shrink();
        self.thresholds.shrink();
        self.cursors.shrink();
    }

    /// Takes all memory, so that the caller can free it without the lock. There must be no
    /// watchers.
    pub(super) fn clear(&mut self) -> Self {
        // All cursors are at the end, because there is no watcher.
        let cursors = std::mem::replace(&mut self.cursors, Cursors::new());
        std::mem::replace(self, Self { cursors, ..Self::new() })
    }

    /// Returns the list of a key. Adds an empty one if there is none. Also returns whether it did.
    #[inline]
    fn list_of<'t>(
        keys: &'t mut Table<K, List>,
        hash: u64,
        key: K,
        hold: &mut Hold<'_, K>,
    ) -> (Index, &'t mut List, bool)
    where
        K: Eq,
    {
        let (index, list, unused) = keys.find_or_insert(hash, key);
        let is_new = unused.is_none();
        match unused {
            Some(key) => hold.discard(key),
            None => hold.filter.add(hash),
        }
        (index, list, is_new)
    }

    /// Removes a watcher of events.
    #[inline]
    fn leave_events(
        &mut self,
        waiter: Index,
        position: Position,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        match position.home() {
            (Home::Key(list), slot) => {
                let remove = |list: &mut List| {
                    let removed = list.few[slot].take();
                    debug_assert_eq!(removed, Some(waiter), "another watcher is in slot {slot}");
                };
                self.remove_watcher(list, remove, is_counted, hold);
            }
            (Home::Chunk(chunk), slot) => {
                let (list, is_empty) = self.chunks.remove(chunk, slot, waiter);
                if is_empty {
                    self.remove_chunk(chunk, list);
                }
                if let Some(list) = list {
                    self.remove_watcher(list, |_| {}, is_counted, hold);
                }
            }
        }
    }

    #[cold]
    fn remove_chunk(&mut self, chunk: Index, list: Option<Index>) {
        let tail = match list {
            Some(list) => &mut self.keys[list].last_chunk,
            None => &mut self.last_of_all,
        };
        let next = self.chunks.remove_chunk(chunk, tail);
        self.cursors.move_from(Home::Chunk(chunk), next.map(Position::start_of));
    }

    /// Removes a watcher from the list of a key by `remove`, and releases its permit. Removes the
    /// key if that was its last watcher.
    #[inline]
    fn remove_watcher(
        &mut self,
        list: Index,
        remove: impl FnOnce(&mut List),
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        self.watching -= 1;
        let limits = hold.limits();
        let change = |hash, list: &mut List| {
            remove(list);
            if is_counted && limits.is_per_key() {
                limits.release_from_key(hash);
            }
            list.is_empty()
        };
        if let Some((hash, key)) = self.keys.change(list, change) {
            self.cursors.move_from(Home::Key(list), None);
            hold.filter.remove(hash);
            hold.discard(key);
        }
    }

    /// Checks the watchers of an operation. Returns their numbers.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_watchers(
        &self,
        waiter: Index,
        positions: &Positions,
        mut thresholds: Option<Index>,
    ) -> Listed {
        let mut listed = Listed::default();
        for position in positions.iter() {
            let here = self.waiter_at(position);
            assert_eq!(here, Some(waiter), "another watcher is at a position of {waiter:?}");
            let count = if self.list_at(position).is_some() {
                &mut listed.events
            } else {
                &mut listed.in_order
            };
            *count += 1;
        }
        while let Some(node) = thresholds {
            let ThresholdNode { waiter: owner, list, sibling, at } = self.thresholds[node];
            assert_eq!(owner, waiter, "threshold {at} is in the chain of another operation");
            listed.nodes += 1;
            if let Some(list) = list {
                let tree = self.keys[list].thresholds.as_ref();
                assert!(
                    tree.is_some_and(|tree| tree.contains(&ThresholdKey { at, node })),
                    "threshold {at} of {waiter:?} is not in its tree"
                );
                listed.missing += 1;
            }
            thresholds = sibling;
        }
        listed
    }

    /// Checks the lists against the sum of the numbers from
    /// [`check_watchers`](Self::check_watchers).
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, listed: Listed, filter: &Filter) {
        let mut hashes = Vec::new();
        self.keys.check_invariants(List::is_empty);
        let (mut chunks, in_order) = self.chunks.check_invariants(None, self.last_of_all);
        assert_eq!(in_order, listed.in_order, "the list of all has other operations");
        let (mut events, mut thresholds) = (0, 0);
        for (index, hash, list) in self.keys.iter() {
            assert!(!list.is_empty(), "key {index:?} has no watcher");
            let found = self.keys.find(hash, |found, _, _| found == index);
            assert_eq!(found, Some(index), "no chain leads to key {index:?}");
            let (further, watchers) = self.chunks.check_invariants(Some(index), list.last_chunk);
            chunks += further;
            events += list.few.iter().flatten().count() as u64 + watchers;
            if let Some(tree) = &list.thresholds {
                assert!(!tree.is_empty(), "key {index:?} has an empty tree");
                thresholds += tree.len() as u64;
            }
            hashes.push(hash);
        }
        assert_eq!(events, listed.events, "the lists have other watchers of events");
        assert_eq!(thresholds, u64::from(listed.missing), "the trees have other thresholds");
        assert_eq!(events + thresholds, self.watching, "the count of watchers is wrong");
        assert_eq!(self.chunks.count(), chunks, "a chunk is on no list");
        assert_eq!(self.thresholds.count(), listed.nodes, "a threshold has no operation");
        filter.check_invariants(&hashes);
        self.cursors.check_invariants(|home| match home {
            Home::Key(list) => self.keys.iter().any(|(index, ..)| index == list),
            Home::Chunk(chunk) => self.chunks.has(chunk),
        });
    }
}

/// The watchers of operations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Listed {
    events: u64,
    /// Positions on the list of all operations.
    pub(super) in_order: u64,
    /// Thresholds, including those that have been reached.
    nodes: usize,
    /// Thresholds that have not been reached.
    pub(super) missing: u32,
}

impl Listed {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.in_order += other.in_order;
        self.nodes += other.nodes;
        self.missing += other.missing;
    }
}

/// The progress of a pass along the thresholds of a key in a shard. It visits those of the
/// operations that waited when it began.
///
/// Thresholds are in the order of values, so newer ones may lie between. The pass moves past up to
/// 256 of these in a hold.
pub(super) struct ThresholdPass {
    /// The serial number of the first operation that came later; `None` before the pass begins.
    next_serial: Option<u64>,
    /// The last threshold that was left on its list, because its operation came later.
    pub(super) passed_over: Option<ThresholdKey>,
    /// The greatest value to visit. So the pass does not follow values that grow.
    pub(super) end: u64,
}

impl ThresholdPass {
    pub(super) const fn up_to(end: u64) -> Self {
        Self { next_serial: None, passed_over: None, end }
    }

    /// Begins the pass unless it has begun. Returns the serial number of the first operation that
    /// came later.
    pub(super) fn begin(&mut self, next_serial: u64) -> u64 {
        *self.next_serial.get_or_insert(next_serial)
    }
}
