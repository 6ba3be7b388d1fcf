//! The shards of a purgatory, and what is done across them.
//!
//! # Locks
//!
//! A shard has one lock. It is held for one operation's watchers, or for a bounded number of steps
//! along a list, and never while a method of an operation runs, nor a clone of a reason, nor the
//! drop of a key. No thread holds two, nor one of these and one of the timer's. (`Eq` of keys does
//! run under a lock, as in any map.) So no order of locks can be got wrong, and a check may wait for
//! locks of the user's that are held by threads which announce events.

use std::{
    borrow::Borrow,
    boxed::Box,
    hash::{BuildHasher, Hash},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
    vec::Vec,
};

use crossbeam::utils::CachePadded;
use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use super::{
    capacity::{Capacity, Overload},
    demand::Demand,
    filter::{fence_event, fence_watch},
    lists::Leavings,
    operation::{Completion, DelayedOperation},
    rule::Effect,
    shard::{Batch, Claim, Contents, Finished, Finishes, InHand, Shard},
    slab::Index,
    stats::PurgatoryStats,
    walk::Walk,
    watch::{OperationKey, WatchError, Watched},
};
use crate::{
    Key, ScheduleError, ValueTimer,
    sync::{AtomicU64, Ordering},
};

/// Steps along a list between two holds of a lock.
pub(super) const STEPS_PER_HOLD: u32 = 256;

/// Operations that are out at once for one check of a key.
const BATCH: usize = 32;

/// The name of an operation: its shard, its place there, and a number that tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    serial: u64,
    index: Index,
    shard: u32,
}

impl Ticket {
    const fn place(self) -> (Index, u64) {
        (self.index, self.serial)
    }
}

