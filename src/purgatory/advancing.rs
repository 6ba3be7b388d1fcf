//! What follows when the value of a key grows: those who waited for that end, in order.

use std::{borrow::Borrow, hash::Hash, vec::Vec};

use super::{
    core::{Core, STEPS_PER_HOLD},
    filter::fence_event,
    operation::DelayedOperation,
    shard::{Batch, Claim, Finished},
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
        let mut out = Vec::new();
        let mut completed = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            if shard.filter.may_have(key.0) {
                let mut batch = Batch::new();
                completed += self.reach(number, key, value, &mut due, &mut batch);
                out.push((number, batch));
            }
        }
        // Each shard's are in order.
        if out.len() > 1 {
            due.sort_by_key(|&(at, _, _)| at);
        }
        completed += due.len();
        for (_, number, finished) in due {
            self.conclude(number, finished);
        }
        for (number, mut batch) in out {
            completed += self.check_out(number, &mut batch);
        }
        completed
    }

    /// Checks operations that are out until none is to be checked again. Returns how many completed.
    fn check_out(&self, number: usize, batch: &mut Batch<O, R>) -> usize {
        let shard = &*self.shards[number];
        let mut completed = 0;
        while !batch.is_empty() {
            self.check_all(batch);
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            let mut contents = shard.contents.lock();
            batch.iter_mut().for_each(|in_hand| contents.bring_back(in_hand, now, &mut leavings));
            drop(contents);
            self.dispose(leavings);
            completed += self.settle(number, batch);
        }
        completed
    }

    /// Takes thresholds that are reached off a shard's lists. Returns how many operations that are
    /// out will end by that.
    fn reach<Q>(
        &self,
        number: usize,
        (hash, key): (u64, &Q),
        value: u64,
        due: &mut Vec<(u64, usize, Finished<O, R>)>,
        batch: &mut Batch<O, R>,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut noted = 0;
        let mut is_more = true;
        while is_more {
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            let mut contents = shard.contents.lock();
            is_more = false;
            for step in 0..STEPS_PER_HOLD {
                // The list is gone when its last watcher has left.
                let list = contents.lists.find(hash, |other| other.borrow() == key);
                let first = list.and_then(|list| contents.lists.reach(list, value, &mut leavings));
                let Some((at, waiter)) = first else { break };
                match contents.on_threshold(waiter, now, batch, &mut leavings) {
                    Claim::Finished(finished) => due.push((at, number, finished)),
                    Claim::Noted => noted += 1,
                    Claim::Lost(_) => {}
                }
                is_more = step + 1 == STEPS_PER_HOLD;
            }
            drop(contents);
            self.dispose(leavings);
        }
        noted
    }
}
