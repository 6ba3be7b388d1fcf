//! The watchers of each key: a list for each key that has watchers, and none for others.
//!
//! A watcher is a node. The nodes of a key's events are linked in the order in which they came;
//! those of its thresholds are in a tree by threshold. All nodes of one operation are chained as
//! *siblings*, so that it leaves every list in a time that depends on its own keys only. A key
//! leaves with its last watcher.

use std::{boxed::Box, collections::BTreeSet, ops::Bound, vec::Vec};

use smallvec::SmallVec;

use super::{
    cursors::Cursors,
    filter::Filter,
    hold::Hold,
    slab::{Index, Slab},
    table::Table,
};

/// A watcher of events.
#[derive(Debug)]
struct EventNode {
    waiter: Index,
    /// The list that it is on; `None` stands for that of the oldest.
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

impl Ends {
    /// Links a node that is to be the last.
    #[inline]
    fn append(&mut self, node: Index, nodes: &mut Slab<EventNode>) {
        match self.last.replace(node) {
            Some(last) => nodes[last].next = Some(node),
            None => self.first = Some(node),
        }
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
    /// Whether the key has no watcher.
    #[inline]
    const fn is_empty(&self) -> bool {
        self.events.first.is_none() && self.thresholds.is_none()
    }
}

/// All lists of a shard.
pub(super) struct Lists<K> {
    keys: Table<List<K>>,
    events: Slab<EventNode>,
    thresholds: Slab<ThresholdNode>,
    /// The positions of walks.
    pub(super) cursors: Cursors,
    /// All operations in the order in which they came, if that is kept.
    oldest: Ends,
    watching: u64,
}

impl<K> Lists<K> {
    pub(super) fn new() -> Self {
        Self {
            keys: Table::new(),
            events: Slab::new(),
            thresholds: Slab::new(),
            cursors: Cursors::new(),
            oldest: Ends { first: None, last: None },
            watching: 0,
        }
    }

    /// Number of watchers.
    pub(super) const fn watching(&self) -> u64 {
        self.watching
    }

    /// Number of keys that have watchers.
    pub(super) const fn keys(&self) -> u32 {
        self.keys.len()
    }

    /// The list of a key.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(&K) -> bool) -> Option<Index> {
        self.keys.find(hash, |list| is_key(&list.key))
    }

    /// Puts an operation on the list of a key's events, on which it is not, with the head of its
    /// chain of siblings.
    pub(super) fn watch_events(
        &mut self,
        (hash, key): (u64, K),
        waiter: Index,
        sibling: Option<Index>,
        hold: &mut Hold<'_, K>,
    ) -> Index
    where
        K: Eq,
    {
        let list = self.list_of(hash, key, hold);
        let ends = &mut self.keys[list].events;
        let previous = ends.last;
        debug_assert!(previous.is_none_or(|last| self.events[last].waiter != waiter), "twice");
        let node = EventNode { waiter, list: Some(list), sibling, previous, next: None };
        let node = self.events.insert(node);
        ends.append(node, &mut self.events);
        self.watching += 1;
        node
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
        let list = self.list_of(hash, key, hold);
        let node = ThresholdNode { waiter, list: Some(list), sibling, at };
        let node = self.thresholds.insert(node);
        self.keys[list].thresholds.get_or_insert_default().insert((at, node));
        self.watching += 1;
        node
    }

    /// Puts an operation behind those that came before it.
    pub(super) fn join_oldest(&mut self, waiter: Index, sibling: Option<Index>) -> Index {
        let previous = self.oldest.last;
        let node = EventNode { waiter, list: None, sibling, previous, next: None };
        let node = self.events.insert(node);
        self.oldest.append(node, &mut self.events);
        node
    }

    /// Takes an operation off all of its lists, given the heads of its chains. `is_counted` says
    /// whether the limits of its keys count it.
    pub(super) fn leave(
        &mut self,
        (mut events, mut thresholds): (Option<Index>, Option<Index>),
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) {
        while let Some(node) = events {
            events = self.leave_events(node, is_counted, hold);
        }
        while let Some(node) = thresholds {
            self.mark_reached(node, is_counted, hold);
            thresholds = self.thresholds.remove(node).sibling;
        }
    }

    /// Takes a threshold off its list, unless it is off; returns whether it was on it.
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
        let is_drained = thresholds.is_none();
        self.left(list, is_drained, is_counted, hold);
        true
    }

    /// The least threshold on a list, its node, and who waits for it.
    #[inline]
    pub(super) fn least(&self, list: Index) -> Option<(u64, Index, Index)> {
        let &(at, node) = self.keys[list].thresholds.as_ref()?.first()?;
        Some((at, node, self.thresholds[node].waiter))
    }

    /// The hashes of the keys that an operation watches, given the heads of its chains: one for each
    /// node, in the order in which they came, those of events first.
    pub(super) fn hashes(
        &self,
        (mut events, mut thresholds): (Option<Index>, Option<Index>),
    ) -> SmallVec<[u64; 4]> {
        let mut hashes = SmallVec::new();
        while let Some(node) = events {
            let EventNode { list, sibling, .. } = self.events[node];
            hashes.extend(list.map(|list| self.keys.hash(list)));
            events = sibling;
        }
        // The latest is at the head of each chain.
        hashes.reverse();
        let events = hashes.len();
        while let Some(node) = thresholds {
            let ThresholdNode { list, sibling, .. } = self.thresholds[node];
            hashes.extend(list.map(|list| self.keys.hash(list)));
            thresholds = sibling;
        }
        hashes[events..].reverse();
        hashes
    }

