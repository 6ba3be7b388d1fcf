//! An ordered map from deadline to payload: the simplest timer with exact cancellation.

use std::collections::BTreeMap;

use crate::{Promises, Timers};

/// [`BTreeMap`] from deadline and sequence number to payload.
#[derive(Debug, Default)]
pub struct BTree {
    pending: BTreeMap<(u64, u64), u64>,
    /// Number of timeouts inserted so far, which tells equal deadlines apart.
    inserted: u64,
}

impl Timers for BTree {
    type Key = (u64, u64);

    const NAME: &'static str = "btree";

    const PROMISES: Promises = Promises { scheme: "scheme 3: search tree", ..Promises::STRICT };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key {
        let key = (deadline, self.inserted);
        self.inserted += 1;
        self.pending.insert(key, payload);
        key
    }

    #[inline]
    fn cancel(&mut self, key: Self::Key) -> bool {
        self.pending.remove(&key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
        let payload = self.pending.remove(&key)?;
        Some(self.insert(deadline, payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        self.pending.first_key_value().map(|(&(deadline, _), _)| deadline)
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.pending.len();
        while let Some(first) = self.pending.first_entry().filter(|first| first.key().0 <= now) {
            expired(first.remove());
        }
        before - self.pending.len()
    }

    fn len(&self) -> usize {
        self.pending.len()
    }
}
