//! A shard of a purgatory. Only this file takes the lock of a shard.
//!
//! Each method holds the lock once. It returns values that must not be dropped under the lock in a
//! [`Hold`], and the caller drops them.
//!
//! # Locks
//!
//! The lock of a shard is held for the keys of at most 32 operations, or for 256 steps along a
//! list. No method of an operation runs under it, nor does the clone of a reason or the drop of a
//! key. `Eq` and `Borrow` of keys do, as in any map. So they must not call the purgatory, nor wait
//! for a lock that a thread holds while it calls the purgatory.
//!
//! Two other locks exist if there are limits. A thread that displaces an operation holds the first
//! while it takes the locks of the shards, one after the other. The second guards a count of the
//! operations on a key, and is taken under the lock of a shard. So the order is: displacing, shard,
//! count. No thread holds two shards, nor a shard and one of the timer's locks. A check may wait
//! for a user's lock, even if a thread holds that lock while it announces an event.

use std::borrow::Borrow;

use crossbeam::utils::CachePadded;
use smallvec::SmallVec;

use super::{
    conditions::Conditions,
    cursors::Cursor,
    filter::Filter,
    hold::Hold,
    limits::{Limits, Surplus},
    operation::Completion,
    outcome::{Announced, BATCH, Batch, Claim, Finished, Finishes, InHand, Oldest},
    rule::Effect,
    slab::Index,
    stats::PurgatoryStats,
    waiters::Waiters,
    walk::Walk,
};
use crate::{sync::Mutex, wheel::Key};

/// Steps along a list between two holds of a lock.
pub(super) const STEPS_PER_HOLD: u32 = 256;

/// A part of a purgatory. An operation is in the shard of the thread that registered it.
pub(super) struct Shard<K, O, R> {
    filter: Filter,
    /// On separate cache lines, because other threads read `filter` while a thread takes this lock.
    waiters: CachePadded<Mutex<Waiters<K, O, R>>>,
}

/// An operation that was just added to its lists.
pub(super) struct Entered<K> {
    pub(super) place: (Index, u64),
    /// Its thresholds, for the second check: key, value and node.
    pub(super) asked: SmallVec<[(K, u64, Index); 1]>,
}

/// Operations that reached thresholds in one hold.
pub(super) struct Reached<O, R> {
    /// The operations that need a check.
    pub(super) batch: Batch<O, R>,
    /// The timeouts of the operations whose end is decided.
    pub(super) timeouts: SmallVec<[Option<Key>; 2]>,
    /// Number of operations that other threads complete.
    pub(super) decided: usize,
    /// Whether the key may have more reached thresholds.
    pub(super) is_more: bool,
}

/// The place of a threshold on the list of its key: its value and node. `None` at the end.
pub(super) type NextThreshold = Option<(u64, Index)>;

/// Operations whose end was decided in one hold.
pub(super) struct Ended<O, R> {
    pub(super) finishes: Finishes<O, R>,
    /// The timeouts of the operations that other threads check and will complete.
    timeouts: SmallVec<[Option<Key>; 2]>,
}

impl<O, R> Ended<O, R> {
    fn new() -> Self {
        Self { finishes: Finishes::new(), timeouts: SmallVec::new() }
    }

    /// Returns the number of operations.
    pub(super) fn len(&self) -> usize {
        self.finishes.len() + self.timeouts.len()
    }

    /// Adds an operation, unless its end was decided before. The dropped completion holds no reason
    /// then, so its drop runs no user code.
    fn add(&mut self, claim: Claim<O, R>) {
        match claim {
            Claim::Finished(end) => self.finishes.push(end),
            Claim::Decided { timeout } => self.timeouts.push(timeout),
            Claim::Lost(completion) => {
                debug_assert!(!matches!(completion, Completion::Cancelled(_)), "it has a reason");
            }
        }
    }

    /// Returns the timeouts that the caller must still cancel.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = Key> {
        let finished = self.finishes.iter().filter_map(|end| end.timeout);
        finished.chain(self.timeouts.iter().copied().flatten())
    }
}

impl<K, O, R> Shard<K, O, R> {
    pub(super) fn new() -> Self {
        Self { filter: Filter::new(), waiters: CachePadded::new(Mutex::new(Waiters::new())) }
    }

    /// Returns whether a key may have a watcher. Takes no lock; the caller has executed
    /// [`fence_event`](super::filter::fence_event).
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.filter.may_have(hash)
    }

    /// Removes the cursor of a dropped walk.
    pub(super) fn close_cursor(&self, cursor: Cursor) {
        self.waiters.lock().lists.cursors.close(cursor);
    }
}

