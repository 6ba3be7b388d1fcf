//! `advance`: completes the operations whose thresholds on a key are reached, in order.

use std::{borrow::Borrow, hash::Hash, vec::Vec};

use smallvec::SmallVec;

use super::{
    Purgatory,
    batch::BATCH,
    claim::Finished,
    filter::fence_event,
    lists::{HashedKey, ThresholdPass},
    operation::DelayedOperation,
    shared::Shared,
};

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Announces that the value of a key has reached `value`. Completes the operations that wait
    /// for this value or a lower one, in the order of their thresholds. Returns how many completed.
    ///
    /// The purgatory does not remember values. As before an event, first change the state that
    /// [`DelayedOperation::has_reached`] reads.
    ///
    /// An operation that also needs a check completes right after its check, before the others.
    /// `advance` does not check the operations that watch the key's events. If the change is also
    /// an event, call [`check_and_complete`](Self::check_and_complete) too. It does not reach the
    /// thresholds of operations that its completions add.
    ///
    /// # Complexity
    ///
    /// *O*(shards + c log n) if c of n complete. The call collects these c before it completes the
    /// first.
    pub fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared().advance(key, value)
    }
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    /// Completes the operations whose thresholds on a key `value` has reached, in order. Returns
    /// their number.
    pub(super) fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = self.hashed(key);
        fence_event();
        let mut passes = SmallVec::<[_; 4]>::new();
        self.filters.for_each(key.hash, |shard_index| {
            passes.push((shard_index, ThresholdPass::up_to(value)));
        });
        // A check may lead to new operations in any shard, which this call does not reach. No check
        // has run when the first hold of the first shard begins the pass there.
        for (shard_index, pass) in passes.iter_mut().skip(1) {
            pass.begin(self.shard(*shard_index).next_serial());
        }
        let mut due = Vec::new();
        let mut completed = 0;
        for (shard_index, pass) in &mut passes {
            completed += self.reach(*shard_index, pass, key, &mut due);
        }
        // The operations of each shard are in order.
        if passes.len() > 1 {
            due.sort_by_key(|&(at, _)| at);
        }
        debug_assert!(due.is_sorted_by_key(|&(at, _)| at), "thresholds are out of order");
        completed += due.len();
        for (_, Finished { operation, completion }) in due {
            self.complete(operation, completion);
        }
        completed
    }

    /// Ends the operations of a shard whose thresholds a pass visits, and adds them to `due`.
    /// Checks those that also need a check. Returns how many of these completed, plus how many
    /// other threads will complete.
    fn reach<Q>(
        &self,
        shard_index: usize,
        pass: &mut ThresholdPass,
        key: HashedKey<'_, Q>,
        due: &mut Vec<(u64, Finished<O, R>)>,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = self.shard(shard_index);
        let mut completed = 0;
        let mut is_timed = false;
        loop {
            // The clock is read only if the wait of an operation is measured.
            let now = is_timed.then(|| self.timer.clock().elapsed());
            // A hold adds at most `BATCH` operations, so only a short vector grows under the lock.
            if !due.is_empty() {
                due.reserve(BATCH);
            }
            let mut reached = shard.reach(pass, key, now, due);
            completed += reached.decided;
            is_timed |= reached.needs_time;
            if !reached.batch.is_empty() {
                completed += self.check_or_defer(shard_index, &mut reached.batch);
            }
            if !reached.is_more {
                return completed;
            }
        }
    }
}
