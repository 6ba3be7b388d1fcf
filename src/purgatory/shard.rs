//! A shard of a purgatory. Only this file takes the lock of a shard, which is that of the shard of
//! the timer.
//!
//! Each method holds the lock at most once, by [`Shard::hold`]. That drops the keys that have lost
//! their last watcher after the release.
//!
//! # Locks
//!
//! The lock of a shard is held for the keys of at most 32 operations, or for 256 steps along a
//! list; by a late reaper for longer, see [`expiry`](super::expiry). No method of an operation runs
//! under it, nor does the clone of a reason or the drop of a key. `Eq` and `Borrow` of keys do, as
//! in any map. So they must not call the purgatory, nor wait for a lock that a thread holds while
//! it calls the purgatory.
//!
//! Two other locks exist if there are limits. A thread that displaces an operation holds the first
//! while it takes the locks of the shards, one after the other. The second guards a count of the
//! operations on a key, and is taken under the lock of a shard. So the order is: displacing, shard,
//! count. The reaper holds the lock of the timer's backlog while it takes the locks of the shards.
//! No thread holds two shards. A check may wait for a user's lock, even if a thread holds that lock
//! while it announces an event.

use std::{borrow::Borrow, collections::BTreeMap, vec::Vec};

use super::{
    batch::{Announced, BATCH, Batch, Out},
    claim::{Claim, Claims, Finished},
    conditions::Conditions,
    deferral::Panics,
    expiry::{Due, ShardState},
    hold::{DroppedLater, Hold},
    limits::Excess,
    lists::{HashedKey, ThresholdKey, ThresholdPass},
    operation::{Completion, OperationKey},
    slab::Index,
    stats::{Counts, PurgatoryStats},
    waiters::Waiters,
    walk::Walk,
};
use crate::{
    tick::Tick,
    ticks::Nanos,
    timer::{AnnexTimer, Reading, ScheduleError},
    wheel::Key,
};

/// Steps along a list between two holds of a lock.
pub(super) const STEPS_PER_HOLD: u32 = 256;

/// The timer of a purgatory. Its shards are those of the purgatory.
pub(super) type Timer<K, O, R> = AnnexTimer<(), ShardState<K, O, R>, Due<K, O>>;

/// A part of a purgatory, borrowed from it. An operation is in the shard of the thread that
/// registered it.
pub(super) struct Shard<'a, K, O, R> {
    /// Its index in the timer, whose shard holds the operations.
    index: usize,
    timer: &'a Timer<K, O, R>,
    panics: &'a Panics,
}

impl<K, O, R> Clone for Shard<'_, K, O, R> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, O, R> Copy for Shard<'_, K, O, R> {}

/// Operations that reached thresholds in one hold.
pub(super) struct Reached<O, R> {
    /// The operations that need a check.
    pub(super) batch: Batch<O, R>,
    /// Number of operations that other threads complete.
    pub(super) decided: usize,
    /// Whether the key may have more reached thresholds.
    pub(super) is_more: bool,
    /// Whether the next operation's wait is measured, but the caller gave no time.
    pub(super) needs_time: bool,
}

impl<'a, K, O, R> Shard<'a, K, O, R> {
    #[inline]
    pub(super) const fn new(index: usize, timer: &'a Timer<K, O, R>, panics: &'a Panics) -> Self {
        Self { index, timer, panics }
    }

