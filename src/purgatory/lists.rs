//! Who watches which key: a list for each key that has watchers, and none for others.
//!
//! A watcher is a node. The nodes of a key's events are linked in the order in which they came;
//! those of its thresholds are in a tree by threshold. All nodes of one operation are chained as
//! *siblings*, so that it leaves every list in a time that depends on its own keys only. A key
//! leaves with its last watcher.

use std::{
    any::Any,
    boxed::Box,
    collections::{BTreeSet, HashMap, hash_map::Entry},
    ops::Bound,
    vec::Vec,
};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::{
    filter::Filter,
    slab::{Index, Slab},
    table::Table,
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
    /// `None` if nobody waits for the key's value.
    #[expect(clippy::box_collection, reason = "most keys have none, and a word is a third")]
    thresholds: Option<Box<BTreeSet<(u64, Index)>>>,
}

impl<K> List<K> {
    /// Whether nobody watches the key.
    #[inline]
    const fn is_empty(&self) -> bool {
        self.events.first.is_none() && self.thresholds.is_none()
    }
}

/// What leaves a shard and is dealt with when its lock has been released.
pub(super) struct Leavings<'a, K> {
    filter: &'a Filter,
    left: Vec<Leaving<K>>,
    wants_hashes: bool,
    /// Memory that is given back, which takes its time.
    rubble: Option<Box<dyn Any + Send>>,
}

/// A part of that.
pub(super) enum Leaving<K> {
    /// A key that nobody watches any more. Its drop is user code.
    Key(K),
    /// A watcher of a key with this hash, if that is wanted.
    Watcher(u64),
}

