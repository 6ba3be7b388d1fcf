//! A hold of a shard's lock: the values that it uses, and the values to drop after the release.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{deferral::Panics, filter::Filter, limits::Limits, slab::Index};
use crate::{timer::HeldTimeouts, wheel::Key};

/// The values that a hold of a shard's lock uses in addition to the operations.
pub(super) struct Hold<'a, K> {
    pub(super) filter: &'a Filter,
    limits: &'a Limits,
    /// The timeouts of the shard; `None` while the reaper expires them.
    timeouts: Option<HeldTimeouts<'a, Index>>,
    dropped_later: &'a mut DroppedLater<K>,
}

/// The values to drop after the release of the lock.
#[must_use = "the drop of a key is user code"]
pub(super) struct DroppedLater<K>(Vec<Dropped<K>>);

enum Dropped<K> {
    /// A key that has lost its last watcher. Its drop is user code.
    Key(K),
    /// Memory that may take long to free.
    Memory(Box<dyn Any + Send>),
}

impl<'a, K> Hold<'a, K> {
    #[inline]
    pub(super) const fn new(
        filter: &'a Filter,
        limits: &'a Limits,
        timeouts: Option<HeldTimeouts<'a, Index>>,
        dropped_later: &'a mut DroppedLater<K>,
    ) -> Self {
        Self { filter, limits, timeouts, dropped_later }
    }

    /// Returns the limits. Permits are released under the lock, so the counts match the waiting
    /// operations whenever the lock is free.
    pub(super) const fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// Returns the timeouts of the shard.
    ///
    /// # Panics
    ///
    /// Panics if the reaper is expiring timeouts.
    #[inline]
    pub(super) fn timeouts(&mut self) -> &mut HeldTimeouts<'a, Index> {
        self.timeouts.as_mut().expect("only the reaper holds a shard without its timeouts")
    }

    /// Cancels the timeout of an operation that ends.
    #[inline]
    pub(super) fn cancel(&mut self, timeout: Key, index: Index) {
        let value = self.timeouts().cancel(timeout);
        debug_assert_eq!(value, Some(index), "the timeout belongs to another operation");
    }

    /// Frees memory after the release of the lock, because that may take long.
    #[cold]
    pub(super) fn discard_memory(&mut self, memory: impl Send + 'static) {
        self.dropped_later.0.push(Dropped::Memory(Box::new(memory)));
    }

    #[inline]
    pub(super) fn discard(&mut self, key: K) {
        if std::mem::needs_drop::<K>() {
            self.dropped_later.0.push(Dropped::Key(key));
        }
    }
}

impl<K> DroppedLater<K> {
    #[inline]
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops the values. Counts panics.
    #[inline]
    pub(super) fn discard(&mut self, panics: &Panics) {
        if !self.is_empty() {
            self.discard_each(panics);
        }
    }

    fn discard_each(&mut self, panics: &Panics) {
        for value in self.0.drain(..) {
            panics.catch(|| match value {
                Dropped::Key(key) => drop(key),
                Dropped::Memory(memory) => drop(memory),
            });
        }
    }
}
