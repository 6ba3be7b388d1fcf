//! A shard: operations that wait, their timeouts, and the lists of their keys, under one lock.
//!
//! # Ownership
//!
//! A waiting operation is in the wheel, as the value of its timeout, whose key is its own. During a
//! check it is *out*: one thread owns it, and checks it without a lock. So the type system rules
//! out that it completes twice. While an operation is out, other threads record in its [`Pending`]
//! that an event was announced. The first thread that decides its end takes the timeout out of the
//! wheel, and the operation off all lists. If the operation is out, this end waits in `decided` for
//! the thread that brings the operation back.
//!
//! # Locks
//!
//! A thread holds the lock for the keys of at most 32 operations, and a shutdown also for at most
//! 256 slots. A late reaper holds the lock until as many watchers have left their lists as its hold
//! has steps. No method of an operation runs under the lock, nor does the drop of a key. `Eq` and
//! `Borrow` of keys run under it, as in any map. So they must not call the purgatory, nor wait for
//! a lock that a thread holds while it calls the purgatory.
//!
//! With limits, there are two further locks. A thread that displaces an operation holds the lock
//! `displacing` while it takes the locks of the shards, one after the other. A lock of the counts
//! of keys may be taken under that of a shard. So the order is: displacing, shard, counts. The lock
//! of the timer's backlog is taken under that of a shard, never the reverse. No thread holds the
//! locks of two shards. A check may wait for a lock of the user, even if another thread holds this
//! lock while it announces an event.

use std::{boxed::Box, collections::BTreeMap, hint::black_box, marker::PhantomData, mem, vec::Vec};

use smallvec::SmallVec;

use super::{
    calls::Calls,
    conditions::{Conditions, Effect},
    limits::LimitOf,
    lists::{BATCH, Dropped, List, Lists, Spot, Threshold, Watcher},
    operation::{Completion, DelayedOperation, OperationKey},
    pending::{Out, Pending},
};
use crate::{
    clock::Reading,
    ticks::Nanos,
    timer::ShardState,
    wheel::{Expired, Key, TimingWheel},
};

/// A shard that held more operations than this at once frees its memory when the last of them ends.
pub(super) const CROWD: usize = 1024;

/// Operations that a thread checks between two holds. There is almost always only one.
pub(super) type OutBatch<O> = SmallVec<[Out<O>; 1]>;

/// Result of a decision to end an operation.
pub(super) enum Claim<O> {
    /// Its end was decided before.
    Late,
    /// It is out, and the thread that has it completes it.
    IsOut,
    /// The caller has the operation.
    Taken(O),
}

/// A walk along the watchers of a key in a shard.
///
/// It visits the operations that waited when its *pass* began. A walk along watchers of events ends
/// even if other threads keep adding some. A walk along thresholds also passes those up to its
/// value that other threads add meanwhile, 32 in a hold.
pub(super) struct Walk<F> {
    hash: u64,
    /// Tells the key from others of the same hash.
    is_key: F,
    /// The number of the pass, in the order of registrations; 0 if it has not begun.
    pass: u64,
    /// Where the walk continues; `None` if it is done.
    pub(super) next: Option<NextWatcher>,
}

/// Where a walk continues.
pub(super) enum NextWatcher {
    /// The number of a group of watchers, as in [`List::events`], and an index in the group.
    Events(u64, usize),
    /// The last threshold that was visited.
    Thresholds(Threshold),
}

impl NextWatcher {
    pub(super) const EVENTS: Self = Self::Events(0, 0);
    pub(super) const THRESHOLDS: Self = Self::Thresholds((0, 0));
}

impl<F> Walk<F> {
    /// Makes a walk along the watchers of one kind.
    pub(super) const fn new(hash: u64, is_key: F, next: NextWatcher) -> Self {
        Self { hash, is_key, pass: 0, next: Some(next) }
    }
}

/// A shard of a purgatory.
pub(super) struct PurgatoryShard<K, O> {
    pub(super) wheel: TimingWheel<Pending<O>>,
    pub(super) lists: Lists<K>,
    /// The completions of the operations that are out and whose end is decided.
    pub(super) decided: BTreeMap<Key, Completion>,
    /// The last number of an operation, a threshold or a pass.
    last_number: u64,
    /// The greatest number of operations since the shard freed all its memory.
    most: usize,
}

