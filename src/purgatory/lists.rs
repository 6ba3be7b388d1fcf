//! Who watches which key: a list for each key that has watchers, and none for others.
//!
//! A watcher is a node. The nodes of a key's events are linked in the order in which they came;
//! those of its thresholds are in a tree by threshold. All nodes of one operation are chained as
//! *siblings*, so that it leaves every list in a time that depends on its own keys only. A key
//! leaves with its last watcher.

use std::{collections::BTreeSet, ops::Bound, vec::Vec};

use hashbrown::HashTable;

use super::{
    filter::Filter,
    slab::{Index, Slab},
};

/// A watcher of events.
#[derive(Debug)]
struct EventNode {
    waiter: Index,
    /// The list that it is on; `None` stands for that of the eldest.
    list: Option<Index>,
    sibling: Option<Index>,
    previous: Option<Index>,
    next: Option<Index>,
}

const _: () = assert!(size_of::<Option<EventNode>>() == 20);

/// A watcher of a value.
#[derive(Debug)]
struct ThresholdNode {
    waiter: Index,
    /// The list that it is on; `None` once the value has been reached.
    list: Option<Index>,
    sibling: Option<Index>,
    at: u64,
}

/// The ends of a chain of nodes.
#[derive(Debug, Default, Clone, Copy)]
struct Ends {
    first: Option<Index>,
    last: Option<Index>,
}

#[derive(Debug)]
struct List<K> {
    key: K,
    hash: u64,
    events: Ends,
    thresholds: BTreeSet<(u64, Index)>,
}

/// What leaves a shard and is dealt with when its lock has been released.
pub(super) struct Leavings<'a, K> {
    pub(super) filter: &'a Filter,
    /// Keys that nobody watches any more. Their drop is user code.
    pub(super) keys: Vec<K>,
    /// A hash for each watcher that left, if that is wanted.
    pub(super) hashes: Option<Vec<u64>>,
}

impl<'a, K> Leavings<'a, K> {
    #[inline]
    pub(super) fn new(filter: &'a Filter, with_hashes: bool) -> Self {
        Self { filter, keys: Vec::new(), hashes: with_hashes.then(Vec::new) }
    }

    /// Notes that a watcher has left.
    #[inline]
    fn note(&mut self, hash: u64) {
        self.filter.remove(hash);
        if let Some(hashes) = &mut self.hashes {
            hashes.push(hash);
        }
    }

    #[inline]
    fn discard(&mut self, key: K) {
        if std::mem::needs_drop::<K>() {
            self.keys.push(key);
        }
    }
}

/// A place in a list that outlives the node there: it moves on to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(usize);

/// All lists of a shard.
pub(super) struct Lists<K> {
    table: HashTable<Index>,
    lists: Slab<List<K>>,
    events: Slab<EventNode>,
    thresholds: Slab<ThresholdNode>,
    /// The node that each cursor is at; `Some(None)` at the end.
    cursors: Vec<Option<Option<Index>>>,
    /// All operations in the order in which they came, if that is kept.
    eldest: Ends,
    watching: u64,
}

impl<K> Lists<K> {
    pub(super) const fn new() -> Self {
        Self {
            table: HashTable::new(),
            lists: Slab::new(),
            events: Slab::new(),
            thresholds: Slab::new(),
            cursors: Vec::new(),
            eldest: Ends { first: None, last: None },
            watching: 0,
        }
    }

    /// Number of watchers.
    pub(super) const fn watching(&self) -> u64 {
        self.watching
    }

    /// Number of keys that have watchers.
    pub(super) fn keys(&self) -> usize {
        self.table.len()
    }