    /// Who waits for the least threshold after a place, and the place of that.
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

    /// What `find` finds from the first watcher of events on, of a key with this hash.
    pub(super) fn lists_of_hash<V>(
        &self,
        hash: u64,
        find: impl Fn(Option<Index>) -> Option<V>,
    ) -> Option<V> {
        let list = self.keys.find(hash, |list| find(list.events.first).is_some())?;
        find(self.keys[list].events.first)
    }

    /// What `find` finds among those who wait for values of a key with this hash, the greatest value
    /// first; and that value.
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

    /// The first watcher of a key's events.
    #[inline]
    pub(super) fn first(&self, list: Index) -> Option<Index> {
        self.keys[list].events.first
    }

    /// The node of the operation that came first.
    pub(super) const fn oldest(&self) -> Option<Index> {
        self.oldest.first
    }

    /// Who a node stands for, and the node after it.
    #[inline]
    pub(super) fn visit(&self, node: Index) -> (Index, Option<Index>) {
        let node = &self.events[node];
        (node.waiter, node.next)
    }

    /// Frees the memory of nodes that have left. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.keys.shrink();
        self.events.shrink();
        self.thresholds.shrink();
        self.cursors.shrink();
    }

    /// Takes out all memory, when there are no watchers.
    pub(super) fn clear(&mut self) -> Self {
        // They are at the end, as there is no node.
        let cursors = std::mem::replace(&mut self.cursors, Cursors::new());
        std::mem::replace(self, Self { cursors, ..Self::new() })
    }

    /// The list of a key, made if there is none.
    #[inline]
    fn list_of(&mut self, hash: u64, key: K, hold: &mut Hold<'_, K>) -> Index
    where
        K: Eq,
    {
        if let Some(list) = self.find(hash, |other| *other == key) {
            hold.discard(key);
            return list;
        }
        hold.filter.add(hash);
        self.keys.insert(hash, List { key, events: Ends::default(), thresholds: None })
    }

    #[inline]
    fn ends(&mut self, list: Option<Index>) -> &mut Ends {
        match list {
            Some(list) => &mut self.keys[list].events,
            None => &mut self.oldest,
        }
    }

    /// Unlinks a node, and returns its sibling.
    #[inline]
    fn leave_events(
        &mut self,
        node: Index,
        is_counted: bool,
        hold: &mut Hold<'_, K>,
    ) -> Option<Index> {
        let EventNode { list, sibling, previous, next, .. } = self.events.remove(node);
        self.cursors.move_on(node, next);
        if let Some(previous) = previous {
            self.events[previous].next = next;
        }
        if let Some(next) = next {
            self.events[next].previous = previous;
        }
        if previous.is_none() || next.is_none() {
            let ends = self.ends(list);
            ends.first = if previous.is_none() { next } else { ends.first };
            ends.last = if next.is_none() { previous } else { ends.last };
        }
        if let Some(list) = list {
            self.left(list, previous.is_none() && next.is_none(), is_counted, hold);
        }
        sibling
    }

    /// A watcher has left a list. If it may have been the last, and was, so does the key.
    #[inline]
    fn left(&mut self, list: Index, may_be_last: bool, is_counted: bool, hold: &mut Hold<'_, K>) {
        self.watching -= 1;
        if is_counted && hold.limits().is_per_key() {
            hold.limits().release_from_key(self.keys.hash(list));
        }
        if may_be_last && self.keys[list].is_empty() {
            let (hash, List { key, .. }) = self.keys.remove(list);
            hold.filter.remove(hash);
            hold.discard(key);
        }
    }

    /// Checks the chains of an operation. Returns how many of its nodes are on lists of keys, and how
    /// many of these are thresholds.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub(super) fn check_chains(
        &self,
        waiter: Index,
        (mut events, mut thresholds): (Option<Index>, Option<Index>),
    ) -> (u64, u32) {
        let (mut listed, mut missing) = (0, 0);
        while let Some(node) = events {
            let EventNode { waiter: owner, list, sibling, .. } = self.events[node];
            assert_eq!(owner, waiter, "a node of events is in the chain of its operation");
            listed += u64::from(list.is_some());
            events = sibling;
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

    /// Checks the lists, but for what the chains of operations tell.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
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
        let oldest = self.check_links(self.oldest, None);
        let events = u64::from(self.events.len()) - oldest;
        assert!(events <= self.watching, "each node of events is on a list");
        filter.check_invariants(&hashes);
        self.cursors.check_invariants(|node| self.events.get(node).is_some());
    }

    /// Checks the links of a list of events. Returns its length.
    fn check_links(&self, ends: Ends, list: Option<Index>) -> u64 {
        let (mut previous, mut next, mut length) = (None, ends.first, 0);
        while let Some(node) = next {
            let here = &self.events[node];
            assert_eq!((here.list, here.previous), (list, previous), "links lead back");
            (previous, next) = (Some(node), here.next);
            length += 1;
        }
        assert_eq!(previous, ends.last, "the last node is the end");
        length
    }
}