    /// Runs `act` under the lock. Then drops the keys that have lost their last watcher.
    ///
    /// `act` must neither run nor drop anything of the user, except keys that it compares.
    #[inline]
    pub(super) fn hold<V>(
        &self,
        act: impl FnOnce(&mut Waiters<K, O, R>, &mut Hold<'_, K>) -> V,
    ) -> V {
        let mut dropped_later = DroppedLater::new();
        let result = self.hold_and_keep(&mut dropped_later, act);
        dropped_later.discard(self.panics);
        result
    }

    /// Runs `act` under the lock. The caller drops the values in `dropped_later` without a lock.
    #[inline]
    fn hold_and_keep<V>(
        &self,
        dropped_later: &mut DroppedLater<K>,
        act: impl FnOnce(&mut Waiters<K, O, R>, &mut Hold<'_, K>) -> V,
    ) -> V {
        self.timer.hold(self.index, |timeouts, state| {
            let (waiters, mut hold) = state.begin_hold(Some(timeouts), dropped_later);
            act(waiters, &mut hold)
        })
    }
}

impl<K: Send + 'static, O: Send + 'static, R: Send + 'static> Shard<'_, K, O, R> {
    /// Adds an operation that is out to all of its lists, and its timeout to the timer. Returns its
    /// key, and whether the shard measures how long it waits. If the timer refuses the timeout,
    /// nothing is added.
    #[inline]
    pub(super) fn register(
        &self,
        conditions: &mut Conditions<K>,
        read: Reading,
        deadline: Tick,
    ) -> Result<(Key, bool), ScheduleError<()>>
    where
        K: Eq,
    {
        let Reading { elapsed: since, now } = read;
        let mut dropped_later = DroppedLater::new();
        let registered =
            self.timer.insert_and_hold(self.index, now, deadline, (), |key, timeouts, state| {
                let (waiters, mut hold) = state.begin_hold(Some(timeouts), &mut dropped_later);
                let events = conditions.events.drain(..);
                let is_timed = waiters.add(key, since, conditions.rule, events, &mut hold);
                let index = Index::at(key.index());
                for threshold in &mut conditions.thresholds {
                    waiters.watch_threshold(index, threshold, &mut hold);
                }
                if hold.limits().needs_order() {
                    waiters.append_to_all(index);
                }
                (key, is_timed)
            });
        dropped_later.discard(self.panics);
        registered
    }

    /// Brings back an operation that was just registered. Unless it can complete, all limits
    /// count it from now on. Returns the limits that it exceeds, and whether it waits and an event
    /// was announced meanwhile.
    #[inline]
    pub(super) fn begin_to_wait(&self, out: &mut Out<O, R>, now: Nanos) -> (Excess, bool) {
        let mut excess = Excess::default();
        let is_announced = self.hold(|waiters, hold| {
            if !out.is_satisfied && hold.limits().displace() {
                excess = waiters.count_in(out.key, hold.limits());
            }
            waiters.bring_back(out, now, hold)
        });
        (excess, is_announced)
    }

    /// Begins a pass, which does not see operations that are registered from now on.
    pub(super) fn begin_pass(&self) -> u64 {
        self.hold(|waiters, _| waiters.begin_pass())
    }

    /// Takes the next operations of a walk out for a check, at most `size`.
    #[inline]
    pub(super) fn take_out<Q>(
        &self,
        walk: &mut Walk<'_, K, O, R>,
        key: HashedKey<'_, Q>,
        size: usize,
        batch: &mut Batch<O, R>,
    ) where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.hold(|waiters, _| walk.take_next(waiters, key, size, batch));
    }

    /// Brings back checked operations. Returns those that need another check.
    #[inline]
    pub(super) fn bring_back(&self, batch: &mut Batch<O, R>, now: Nanos) -> Announced {
        self.bring_back_each(batch, now, |_, _| {})
    }

    /// Brings back operations that were not checked. Returns those that wait again.
    pub(super) fn bring_back_unchecked(&self, batch: &mut Batch<O, R>) -> Announced {
        self.bring_back_each(batch, Nanos::ZERO, Waiters::announce)
    }

    #[inline]
    fn bring_back_each(
        &self,
        batch: &mut Batch<O, R>,
        now: Nanos,
        before: impl Fn(&mut Waiters<K, O, R>, Key),
    ) -> Announced {
        let mut announced = Announced::new();
        self.hold(|waiters, hold| {
            batch.for_each(|out| {
                before(waiters, out.key);
                if waiters.bring_back(out, now, hold) {
                    announced.push(out.key);
                }
            });
        });
        announced
    }

    /// Returns the serial number of the next operation.
    pub(super) fn next_serial(&self) -> u64 {
        self.hold(|waiters, _| waiters.next_serial())
    }

    /// Removes the thresholds of a pass from the list of a key. Adds the operations that this ends
    /// to `due`, with their thresholds. Without the present time it stops before an operation whose
    /// wait is measured.
    #[inline]
    pub(super) fn reach<Q>(
        &self,
        pass: &mut ThresholdPass,
        key: HashedKey<'_, Q>,
        now: Option<Nanos>,
        due: &mut Vec<(u64, Finished<O, R>)>,
    ) -> Reached<O, R>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut reached =
            Reached { batch: Batch::new(), decided: 0, is_more: false, needs_time: false };
        let before = due.len();
        reached.is_more = self.visit_thresholds(pass, key, |waiters, threshold, waiter, hold| {
            if now.is_none() && waiters.is_timed(waiter) {
                reached.needs_time = true;
                return false;
            }
            let (now, batch) = (now.unwrap_or(Nanos::ZERO), &mut reached.batch);
            if waiters.on_threshold(threshold, waiter, batch, hold) {
                match waiters.claim_listed(waiter, Completion::Satisfied, now, hold) {
                    Claim::Finished(finished) => due.push((threshold.at, finished)),
                    Claim::Decided => reached.decided += 1,
                }
            }
            reached.batch.len() + reached.decided + due.len() - before < BATCH
        });
        reached
    }

