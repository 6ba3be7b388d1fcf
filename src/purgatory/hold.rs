//! A hold of a shard's lock: the values that it uses, and the values to drop after the release.

use std::{any::Any, boxed::Box, vec::Vec};

use super::{deferral::Panics, filter::Filter, limits::Limits};
use crate::timer::HeldTimeouts;

/// The values that a hold of a shard's lock uses in addition to the operations.
pub(super) struct Hold<'a, K> {
    pub(super) filter: &'a Filter,
    limits: &'a Limits,
    /// The timeouts of the shard; `None` while the reaper expires them.
    timeouts: Option<HeldTimeouts<'a, ()>>,
    dropped_later: &'a mut DroppedLater<K>,
}

/// The values to drop after the release of the lock.
#[must_use = "the drop of a key is user code"]
pub(super) struct DroppedLater<K>(
    #[expect(clippy::box_collection, reason = "most holds have none, and a word is a third")]
    Option<Box<Vec<Dropped<K>>>>,
);

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
        timeouts: Option<HeldTimeouts<'a, ()>>,
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
    pub(super) fn timeouts(&mut self) -> &mut HeldTimeouts<'a, ()> {
        self.timeouts.as_mut().expect("only the reaper holds a shard without its timeouts")
    }

    /// Frees the memory of the wheel after the release of the lock. Returns `false` if the reaper
    /// is expiring timeouts: it frees the memory itself.
    pub(super) fn discard_wheel(&mut self, newest: u32) -> bool {
        let Some(timeouts) = &mut self.timeouts else { return false };
        let wheel = timeouts.take_memory(newest);
        self.discard_memory(wheel);
        true
    }

    /// Frees memory after the release of the lock, because that may take long.
    #[cold]
    pub(super) fn discard_memory(&mut self, memory: impl Send + 'static) {
        self.dropped_later.push(Dropped::Memory(Box::new(memory)));
    }

    #[inline]
    pub(super) fn discard(&mut self, key: K) {
        if std::mem::needs_drop::<K>() {
            self.dropped_later.push(Dropped::Key(key));
        }
    }
}

impl<K> DroppedLater<K> {
    #[inline]
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn push(&mut self, value: Dropped<K>) {
        self.0.get_or_insert_default().push(value);
    }

    /// Drops the values. Counts panics.
    #[inline]
    pub(super) fn discard(&mut self, panics: &Panics) {
        if let Some(values) = self.0.take() {
            Self::discard_each(*values, panics);
        }
    }

    fn discard_each(values: Vec<Dropped<K>>, panics: &Panics) {
        for value in values {
            panics.catch(|| match value {
                Dropped::Key(key) => drop(key),
                Dropped::Memory(memory) => drop(memory),
            });
        }
    }
}
