//! The nodes by which operations watch the events of keys.
//!
//! The first few nodes of an operation are at the position of its slot, so they need no allocation
//! and no lookup. Further ones *spill* into a slab, chained from the operation.

use core::num::NonZeroU32;

use super::{
    blocks::Blocks,
    slab::{Index, Slab},
};

/// Maximum number of nodes at the position of an operation.
const INLINE: u32 = 4;

/// The number of a node. `Option<Node>` takes four bytes as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Node(
    /// One more than the node's number. The number is four times the operation's position plus the
    /// place, or `SPILLED` plus the index of a spilled node.
    NonZeroU32,
);

const SPILLED: u32 = 1 << 31;

/// A watcher of events: its neighbours on a list.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Link {
    /// The list that it is on; `None` for the list of all operations.
    pub(super) list: Option<Index>,
    pub(super) previous: Option<Node>,
    pub(super) next: Option<Node>,
}

const _: () = assert!(size_of::<[Link; INLINE as usize]>() == 48);

/// A node that does not fit at the position of its operation.
#[derive(Debug)]
struct Spilled {
    link: Link,
    waiter: Index,
    /// The rest of the chain of its operation.
    sibling: Option<Index>,
}

/// The nodes of one operation.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Watching {
    /// Number of nodes at its position.
    inline: u32,
    /// The latest spilled node.
    spilled: Option<Index>,
}

impl Watching {
    pub(super) const fn is_empty(self) -> bool {
        self.inline == 0
    }
}

/// The nodes of a shard.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Indexed by the positions of operations.
    inline: Blocks<[Link; INLINE as usize], BLOCK>,
    spilled: Slab<Spilled>,
}

const BLOCK: usize = 128;

impl Nodes {
    pub(super) const fn new() -> Self {
        Self { inline: Blocks::new(), spilled: Slab::new() }
    }

    /// Adds a node to those of an operation. The caller sets its link.
    ///
    /// # Panics
    ///
    /// Panics if 2^29 operations wait; memory ends before that.
    #[inline]
    pub(super) fn add(&mut self, waiter: Index, watching: &mut Watching) -> Node {
        let place = watching.inline;
        if place == INLINE {
            return self.spill(waiter, watching);
        }
        if place == 0 {
            let position = waiter.position();
            assert!(position < SPILLED / INLINE, "memory ends before that");
            self.inline.make_room(position, |_| Default::default());
        }
        watching.inline += 1;
        Node::inline(waiter, place)
    }

    #[cold]
    fn spill(&mut self, waiter: Index, watching: &mut Watching) -> Node {
        let sibling = watching.spilled;
        let index = self.spilled.insert(Spilled { link: Link::default(), waiter, sibling });
        watching.spilled = Some(index);
        Node::spilled(index)
    }

    /// Removes one of the nodes of an operation; `None` if it has none.
    #[inline]
    pub(super) fn remove(
        &mut self,
        waiter: Index,
        watching: &mut Watching,
    ) -> Option<(Node, Link)> {
        if let Some(index) = watching.spilled {
            return Some(self.remove_spilled(index, watching));
        }
        let place = watching.inline.checked_sub(1)?;
        watching.inline = place;
        let link = self.inline.at(waiter.position())[(place % INLINE) as usize];
        Some((Node::inline(waiter, place), link))
    }

    #[cold]
    fn remove_spilled(&mut self, index: Index, watching: &mut Watching) -> (Node, Link) {
        let Spilled { link, sibling, .. } = self.spilled.remove(index);
        watching.spilled = sibling;
        (Node::spilled(index), link)
    }

    /// Returns the nodes of an operation, in the order in which they were added.
    pub(super) fn of(&self, waiter: Index, watching: Watching) -> std::vec::Vec<(Node, Link)> {
        let inline = (0..watching.inline).map(|place| Node::inline(waiter, place));
        let mut nodes: std::vec::Vec<_> = inline.collect();
        let mut spilled = watching.spilled;
        while let Some(index) = spilled {
            nodes.push(Node::spilled(index));
            spilled = self.spilled[index].sibling;
        }
        // The latest is at the head of the chain.
        nodes[watching.inline as usize..].reverse();
        nodes.into_iter().map(|node| (node, *self.at(node))).collect()
    }

    #[inline]
    pub(super) fn at(&self, node: Node) -> &Link {
        match node.place() {
            Ok((position, place)) => &self.inline.at(position)[place],
            Err(index) => &self.spilled[index].link,
        }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, node: Node) -> &mut Link {
        match node.place() {
            Ok((position, place)) => &mut self.inline.at_mut(position)[place],
            Err(index) => &mut self.spilled[index].link,
        }
    }

    /// Returns the operation of a node.
    #[inline]
    pub(super) fn waiter(&self, node: Node) -> Index {
        match node.place() {
            Ok((position, _)) => Index::at(position),
            Err(index) => self.spilled[index].waiter,
        }
    }

    /// Frees the memory of positions for which `is_in_use` returns `false`, and of nodes that have
    /// left. *O*(capacity).
    pub(super) fn shrink(&mut self, is_in_use: impl Fn(u32) -> bool) {
        self.inline.release(|start, _| !is_in_use(start));
        self.spilled.shrink();
    }
}

impl Node {
    #[inline]
    fn inline(waiter: Index, place: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(waiter.position() * INLINE + place))
    }

    fn spilled(index: Index) -> Self {
        Self(NonZeroU32::MIN.saturating_add(SPILLED + index.position()))
    }

    /// Returns the position and place of a node, or the index of a spilled node as an error.
    #[inline]
    fn place(self) -> Result<(u32, usize), Index> {
        let number = self.0.get() - 1;
        if number < SPILLED {
            Ok((number / INLINE, (number % INLINE) as usize))
        } else {
            Err(Index::at(number - SPILLED))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_its_nodes_whether_they_spill_or_not() {
        let mut nodes = Nodes::new();
        let waiters = [3, 700].map(Index::at);
        let mut watching = [Watching::default(); 2];
        let mut added = [std::vec::Vec::new(), std::vec::Vec::new()];
        for number in 0..10 {
            let link = Link { list: Some(Index::at(number)), ..Link::default() };
            for (which, &waiter) in waiters.iter().enumerate() {
                let node = nodes.add(waiter, &mut watching[which]);
                *nodes.at_mut(node) = link;
                added[which].push(node);
            }
        }
        assert_eq!(nodes.spilled.len(), 12);
        for (which, &waiter) in waiters.iter().enumerate() {
            let of = nodes.of(waiter, watching[which]);
            assert!(of.iter().map(|(node, _)| *node).eq(added[which].iter().copied()));
            assert!(of.iter().all(|(node, _)| nodes.waiter(*node) == waiter));
            assert!((0..).zip(&of).all(|(at, (_, link))| link.list == Some(Index::at(at))));
            let mut removed = 0;
            while nodes.remove(waiter, &mut watching[which]).is_some() {
                removed += 1;
            }
            assert!(removed == 10 && watching[which].is_empty());
        }
        nodes.shrink(|_| false);
        assert_eq!((nodes.inline.end(), nodes.spilled.len()), (0, 0));
    }
}
