//! Cursors: positions in lists of watchers that stay valid when their node leaves.
//!
//! A walk releases the lock from time to time, and the node at its position may leave meanwhile.
//! Then the cursor moves on to the next node.

use std::collections::{HashMap, hash_map::Entry};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::{
    nodes::Node,
    slab::{Index, Slab},
};

/// A position in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(Index);

/// The cursors of a shard.
pub(super) struct Cursors {
    /// The node that each cursor is at; `None` at the end.
    nodes: Slab<Option<Node>>,
    /// The cursors at each node that has one.
    marks: HashMap<Node, SmallVec<[Index; 2]>, FixedState>,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Self { nodes: Slab::new(), marks: HashMap::default() }
    }

    /// Adds a cursor at a node. The caller must [close](Self::close) it.
    pub(super) fn open(&mut self, node: Option<Node>) -> Cursor {
        let cursor = self.nodes.insert(node);
        if let Some(node) = node {
            self.marks.entry(node).or_default().push(cursor);
        }
        Cursor(cursor)
    }

    /// Removes a cursor, and returns the node there.
    pub(super) fn close(&mut self, Cursor(cursor): Cursor) -> Option<Node> {
        let node = self.nodes.remove(cursor)?;
        let Entry::Occupied(mut marks) = self.marks.entry(node) else {
            unreachable!("a cursor marks its node")
        };
        marks.get_mut().retain(|other| *other != cursor);
        if marks.get().is_empty() {
            marks.remove();
        }
        Some(node)
    }

    /// Moves the cursors at a node that leaves to the next node.
    #[inline]
    pub(super) fn move_on(&mut self, node: Node, next: Option<Node>) {
        if !self.marks.is_empty() {
            self.move_marks(node, next);
        }
    }

    #[cold]
    fn move_marks(&mut self, node: Node, next: Option<Node>) {
        let Some(cursors) = self.marks.remove(&node) else { return };
        for &cursor in &cursors {
            debug_assert_eq!(self.nodes[cursor], Some(node), "a mark is where its cursor is");
            self.nodes[cursor] = next;
        }
        if let Some(next) = next {
            self.marks.entry(next).or_default().extend(cursors);
        }
    }

    /// Frees the memory of closed cursors.
    pub(super) fn shrink(&mut self) {
        self.nodes.shrink();
        self.marks.shrink_to_fit();
    }

    /// Checks that cursors and marks agree, and that `is_node` holds for each node.
    ///
    /// # Panics
    ///
    /// Panics if they do not.
    pub(super) fn check_invariants(&self, is_node: impl Fn(Node) -> bool) {
        for (&node, cursors) in &self.marks {
            assert!(is_node(node), "a mark is at a node");
            assert!(!cursors.is_empty(), "a mark has a cursor");
            for &cursor in cursors {
                assert_eq!(self.nodes[cursor], Some(node), "a mark is where its cursor is");
            }
        }
    }
}