impl<'a, K> Leavings<'a, K> {
    #[inline]
    pub(super) const fn new(filter: &'a Filter, wants_hashes: bool) -> Self {
        Self { filter, left: Vec::new(), wants_hashes, rubble: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Drops memory when the lock has been released.
    #[cold]
    pub(super) fn throw_away(&mut self, rubble: impl Send + 'static) {
        self.rubble = Some(Box::new(rubble));
    }

    #[inline]
    fn note_watcher(&mut self, hash: impl FnOnce() -> u64) {
        if self.wants_hashes {
            self.left.push(Leaving::Watcher(hash()));
        }
    }

    #[inline]
    fn discard(&mut self, key: K) {
        if std::mem::needs_drop::<K>() {
            self.left.push(Leaving::Key(key));
        }
    }
}

impl<K> IntoIterator for Leavings<'_, K> {
    type Item = Leaving<K>;
    type IntoIter = std::vec::IntoIter<Leaving<K>>;

    fn into_iter(self) -> Self::IntoIter {
        self.left.into_iter()
    }
}

/// A place in a list that outlives the node there: it moves on to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(Index);

/// All lists of a shard.
pub(super) struct Lists<K> {
    keys: Table<List<K>>,
    events: Slab<EventNode>,
    thresholds: Slab<ThresholdNode>,
    /// The node that each cursor is at; `None` at the end.
    cursors: Slab<Option<Index>>,
    /// The cursors at each node that has some.
    marks: HashMap<Index, SmallVec<[Index; 2]>, FxBuildHasher>,
    /// All operations in the order in which they came, if that is kept.
    eldest: Ends,
    watching: u64,
}

impl<K> Lists<K> {
    pub(super) fn new() -> Self {
        Self {
            keys: Table::new(),
            events: Slab::new(),
            thresholds: Slab::new(),
            cursors: Slab::new(),
            marks: HashMap::default(),
            eldest: Ends { first: None, last: None },
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
        let ends = &mut self.keys[list].events;
        let previous = ends.last;
        // An operation comes to all of its lists in one go, so it is the last one if it is there.
        if previous.is_some_and(|last| self.events[last].waiter == waiter) {
            return None;
        }
        let node = EventNode { waiter, list: Some(list), sibling, previous, next: None };
        let node = self.events.insert(node);
        ends.append(node, &mut self.events);
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
        self.keys[list].thresholds.get_or_insert_default().insert((at, node));
        self.watching += 1;
        node
    }

    /// Puts an operation behind those that came before it.
    pub(super) fn join_eldest(&mut self, waiter: Index, sibling: Option<Index>) -> Index {
        let previous = self.eldest.last;
        let node = EventNode { waiter, list: None, sibling, previous, next: None };
        let node = self.events.insert(node);
        self.eldest.append(node, &mut self.events);
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
        let thresholds = &mut self.keys[list].thresholds;
        if let Some(tree) = thresholds {
            tree.remove(&(at, node));
            if tree.is_empty() {
                *thresholds = None;
            }
        }
        let is_drained = thresholds.is_none();
        self.left(list, is_drained, leavings);
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
        let &(at, node) = self.keys[list].thresholds.as_ref()?.first()?;
        if at > value {
            return None;
        }
        self.mark_reached(node, leavings);
        Some((at, self.thresholds[node].waiter))
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

    /// The greatest value of a key that is waited for, and who does.
    pub(super) fn greatest(&self, list: Index) -> Option<(u64, Index)> {
        let &(at, node) = self.keys[list].thresholds.as_ref()?.last()?;
        Some((at, self.thresholds[node].waiter))
    }

    /// The first watcher of a key's events.
    #[inline]
    pub(super) fn first(&self, list: Index) -> Option<Index> {
        self.keys[list].events.first
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
        let cursor = self.cursors.insert(node);
        if let Some(node) = node {
            self.marks.entry(node).or_default().push(cursor);
        }
        Cursor(cursor)
    }

    /// Gives up a mark, and returns the node there.
    pub(super) fn close(&mut self, Cursor(cursor): Cursor) -> Option<Index> {
        let node = self.cursors.remove(cursor)?;
        if let Entry::Occupied(mut marks) = self.marks.entry(node) {
            marks.get_mut().retain(|other| *other != cursor);
            if marks.get().is_empty() {
                marks.remove();
            }
        }
        Some(node)
    }

    /// Has the cursors at a node that leaves move on to the next.
    #[cold]
    fn move_on(&mut self, node: Index, next: Option<Index>) {
        let Some(cursors) = self.marks.remove(&node) else { return };
        for &cursor in &cursors {
            self.cursors[cursor] = next;
        }
        if let Some(next) = next {
            self.marks.entry(next).or_default().extend(cursors);
        }
    }

    /// Gives back the room of what has left. *O*(capacity).
    pub(super) fn shrink(&mut self) {
        self.keys.shrink();
        self.events.shrink();
        self.thresholds.shrink();
    }

    /// Takes out all room, when nobody watches.
    pub(super) fn clear(&mut self) -> Self {
        // They are at the end, as there is no node.
        let cursors = std::mem::take(&mut self.cursors);
        std::mem::replace(self, Self { cursors, ..Self::new() })
    }

    /// The list of a key, made if there is none.
    #[inline]
    fn list_of(&mut self, hash: u64, key: K, leavings: &mut Leavings<'_, K>) -> Index
    where
        K: Eq,
    {
        if let Some(list) = self.find(hash, |other| *other == key) {
            leavings.discard(key);
            return list;
        }
        leavings.filter.add(hash);
        self.keys.insert(hash, List { key, events: Ends::default(), thresholds: None })
    }

    #[inline]
    fn ends(&mut self, list: Option<Index>) -> &mut Ends {
        match list {
            Some(list) => &mut self.keys[list].events,
            None => &mut self.eldest,
        }
    }

    /// Unlinks a node, and returns its sibling.
    #[inline]
    fn leave_events(&mut self, node: Index, leavings: &mut Leavings<'_, K>) -> Option<Index> {
        let EventNode { list, sibling, previous, next, .. } = self.events.remove(node);
        if !self.marks.is_empty() {
            self.move_on(node, next);
        }
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
            self.left(list, previous.is_none() && next.is_none(), leavings);
        }
        sibling
    }

    /// A watcher has left a list. If it may have been the last, and was, so does the key.
    #[inline]
    fn left(&mut self, list: Index, may_be_last: bool, leavings: &mut Leavings<'_, K>) {
        self.watching -= 1;
        leavings.note_watcher(|| self.keys.hash(list));
        if may_be_last && self.keys[list].is_empty() {
            let (hash, List { key, .. }) = self.keys.remove(list);
            leavings.filter.remove(hash);
            leavings.discard(key);
        }
    }
}