/// Everything of a purgatory but its users' handles.
pub(super) struct Core<K, O, R> {
    shards: Box<[CachePadded<Shard<K, O, R>>]>,
    hasher: DefaultHashBuilder,
    pub(super) timer: ValueTimer<Ticket>,
    max_delay: Duration,
    capacity: Capacity,
    /// Operations that never waited, by shard.
    at_once: Box<[CachePadded<AtomicU64>]>,
    panicked: AtomicU64,
}

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    pub(super) fn new(timer: ValueTimer<Ticket>, max_delay: Duration, capacity: Capacity) -> Self {
        let (count, _) = timer.shards();
        Self {
            shards: (0..count).map(|_| CachePadded::new(Shard::new())).collect(),
            hasher: DefaultHashBuilder::default(),
            timer,
            max_delay,
            capacity,
            at_once: (0..count).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            panicked: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Completes an operation if it can, and else has it wait.
    #[inline]
    pub(super) fn watch(
        &self,
        mut operation: O,
        mut demand: Demand<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let (_, shard) = self.timer.shards();
        if self.can_complete(&mut operation, &mut demand) {
            self.at_once[shard].fetch_add(1, Ordering::Relaxed);
            self.complete(operation, Completion::Satisfied);
            return Ok(Watched::Completed);
        }
        let hashes = match self.admit(&mut demand) {
            Ok(hashes) => hashes,
            Err(refused) => return Err(refused(operation)),
        };
        let delay = delay.min(self.max_delay);
        self.wait(shard, operation, demand, delay).inspect_err(|_| {
            self.capacity.refuse();
            self.capacity.release();
            hashes.iter().for_each(|&hash| self.capacity.release_from_key(hash));
        })
    }

    /// Whether an operation can complete before it waits. Leaves out thresholds that were reached.
    #[inline]
    fn can_complete(&self, operation: &mut O, demand: &mut Demand<K>) -> bool {
        let count = demand.thresholds.len();
        let mut rule = demand.rule;
        if count > 0 {
            let mut is_missing = |key: &K, at| !self.catch(|| operation.has_reached(key, at));
            demand.thresholds.retain(|threshold| is_missing(&threshold.key, threshold.at));
            demand.thresholds.iter().for_each(|_| rule.add_threshold());
        }
        match rule.at_first(demand.thresholds.len() < count) {
            Effect::Nothing => false,
            Effect::Check => self.check(operation),
            Effect::Satisfied => true,
        }
    }

    /// Puts an operation on its lists, checks it once more, and starts its timeout.
    fn wait(
        &self,
        number: usize,
        operation: O,
        demand: Demand<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let shard = &*self.shards[number];
        let since = self.timer.elapsed();
        let mut leavings = self.leavings(shard);
        let mut asked = SmallVec::<[(K, u64, Index); 1]>::new();
        let (index, serial) = {
            let mut contents = shard.contents.lock();
            if contents.is_closed {
                return Err(WatchError::ShutDown(operation));
            }
            let (index, serial) = contents.enter(since, demand.rule);
            for key in demand.events {
                contents.watch_events(index, key, &mut leavings);
            }
            for threshold in demand.thresholds {
                let key = (threshold.hash, threshold.key, threshold.at);
                let node = contents.watch_threshold(index, key, &mut leavings);
                asked.push((threshold.asked, threshold.at, node));
            }
            if self.capacity.needs_order() {
                contents.join_eldest(index);
            }
            (index, serial)
        };
        self.dispose(leavings);
        fence_watch();
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        let ticket = Ticket { serial, index, shard: number as u32 };
        let mut in_hand = InHand { index, operation, is_satisfied: false };
        self.check_again(shard, &mut in_hand, demand.rule.on_event(), asked);
        if in_hand.is_satisfied {
            self.bring_back(number, in_hand, since, None);
            return Ok(Watched::Waiting(OperationKey(ticket)));
        }
        match self.timer.schedule_in(number, since, delay, ticket) {
            Ok(timeout) => self.bring_back(number, in_hand, since, Some(timeout)),
            Err(refusal) => self.withdraw(number, in_hand, since, &refusal)?,
        }
        Ok(Watched::Waiting(OperationKey(ticket)))
    }

    /// Checks an operation that has just begun to wait, also for thresholds that were reached in
    /// between.
    #[inline]
    fn check_again(
        &self,
        shard: &Shard<K, O, R>,
        in_hand: &mut InHand<O>,
        mut effect: Effect,
        mut asked: SmallVec<[(K, u64, Index); 1]>,
    ) {
        if !asked.is_empty() {
            let operation = &mut in_hand.operation;
            asked.retain(|(key, at, _)| self.catch(|| operation.has_reached(key, *at)));
            let nodes = asked.iter().map(|&(_, _, node)| node);
            let mut leavings = self.leavings(shard);
            effect = shard.contents.lock().on_found(in_hand.index, nodes, &mut leavings);
            self.dispose(leavings);
        }
        in_hand.is_satisfied = match effect {
            Effect::Nothing => false,
            Effect::Check => self.check(&mut in_hand.operation),
            Effect::Satisfied => true,
        };
    }

    /// Brings one operation back, which may have to be checked again first, and sets its timeout.
    #[inline]
    fn bring_back(&self, number: usize, in_hand: InHand<O>, since: u64, timeout: Option<Key>) {
        let shard = &*self.shards[number];
        let index = in_hand.index;
        // Almost always it just waits from now on, and nobody wants to know what time it is.
        let now = if in_hand.is_satisfied { self.timer.elapsed() } else { since };
        let mut batch = Batch::new();
        batch.push(in_hand);
        let set = |contents: &mut Contents<K, O, R>| contents.set_timeout(index, timeout);
        self.bring_back_all(number, batch, now, set);
    }

    /// Brings operations back, until none of them is to be checked again. Returns how many of them
    /// ended.
    fn bring_back_all(
        &self,
        number: usize,
        mut batch: Batch<O>,
        mut now: u64,
        mut before: impl FnMut(&mut Contents<K, O, R>),
    ) -> usize {
        let shard = &*self.shards[number];
        let mut completed = 0;
        while !batch.is_empty() {
            let mut finishes = Finishes::new();
            let mut leavings = self.leavings(shard);
            {
                let mut contents = shard.contents.lock();
                before(&mut contents);
                contents.bring_back(&mut batch, &mut finishes, now, &mut leavings);
            }
            self.dispose(leavings);
            completed += self.conclude_all(number, finishes);
            if !batch.is_empty() {
                self.check_all(&mut batch);
                now = self.timer.elapsed();
            }
        }
        completed
    }

    /// Takes out an operation whose timeout was refused; or completes it, if its end was decided in
    /// the meantime.
    #[cold]
    fn withdraw(
        &self,
        number: usize,
        in_hand: InHand<O>,
        since: u64,
        refusal: &ScheduleError<Ticket>,
    ) -> Result<(), WatchError<O>> {
        let shard = &*self.shards[number];
        // The caller gives back the places among those of the keys.
        let mut leavings = Leavings::new(&shard.filter, false);
        let is_withdrawn = shard.contents.lock().withdraw(in_hand.index, &mut leavings);
        self.dispose(leavings);
        if !is_withdrawn {
            self.bring_back(number, in_hand, since, None);
            return Ok(());
        }
        let operation = in_hand.operation;
        Err(match refusal {
            ScheduleError::NoThread(_) => WatchError::NoThread(operation),
            ScheduleError::Full(_) => WatchError::Full(operation),
            ScheduleError::ShutDown(_) => WatchError::ShutDown(operation),
        })
    }

    /// Something happened to a key: completes the operations on it that can. Returns how many those
    /// were.
    #[inline]
    pub(super) fn check_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = (self.hash(key), key);
        fence_event();
        let mut completed = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            if shard.filter.may_have(key.0) {
                let mut walk = Walk::new(shard, 0);
                completed += self.check_walk(number, &mut walk, key, &mut { usize::MAX });
            }
        }
        completed
    }

    /// The same for several keys; each operation is checked once.
    pub(super) fn check_keys<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        fence_event();
        let mut passes = self.passes();
        let mut completed = 0;
        for key in keys {
            let key = (self.hash(key), key);
            for (number, pass) in passes.iter_mut().enumerate() {
                completed += self.check_in_pass(number, pass, key);
            }
        }
        completed
    }

    /// Passes that have not begun, one for each shard.
    pub(super) fn passes(&self) -> SmallVec<[u64; 16]> {
        SmallVec::from_elem(0, self.shards.len())
    }

    fn check_in_pass<Q>(&self, number: usize, pass: &mut u64, key: (u64, &Q)) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        if !shard.filter.may_have(key.0) {
            return 0;
        }
        let mut walk = Walk::new(shard, *pass);
        let completed = self.check_walk(number, &mut walk, key, &mut { usize::MAX });
        *pass = walk.pass();
        completed
    }

    /// A walk, in a pass, along the watchers of a key in a shard, unless there are none.
    pub(super) fn walk(&self, number: usize, pass: u64, hash: u64) -> Option<Walk<'_, K, O, R>> {
        let shard = &*self.shards[number];
        shard.filter.may_have(hash).then(|| Walk::new(shard, pass))
    }

    /// Goes on with a walk until its end, or until `budget` is used up, one for each operation that
    /// is checked. Returns how many have completed.
    #[inline]
    pub(super) fn check_walk<Q>(
        &self,
        number: usize,
        walk: &mut Walk<'_, K, O, R>,
        key: (u64, &Q),
        budget: &mut usize,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = walk.shard();
        let mut batch = Batch::new();
        let mut completed = 0;
        let mut now = 0;
        loop {
            let mut finishes = Finishes::new();
            let mut leavings = self.leavings(shard);
            {
                let mut contents = shard.contents.lock();
                if !batch.is_empty() {
                    contents.bring_back(&mut batch, &mut finishes, now, &mut leavings);
                }
                walk.go_on(&mut contents, key, |contents, waiter| {
                    let has_room = batch.len() < BATCH.min(*budget);
                    if has_room {
                        contents.call(waiter, &mut batch);
                    }
                    has_room
                });
            }
            self.dispose(leavings);
            completed += self.conclude_all(number, finishes);
            if batch.is_empty() && (walk.is_done() || *budget == 0) {
                return completed;
            }
            *budget -= batch.len().min(*budget);
            self.check_all(&mut batch);
            now = self.timer.elapsed();
        }
    }

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
        due.into_iter().for_each(|(_, number, finished)| self.conclude(number, finished));
        for (number, mut batch) in out {
            self.check_all(&mut batch);
            completed += self.bring_back_all(number, batch, self.timer.elapsed(), |_| ());
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
        batch: &mut Batch<O>,
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
                    Claim::Lost => {}
                }
                is_more = step + 1 == STEPS_PER_HOLD;
            }
            drop(contents);
            self.dispose(leavings);
        }
        noted
    }

    /// Cancels all operations that watch a key. Returns how many those were.
    pub(super) fn cancel_key<Q>(&self, key: &Q, reason: &impl Fn() -> R) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = (self.hash(key), key);
        fence_event();
        let mut cancelled = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            if shard.filter.may_have(key.0) {
                cancelled += self.cancel_events(number, key, reason);
                cancelled += self.cancel_thresholds(number, key, reason);
            }
        }
        cancelled
    }

    /// Cancels the operations of a shard that watch a key's events.
    fn cancel_events<Q>(&self, number: usize, key: (u64, &Q), reason: &impl Fn() -> R) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut walk = Walk::new(shard, 0);
        let mut cancelled = 0;
        while !walk.is_done() {
            let mut reasons = Some(reason());
            let now = self.timer.elapsed();
            let mut finishes = Finishes::new();
            let mut leavings = self.leavings(shard);
            let mut contents = shard.contents.lock();
            walk.go_on(&mut contents, key, |contents, waiter| {
                // One reason for each, made with no lock held.
                let Some(reason) = reasons.take() else { return false };
                match contents.claim(waiter, Completion::Cancelled(reason), now, &mut leavings) {
                    Claim::Finished(finished) => finishes.push(finished),
                    Claim::Noted => cancelled += 1,
                    Claim::Lost => {}
                }
                true
            });
            drop(contents);
            self.dispose(leavings);
            cancelled += self.conclude_all(number, finishes);
        }
        cancelled
    }

    /// Cancels the operations of a shard that wait for a key's value.
    fn cancel_thresholds<Q>(&self, number: usize, key: (u64, &Q), reason: &impl Fn() -> R) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = &*self.shards[number];
        let mut cancelled = 0;
        let mut last = None;
        loop {
            let completion = Completion::Cancelled(reason());
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            let claim = {
                let mut contents = shard.contents.lock();
                let list = contents.lists.find(key.0, |other| other.borrow() == key.1);
                let next = list.and_then(|list| contents.lists.threshold_after(list, last));
                let Some((place, waiter)) = next else { return cancelled };
                last = Some(place);
                contents.claim(waiter, completion, now, &mut leavings)
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
        let number = ticket.shard as usize;
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
        let shard = self.shards.get(ticket.shard as usize);
        let (index, serial) = ticket.place();
        shard.is_some_and(|shard| shard.contents.lock().is_waiting(index, serial))
    }

    /// Takes in no more operations, and ends those that wait. `conclude` says what becomes of each.
    pub(super) fn shut_down(&self, mut conclude: impl FnMut(usize, Finished<O, R>)) {
        for shard in &self.shards {
            shard.contents.lock().is_closed = true;
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let mut position = 0;
            let mut is_more = true;
            while is_more {
                let now = self.timer.elapsed();
                let mut finishes = Finishes::new();
                let mut leavings = self.leavings(shard);
                let mut contents = shard.contents.lock();
                let end = position + STEPS_PER_HOLD;
                for position in position..end.min(contents.end()) {
                    let index = contents.at(position);
                    let claim = index.map(|index| {
                        contents.claim(index, Completion::ShutDown, now, &mut leavings)
                    });
                    if let Some(Claim::Finished(finished)) = claim {
                        finishes.push(finished);
                    }
                }
                position = end;
                is_more = end < contents.end();
                drop(contents);
                self.dispose(leavings);
                finishes.into_iter().for_each(|finished| conclude(number, finished));
            }
        }
        self.timer.shutdown();
    }

    /// Finds places for an operation, of which the caller is to give back those whose hashes are
    /// returned; or says why there are none.
    #[inline]
    #[expect(clippy::type_complexity, reason = "the error is one of the variants")]
    fn admit(&self, demand: &mut Demand<K>) -> Result<SmallVec<[u64; 4]>, fn(O) -> WatchError<O>> {
        while !self.capacity.admit() {
            if self.capacity.on_full == Overload::Refuse || !self.displace_eldest() {
                self.capacity.refuse();
                return Err(WatchError::Full);
            }
        }
        if !self.capacity.is_per_key() {
            return Ok(SmallVec::new());
        }
        let hashes = demand.hashes();
        for (count, &hash) in hashes.iter().enumerate() {
            if !self.admit_to_key(demand, hash) {
                hashes[..count].iter().for_each(|&hash| self.capacity.release_from_key(hash));
                self.capacity.release();
                self.capacity.refuse();
                return Err(WatchError::KeyFull);
            }
        }
        Ok(hashes)
    }

    fn admit_to_key(&self, demand: &Demand<K>, hash: u64) -> bool {
        while !self.capacity.admit_to_key(hash) {
            let events = demand.events.iter().map(|(hash, key)| (*hash, key));
            let thresholds =
                demand.thresholds.iter().map(|threshold| (threshold.hash, &threshold.key));
            let key = events.chain(thresholds).find(|(other, _)| *other == hash);
            let is_displaced = self.capacity.on_key_full == Overload::DisplaceOldest
                && key.is_some_and(|key| self.displace_on_key(key));
            if !is_displaced {
                return false;
            }
        }
        true
    }

    /// Ends the operation that has waited longest. Returns whether there was one.
    fn displace_eldest(&self) -> bool {
        self.displace(|contents| contents.lists.eldest())
    }

    /// Ends the operation that has watched a key longest; or, if all that watch it wait for its
    /// value, the one that waits for the greatest.
    fn displace_on_key(&self, (hash, key): (u64, &K)) -> bool {
        let find = |contents: &Contents<K, O, R>| contents.lists.find(hash, |other| other == key);
        self.displace(|contents| find(contents).and_then(|list| contents.lists.first(list)))
            || self.shards.iter().enumerate().any(|(number, shard)| {
                let ticket = {
                    let contents = shard.contents.lock();
                    let list = find(&contents);
                    list.and_then(|list| contents.greatest(list))
                };
                ticket.is_some_and(|place| self.displace_at(number, place))
            })
    }

    /// Ends the operation that has waited longest of those behind the nodes that `first` names, one
    /// in each shard.
    fn displace(&self, first: impl Fn(&Contents<K, O, R>) -> Option<Index>) -> bool {
        let eldest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let contents = shard.contents.lock();
            let eldest = contents.oldest_from(first(&contents))?;
            Some((eldest.since, number, eldest.place))
        });
        let eldest = eldest.min_by_key(|&(since, _, _)| since);
        eldest.is_some_and(|(_, number, place)| {
            self.displace_at(number, place);
            true
        })
    }

    fn displace_at(&self, number: usize, (index, serial): (Index, u64)) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        let ticket = Ticket { serial, index, shard: number as u32 };
        self.claim(ticket, Completion::Displaced)
    }

    /// Number of operations that wait, and of their watchers.
    pub(super) fn counts(&self) -> (u64, u64) {
        let counts = self.shards.iter().map(|shard| {
            let contents = shard.contents.lock();
            (u64::from(contents.len()), contents.lists.watching())
        });
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    pub(super) fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::new();
        for shard in &self.shards {
            let contents = shard.contents.lock();
            stats.delayed += u64::from(contents.len());
            stats.watched += contents.lists.watching();
            stats.keys += contents.lists.keys() as u64;
            contents.stats.add_to(&mut stats);
        }
        stats.at_once = self.at_once.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        stats.refused = self.capacity.refused();
        stats.panicked = self.panicked.load(Ordering::Relaxed);
        stats
    }

    /// Gives back the room of operations that have ended. *O*(capacity), each shard under its lock.
    pub(super) fn shrink(&self) {
        self.shards.iter().for_each(|shard| shard.contents.lock().shrink());
    }

    #[inline]
    fn leavings<'a>(&self, shard: &'a Shard<K, O, R>) -> Leavings<'a, K> {
        Leavings::new(&shard.filter, self.capacity.is_per_key())
    }

    /// Gives back the places of watchers that left, and drops keys.
    #[inline]
    fn dispose(&self, leavings: Leavings<'_, K>) {
        let Leavings { keys, hashes, .. } = leavings;
        for hash in hashes.into_iter().flatten() {
            self.capacity.release_from_key(hash);
        }
        if mem::needs_drop::<K>() && !keys.is_empty() {
            keys.into_iter().for_each(|key| self.catch(|| drop(key)));
        }
    }

    #[inline]
    fn check_all(&self, batch: &mut Batch<O>) {
        for in_hand in batch {
            in_hand.is_satisfied = self.check(&mut in_hand.operation);
        }
    }

    #[inline]
    fn conclude_all(&self, number: usize, finishes: Finishes<O, R>) -> usize {
        let count = finishes.len();
        finishes.into_iter().for_each(|finished| self.conclude(number, finished));
        count
    }

    /// Tells an operation that it has ended, when it has left the timer as well.
    #[inline]
    pub(super) fn conclude(&self, number: usize, finished: Finished<O, R>) {
        let operation = self.retire(number, finished);
        self.complete(operation.0, operation.1);
    }

    /// Has an operation that has ended leave the timer and its place.
    #[inline]
    pub(super) fn retire(&self, number: usize, finished: Finished<O, R>) -> (O, Completion<R>) {
        let Finished { operation, completion, timeout } = finished;
        if let Some(timeout) = timeout.filter(|_| !matches!(completion, Completion::Expired)) {
            self.timer.cancel_in(number, timeout);
        }
        self.capacity.release();
        (operation, completion)
    }

    #[inline]
    fn check(&self, operation: &mut O) -> bool {
        self.catch(|| operation.try_complete())
    }

    #[inline]
    fn complete(&self, operation: O, completion: Completion<R>) {
        self.catch(|| operation.complete(completion));
    }

    /// Runs user code. A panic in it is counted, and stands for the default. Its payload is user
    /// code too: the drop of that may panic.
    #[inline]
    fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        catch_unwind(AssertUnwindSafe(user_code)).unwrap_or_else(|payload| {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(second);
            }
            V::default()
        })
    }
}
