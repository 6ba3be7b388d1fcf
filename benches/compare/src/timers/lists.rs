//! Doubly linked lists over one slot map: the buckets of all schemes that keep lists.
//!
//! A value is in one list at a time, or in none yet, and leaves it in constant time. A key is never
//! used twice.

use crate::prelude::*;

/// The list of values that are in none.
const UNLINKED: u32 = u32::MAX;

/// Lists of values, each list under an index.
pub struct Lists<T> {
    nodes: SlotMap<DefaultKey, Node<T>>,
    ends: Vec<Ends>,
}

struct Node<T> {
    value: T,
    list: u32,
    previous: Option<DefaultKey>,
    next: Option<DefaultKey>,
}

#[derive(Clone, Copy, Default)]
struct Ends {
    first: Option<DefaultKey>,
    last: Option<DefaultKey>,
}

impl<T> Lists<T> {
    /// Makes this many empty lists.
    pub fn new(count: usize) -> Self {
        Self { nodes: SlotMap::new(), ends: vec![Ends::default(); count] }
    }

    /// Adds empty lists behind the others.
    pub fn add_lists(&mut self, count: usize) {
        self.ends.resize(self.ends.len() + count, Ends::default());
    }

    /// Adds a value that is in no list until it is moved to one.
    pub fn insert(&mut self, value: T) -> DefaultKey {
        self.nodes.insert(Node { value, list: UNLINKED, previous: None, next: None })
    }

    /// Adds a value to the end of a list.
    pub fn push(&mut self, list: usize, value: T) -> DefaultKey {
        let key = self.insert(value);
        self.link_after(self.ends[list].last, list, key);
        key
    }

    /// Adds a value behind the last one in its list that must not come after it.
    pub fn push_behind(
        &mut self,
        list: usize,
        value: T,
        stays_ahead: impl Fn(&T) -> bool,
    ) -> DefaultKey {
        let mut after = self.ends[list].last;
        while let Some(key) = after.filter(|&key| !stays_ahead(&self.nodes[key].value)) {
            after = self.nodes[key].previous;
        }
        let key = self.insert(value);
        self.link_after(after, list, key);
        key
    }

    /// Takes a value out of its list, and ends its key.
    pub fn remove(&mut self, key: DefaultKey) -> Option<T> {
        let node = self.nodes.remove(key)?;
        self.bridge(node.list, node.previous, node.next);
        Some(node.value)
    }

    /// Moves a value to the end of another list.
    pub fn relink(&mut self, key: DefaultKey, list: usize) {
        let Node { list: from, previous, next, .. } = self.nodes[key];
        self.bridge(from, previous, next);
        self.link_after(self.ends[list].last, list, key);
    }

    pub fn first(&self, list: usize) -> Option<DefaultKey> {
        self.ends[list].first
    }

    /// The one behind it in its list.
    pub fn next(&self, key: DefaultKey) -> Option<DefaultKey> {
        self.nodes[key].next
    }

    pub fn get(&self, key: DefaultKey) -> Option<&T> {
        self.nodes.get(key).map(|node| &node.value)
    }

    pub fn get_mut(&mut self, key: DefaultKey) -> Option<&mut T> {
        self.nodes.get_mut(key).map(|node| &mut node.value)
    }

    /// All values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.nodes.values().map(|node| &node.value)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    fn link_after(&mut self, previous: Option<DefaultKey>, list: usize, key: DefaultKey) {
        let next = match previous {
            Some(previous) => self.nodes[previous].next.replace(key),
            None => self.ends[list].first.replace(key),
        };
        match next {
            Some(next) => self.nodes[next].previous = Some(key),
            None => self.ends[list].last = Some(key),
        }
        let node = &mut self.nodes[key];
        (node.previous, node.next) = (previous, next);
        node.list = u32::try_from(list).expect("there are less than 2^32 lists");
    }

    /// Joins the neighbours of a value that leaves a list.
    fn bridge(&mut self, list: u32, previous: Option<DefaultKey>, next: Option<DefaultKey>) {
        if list == UNLINKED {
            return;
        }
        let ends = &mut self.ends[list as usize];
        match previous {
            Some(previous) => self.nodes[previous].next = next,
            None => ends.first = next,
        }
        match next {
            Some(next) => self.nodes[next].previous = previous,
            None => ends.last = previous,
        }
    }
}

/// A timeout of a scheme that keeps nothing besides.
#[derive(Clone, Copy)]
pub struct Timeout {
    pub deadline: u64,
    pub payload: u64,
}
