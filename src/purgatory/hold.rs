//! A hold of a shard's lock: its buffers, and the values that are dropped after it.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{filter::Filter, limits::Limits};

/// What a hold of a shard's lock works with, and what is to be dropped when the lock has been
/// released.
pub(super) struct Hold<'a, K> {
    pub(super) filter: &'a Filter,
    limits: &'a Limits,
    /// Keys that have lost their last watcher. Their drop is user code.
    keys: Vec<K>,
    /// Memory that is given back.
    memory: Option<Box<dyn Any + Send>>,
}

impl<'a, K> Hold<'a, K> {
    #[inline]
    pub(super) const fn new(filter: &'a Filter, limits: &'a Limits) -> Self {
        Self { filter, limits, keys: Vec::new(), memory: None }
    }

    /// The limits, whose permits are given back under the lock: what they count and what waits
    /// agree whenever the lock is free.
    pub(super) const fn limits(&self) -> &'a Limits {
        self.limits
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Has memory dropped when the lock has been released, as that takes its time.
    #[cold]
    pub(super) fn discard_memory(&mut self, memory: impl Send + 'static) {
        self.memory = Some(Box::new(memory));
    }

    #[inline]
    pub(super) fn discard(&mut self, key: K) {
        if std::mem::needs_drop::<K>() {
            self.keys.push(key);
        }
    }
}

impl<K> IntoIterator for Hold<'_, K> {
    type Item = K;
    type IntoIter = std::vec::IntoIter<K>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.into_iter()
    }
}
