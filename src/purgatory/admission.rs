//! The limits: what is refused, and what is displaced.

use std::hash::Hash;

use super::{
    core::Core,
    operation::{Completion, DelayedOperation},
    shard::{Claim, Surplus},
    watch::OperationKey,
};

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Displaces one operation for each limit that a newcomer exceeds.
    #[inline]
    pub(super) fn displace_for(&self, newcomer: OperationKey, surplus: &Surplus) {
        if surplus.is_total_exceeded || !surplus.hashes.is_empty() {
            self.displace_surplus(newcomer, surplus);
        }
    }

    #[cold]
    fn displace_surplus(&self, newcomer: OperationKey, surplus: &Surplus) {
        // One that is displaced for a key may leave others of these keys, and leaves the total.
        for &hash in &surplus.hashes {
            self.displace_one(
                || self.capacity.is_key_exceeded(hash),
                || self.eldest_on_key(hash, newcomer),
            );
        }
        if surplus.is_total_exceeded {
            self.displace_one(|| self.capacity.is_exceeded(), || self.eldest(newcomer));
        }
    }

    /// Displaces one operation, while a limit is exceeded. If the one that is found has ended by
    /// itself, it looks again.
    fn displace_one(
        &self,
        is_exceeded: impl Fn() -> bool,
        find: impl Fn() -> Option<OperationKey>,
    ) {
        let mut displaced = None;
        // One displacement at a time: two that see the same excess would displace two.
        let turn = self.displacing.lock();
        while displaced.is_none() && is_exceeded() {
            let Some(key) = find() else { break };
            let (claim, leavings) = self.claim_in_shard(key, Completion::Displaced);
            if !matches!(claim, Claim::Lost(_)) {
                displaced = Some((key.shard(), claim, leavings));
            }
        }
        drop(turn);
        if let Some((number, claim, leavings)) = displaced {
            self.dispose(leavings);
            self.settle_claim(number, claim);
        }
    }

    /// The operation that has waited longest, but for a newcomer.
    fn eldest(&self, newcomer: OperationKey) -> Option<OperationKey> {
        let eldest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let eldest = shard.contents.lock().eldest(newcomer.index_in(number))?;
            Some((eldest.since, OperationKey::new(number, eldest.place)))
        });
        eldest.min_by_key(|&(since, _)| since).map(|(_, key)| key)
    }

    /// The operation that has watched a key's events longest, but for a newcomer; or, if all others
    /// wait for its value, the one that waits for the greatest.
    fn eldest_on_key(&self, hash: u64, newcomer: OperationKey) -> Option<OperationKey> {
        let eldest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let except = newcomer.index_in(number);
            let eldest = shard.contents.lock().eldest_on_key(hash, except)?;
            Some((eldest.since, OperationKey::new(number, eldest.place)))
        });
        let eldest = eldest.min_by_key(|&(since, _)| since).map(|(_, key)| key);
        eldest.or_else(|| {
            let greatest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
                let except = newcomer.index_in(number);
                let (at, place) = shard.contents.lock().greatest_on_key(hash, except)?;
                Some((at, OperationKey::new(number, place)))
            });
            greatest.max_by_key(|&(at, _)| at).map(|(_, key)| key)
        })
    }
}