impl<K: Send + 'static, O: Send + 'static> PurgatoryShard<K, O> {
    pub(super) fn new(wheel: TimingWheel<Pending<O>>, lists: Lists<K>) -> Self {
        Self { wheel, lists, decided: BTreeMap::new(), last_number: 0, most: 0 }
    }

    /// Begins the pass of a walk, unless it has begun.
    #[inline]
    pub(super) fn begin_pass<F>(&mut self, walk: &mut Walk<F>) {
        if walk.pass == 0 {
            self.last_number += 1;
            walk.pass = self.last_number;
        }
    }

    /// Adds an operation, which is out, to the lists of its keys. `key` is the key of its timeout.
    /// If a comparison of keys panics, the operation is on some lists, and the caller ends it.
    #[inline]
    pub(super) fn add_to_lists(&mut self, key: Key, conditions: &mut Conditions<K>)
    where
        K: Eq,
    {
        let Self { wheel, lists, last_number, most, .. } = self;
        let pending = wheel.get_mut(key).expect("the timeout was just inserted");
        pending.number = *last_number + 1;
        *last_number = pending.number + conditions.thresholds.len() as u64;
        let (number, index) = (pending.number, key.index());
        if lists.limits.total.is_some() {
            lists.by_age.insert(number, index);
        }
        for (threshold, number) in conditions.thresholds.iter_mut().zip(number + 1..) {
            let key = lists.count_watcher(threshold.hash, &mut threshold.listed);
            lists.keys.entries.at_mut(key).list.add_threshold((threshold.at, number), index);
            let watcher = Watcher::Threshold(key, threshold.at);
            pending.further.get_or_insert_default().push(watcher);
        }
        for (count, (hash, key)) in conditions.events.iter_mut().enumerate() {
            let key = lists.count_watcher(*hash, key);
            let list = &mut lists.keys.entries.at_mut(key).list;
            let spot = list.add_event(&mut lists.groups, key, number, index);
            match pending.spots.get_mut(count) {
                Some(few) => *few = spot,
                None => pending.further.get_or_insert_default().push(Watcher::Event(spot)),
            }
        }
        *most = wheel.len().max(*most);
    }

    /// Continues a walk along watchers of events, and visits up to 32 operations.
    #[inline]
    fn visit(
        &mut self,
        walk: &mut Walk<impl Fn(&K) -> bool>,
        mut visit: impl FnMut(Key, &mut Pending<O>),
    ) {
        let Some(NextWatcher::Events(from, skipped)) = walk.next.take() else { return };
        let Self { wheel, lists: Lists { keys, groups, .. }, .. } = self;
        let Some((_, entry)) = keys.find(walk.hash, &walk.is_key) else { return };
        let mut visits = 0;
        for (first, slots) in entry.list.events(groups, from) {
            let skipped = if first == from { skipped } else { 0 };
            for (&slot, index) in slots[skipped..].iter().zip(skipped..) {
                let Some((key, pending)) = wheel.at_mut(slot) else { continue };
                // Watchers are in the order of registration, so no further one is earlier.
                if pending.number > walk.pass {
                    return;
                }
                if visits == BATCH {
                    walk.next = Some(NextWatcher::Events(first, index));
                    return;
                }
                visits += 1;
                visit(key, pending);
            }
        }
    }

    /// Continues a walk along thresholds up to a value. Returns at most 32 thresholds, with the
    /// slots of their operations.
    #[inline]
    fn thresholds(
        &mut self,
        walk: &mut Walk<impl Fn(&K) -> bool>,
        value: u64,
    ) -> SmallVec<[(Threshold, u32); BATCH]> {
        let mut found = SmallVec::new();
        let Some(NextWatcher::Thresholds(last)) = walk.next.take() else { return found };
        let Some((_, entry)) = self.lists.keys.find(walk.hash, &walk.is_key) else { return found };
        let mut visits = 0;
        for (threshold, slot) in entry.list.thresholds_after(last, value) {
            if threshold > (value, walk.pass) {
                break;
            }
            if threshold.1 <= walk.pass {
                found.push((threshold, slot));
            }
            visits += 1;
            if visits == BATCH {
                walk.next = Some(NextWatcher::Thresholds(threshold));
                break;
            }
        }
        found
    }