    /// Continues a pass along the thresholds of a key in one hold. Calls `visit` with each, which
    /// removes it, until that returns `false`. Returns whether there may be more.
    #[inline]
    fn visit_thresholds<Q>(
        &self,
        pass: &mut ThresholdPass,
        key: HashedKey<'_, Q>,
        mut visit: impl FnMut(&mut Waiters<K, O, R>, ThresholdKey, Index, &mut Hold<'_, K>) -> bool,
    ) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.hold(|waiters, hold| {
            let next_serial = pass.begin(waiters.next_serial());
            for _ in 0..STEPS_PER_HOLD {
                // The list is removed with its last watcher, so it is looked up in each step.
                let list = waiters.lists.find(key);
                let next =
                    list.and_then(|list| waiters.lists.threshold_after(list, pass.passed_over));
                let Some((threshold, waiter)) = next.filter(|(next, _)| next.at <= pass.end) else {
                    return false;
                };
                debug_assert!(pass.passed_over < Some(threshold), "a pass moves backwards");
                if !waiters.is_before(waiter, next_serial) {
                    pass.passed_over = Some(threshold);
                } else if !visit(waiters, threshold, waiter, hold) {
                    return true;
                }
            }
            true
        })
    }

    /// Decides how an operation ends. Returns the completion if its end is decided.
    #[inline]
    pub(super) fn claim(
        &self,
        key: Key,
        completion: Completion<R>,
        now: Nanos,
    ) -> Result<Claim<O, R>, Completion<R>> {
        self.hold(|waiters, hold| waiters.claim(key, completion, now, hold))
    }

    /// Displaces an operation, unless its end is decided. The caller holds a lock, and drops the
    /// values after that.
    pub(super) fn displace(&self, key: Key, now: Nanos) -> Option<(Claim<O, R>, DroppedLater<K>)> {
        let mut dropped_later = DroppedLater::new();
        let claim = self.hold_and_keep(&mut dropped_later, |waiters, hold| {
            waiters.claim(key, Completion::Displaced, now, hold)
        });
        debug_assert!(claim.is_ok() || dropped_later.is_empty(), "a lost claim removed a key");
        Some((claim.ok()?, dropped_later))
    }

