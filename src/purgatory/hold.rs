//! A hold of a shard's lock: the values that it uses, and the values to drop after the release.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{filter::Filter, limits::Limits};

/// The values that a hold of a shard's lock uses, and those to drop after the release of the lock.
pub(super) struct Hold<'a, K> {
    pub(super) filter: &'a Filter,
    limits: &'a Limits,
    /// Keys that have lost their last watcher. Their drop is user code.
    keys: Vec<K>,
    /// Memory to free.
    memory: Option<Box<dyn Any + Send>>,
}

impl<'a, K> Hold<'a, K> {
    #[inline]
    pub(super) const fn new(filter: &'a Filter, limits: &'a Limits) -> Self {
        Self { filter, limits, keys: Vec::new(), memory: None }
    }

    /// Returns the limits. Permits are released under the lock, so the counts match the waiting
    /// operations whenever the lock is free.
    pub(super) const fn limits(&self) -> &'a Limits {
        self.limits
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Frees memory after the release of the lock, because that may take long.
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