    /// Continues a walk after an event: takes out the operations that need a check.
    ///
    /// The walk skips an operation that a later pass has visited, because that pass checks the
    /// operation.
    #[inline]
    pub(super) fn take_out(
        &mut self,
        walk: &mut Walk<impl Fn(&K) -> bool>,
        batch: &mut OutBatch<O>,
    ) {
        self.begin_pass(walk);
        let pass = walk.pass;
        self.visit(walk, |key, pending| {
            if !pending.see(pass) {
                return;
            }
            let mut rule = pending.rule();
            let effect = rule.on_event();
            pending.check = rule.check;
            if effect != Effect::Check {
                return;
            }
            match pending.operation.take() {
                Some(operation) => {
                    if batch.len() == batch.inline_size() {
                        batch.reserve_exact(BATCH);
                    }
                    batch.push(Out::new(key, Some(operation)));
                }
                None => pending.is_announced = true,
            }
        });
    }

    /// Brings back an operation that was out. It waits again, or ends as `out.end` says, unless
    /// another thread has decided its end. Returns whether this call ended it.
    #[inline]
    pub(super) fn put_back(&mut self, out: &mut Out<O>, now: Nanos) -> bool {
        let key = out.key;
        let Some(pending) = self.wheel.get_mut(key) else {
            let decided = self.decided.remove(&key);
            out.end = Some(decided.expect("it has ended if it does not wait"));
            return false;
        };
        debug_assert!(pending.operation.is_none(), "{key:?} is brought back twice");
        pending.operation = out.operation.take();
        let is_announced = mem::take(&mut pending.is_announced);
        let Some(end) = out.end else {
            out.needs_check = is_announced;
            return false;
        };
        if let Claim::Taken(operation) = self.claim(key, end, now) {
            out.operation = Some(operation);
        }
        true
    }

    /// Reads the memory of operations that are about to end, so that their cache misses overlap.
    pub(super) fn read_ahead(&self, keys: &[OperationKey]) {
        let pending = keys.iter().filter_map(|key| self.wheel.get(key.key));
        let spots = pending.flat_map(|one| &one.spots).filter(|spot| **spot != Spot::NONE);
        black_box(spots.fold(0, |sum, spot| sum ^ spot.key(&self.lists.groups)));
    }

    /// Takes an operation off the wheel and all lists, unless its end is decided. If it is out, the
    /// thread that has it completes it.
    #[inline]
    pub(super) fn claim(&mut self, key: Key, completion: Completion, now: Nanos) -> Claim<O> {
        let Some(pending) = self.wheel.get(key) else { return Claim::Late };
        pending.leave(&mut self.lists, completion, now);
        let operation = self.wheel.cancel(key).and_then(|pending| pending.operation);
        self.free_memory(key);
        if operation.is_none() {
            self.decided.insert(key, completion);
        }
        operation.map_or(Claim::IsOut, Claim::Taken)
    }

    /// Continues a walk along watchers of events, and then along thresholds: ends up to 32
    /// operations as cancelled. Adds those that are not out to `cancelled`.
    pub(super) fn cancel_some(
        &mut self,
        walk: &mut Walk<impl Fn(&K) -> bool>,
        now: Nanos,
        cancelled: &mut Vec<O>,
    ) {
        debug_assert!(has_room(cancelled), "it grows under the lock");
        let mut found = SmallVec::<[Key; BATCH]>::new();
        self.begin_pass(walk);
        if let Some(NextWatcher::Events(..)) = walk.next {
            self.visit(walk, |key, _| found.push(key));
            walk.next.get_or_insert(NextWatcher::THRESHOLDS);
        } else {
            let slots = self.thresholds(walk, u64::MAX);
            found.extend(slots.iter().filter_map(|&(_, slot)| self.wheel.key_at(slot)));
        }
        for key in found {
            // An operation with several watchers on the key ends at the first of them.
            if let Claim::Taken(operation) = self.claim(key, Completion::Cancelled, now) {
                cancelled.push(operation);
            }
        }
    }

