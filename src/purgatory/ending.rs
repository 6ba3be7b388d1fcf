//! Ends that are not found by a check: by a handle, by a key, by a shutdown.

use std::{borrow::Borrow, hash::Hash};

use smallvec::SmallVec;

use super::{
    core::{Core, STEPS_PER_HOLD, Ticket},
    filter::fence_event,
    operation::{Completion, DelayedOperation},
    shard::{Claim, Finished, Finishes},
    walk::Walk,
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
                    Claim::Noted => cancelled += 1,
                    Claim::Lost(completion) => unsaid = Some(completion),
                }
                true
            });
            drop(contents);
            self.dispose(leavings);
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
            cancelled += usize::from(!claim.is_lost());
            if let Claim::Finished(finished) = claim {
                self.conclude(number, finished);
            }
        }
    }

    /// Ends an operation. Returns whether it had neither ended nor been told how it ends.
    pub(super) fn claim(&self, ticket: Ticket, completion: Completion<R>) -> bool {
        let number = ticket.shard();
        let Some(shard) = self.shards.get(number) else { return false };
        let now = self.timer.elapsed();
        let mut leavings = self.leavings(shard);
        let mut contents = shard.contents.lock();
        let claim = contents.claim_ticket(ticket.place(), completion, now, &mut leavings);
        drop(contents);
        self.dispose(leavings);
        let is_won = !claim.is_lost();
        if let Claim::Finished(finished) = claim {
            self.conclude(number, finished);
        }
        is_won
    }

    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        let shard = self.shards.get(ticket.shard());
        let (index, serial) = ticket.place();
        shard.is_some_and(|shard| shard.contents.lock().is_waiting(index, serial))
    }

    /// Takes in no more operations, and ends those that wait. `conclude` says what becomes of each,
    /// when it has left the timer and its place. Returns how many those were, and how many that are
    /// out will end by this.
    pub(super) fn shut_down(&self, mut conclude: impl FnMut(O, Completion<R>)) -> usize {
        let mut count = 0;
        for shard in &self.shards {
            shard.contents.lock().is_closed = true;
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let mut position = 0;
            let mut is_more = true;
            while is_more {
                let now = self.timer.elapsed();
                let mut ended = Finishes::new();
                let mut leavings = self.leavings(shard);
                let mut contents = shard.contents.lock();
                let end = position + STEPS_PER_HOLD;
                for position in position..end.min(contents.end()) {
                    let index = contents.at(position);
                    let claim = index.map(|index| {
                        contents.claim(index, Completion::ShutDown, now, &mut leavings)
                    });
                    count += usize::from(matches!(claim, Some(Claim::Noted)));
                    if let Some(Claim::Finished(finished)) = claim {
                        ended.push(finished);
                    }
                }
                position = end;
                is_more = end < contents.end();
                drop(contents);
                self.dispose(leavings);
                count += ended.len();
                ended.iter().for_each(|finished| self.retire(number, finished.timeout));
                for Finished { operation, completion, .. } in ended {
                    conclude(operation, completion);
                }
            }
        }
        self.timer.shutdown();
        count
    }
}
