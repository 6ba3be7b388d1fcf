//! A slot map for handles that cannot be copied. Users of these crates need one too.

use slotmap::{DefaultKey, SlotMap};

/// Handles by key. Keys can be copied, and are never used twice.
///
/// A payload carries its key, so that the handle goes when the timeout expires.
#[derive(Debug)]
pub(super) struct Handles<H>(SlotMap<DefaultKey, Option<H>>);

/// The value that a peer returns when a timeout expires.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload {
    pub(super) key: DefaultKey,
    pub(super) payload: u64,
}

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self(SlotMap::new())
    }
}

impl<H> Handles<H> {
    /// Keeps the handle that scheduling a payload yields.
    #[inline]
    pub(super) fn keep(&mut self, payload: u64, schedule: impl FnOnce(Payload) -> H) -> DefaultKey {
        self.0.insert_with_key(|key| Some(schedule(Payload { key, payload })))
    }

    #[inline]
    pub(super) fn take(&mut self, key: DefaultKey) -> Option<H> {
        self.0.remove(key).flatten()
    }

    /// Replaces a handle by the one that `by` returns for it.
    #[inline]
    pub(super) fn replace(&mut self, key: DefaultKey, by: impl FnOnce(H) -> H) -> Option<()> {
        let handle = self.0.get_mut(key)?;
        *handle = Some(by(handle.take()?));
        Some(())
    }

    /// Takes all, in no order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = H> {
        self.0.drain().filter_map(|(_, handle)| handle)
    }
}
