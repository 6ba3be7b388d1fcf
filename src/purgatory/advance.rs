//! `advance`: completes the operations whose thresholds on a key are reached, in order.

use std::{borrow::Borrow, hash::Hash, vec::Vec};

use super::{
    Purgatory, core::Core, filter::fence_event, operation::DelayedOperation, outcome::Finished,
};

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Tells that the value of a key has reached `value`, and ends the operations that waited for
    /// that or less, in the order of what they waited for. Returns how many completed.
    ///
    /// The purgatory does not remember values. Like an event, an advance changes what
    /// [`DelayedOperation::has_reached`] looks at first.
    ///
    /// One for which a check is a condition too ends when that has been made, which is before the
    /// others. Operations that watch the key's events are not checked: an append that is both calls
    /// [`check_and_complete`](Self::check_and_complete) too.
    ///
    /// # Complexity
    ///
    /// *O*(shards + c log n) if c of n complete.
    pub fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.core().advance(key, value)
    }
}

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// The value of a key has reached `value`: ends the operations that waited for it, in order.
    /// Returns how many those were.
    pub(super) fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = (self.hash(key), key);
        fence_event();
        let mut due = Vec::new();
        let mut completed = 0;
        let mut shards = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            if shard.may_have(key.0) {
                completed += self.reach(number, key, value, &mut due);
                shards += 1;
            }
        }
        // Each shard's are in order.
        if shards > 1 {
            due.sort_by_key(|&(at, _)| at);
        }
        completed += due.len();
        for (_, Finished { operation, completion, .. }) in due {
            self.complete(operation, completion);
        }
        completed
    }

    /// Ends the operations of a shard that a value satisfies, and adds them to `due`. Checks those of
    /// which the check is a condition too. Returns how many of these completed, and how many that are
    /// out will.
    fn reach<Q>(
        &self,
        number: usize,
        key: (u64, &Q),
        value: u64,
        due: &mut Vec<(u64, Finished<O, R>)>,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut completed = 0;
        loop {
            let now = self.timer.elapsed();
            let (mut reached, hold) = shard.reach(key, value, now, due, &self.limits);
            self.dispose(hold);
            for timeout in reached.timeouts {
                self.cancel_timeout(number, timeout);
            }
            completed += reached.decided;
            if !reached.batch.is_empty() {
                completed += self.check_out(number, &mut reached.batch);
            }
            if !reached.is_more {
                return completed;
            }
        }
    }
}