    /// The list of a key.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<Index> {
        self.table.find(hash, |&list| is_key(&self.lists[list].key)).copied()
    }

    /// Puts an operation on the list of a key's events, with the head of its chain of siblings;
    /// `None` if it is there already.
    pub(super) fn watch_events(
        &mut self,
        (hash, key): (u64, K),
        waiter: Index,
        sibling: Option<Index>,
        leavings: &mut Leavings<'_, K>,
    ) -> Option<Index>
    where
        K: Eq,
    {
        let list = self.list_of(hash, key, leavings);
        let last = self.lists[list].events.last;
        // An operation comes to all of its lists in one go, so it is the last one if it is there.
        if last.is_some_and(|last| self.events[last].waiter == waiter) {
            return None;
        }
        let node = EventNode { waiter, list: Some(list), sibling, previous: last, next: None };
        let node = self.events.insert(node);
        self.append(node, last, Some(list));
        leavings.filter.add(hash);
        self.watching += 1;
        Some(node)
    }

    /// Puts an operation on the list of those that wait for a key's value.
    pub(super) fn watch_threshold(
        &mut self,
        (hash, key, at): (u64, K, u64),
        waiter: Index,
        sibling: Option<Index>,
        leavings: &mut Leavings<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        let list = self.list_of(hash, key, leavings);
        let node = ThresholdNode { waiter, list: Some(list), sibling, at };
        let node = self.thresholds.insert(node);
        self.lists[list].thresholds.insert((at, node));
        leavings.filter.add(hash);
        self.watching += 1;
        node
    }

    /// Puts an operation behind those that came before it.
    pub(super) fn join_eldest(&mut self, waiter: Index, sibling: Option<Index>) -> Index {
        let last = self.eldest.last;
        let node = EventNode { waiter, list: None, sibling, previous: last, next: None };
        let node = self.events.insert(node);
        self.append(node, last, None);
        node
    }

    /// Takes an operation off all of its lists, given the heads of its chains.
    pub(super) fn leave(
        &mut self,
        (mut events, mut thresholds): (Option<Index>, Option<Index>),
        leavings: &mut Leavings<'_, K>,
    ) {
        while let Some(node) = events {
            events = self.leave_events(node, leavings);
        }
        while let Some(node) = thresholds {
            self.mark_reached(node, leavings);
            thresholds = self.thresholds.remove(node).sibling;
        }
    }

    /// Takes a threshold off its list, unless it is off; returns whether it was on it.
    pub(super) fn mark_reached(&mut self, node: Index, leavings: &mut Leavings<'_, K>) -> bool {
        let ThresholdNode { list, at, .. } = &mut self.thresholds[node];
        let (Some(list), at) = (list.take(), *at) else { return false };
        self.lists[list].thresholds.remove(&(at, node));
        self.left(list, leavings);
        true
    }

    /// Takes the least threshold off a list if `value` reaches it. Returns it and who waits for it.
    #[inline]
    pub(super) fn reach(
        &mut self,
        list: Index,
        value: u64,
        leavings: &mut Leavings<'_, K>,
    ) -> Option<(u64, Index)> {
        let &(at, node) = self.lists[list].thresholds.first()?;
        if at > value {
            return None;
        }
        self.mark_reached(node, leavings);
        Some((at, self.thresholds[node].waiter))
    }

    /// Who waits for the least threshold after `last`, with the place of that.
    pub(super) fn threshold_after(
        &self,
        list: Index,
        last: Option<(u64, Index)>,
    ) -> Option<((u64, Index), Index)> {
        let start = last.map_or(Bound::Unbounded, Bound::Excluded);
        let &place = self.lists[list].thresholds.range((start, Bound::Unbounded)).next()?;
        Some((place, self.thresholds[place.1].waiter))
    }

    /// Who waits for the greatest value of a key.
    pub(super) fn greatest(&self, list: Index) -> Option<Index> {
        let &(_, node) = self.lists[list].thresholds.last()?;
        Some(self.thresholds[node].waiter)
    }

    /// The first watcher of a key's events.
    #[inline]
    pub(super) fn first(&self, list: Index) -> Option<Index> {
        self.lists[list].events.first
    }

    /// The node of the operation that came first.
    pub(super) const fn eldest(&self) -> Option<Index> {
        self.eldest.first
    }

    /// Who a node stands for, and the node after it.
    #[inline]
    pub(super) fn visit(&self, node: Index) -> (Index, Option<Index>) {
        let node = &self.events[node];
        (node.waiter, node.next)
    }

    /// Marks a place; it is to be [closed](Self::close).
    pub(super) fn open(&mut self, node: Option<Index>) -> Cursor {
        let vacant = self.cursors.iter().position(Option::is_none);
        let cursor = vacant.unwrap_or(self.cursors.len());
        if vacant.is_none() {
            self.cursors.push(None);
        }
        self.cursors[cursor] = Some(node);
        Cursor(cursor)
    }

    /// Gives up a mark, and returns the node there.
    pub(super) fn close(&mut self, cursor: Cursor) -> Option<Index> {
        let node = self.cursors[cursor.0].take();
        while self.cursors.last().is_some_and(Option::is_none) {
            self.cursors.pop();
        }
        node.flatten()
    }

    /// Gives back the room of what has left. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.lists.shrink();
        self.events.shrink();
        self.thresholds.shrink();
        let Self { table, lists, .. } = self;
        table.shrink_to_fit(|&list| lists[list].hash);
    }

    /// Gives all room back, if there is much and nobody watches.
    pub(super) fn shrink_if_empty(&mut self) {
        if self.watching == 0 {
            self.lists.shrink_if_empty();
            self.events.shrink_if_empty();
            self.thresholds.shrink_if_empty();
            if self.table.capacity() > 1024 {
                self.table = HashTable::new();
            }
        }
    }

    /// The list of a key, made if there is none.
    #[inline]
    fn list_of(&mut self, hash: u64, key: K, leavings: &mut Leavings<'_, K>) -> Index
    where
        K: Eq,
    {
        let Self { table, lists, .. } = self;
        if let Some(&list) = table.find(hash, |&list| lists[list].key == key) {
            leavings.discard(key);
            return list;
        }
        let list = List { key, hash, events: Ends::default(), thresholds: BTreeSet::new() };
        let list = lists.insert(list);
        table.insert_unique(hash, list, |&list| lists[list].hash);
        list
    }

    /// Links a node that is to be the last of a list.
    #[inline]
    fn append(&mut self, node: Index, last: Option<Index>, list: Option<Index>) {
        if let Some(last) = last {
            self.events[last].next = Some(node);
        }
        let ends = self.ends(list);
        ends.last = Some(node);
        if last.is_none() {
            ends.first = Some(node);
        }
    }

    #[inline]
    fn ends(&mut self, list: Option<Index>) -> &mut Ends {
        match list {
            Some(list) => &mut self.lists[list].events,
            None => &mut self.eldest,
        }
    }

    /// Unlinks a node, and returns its sibling.
    #[inline]
    fn leave_events(&mut self, node: Index, leavings: &mut Leavings<'_, K>) -> Option<Index> {
        let EventNode { list, sibling, previous, next, .. } = self.events.remove(node);
        for cursor in &mut self.cursors {
            if *cursor == Some(Some(node)) {
                *cursor = Some(next);
            }
        }
        match previous {
            Some(previous) => self.events[previous].next = next,
            None => self.ends(list).first = next,
        }
        match next {
            Some(next) => self.events[next].previous = previous,
            None => self.ends(list).last = previous,
        }
        if let Some(list) = list {
            self.left(list, leavings);
        }
        sibling
    }

    /// A watcher has left a list; if it was the last, so does the key.
    #[inline]
    fn left(&mut self, list: Index, leavings: &mut Leavings<'_, K>) {
        let List { hash, events, thresholds, .. } = &self.lists[list];
        let hash = *hash;
        leavings.note(hash);
        self.watching -= 1;
        if events.first.is_none() && thresholds.is_empty() {
            let entry = self.table.find_entry(hash, |&other| other == list);
            entry.expect("a list is in the table").remove();
            leavings.discard(self.lists.remove(list).key);
        }
    }
}
