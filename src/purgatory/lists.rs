//! The watchers of each key: a list for each key that has watchers, and none for others.
//!
//! A watcher is a node. The nodes of a key's events are linked in the order of registration. Those
//! of its thresholds are in a tree by threshold. An operation knows its nodes, so the time to leave
//! all lists depends only on its own keys. A key leaves with its last watcher.

use std::{boxed::Box, collections::BTreeSet, ops::Bound, vec::Vec};

use smallvec::SmallVec;

use super::{
    cursors::Cursors,
    filter::Filter,
    hold::Hold,
    nodes::{Link, Node, Nodes, Watching},
    slab::{Index, Slab},
    table::Table,
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

/// The first and the last node of a list.
#[derive(Debug, Default, Clone, Copy)]
struct Ends {
    first: Option<Node>,
    last: Option<Node>,
}

impl Ends {
    /// Appends a node. Returns the one before it.
    #[inline]
    fn append(&mut self, node: Node, nodes: &mut Nodes) -> Option<Node> {
        let previous = self.last.replace(node);
        match previous {
            Some(last) => nodes.at_mut(last).next = Some(node),
            None => self.first = Some(node),
        }
        previous
    }
}

#[derive(Debug)]
struct List<K> {
    key: K,
    events: Ends,
    /// `None` if no operation waits for the key's value.
    #[expect(clippy::box_collection, reason = "most keys have none, and a word is a third")]
    thresholds: Option<Box<BTreeSet<(u64, Index)>>>,
}

impl<K> List<K> {
    /// Returns whether the key has no watcher.
    #[inline]
    const fn is_empty(&self) -> bool {
        self.events.first.is_none() && self.thresholds.is_none()
    }
}

/// All lists of a shard.
pub(super) struct Lists<K> {
    keys: Table<List<K>>,
    nodes: Nodes,
    thresholds: Slab<ThresholdNode>,
    /// The positions of walks.
    pub(super) cursors: Cursors,
    /// All operations in the order of registration, if the limits need it.
    oldest: Ends,
    watching: u64,
}

impl<K> Lists<K> {
    pub(super) fn new() -> Self {
        Self {
            keys: Table::new(),
            nodes: Nodes::new(),
            thresholds: Slab::new(),
            cursors: Cursors::new(),
            oldest: Ends { first: None, last: None },
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
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<Index> {
        self.keys.find(hash, |list| is_key(&list.key))
    }

    /// Adds an operation to the list of a key's events, and the node to those of the operation. The
    /// operation must not be on the list.
    #[inline]
    pub(super) fn watch_events(
        &mut self,
        (hash, key): (u64, K),
        waiter: Index,
        watching: &mut Watching,
        hold: &mut Hold<'_, K>,
    ) where
        K: Eq,
    {
        let node = self.nodes.add(waiter, watching);
        let (list, key) =
            self.list_of(hash, key, Ends { first: Some(node), last: Some(node) }, hold);
        let mut previous = None;
        if let Some(key) = key {
            hold.discard(key);
            previous = self.keys[list].events.append(node, &mut self.nodes);
            debug_assert!(previous.is_none_or(|last| self.nodes.waiter(last) != waiter), "twice");
        }
        *self.nodes.at_mut(node) = Link { list: Some(list), previous, next: None };
        self.watching += 1;
    }

    /// Adds an operation to the list of a key's thresholds.
    pub(super) fn watch_threshold(
        &mut self,
        (hash, key, at): (u64, K, u64),
        waiter: Index,
        sibling: Option<Index>,
        hold: &mut Hold<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        let (list, key) = self.list_of(hash, key, Ends::default(), hold);
        if let Some(key) = key {
            hold.discard(key);
        }
        let node = ThresholdNode { waiter, list: Some(list), sibling, at };
        let node = self.thresholds.insert(node);
        self.keys[list].thresholds.get_or_insert_default().insert((at, node));
        self.watching += 1;
        node
    }

    /// Appends an operation to the list of all operations.
    pub(super) fn join_oldest(&mut self, waiter: Index, watching: &mut Watching) {
        let node = self.nodes.add(waiter, watching);
        let previous = self.oldest.append(node, &mut self.nodes);
        *self.nodes.at_mut(node) = Link { list: None, previous, next: None };
    }

    /// Removes an operation from all of its lists. `is_counted` tells whether the limits of its
    /// keys count it.
    #[inline]
    pub(super) fn leave(
        &mut self,
        waiter: Index,
        mut watching: Watching,
        mut thresholds: Option<Index>,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        while let Some((node, link)) = self.nodes.remove(waiter, &mut watching) {
            self.leave_events(node, link, is_counted, hold);
        }
        while let Some(node) = thresholds {
            self.mark_reached(node, is_counted, hold);
            thresholds = self.thresholds.remove(node).sibling;
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
        let thresholds = &mut self.keys[list].thresholds;
        if let Some(tree) = thresholds {
            tree.remove(&(at, node));
            if tree.is_empty() {
                *thresholds = None;
            }
        }
        let is_last = thresholds.is_none() && self.keys[list].events.first.is_none();
        self.watching -= 1;
        if is_counted && hold.limits().is_per_key() {
            hold.limits().release_from_key(self.keys.hash(list));
        }
        if is_last {
            self.leave_as_last(list, hold);
        }
        true
    }

    /// Returns the least threshold on a list, its node, and its operation.
    #[inline]
    pub(super) fn least(&self, list: Index) -> Option<(u64, Index, Index)> {
        let &(at, node) = self.keys[list].thresholds.as_ref()?.first()?;
        Some((at, node, self.thresholds[node].waiter))
    }

    /// Returns the hashes of the keys that an operation watches, one for each node. Events come
    /// first, each kind in the order of registration.
    pub(super) fn hashes(
        &self,
        waiter: Index,
        watching: Watching,
        mut thresholds: Option<Index>,
    ) -> SmallVec<[u64; 4]> {
        let nodes = self.nodes.of(waiter, watching).into_iter();
        let lists = nodes.filter_map(|(_, link)| link.list);
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

    /// Returns the place and the operation of the least threshold after a place.
    pub(super) fn threshold_after(
        &self,
        list: Index,
        place: Option<(u64, Index)>,
    ) -> Option<((u64, Index), Index)> {
        let start = place.map_or(Bound::Unbounded, Bound::Excluded);
        let tree = self.keys[list].thresholds.as_ref()?;
        let &place = tree.range((start, Bound::Unbounded)).next()?;
        Some((place, self.thresholds[place.1].waiter))
    }

    /// Calls `find` with the first watcher of events of each key with this hash, and returns the
    /// first result.
    pub(super) fn lists_of_hash<V>(
        &self,
        hash: u64,
        find: impl Fn(Option<Node>) -> Option<V>,
    ) -> Option<V> {
        let list = self.keys.find(hash, |list| find(list.events.first).is_some())?;
        find(self.keys[list].events.first)
    }

    /// Calls `find` with the operations that wait for values of a key with this hash, greatest
    /// threshold first. Returns the first result and its threshold.
    pub(super) fn greatest<V>(
        &self,
        hash: u64,
        find: impl Fn(Index) -> Option<V>,
    ) -> Option<(u64, V)> {
        let greatest = |list: &List<K>| {
            let mut descending = list.thresholds.as_ref()?.iter().rev();
            descending.find_map(|&(at, node)| Some((at, find(self.thresholds[node].waiter)?)))
        };
        let list = self.keys.find(hash, |list| greatest(list).is_some())?;
        greatest(&self.keys[list])
    }

    /// Returns the first watcher of a key's events.
    #[inline]
    pub(super) fn first(&self, list: Index) -> Option<Node> {
        self.keys[list].events.first
    }

    /// Returns the node of the operation that registered first.
    pub(super) const fn oldest(&self) -> Option<Node> {
        self.oldest.first
    }

    /// Returns the operation of a node, and the node after it.
    #[inline]
    pub(super) fn visit(&self, node: Node) -> (Index, Option<Node>) {
        (self.nodes.waiter(node), self.nodes.at(node).next)
    }

    /// Frees the memory of nodes that have left, and of positions that `is_in_use` rules out.
    /// *O*(capacity).
    pub(super) fn shrink(&mut self, is_in_use: impl Fn(u32) -> bool) {
        self.keys.shrink();
        self.nodes.shrink(is_in_use);
        self.thresholds.shrink();
        self.cursors.shrink();
    }

    /// Takes all memory, so that the caller can free it without the lock. There must be no
    /// watchers.
    pub(super) fn clear(&mut self) -> Self {
        // All cursors are at the end, because there is no node.
        let cursors = std::mem::replace(&mut self.cursors, Cursors::new());
        std::mem::replace(self, Self { cursors, ..Self::new() })
    }

    /// Returns the list of a key. Makes one with these events if there is none; otherwise also
    /// returns the key.
    #[inline]
    fn list_of(
        &mut self,
        hash: u64,
        key: K,
        events: Ends,
        hold: &mut Hold<'_, K>,
    ) -> (Index, Option<K>)
    where
        K: Eq,
    {
        if let Some(list) = self.find(hash, |other| *other == key) {
            return (list, Some(key));
        }
        hold.filter.add(hash);
        (self.keys.insert(hash, List { key, events, thresholds: None }), None)
    }

    #[inline]
    fn ends(&mut self, list: Option<Index>) -> &mut Ends {
        match list {
            Some(list) => &mut self.keys[list].events,
            None => &mut self.oldest,
        }
    }

    /// Unlinks a removed node from its list.
    #[inline]
    fn leave_events(
        &mut self,
        node: Node,
        Link { list, previous, next }: Link,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        self.cursors.move_on(node, next);
        if let Some(list) = list {
            self.watching -= 1;
            if is_counted && hold.limits().is_per_key() {
                hold.limits().release_from_key(self.keys.hash(list));
            }
            if previous.is_none() && next.is_none() && self.leave_as_last(list, hold) {
                return;
            }
        }
        if let Some(previous) = previous {
            self.nodes.at_mut(previous).next = next;
        }
        if let Some(next) = next {
            self.nodes.at_mut(next).previous = previous;
        }
        if previous.is_none() || next.is_none() {
            let ends = self.ends(list);
            ends.first = if previous.is_none() { next } else { ends.first };
            ends.last = if next.is_none() { previous } else { ends.last };
        }
    }

    /// Removes a key after its last watcher of events left, unless an operation waits for its
    /// value. Returns whether the key was removed.
    #[inline]
    fn leave_as_last(&mut self, list: Index, hold: &mut Hold<'_, K>) -> bool {
        let removed = self.keys.remove_if(list, |list| list.thresholds.is_none());
        let Some((hash, List { key, .. })) = removed else { return false };
        hold.filter.remove(hash);
        hold.discard(key);
        true
    }

    /// Checks the nodes of an operation. Returns how many of them are on lists of keys, and how
    /// many of these are thresholds.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_nodes(
        &self,
        waiter: Index,
        watching: Watching,
        mut thresholds: Option<Index>,
    ) -> (u64, u32) {
        let (mut listed, mut missing) = (0, 0);
        for (node, link) in self.nodes.of(waiter, watching) {
            assert_eq!(self.nodes.waiter(node), waiter, "an operation has its own nodes");
            let previous = link.previous.map(|node| self.nodes.at(node).next);
            assert!(previous.is_none_or(|next| next == Some(node)), "the one before leads to it");
            let ends = link.list.map_or(self.oldest, |list| self.keys[list].events);
            assert_eq!(ends.first == Some(node), previous.is_none(), "the first has none before");
            listed += u64::from(link.list.is_some());
        }
        while let Some(node) = thresholds {
            let ThresholdNode { waiter: owner, list, sibling, at } = self.thresholds[node];
            assert_eq!(owner, waiter, "a threshold is in the chain of its operation");
            if let Some(list) = list {
                let tree = self.keys[list].thresholds.as_ref();
                assert!(tree.is_some_and(|tree| tree.contains(&(at, node))), "it is in its tree");
                missing += 1;
            }
            thresholds = sibling;
        }
        (listed + u64::from(missing), missing)
    }

    /// Checks the lists, except the chains of operations, which [`check_nodes`](Self::check_nodes)
    /// checks.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, filter: &Filter) {
        let mut watching = 0;
        let mut hashes = Vec::new();
        for (index, hash, list) in self.keys.iter() {
            assert!(!list.is_empty(), "a key leaves with its last watcher");
            watching += self.check_links(list.events, Some(index));
            let thresholds = list.thresholds.as_ref().map_or(0, |tree| tree.len());
            assert_ne!(Some(thresholds), list.thresholds.as_ref().map(|_| 0), "it is not empty");
            watching += thresholds as u64;
            hashes.push(hash);
        }
        assert_eq!(watching, self.watching, "each watcher is on its list");
        self.check_links(self.oldest, None);
        filter.check_invariants(&hashes);
        self.cursors.check_invariants(|node| {
            let link = self.nodes.at(node);
            link.next.is_none_or(|next| self.nodes.at(next).previous == Some(node))
        });
    }

    /// Checks the links of a list of events. Returns its length.
    fn check_links(&self, ends: Ends, list: Option<Index>) -> u64 {
        let (mut previous, mut next, mut length) = (None, ends.first, 0);
        while let Some(node) = next {
            let here = self.nodes.at(node);
            assert_eq!((here.list, here.previous), (list, previous), "links lead back");
            (previous, next) = (Some(node), here.next);
            length += 1;
        }
        assert_eq!(previous, ends.last, "the last node is the end");
        length
    }
}