    /// Continues a walk along the thresholds that a value has reached. Ends up to 32 operations as
    /// satisfied, and adds them to `satisfied`. Passes the keys of operations that need a check to
    /// `check`. Returns the number of ended operations that are out: other threads complete them.
    pub(super) fn reach(
        &mut self,
        walk: &mut Walk<impl Fn(&K) -> bool>,
        value: u64,
        now: Nanos,
        satisfied: &mut Vec<(u64, O)>,
        mut check: impl FnMut(Key),
    ) -> usize {
        debug_assert!(has_room(satisfied), "it grows under the lock");
        let mut ended_elsewhere = 0;
        self.begin_pass(walk);
        for &((at, number), slot) in &self.thresholds(walk, value) {
            let Some(key) = self.wheel.key_at(slot) else { continue };
            match self.on_threshold(key, number) {
                Effect::Nothing => {}
                Effect::Check => check(key),
                Effect::Satisfied => match self.claim(key, Completion::Satisfied, now) {
                    Claim::Taken(operation) => satisfied.push((at, operation)),
                    Claim::IsOut => ended_elsewhere += 1,
                    Claim::Late => unreachable!("it was found in this hold"),
                },
            }
        }
        ended_elsewhere
    }

    /// Handles thresholds of an operation that is out: its thread has found those at `indices`
    /// reached. Returns the effect on the operation.
    pub(super) fn on_found(&mut self, key: Key, indices: &[u64]) -> Effect {
        let Some(number) = self.wheel.get(key).map(|pending| pending.number) else {
            return Effect::Nothing;
        };
        for index in indices {
            if self.on_threshold(key, number + 1 + index) == Effect::Satisfied {
                return Effect::Satisfied;
            }
        }
        self.wheel.get_mut(key).map_or(Effect::Nothing, |pending| {
            // The check that follows covers all announcements before it.
            pending.is_announced = false;
            pending.rule().effect()
        })
    }

    /// Takes a reached threshold off its list. Returns the effect on the operation. Marks an
    /// operation that is out and needs a check.
    fn on_threshold(&mut self, key: Key, number: u64) -> Effect {
        let Some(pending) = self.wheel.get_mut(key) else { return Effect::Nothing };
        let Some((list, at)) = pending.reach(number) else { return Effect::Nothing };
        self.lists.remove_threshold(list, (at, number), pending.is_counted);
        let mut rule = pending.rule();
        let effect = rule.on_threshold();
        pending.missing = rule.missing;
        if effect == Effect::Check && pending.operation.is_none() {
            pending.is_announced = true;
            return Effect::Nothing;
        }
        effect
    }

    /// Ends up to 32 operations, in up to 256 slots from `start` on, because the purgatory shuts
    /// down. Adds those that are not out to `ended`. Returns the next slot; `None` after the last.
    pub(super) fn end_some(&mut self, start: u32, now: Nanos, ended: &mut Vec<O>) -> Option<u32> {
        let slots = self.wheel.slots();
        let mut slot = start;
        let mut claims = 0;
        while slot < slots.min(start + SLOTS) && claims < BATCH {
            if let Some(key) = self.wheel.key_at(slot) {
                claims += 1;
                if let Claim::Taken(operation) = self.claim(key, Completion::ShutDown, now) {
                    ended.push(operation);
                }
            }
            slot += 1;
        }
        (slot < slots).then_some(slot)
    }

    /// Counts an operation, which begins to wait, in the limits that displace. Returns the exceeded
    /// limits.
    #[cold]
    pub(super) fn count(&mut self, key: Key) -> SmallVec<[LimitOf; 4]> {
        let Some(pending) = self.wheel.get_mut(key) else { return SmallVec::new() };
        pending.is_counted = true;
        let lists = &self.lists;
        let keys = pending.watchers().filter_map(|(_, watcher)| lists.key_of(watcher));
        lists.limits.begin(keys.map(|key| lists.keys.entries.at(key).hash))
    }

