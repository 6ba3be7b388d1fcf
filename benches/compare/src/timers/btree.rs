//! An ordered map from deadline to payload: the usual first choice where a cancel must be exact.

use crate::prelude::*;

/// [`BTreeMap`] from deadline and sequence number to payload.
#[derive(Default)]
pub struct BTree {
    pending: BTreeMap<(u64, u64), u64>,
    /// Number of timeouts inserted so far, which tells equal deadlines apart.
    inserted: u64,
}

impl Timers for BTree {
    type Key = (u64, u64);

    const NAME: &'static str = "btree";

    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key {
        let key = (deadline, self.inserted);
        self.inserted += 1;
        self.pending.insert(key, payload);
        key
    }

    fn cancel(&mut self, key: Self::Key) -> Option<u64> {
        self.pending.remove(&key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.pending.first_key_value().map(|(&(deadline, _), _)| deadline)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while let Some(first) = self.pending.first_entry().filter(|first| first.key().0 <= now) {
            expired(first.remove());
        }
    }

    fn len(&self) -> usize {
        self.pending.len()
    }
}
