//! What the handle of a timeout holds on to.
//!
//! A handle must neither keep its timer running nor outlive what it refers to. If all handles
//! counted on one number, threads that schedule and cancel would wait for that number's cache line
//! and nothing else. So each shard has an anchor, with a count of its own, and threads that use
//! different shards count apart. An anchor keeps the shards in memory, which are empty once the
//! timer has ended.

use std::{boxed::Box, ops::Deref, sync::Arc};

use crossbeam::utils::CachePadded;

use super::{core::Core, key::TimeoutKey};

/// A way to the shards of a timer, counted apart from those of other shards.
pub(super) struct Anchor<T>(Arc<CachePadded<Arc<Core<T>>>>);

impl<T> Anchor<T> {
    /// Whether both lead to the same timer.
    pub(super) fn is_of(&self, core: &Arc<Core<T>>) -> bool {
        Arc::ptr_eq(&**self.0, core)
    }
}

impl<T> Clone for Anchor<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Anchor<T> {
    type Target = Core<T>;

    #[inline]
    fn deref(&self) -> &Core<T> {
        &self.0
    }
}

/// One for each shard.
pub(super) struct Anchors<T>(Box<[Anchor<T>]>);

impl<T> Anchors<T> {
    pub(super) fn new(core: &Arc<Core<T>>) -> Self {
        let (count, _) = core.shards();
        let anchor = |_| Anchor(Arc::new(CachePadded::new(Arc::clone(core))));
        Self((0..count).map(anchor).collect())
    }

    /// That of a timeout's shard.
    #[inline]
    pub(super) fn of(&self, key: TimeoutKey) -> Anchor<T> {
        self.0[key.shard()].clone()
    }
}