impl<K, O, R> Shard<K, O, R>
where
    K: Send + 'static,
    O: Send + 'static,
    R: Send + 'static,
{
    #[inline]
    fn hold<'a>(&'a self, limits: &'a Limits) -> Hold<'a, K> {
        Hold::new(&self.filter, limits)
    }

    // Registering.

    /// Adds an operation that is out to all of its lists. Returns `None` if the shard is closed.
    #[inline]
    pub(super) fn enter<'a>(
        &'a self,
        since: u64,
        conditions: &mut Conditions<K>,
        limits: &'a Limits,
    ) -> Option<(Entered<K>, Hold<'a, K>)>
    where
        K: Eq,
    {
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        if waiters.is_closed {
            return None;
        }
        let place = waiters.enter(since, conditions.rule, limits.counted_first());
        let (index, _) = place;
        waiters.watch_events(index, conditions.events.drain(..), &mut hold);
        let mut asked = SmallVec::new();
        for threshold in conditions.thresholds.drain(..) {
            let key = (threshold.hash, threshold.key, threshold.at);
            let node = waiters.watch_threshold(index, key, &mut hold);
            asked.push((threshold.asked, threshold.at, node));
        }
        if limits.needs_order() {
            waiters.join_oldest(index);
        }
        Some((Entered { place, asked }, hold))
    }

    /// Removes the thresholds that the second check found reached from their lists. Returns the
    /// effect on the operation, which is out.
    pub(super) fn on_found<'a>(
        &'a self,
        index: Index,
        nodes: &[Index],
        limits: &'a Limits,
    ) -> (Effect, Hold<'a, K>) {
        let mut hold = self.hold(limits);
        let effect = self.waiters.lock().on_found(index, nodes, &mut hold);
        (effect, hold)
    }

    /// Brings back an operation that was just registered, and sets its timeout. With a timeout, the
    /// operation can no longer be refused, so all limits count it.
    #[inline]
    pub(super) fn settle_in<'a>(
        &'a self,
        in_hand: &mut InHand<O, R>,
        timeout: Option<Key>,
        now: u64,
        limits: &'a Limits,
    ) -> (Surplus, Announced, Hold<'a, K>) {
        let (mut surplus, mut announced) = (Surplus::default(), Announced::new());
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        if let Some(timeout) = timeout {
            surplus = waiters.set_timeout(in_hand.index, timeout, limits);
        }
        waiters.bring_back(in_hand, now, &mut announced, &mut hold);
        drop(waiters);
        (surplus, announced, hold)
    }

    /// Removes an operation that is out, unless its end is decided. Returns whether it was removed.
    pub(super) fn withdraw<'a>(&'a self, index: Index, limits: &'a Limits) -> (bool, Hold<'a, K>) {
        let mut hold = self.hold(limits);
        let is_withdrawn = self.waiters.lock().withdraw(index, &mut hold);
        (is_withdrawn, hold)
    }

    // Checking.

    /// Takes the next operations of a walk out for a check, at most `size`.
    #[inline]
    pub(super) fn take_out<Q>(
        &self,
        walk: &mut Walk<'_, K, O, R>,
        key: (u64, &Q),
        size: usize,
        batch: &mut Batch<O, R>,
    ) where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        walk.go_on(&mut self.waiters.lock(), key, |waiters, waiter, pass| {
            let has_room = batch.len() < size;
            if has_room {
                waiters.call(waiter, pass, batch);
            }
            has_room
        });
    }

    /// Brings back checked operations. Returns those that need another check.
    #[inline]
    pub(super) fn bring_back<'a>(
        &'a self,
        batch: &mut Batch<O, R>,
        now: u64,
        limits: &'a Limits,
    ) -> (Announced, Hold<'a, K>) {
        self.bring_back_each(batch, now, limits, |_, _| {})
    }

    /// Brings back operations that were not checked. Returns those that wait again.
    pub(super) fn bring_back_unchecked<'a>(
        &'a self,
        batch: &mut Batch<O, R>,
        limits: &'a Limits,
    ) -> (Announced, Hold<'a, K>) {
        self.bring_back_each(batch, 0, limits, Waiters::announce)
    }

    #[inline]
    fn bring_back_each<'a>(
        &'a self,
        batch: &mut Batch<O, R>,
        now: u64,
        limits: &'a Limits,
        before: impl Fn(&mut Waiters<K, O, R>, Index),
    ) -> (Announced, Hold<'a, K>) {
        let mut announced = Announced::new();
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        batch.for_each(|in_hand| {
            before(&mut waiters, in_hand.index);
            waiters.bring_back(in_hand, now, &mut announced, &mut hold);
        });
        drop(waiters);
        (announced, hold)
    }

    /// Takes the announced operations out for another check.
    pub(super) fn take_out_again(&self, announced: &Announced, batch: &mut Batch<O, R>) {
        self.waiters.lock().take_out_again(announced, batch);
    }

    // Advancing.

    /// Removes the thresholds that `value` reaches from the list of a key. Adds the operations that
    /// this ends to `due`, with their thresholds.
    pub(super) fn reach<'a, Q>(
        &'a self,
        (hash, key): (u64, &Q),
        value: u64,
        now: u64,
        due: &mut std::vec::Vec<(u64, Finished<O, R>)>,
        limits: &'a Limits,
    ) -> (Reached<O, R>, Hold<'a, K>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut reached =
            Reached { batch: Batch::new(), timeouts: SmallVec::new(), decided: 0, is_more: false };
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        for step in 1..=STEPS_PER_HOLD {
            // The list is removed with its last watcher, so it is looked up in each step.
            let list = waiters.lists.find(hash, |other| other.borrow() == key);
            let first = list.and_then(|list| waiters.reach(list, value, &mut hold));
            let Some((at, waiter)) = first else { break };
            match waiters.on_threshold(waiter, now, &mut reached.batch, &mut hold) {
                Some(Claim::Finished(finished)) => {
                    reached.timeouts.push(finished.timeout);
                    due.push((at, finished));
                }
                Some(Claim::Decided { timeout }) => {
                    reached.timeouts.push(timeout);
                    reached.decided += 1;
                }
                Some(Claim::Lost(_)) | None => {}
            }
            let ended = reached.batch.len() + reached.timeouts.len();
            reached.is_more = step == STEPS_PER_HOLD || ended == BATCH;
            if reached.is_more {
                break;
            }
        }
        drop(waiters);
        (reached, hold)
    }

    // Completing.

    /// Decides how an operation ends, unless its end is decided.
    pub(super) fn claim<'a>(
        &'a self,
        place: (Index, u64),
        completion: Completion<R>,
        now: u64,
        limits: &'a Limits,
    ) -> (Claim<O, R>, Hold<'a, K>) {
        let mut hold = self.hold(limits);
        let claim = self.waiters.lock().claim_at(place, completion, now, &mut hold);
        (claim, hold)
    }

    /// Decides the end of the next operation of a walk that registered before `newcomers`. Returns
    /// [`Claim::Lost`] with the completion if this hold finds none.
    pub(super) fn claim_next<'a, Q>(
        &'a self,
        walk: &mut Walk<'_, K, O, R>,
        (key, newcomers): ((u64, &Q), u64),
        completion: Completion<R>,
        now: u64,
        limits: &'a Limits,
    ) -> (Claim<O, R>, Hold<'a, K>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut hold = self.hold(limits);
        let (mut completion, mut claim) = (Some(completion), None);
        walk.go_past(&mut self.waiters.lock(), key, |waiters, waiter| {
            if !waiters.is_before(waiter, newcomers) {
                return true;
            }
            let Some(completion) = completion.take() else { return false };
            claim = Some(waiters.claim(waiter, completion, now, &mut hold));
            true
        });
        let unused = || Claim::Lost(completion.expect("no operation has taken it"));
        (claim.unwrap_or_else(unused), hold)
    }

    /// Decides the end of the operation with the least threshold of a key after a place, if it
    /// registered before `newcomers`. Returns the place of the threshold, or `None` if there is
    /// none.
    pub(super) fn claim_threshold<'a, Q>(
        &'a self,
        ((hash, key), newcomers): ((u64, &Q), u64),
        after: NextThreshold,
        completion: Completion<R>,
        now: u64,
        limits: &'a Limits,
    ) -> (NextThreshold, Claim<O, R>, Hold<'a, K>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        let list = waiters.lists.find(hash, |other| other.borrow() == key);
        let next = list.and_then(|list| waiters.lists.threshold_after(list, after));
        let claim = match next {
            Some((_, waiter)) if waiters.is_before(waiter, newcomers) => {
                waiters.claim(waiter, completion, now, &mut hold)
            }
            _ => Claim::Lost(completion),
        };
        drop(waiters);
        (next.map(|(place, _)| place), claim, hold)
    }

    /// Returns the serial number of the next operation.
    pub(super) fn next_serial(&self) -> u64 {
        self.waiters.lock().serial()
    }

    pub(super) fn is_waiting(&self, place: (Index, u64)) -> bool {
        self.waiters.lock().is_waiting(place)
    }

    /// Refuses further operations.
    pub(super) fn close(&self) {
        self.waiters.lock().is_closed = true;
    }

    /// Decides that operations end as satisfied, unless their ends are decided. Takes at most
    /// [`BATCH`].
    pub(super) fn claim_all<'a>(
        &'a self,
        places: impl ExactSizeIterator<Item = (Index, u64)>,
        now: u64,
        limits: &'a Limits,
    ) -> (Ended<O, R>, Hold<'a, K>) {
        debug_assert!(places.len() <= BATCH, "{} operations in one hold", places.len());
        let mut ended = Ended::new();
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        for place in places {
            ended.add(waiters.claim_at(place, Completion::Satisfied, now, &mut hold));
        }
        drop(waiters);
        (ended, hold)
    }

    /// Ends operations from a position on, because the purgatory shuts down. Returns the next
    /// position, or `None` after the last.
    pub(super) fn shut_down_some<'a>(
        &'a self,
        start: u32,
        now: u64,
        limits: &'a Limits,
    ) -> (Ended<O, R>, Option<u32>, Hold<'a, K>) {
        let mut ended = Ended::new();
        let mut hold = self.hold(limits);
        let mut waiters = self.waiters.lock();
        let end = waiters.end().min(start + STEPS_PER_HOLD);
        let mut position = start;
        while position < end && ended.len() < BATCH {
            if let Some(index) = waiters.at(position) {
                ended.add(waiters.claim(index, Completion::ShutDown, now, &mut hold));
            }
            position += 1;
        }
        let next = (position < waiters.end()).then_some(position);
        drop(waiters);
        (ended, next, hold)
    }

    // Limits.

    /// Returns the operation that has waited longest, except `except`.
    pub(super) fn oldest(&self, except: Option<Index>) -> Option<Oldest> {
        self.waiters.lock().oldest(except)
    }

    /// Returns the operation that has watched the events of a key with this hash longest, except
    /// `except`.
    pub(super) fn oldest_on_key(&self, hash: u64, except: Option<Index>) -> Option<Oldest> {
        self.waiters.lock().oldest_on_key(hash, except)
    }

    /// Returns the operation with the greatest threshold on a key with this hash, except `except`.
    pub(super) fn greatest_on_key(
        &self,
        hash: u64,
        except: Option<Index>,
    ) -> Option<(u64, (Index, u64))> {
        self.waiters.lock().greatest_on_key(hash, except)
    }

    // Inspection.

    /// Returns the number of waiting operations and the number of their watchers.
    pub(super) fn counts(&self) -> (u64, u64) {
        let waiters = self.waiters.lock();
        (u64::from(waiters.waiting()), waiters.lists.watching())
    }

    /// Adds the counts of this shard.
    pub(super) fn add_stats(&self, stats: &mut PurgatoryStats) {
        let waiters = self.waiters.lock();
        stats.delayed += u64::from(waiters.waiting());
        stats.watched += waiters.lists.watching();
        stats.keys += u64::from(waiters.lists.keys());
        waiters.stats.add_to(stats);
    }

    /// Frees the memory of operations that have ended. *O*(capacity).
    pub(super) fn shrink(&self) {
        self.waiters.lock().shrink();
    }

    /// Checks the invariants of this shard. Returns the number of operations that the total limit
    /// counts. Adds the count of each key's limit, by hash.
    pub(super) fn check_invariants(
        &self,
        on_keys: &mut std::collections::BTreeMap<u64, u64>,
    ) -> u64 {
        self.waiters.lock().check_invariants(&self.filter, on_keys)
    }

    /// Continues a walk in one hold. Returns the number of visited operations.
    #[cfg(all(test, not(loom)))]
    pub(super) fn visit_all(&self, walk: &mut Walk<'_, K, O, R>, key: (u64, &K)) -> usize
    where
        K: Eq,
    {
        let mut visited = 0;
        walk.go_past(&mut self.waiters.lock(), key, |_, _| {
            visited += 1;
            true
        });
        visited
    }
}
