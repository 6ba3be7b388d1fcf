//! Ends that are not found by a check: by a handle, by a key, by a shutdown.

use std::{borrow::Borrow, hash::Hash};

use smallvec::SmallVec;

use super::{
    core::{Core, STEPS_PER_HOLD},
    filter::fence_event,
    lists::Leavings,
    operation::{Completion, DelayedOperation},
    shard::{BATCH, Claim, Finishes},
    walk::Walk,
    watch::OperationKey,
};

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Cancels all operations that watch a key. Returns how many those were.
    pub(super) fn cancel_key<Q>(&self, key: &Q, reason: &impl Fn() -> R) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = (self.hash(key), key);
        fence_event();
        // Those who wait again when they are cancelled are not cancelled again.
        let newcomers = self.shards.iter().map(|shard| {
            let is_watched = shard.filter.may_have(key.0);
            is_watched.then(|| shard.contents.lock().serial())
        });
        let newcomers: SmallVec<[_; 16]> = newcomers.collect();
        let mut cancelled = 0;
        for (number, newcomers) in newcomers.into_iter().enumerate() {
            if let Some(newcomers) = newcomers {
                cancelled += self.cancel_events(number, key, newcomers, reason);
                cancelled += self.cancel_thresholds(number, key, newcomers, reason);
            }
        }
        cancelled
    }

    /// Cancels the operations of a shard that watch a key's events, but for newcomers.
    fn cancel_events<Q>(
        &self,
        number: usize,
        key: (u64, &Q),
        newcomers: u64,
        reason: &impl Fn() -> R,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut walk = Walk::new(shard, 0);
        let mut cancelled = 0;
        while !walk.is_done() {
            let mut reasons = Some(reason());
            let mut unsaid = None;
            let mut decided = None;
            let now = self.timer.elapsed();
            let mut ended = Finishes::new();
            let mut leavings = self.leavings(shard);
            let mut contents = shard.contents.lock();
            walk.go_past(&mut contents, key, |contents, waiter| {
                if !contents.is_before(waiter, newcomers) {
                    return true;
                }
                // One reason for each, made and dropped with no lock held.
                let Some(reason) = reasons.take() else { return false };
                match contents.claim(waiter, Completion::Cancelled(reason), now, &mut leavings) {
                    Claim::Finished(finished) => ended.push(finished),
                    Claim::Decided { timeout } => decided = Some(timeout),
                    Claim::Lost(completion) => unsaid = Some(completion),
                }
                true
            });
            drop(contents);
            self.dispose(leavings);
            if let Some(timeout) = decided {
                self.cancel_timeout(number, timeout);
                cancelled += 1;
            }
            cancelled += self.conclude_all(number, ended);
            drop(unsaid);
        }
        cancelled
    }

    /// Cancels the operations of a shard that wait for a key's value, but for newcomers.
    fn cancel_thresholds<Q>(
        &self,
        number: usize,
        key: (u64, &Q),
        newcomers: u64,
        reason: &impl Fn() -> R,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut cancelled = 0;
        let mut seen = None;
        loop {
            let completion = Completion::Cancelled(reason());
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            let claim = {
                let mut contents = shard.contents.lock();
                let list = contents.lists.find(key.0, |other| other.borrow() == key.1);
                let next = list.and_then(|list| contents.lists.threshold_after(list, seen));
                let Some((place, waiter)) = next else { return cancelled };
                seen = Some(place);
                if contents.is_before(waiter, newcomers) {
                    contents.claim(waiter, completion, now, &mut leavings)
                } else {
                    Claim::Lost(completion)
                }
            };
            self.dispose(leavings);
            cancelled += usize::from(self.settle_claim(number, claim));
        }
    }

    /// Ends an operation. Returns whether it had neither ended nor been told how it ends.
    pub(super) fn claim(&self, key: OperationKey, completion: Completion<R>) -> bool {
        if key.shard() >= self.shards.len() {
            return false;
        }
        let (claim, leavings) = self.claim_in_shard(key, completion);
        self.dispose(leavings);
        self.settle_claim(key.shard(), claim)
    }

    /// Decides how an operation ends, and leaves it to the caller to tell it so.
    pub(super) fn claim_in_shard(
        &self,
        key: OperationKey,
        completion: Completion<R>,
    ) -> (Claim<O, R>, Leavings<'_, K>) {
        let shard = &*self.shards[key.shard()];
        let now = self.timer.elapsed();
        let mut leavings = self.leavings(shard);
        let claim = shard.contents.lock().claim_key(key.place(), completion, now, &mut leavings);
        (claim, leavings)
    }

    /// Cancels the timeout of an operation whose end has been claimed, and tells it if it has ended.
    /// Returns whether the claim was won.
    pub(super) fn settle_claim(&self, number: usize, claim: Claim<O, R>) -> bool {
        match claim {
            Claim::Finished(finished) => self.conclude(number, finished),
            Claim::Decided { timeout } => self.cancel_timeout(number, timeout),
            Claim::Lost(_) => return false,
        }
        true
    }

    pub(super) fn is_waiting(&self, key: OperationKey) -> bool {
        let shard = self.shards.get(key.shard());
        let (index, serial) = key.place();
        shard.is_some_and(|shard| shard.contents.lock().is_waiting(index, serial))
    }

    /// Takes in no more operations, and ends those that wait. `take` is given each, when it has left
    /// the timer and the limits. Those that are out end by this as well.
    pub(super) fn shut_down(&self, mut take: impl FnMut(O)) {
        for shard in &self.shards {
            shard.contents.lock().is_closed = true;
        }
        for number in 0..self.shards.len() {
            let mut position = Some(0);
            while let Some(start) = position {
                position = self.shut_down_some(number, start, &mut take);
            }
        }
        self.timer.shutdown();
    }

    /// Ends operations of a shard from a position on, in one hold. Returns where to go on.
    fn shut_down_some(&self, number: usize, start: u32, take: &mut impl FnMut(O)) -> Option<u32> {
        let shard = &*self.shards[number];
        let now = self.timer.elapsed();
        let mut finishes = Finishes::new();
        let mut timeouts = SmallVec::<[_; BATCH]>::new();
        let mut leavings = self.leavings(shard);
        let mut contents = shard.contents.lock();
        let end = contents.end().min(start + STEPS_PER_HOLD);
        let mut position = start;
        while position < end && timeouts.len() < BATCH {
            if let Some(index) = contents.at(position) {
                match contents.claim(index, Completion::ShutDown, now, &mut leavings) {
                    Claim::Finished(end) => {
                        timeouts.push(end.timeout);
                        finishes.push(end);
                    }
                    Claim::Decided { timeout } => timeouts.push(timeout),
                    Claim::Lost(_) => {}
                }
            }
            position += 1;
        }
        let is_more = position < contents.end();
        drop(contents);
        self.dispose(leavings);
        timeouts.into_iter().for_each(|timeout| self.cancel_timeout(number, timeout));
        finishes.into_iter().for_each(|finished| take(finished.operation));
        is_more.then_some(position)
    }
}
