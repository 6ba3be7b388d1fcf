//! Storage for peers whose handles cannot be copied; their users need one too.

use crate::prelude::*;

/// Handles under keys that can be copied, and that are never used twice.
///
/// A payload carries its key, so the handle is removed when the timeout expires.
pub(super) struct Handles<H>(SlotMap<DefaultKey, Option<H>>);

/// The value of a timeout of such a peer.
#[derive(Clone, Copy)]
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
    /// Keeps the handle that scheduling a payload returns.
    pub(super) fn keep(&mut self, payload: u64, schedule: impl FnOnce(Payload) -> H) -> DefaultKey {
        self.0.insert_with_key(|key| Some(schedule(Payload { key, payload })))
    }

    pub(super) fn take(&mut self, key: DefaultKey) -> Option<H> {
        self.0.remove(key).flatten()
    }

    /// Replaces a handle by the one that `by` returns for it.
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