    /// Begins to cancel the operations that watch a key. Returns the serial number of the first
    /// operation that comes later, and a pass over the thresholds if there are any.
    pub(super) fn begin_cancel<Q>(&self, key: HashedKey<'_, Q>) -> (u64, Option<ThresholdPass>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.hold(|waiters, _| {
            let next_serial = waiters.next_serial();
            let list = waiters.lists.find(key);
            let greatest = list.and_then(|list| waiters.lists.greatest_of(list));
            let pass = greatest.map(|greatest| {
                let mut pass = ThresholdPass::up_to(greatest);
                pass.begin(next_serial);
                pass
            });
            (next_serial, pass)
        })
    }

    /// Decides the end of the next operation of a walk. Returns `None` if this hold finds none.
    pub(super) fn claim_next<Q>(
        &self,
        walk: &mut Walk<'_, K, O, R>,
        key: HashedKey<'_, Q>,
        completion: Completion<R>,
        now: Nanos,
    ) -> Option<Claim<O, R>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // The drop of an unused completion is user code, so it stays outside of the hold.
        let (mut completion, mut claim) = (Some(completion), None);
        self.hold(|waiters, hold| {
            walk.visit(waiters, key, |waiters, waiter| {
                let Some(completion) = completion.take() else { return false };
                claim = Some(waiters.claim_listed(waiter, completion, now, hold));
                true
            });
        });
        claim
    }

    /// Decides the end of the operation with the next threshold of a pass. Returns whether there
    /// may be more, and the claim, or `None` if this hold finds no operation.
    pub(super) fn claim_threshold<Q>(
        &self,
        pass: &mut ThresholdPass,
        key: HashedKey<'_, Q>,
        completion: Completion<R>,
        now: Nanos,
    ) -> (bool, Option<Claim<O, R>>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // As in `claim_next`, the completion may be dropped.
        let (mut completion, mut claim) = (Some(completion), None);
        let is_more = self.visit_thresholds(pass, key, |waiters, _, waiter, hold| {
            let Some(completion) = completion.take() else { return false };
            claim = Some(waiters.claim_listed(waiter, completion, now, hold));
            true
        });
        (is_more, claim)
    }

    /// Refuses further operations.
    pub(super) fn close(&self) {
        self.hold(|_, hold| hold.timeouts().close());
    }

    /// Decides that operations end as satisfied, unless their ends are decided. Takes at most
    /// [`BATCH`].
    pub(super) fn claim_all(&self, keys: &[OperationKey], now: Nanos) -> Claims<O, R> {
        debug_assert!(keys.len() <= BATCH, "{} operations in one hold", keys.len());
        let mut claims = Claims::with_capacity(keys.len());
        let keys = keys.iter().map(|key| key.in_shard());
        self.hold(|waiters, hold| {
            waiters.read_ahead(keys.clone(), hold);
            for key in keys {
                if let Ok(claim) = waiters.claim(key, Completion::Satisfied, now, hold) {
                    claims.add(claim);
                }
            }
        });
        claims
    }

    /// Ends operations from a position on, because the purgatory shuts down. Returns the next
    /// position, or `None` after the last.
    pub(super) fn shut_down_some(&self, start: u32, now: Nanos) -> (Claims<O, R>, Option<u32>) {
        let mut claims = Claims::with_capacity(BATCH);
        let next = self.hold(|waiters, hold| {
            let end = waiters.end().min(start + STEPS_PER_HOLD);
            let mut position = start;
            while position < end && claims.len() < BATCH {
                if waiters.at(position).is_some() {
                    let index = Index::at(position);
                    claims.add(waiters.claim_listed(index, Completion::ShutDown, now, hold));
                }
                position += 1;
            }
            (position < waiters.end()).then_some(position)
        });
        (claims, next)
    }

    pub(super) fn counts(&self) -> Counts {
        self.hold(|waiters, _| Counts {
            delayed: waiters.waiting().into(),
            watched: waiters.lists.watching(),
        })
    }

    /// Adds the counts of this shard.
    pub(super) fn add_stats(&self, stats: &mut PurgatoryStats) {
        self.hold(|waiters, _| {
            stats.delayed += u64::from(waiters.waiting());
            stats.watched += waiters.lists.watching();
            stats.keys += u64::from(waiters.lists.keys());
            waiters.stats.add_to(stats);
        });
    }

    /// Checks the invariants of this shard. Returns the number of operations that the total limit
    /// counts. Adds the count of each key's limit, by hash.
    pub(super) fn check_invariants(&self, on_keys: &mut BTreeMap<u64, u64>) -> u64 {
        self.hold(|waiters, hold| waiters.check_invariants(on_keys, hold))
    }

    /// Continues a walk in one hold. Returns the number of visited operations.
    #[cfg(all(test, not(loom)))]
    pub(super) fn visit_all(&self, walk: &mut Walk<'_, K, O, R>, key: HashedKey<'_, K>) -> usize
    where
        K: Eq,
    {
        let mut visited = 0;
        self.hold(|waiters, _| {
            walk.visit(waiters, key, |_, _| {
                visited += 1;
                true
            });
        });
        visited
    }
}