    /// Returns the operation of this shard that a limit displaces first, except `newcomer`, with
    /// its rank. The caller displaces the one with the least rank of all shards. For the total
    /// limit, this is the operation that has waited longest. For a key, it is the oldest one that
    /// watches events or, if there is none, the one with the greatest threshold.
    pub(super) fn oldest(&self, limit: LimitOf, newcomer: Option<Key>) -> Option<(Rank, Key)> {
        let Some(hash) = limit else {
            return self.lists.by_age.values().find_map(|&slot| self.victim(None, slot, newcomer));
        };
        let of_key = |list: &List| {
            let mut events = list.events(&self.lists.groups, 0).flat_map(|(_, slots)| slots);
            let event = events.find_map(|&slot| self.victim(None, slot, newcomer));
            event.or_else(|| {
                let mut thresholds = list.thresholds().rev();
                thresholds.find_map(|((at, _), slot)| self.victim(Some(at), slot, newcomer))
            })
        };
        self.lists.keys.of_hash(hash).filter_map(|(_, entry)| of_key(&entry.list)).min()
    }

    /// Returns the operation in a slot with its rank, unless its registration is still in progress.
    fn victim(&self, at: Option<u64>, slot: u32, newcomer: Option<Key>) -> Option<(Rank, Key)> {
        let key = self.wheel.key_at(slot).filter(|key| Some(*key) != newcomer)?;
        let pending = self.wheel.get(key).filter(|pending| pending.is_counted)?;
        let rank = at.map_or(pending.since.get(), |at| u64::MAX - at);
        Some(((at.is_some(), rank), key))
    }

    /// Frees memory near an ended operation, and all memory after the last one of a crowd.
    #[inline]
    fn free_memory(&mut self, ended: Key) {
        self.wheel.close_sparse(ended);
        if self.wheel.is_empty() && self.most > CROWD {
            self.free_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn free_all(&mut self) {
        let memory = (self.lists.take_memory(), self.wheel.take_memory());
        self.lists.free_later(memory);
        self.most = 0;
    }
}

/// Returns whether a hold can add its operations without copying those of earlier holds.
fn has_room<T>(ended: &Vec<T>) -> bool {
    ended.is_empty() || ended.capacity() - ended.len() >= BATCH
}

/// The order in which operations are displaced: first those that watch events, from the oldest on,
/// and then those that wait for values, from the greatest threshold on.
pub(super) type Rank = (bool, u64);

/// Slots that a shutdown visits in one hold.
const SLOTS: u32 = 256;

impl<K: Send + 'static, O: DelayedOperation<K>> ShardState for PurgatoryShard<K, O> {
    type Value = Pending<O>;
    type Due = DueOperation<K, O>;
    type Dropped = Option<Box<Dropped<K>>>;

    #[inline]
    fn wheel(&self) -> &TimingWheel<Pending<O>> {
        &self.wheel
    }

    #[inline]
    fn wheel_mut(&mut self) -> &mut TimingWheel<Pending<O>> {
        &mut self.wheel
    }

    /// Ends due operations as expired: 32 in a hold or, if the reaper is late, until as many
    /// watchers have left their lists as the hold has steps.
    fn expire(
        &mut self,
        read: Reading,
        steps: u64,
        expired: &mut Vec<Expired<DueOperation<K, O>>>,
    ) -> bool {
        let (before, watched) = (expired.len(), self.lists.stats.watched);
        let mut due = self.wheel.advance(read.now).until(read.now).limit(steps);
        loop {
            let count = expired.len() - before;
            let is_late = (count as u64) < steps.saturating_sub(BATCH as u64);
            if count >= BATCH && !(is_late && watched - self.lists.stats.watched < steps) {
                break;
            }
            let Some(Expired { key, deadline, value: pending }) = due.next() else { break };
            pending.leave(&mut self.lists, Completion::Expired, read.elapsed);
            if pending.operation.is_none() {
                self.decided.insert(key, Completion::Expired);
            }
            let (operation, calls) = (pending.operation, self.lists.calls.clone());
            let value = DueOperation { operation, calls, keys: PhantomData };
            expired.push(Expired { key, deadline, value });
        }
        let is_drained = due.is_drained();
        expired[before..].iter().for_each(|ended| self.free_memory(ended.key));
        is_drained
    }

    #[inline]
    fn take_dropped(&mut self) -> Self::Dropped {
        self.lists.dropped.take()
    }
}

/// An expired operation. Its drop completes the operation, even if a pool of the user drops it.
pub(super) struct DueOperation<K, O: DelayedOperation<K>> {
    /// `None` if another thread completes it.
    operation: Option<O>,
    calls: Calls,
    keys: PhantomData<fn(K)>,
}

impl<K, O: DelayedOperation<K>> DueOperation<K, O> {
    /// Returns the operation, which the caller completes.
    pub(super) fn take(mut self) -> Option<O> {
        self.operation.take()
    }
}

impl<K, O: DelayedOperation<K>> Drop for DueOperation<K, O> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.calls.complete(operation, Completion::Expired);
        }
    }
}

