//! Checks after events: checks the operations on a key, and completes those that can complete.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
    iter, mem,
    sync::Arc,
    vec::Vec,
};

use super::{
    Purgatory, SharedPurgatory,
    calls::{defer_checks, is_too_deep, run_checks},
    lists::BATCH,
    operation::{Completion, DelayedOperation},
    pending::Out,
    shard::{NextWatcher, OutBatch, Walk},
};
use crate::{
    sync::{Ordering, fence},
    ticks::Nanos,
};

impl<K: Send + 'static, O: DelayedOperation<K>> Purgatory<K, O> {
    /// Checks the operations that watch a key, after an event on it, and completes those that can
    /// complete. Returns their number.
    ///
    /// If another thread is checking an operation, that thread checks it again, and this call does
    /// not count it. This call also does not count an operation that ends in another way meanwhile.
    ///
    /// A check may call this function. When checks are nested eight deep, the call returns 0, and
    /// the thread makes its checks once the outermost check has returned.
    ///
    /// # Complexity
    ///
    /// *O*(shards), plus a check for each operation that watches the key.
    #[inline]
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let SharedPurgatory { hasher, filters, timer, .. } = &*self.shared;
        let hash = hasher.hash_one(key);
        // The protocol of the filter needs this fence; see `keys`.
        fence(Ordering::SeqCst);
        let mut shards = filters.shards(hash);
        let Some(first) = shards.next() else { return 0 };
        let walk = || Walk::new(hash, |other: &K| other.borrow() == key, NextWatcher::EVENTS);
        // A check may add operations to any shard, and this event must not check them. So all
        // passes begin before the first check. `take_out` begins the pass of the first shard.
        let mut others = Vec::new();
        for shard in shards {
            let mut walk = walk();
            timer.shards.lock(shard).state_mut().begin_pass(&mut walk);
            others.push((shard, walk));
        }
        // The checks in earlier shards may have ended all operations on the key in this one.
        let others = others.into_iter().filter(|(shard, _)| filters.may_have(hash, *shard));
        let (mut batch, mut completed) = (OutBatch::new(), 0);
        for (shard, mut walk) in iter::once((first, walk())).chain(others) {
            while walk.next.is_some() {
                let mut guard = timer.shards.lock(shard);
                guard.state_mut().take_out(&mut walk, &mut batch);
                guard.unlock();
                if !batch.is_empty() {
                    completed += self.check_or_defer(shard, &mut batch);
                    batch.clear();
                }
            }
        }
        completed
    }

    /// Checks operations that are out, brings them back, and completes those that have ended.
    /// Repeats this for operations that had an event during their check, until there are none.
    /// Returns how many operations completed by a check.
    ///
    /// Between two rounds all operations wait again. So further events do not delay an end that
    /// another thread decided.
    ///
    /// If checks on this thread are nested too deep, all operations wait again. The thread checks
    /// them when the outermost check has returned.
    #[inline]
    pub(super) fn check_or_defer(&self, shard: usize, batch: &mut [Out<O>]) -> usize {
        if is_too_deep() {
            self.check_later(shard, batch);
            return 0;
        }
        let (calls, mut completed) = (&self.shared.calls, 0);
        loop {
            debug_assert!(batch.len() <= BATCH, "{} operations are out at once", batch.len());
            for Out { operation, end, .. } in batch.iter_mut() {
                let check = |operation: &mut O| calls.check(|| operation.try_complete());
                let can_complete = operation.as_mut().is_some_and(check);
                *end = can_complete.then_some(Completion::Satisfied);
            }
            let (ended, any_needs_check) = self.bring_back(shard, batch);
            completed += ended;
            if !(any_needs_check && self.take_out_again(shard, batch)) {
                break;
            }
        }
        run_checks();
        completed
    }

    /// Brings operations back, and completes those that have ended. Returns how many this call
    /// ended, and whether an event was announced for one of the others.
    #[inline]
    pub(super) fn bring_back(&self, shard: usize, batch: &mut [Out<O>]) -> (usize, bool) {
        let is_end = batch.iter().any(|out| out.end.is_some());
        let now = if is_end { self.shared.now() } else { Nanos::ZERO };
        let (mut ended, mut any_needs_check) = (0, false);
        let mut guard = self.shared.timer.shards.lock(shard);
        for out in batch.iter_mut().filter(|out| out.operation.is_some()) {
            ended += usize::from(guard.state_mut().put_back(out, now));
        }
        guard.unlock();
        for Out { operation, end, needs_check, .. } in batch {
            any_needs_check |= *needs_check;
            if let (Some(operation), Some(end)) = (operation.take(), *end) {
                self.shared.calls.complete(operation, end);
            }
        }
        (ended, any_needs_check)
    }

    /// Checks those operations again that had an event while they were out. Returns how many
    /// completed.
    pub(super) fn check_announced(&self, shard: usize, batch: &mut [Out<O>]) -> usize {
        if self.take_out_again(shard, batch) { self.check_or_defer(shard, batch) } else { 0 }
    }

    /// Takes those operations out again that had an event while they were out. Returns whether
    /// there are any.
    #[inline]
    fn take_out_again(&self, shard: usize, batch: &mut [Out<O>]) -> bool {
        let mut are_any = false;
        let mut guard = self.shared.timer.shards.lock(shard);
        for out in batch.iter_mut() {
            if mem::take(&mut out.needs_check) {
                // If another thread has taken the operation out since, that thread checks it.
                let pending = guard.state_mut().wheel.get_mut(out.key);
                out.operation = pending.and_then(|pending| pending.operation.take());
                are_any |= out.operation.is_some();
            }
        }
        are_any
    }

    #[cold]
    fn check_later(&self, shard: usize, batch: &mut [Out<O>]) {
        // An entry without an operation needs no check here: another thread has taken the operation
        // out after the event, and checks it, or the operation has ended.
        let are_here = batch.iter().filter(|out| out.operation.is_some()).map(|out| out.key);
        let mut again: Vec<_> = are_here.map(|key| Out::new(key, None)).collect();
        self.bring_back(shard, batch);
        let this = Arc::downgrade(&self.shared);
        defer_checks(move || {
            if let Some(this) = this.upgrade() {
                Self { shared: this }.check_announced(shard, &mut again);
            }
        });
    }
}
