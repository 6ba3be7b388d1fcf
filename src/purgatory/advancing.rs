//! What follows when the value of a key grows: those who waited for that end, in order.

use std::{borrow::Borrow, hash::Hash, vec::Vec};

use smallvec::SmallVec;

use super::{
    core::{Core, STEPS_PER_HOLD},
    filter::fence_event,
    operation::DelayedOperation,
    shard::{BATCH, Batch, Claim, Finished},
};

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
            if shard.filter.may_have(key.0) {
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

    /// Takes thresholds that are reached off a shard's lists, and the operations that end by that
    /// out of all else. Those of which the check is a condition too are checked. Returns how many of
    /// these completed, and how many that are out will.
    fn reach<Q>(
        &self,
        number: usize,
        (hash, key): (u64, &Q),
        value: u64,
        due: &mut Vec<(u64, Finished<O, R>)>,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut completed = 0;
        let mut is_more = true;
        while is_more {
            let now = self.timer.elapsed();
            let mut batch = Batch::new();
            let mut timeouts = SmallVec::<[_; 2]>::new();
            let mut leavings = self.leavings(shard);
            let mut contents = shard.contents.lock();
            is_more = false;
            for step in 1..=STEPS_PER_HOLD {
                // The list is gone when its last watcher has left.
                let list = contents.lists.find(hash, |other| other.borrow() == key);
                let first = list.and_then(|list| contents.reach(list, value, &mut leavings));
                let Some((at, waiter)) = first else { break };
                match contents.on_threshold(waiter, now, &mut batch, &mut leavings) {
                    Some(Claim::Finished(finished)) => {
                        timeouts.push(finished.timeout);
                        due.push((at, finished));
                    }
                    Some(Claim::Decided { timeout }) => {
                        timeouts.push(timeout);
                        completed += 1;
                    }
                    Some(Claim::Lost(_)) | None => {}
                }
                is_more = step == STEPS_PER_HOLD || batch.len() + timeouts.len() == BATCH;
                if is_more {
                    break;
                }
            }
            drop(contents);
            self.dispose(leavings);
            timeouts.into_iter().for_each(|timeout| self.cancel_timeout(number, timeout));
            if !batch.is_empty() {
                completed += self.check_out(number, &mut batch);
            }
        }
        completed
    }
}