impl<K: Send + 'static, O: Send + 'static> PurgatoryShard<K, O> {
    /// Checks that operations, lists and counts agree, as they do whenever the lock is free.
    /// Returns the number of operations that the total limit counts. Adds the counts of each key's
    /// limit, by hash.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self, on_keys: &mut BTreeMap<u64, u64>) -> u64 {
        let lists = &self.lists;
        let (mut in_total, mut watchers, mut all) = (0, Vec::new(), Vec::new());
        for (key, _, pending) in &self.wheel {
            let Pending { operation, number, is_announced, is_counted, .. } = pending;
            let is_idle = !(*is_announced && operation.is_some());
            assert!(is_idle, "operation {number} waits, but an event was announced for it");
            assert!(!self.decided.contains_key(&key), "the end of operation {number} is decided");
            let passes = self.last_number - number;
            assert!(u64::from(pending.seen) <= passes, "a later pass saw operation {number}");
            let mut missing = 0;
            for (number, watcher) in pending.watchers() {
                let Some(list) = lists.key_of(watcher) else { continue };
                let threshold = match watcher {
                    Watcher::Threshold(_, at) => Some((at, number)),
                    _ => None,
                };
                missing += u32::from(threshold.is_some());
                watchers.push((list, threshold, key.index()));
                if lists.limits.count_on_keys(*is_counted) {
                    *on_keys.entry(lists.keys.entries.at(list).hash).or_default() += 1;
                }
            }
            assert_eq!(missing, pending.missing, "operation {number} misses others");
            in_total += u64::from(*is_counted);
            all.push((*number, key.index()));
        }
        assert_eq!(watchers.len() as u64, lists.stats.watched, "the count of watchers is wrong");

        let mut listed = Vec::new();
        for (index, entry) in lists.keys.iter() {
            assert!(!entry.list.is_empty(), "key {index} has no watcher");
            assert_eq!(lists.keys.find(entry.hash, |_| true).map(|_| ()), Some(()));
            let mut last = 0;
            for (first, slots) in entry.list.events(&lists.groups, 0) {
                for &slot in slots.iter().filter(|&&slot| self.wheel.key_at(slot).is_some()) {
                    let key = self.wheel.key_at(slot).expect("a watcher waits");
                    let number = self.wheel.get(key).expect("a watcher waits").number;
                    assert!(last < number && first <= number, "{number} is misplaced on {index}");
                    last = number;
                    listed.push((index, None, slot));
                }
            }
            let thresholds = entry.list.thresholds();
            listed.extend(thresholds.map(|(threshold, slot)| (index, Some(threshold), slot)));
        }
        watchers.sort_unstable();
        listed.sort_unstable();
        assert_eq!(watchers, listed, "the lists have other watchers");
        lists.filter.check_invariants(lists.keys.iter().map(|(_, entry)| entry.hash));

        all.sort_unstable();
        let in_order = lists.by_age.iter().map(|(&number, &slot)| (number, slot));
        assert!(lists.limits.total.is_none() || in_order.eq(all), "the list of all is wrong");
        in_total
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{clock::ManualClock, purgatory::Purgatory, timer::Timer};

