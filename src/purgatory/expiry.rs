//! Expiration: the reaper ends due operations under the lock of their shard.
//!
//! # Protocol
//!
//! The operations of a shard and their timeouts are under one lock, and each operation whose end is
//! not decided has one pending timeout.
//!
//! - A registration inserts the timeout in the hold that adds the operation. If the timer refuses
//!   the timeout, the hold has changed nothing.
//! - A thread that decides the end of an operation cancels its timeout in the same hold.
//! - The reaper takes a due timeout out of the wheel, and decides in the same hold that its
//!   operation ends as expired. So it never finds an operation that has ended.
//! - The reaper hands the operation off as [`Due`], which completes it when it is dropped. If a
//!   thread has the operation out, that thread completes it.
//! - A shutdown takes back the operations that have expired and whose completion has not begun.

use std::sync::Arc;

use super::{
    batch::BATCH,
    claim::{Claim, Finished},
    deferral::Panics,
    filter::Filter,
    hold::{DroppedLater, Hold},
    limits::Limits,
    operation::Completion,
    waiters::Waiters,
};
use crate::{
    ticks::Nanos,
    timer::{Annex, HeldTimeouts},
    wheel::Expired,
};

/// The state of a shard, beside its timeouts under one lock.
pub(super) struct ShardState<K, O, R> {
    waiters: Waiters<K, O, R>,
    filter: Filter,
    limits: Arc<Limits>,
    panics: Panics,
    /// Completes an expired operation.
    complete: fn(&Panics, O),
}

impl<K, O, R> ShardState<K, O, R> {
    pub(super) fn new(
        filter: Filter,
        limits: Arc<Limits>,
        panics: Panics,
        complete: fn(&Panics, O),
    ) -> Self {
        Self { waiters: Waiters::new(), filter, limits, panics, complete }
    }

    /// Begins a hold of the lock. `timeouts` is `None` while the reaper expires them.
    #[inline]
    pub(super) fn begin_hold<'a>(
        &'a mut self,
        timeouts: Option<HeldTimeouts<'a, ()>>,
        dropped_later: &'a mut DroppedLater<K>,
    ) -> (&'a mut Waiters<K, O, R>, Hold<'a, K>) {
        let hold = Hold::new(&self.filter, &self.limits, timeouts, dropped_later);
        (&mut self.waiters, hold)
    }
}

impl<K: Send + 'static, O: Send + 'static, R: Send + 'static> Annex<()> for ShardState<K, O, R> {
    type Due = Due<K, O>;

    /// Returns the number of watchers.
    fn size(&self) -> u64 {
        self.waiters.lists.watching()
    }

    /// If the reaper is on time, at most 32 operations expire in one hold. If it is late, more may
    /// follow until as many watchers have left as the hold has steps.
    fn may_expire(&self, count: usize, steps: u64, size_before: u64) -> bool {
        debug_assert!(self.size() <= size_before, "an operation came while others expire");
        let further = steps.saturating_sub(BATCH as u64);
        count < BATCH || (count as u64) < further && size_before - self.size() < steps
    }

    fn expire(&mut self, expired: Expired<()>, elapsed: Nanos) -> Expired<Due<K, O>> {
        let mut dropped_later = DroppedLater::new();
        let (waiters, mut hold) = self.begin_hold(None, &mut dropped_later);
        let (key, completion) = (expired.key, Completion::Expired);
        let claim = waiters.claim_without_timeout(key, completion, elapsed, &mut hold);
        let operation = match claim {
            Claim::Finished(Finished { operation, .. }) => Some(operation),
            Claim::Decided => None,
        };
        let due =
            Due { operation, dropped_later, panics: self.panics.clone(), complete: self.complete };
        Expired { key: expired.key, deadline: expired.deadline, value: due }
    }

    fn emptied(&mut self) -> Option<u32> {
        self.waiters.take_emptied()
    }
}

/// An expired operation. Its drop completes the operation, even if a pool of the user drops it.
pub(super) struct Due<K, O> {
    /// `None` if another thread completes it.
    operation: Option<O>,
    dropped_later: DroppedLater<K>,
    panics: Panics,
    complete: fn(&Panics, O),
}

impl<K, O> Due<K, O> {
    /// Returns the operation, which the caller completes.
    pub(super) fn take(mut self) -> Option<O> {
        self.operation.take()
    }
}

impl<K, O> Drop for Due<K, O> {
    fn drop(&mut self) {
        self.dropped_later.discard(&self.panics);
        if let Some(operation) = self.operation.take() {
            (self.complete)(&self.panics, operation);
        }
    }
}