    /// Large enough to be packed.
    struct Never(#[expect(dead_code, reason = "only its size counts")] [u64; 4]);

    impl DelayedOperation<u64> for Never {
        fn try_complete(&mut self) -> bool {
            false
        }

        fn complete(self, _: Completion) {}
    }

    /// A purgatory of one shard, in which no operation completes by itself.
    struct World(ManualClock, Purgatory<u64, Never>);

    impl World {
        fn new() -> Self {
            let clock = ManualClock::new();
            let timer = Timer::builder().clock(clock.clone()).shards(1);
            let purgatory = Purgatory::builder().timer(timer).build();
            Self(clock, purgatory.expect("the settings are valid"))
        }

        fn shard(&self) -> crate::timer::ShardGuard<'_, PurgatoryShard<u64, Never>> {
            self.1.shared.timer.shards.lock(0)
        }

        /// Makes operations wait, each on a key that many operations share, and on `keys` keys of
        /// its own.
        fn watch(&self, count: u64, keys: u64, seconds: u64) -> Vec<OperationKey> {
            let watch = |number| {
                let (own, delay) = ((0..keys).map(|key| (key << 32) + number), seconds);
                let (keys, delay) =
                    (own.chain([u64::MAX - number % 7]), Duration::from_secs(delay));
                let watched = self.1.watch(Never([number; 4]), keys, delay);
                watched.expect("there is no limit").key().expect("it waits")
            };
            (0..count).map(watch).collect()
        }

        fn cancel(&self, keys: impl IntoIterator<Item = OperationKey>) {
            keys.into_iter().for_each(|key| assert!(self.1.cancel(key).is_some()));
        }

        /// Returns the number of slots for operations and for keys that take memory.
        fn held(&self) -> [usize; 2] {
            self.1.check_invariants();
            let shard = self.shard();
            [shard.state().wheel.held(), shard.state().lists.keys.entries.held()]
        }
    }

    #[test]
    fn a_crowd_frees_its_memory_even_if_a_slot_was_used_very_often() {
        let world = World::new();
        world.shard().state_mut().wheel = TimingWheel::worn();
        for count in [100_000, 5_001, 5_001] {
            world.cancel(world.watch(count, 1, 60));
            assert_eq!(world.held(), [0, 0]);
        }
    }

    #[test]
    fn a_crowd_that_comes_while_memory_is_freed_frees_its_own() {
        for shrinks in [false, true] {
            let world = World::new();
            let mut keys = world.watch(5_000, 1, 60);
            world.cancel(keys.drain(1_600..));
            if shrinks {
                world.1.shrink();
            }
            keys.extend(world.watch(10_400, 1, 60));
            world.cancel(keys.drain(2_000..));
            let held = world.held();
            assert!(held.iter().all(|&held| held <= 5_000), "{held:?} slots for 2000");
        }
    }

    #[test]
    fn a_crowd_that_expires_frees_its_memory() {
        let world = World::new();
        let (_, left) = (world.watch(16_000, 1, 1), world.watch(4_004, 1, 60));
        world.0.advance(Duration::from_secs(1));
        let held = world.held();
        assert!(held.iter().all(|&held| held <= 8_000), "{held:?} slots for {}", left.len());
    }

    #[test]
    fn each_of_those_that_expire_in_one_hold_frees_memory_beside_it() {
        let world = World::new();
        (0..16 * 1024).for_each(|number| drop(world.watch(1, 1, 1 + number % 1024)));
        world.0.advance(Duration::from_secs(900));
        let [held, _] = world.held();
        assert!(held <= 6_000, "{held} slots for {}", 124 * 16);
    }

    #[test]
    fn the_last_of_a_crowd_frees_all_memory_and_others_keep_theirs() {
        let world = World::new();
        world.cancel(world.watch(4_100, 2, 60));
        assert_eq!(world.held(), [0, 0]);
        world.cancel(world.watch(1, 1, 60));
        assert_eq!(world.held(), [1, 4]);
    }
}
