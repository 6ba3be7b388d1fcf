//! How an operation comes to wait: checked, put on its lists, checked again.

use std::{hash::Hash, mem, time::Duration};

use smallvec::SmallVec;

use super::{
    core::Core,
    demand::Demand,
    error::WatchError,
    filter::fence_watch,
    operation::{Completion, DelayedOperation},
    rule::Effect,
    shard::{Announced, Batch, Finished, InHand, Shard, Surplus},
    slab::Index,
    watch::{OperationKey, Watched},
};
use crate::{Key, ScheduleError, sync::Ordering};

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
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
        let hashes = match self.admit(&demand) {
            Ok(hashes) => hashes,
            Err(refused) => {
                self.capacity.refuse();
                return Err(refused(operation));
            }
        };
        let delay = delay.min(self.max_delay);
        self.wait(shard, operation, &mut demand, &hashes, delay)
            .inspect_err(|_| self.capacity.refuse())
    }

    /// Takes the permits of an operation that are taken before it waits. Returns the hashes of the
    /// keys whose permits it holds.
    #[inline]
    #[expect(clippy::type_complexity, reason = "the error is one of the variants")]
    fn admit(&self, demand: &Demand<K>) -> Result<SmallVec<[u64; 4]>, fn(O) -> WatchError<O>> {
        if demand.is_too_large {
            return Err(WatchError::too_many_keys);
        }
        if !self.capacity.admit() {
            return Err(WatchError::full);
        }
        if !self.capacity.is_per_key() || !self.capacity.counted_first().on_keys {
            return Ok(SmallVec::new());
        }
        let hashes = demand.hashes();
        if self.capacity.admit_to_keys(&hashes) {
            return Ok(hashes);
        }
        if self.capacity.counted_first().in_total {
            self.capacity.release();
        }
        Err(WatchError::key_full)
    }

    /// Whether an operation can complete before it waits. Leaves out thresholds that were reached.
    #[inline]
    fn can_complete(&self, operation: &mut O, demand: &mut Demand<K>) -> bool {
        let count = demand.thresholds.len();
        let mut rule = demand.rule;
        if count > 0 {
            let mut is_missing = |key: &K, at| !self.catch(|| operation.has_reached(key, at));
            let asked = mem::take(&mut demand.thresholds);
            for threshold in asked {
                if is_missing(&threshold.key, threshold.at) {
                    demand.thresholds.push(threshold);
                } else {
                    self.catch(|| drop(threshold));
                }
            }
            demand.thresholds.iter().for_each(|_| rule.add_threshold());
        }
        match rule.at_first(demand.thresholds.len() < count) {
            Effect::Nothing => false,
            Effect::Check => self.check(operation),
            Effect::Satisfied => true,
        }
    }

    /// Puts an operation on its lists, checks it once more, and starts its timeout. If it is refused,
    /// it has given back its places among those of the keys.
    fn wait(
        &self,
        number: usize,
        operation: O,
        demand: &mut Demand<K>,
        hashes: &[u64],
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let shard = &*self.shards[number];
        let since = self.timer.elapsed();
        let mut leavings = self.leavings(shard);
        let mut asked = SmallVec::<[(K, u64, Index); 1]>::new();
        let (index, serial) = {
            let mut contents = shard.contents.lock();
            if contents.is_closed {
                drop(contents);
                for &hash in hashes {
                    self.capacity.release_from_key(hash);
                }
                if self.capacity.counted_first().in_total {
                    self.capacity.release();
                }
                return Err(WatchError::shut_down(operation));
            }
            let counted = self.capacity.counted_first();
            let (index, serial) = contents.enter(since, demand.rule, counted);
            for key in demand.events.drain(..) {
                contents.watch_events(index, key, &mut leavings);
            }
            for threshold in demand.thresholds.drain(..) {
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
        let key = OperationKey::new(number, (index, serial));
        let mut in_hand = InHand::new(index, operation);
        self.check_again(shard, &mut in_hand, demand.rule.on_event(), asked);
        if in_hand.is_satisfied {
            self.bring_back(key, in_hand, since, None);
            return Ok(Watched::Waiting(key));
        }
        match self.timer.schedule_in(number, since, delay, key) {
            Ok(timeout) => self.bring_back(key, in_hand, since, Some(timeout)),
            Err(refused) => self.withdraw(key, in_hand, since, refused)?,
        }
        Ok(Watched::Waiting(key))
    }

    /// Checks an operation that has just begun to wait, also for thresholds that were reached in
    /// between.
    #[inline]
    fn check_again(
        &self,
        shard: &Shard<K, O, R>,
        in_hand: &mut InHand<O, R>,
        mut effect: Effect,
        asked: SmallVec<[(K, u64, Index); 1]>,
    ) {
        let Some(operation) = &mut in_hand.operation else { return };
        if !asked.is_empty() {
            let mut found = SmallVec::<[Index; 4]>::new();
            for (key, at, node) in asked {
                if self.catch(|| operation.has_reached(&key, at)) {
                    found.push(node);
                }
                self.catch(|| drop(key));
            }
            let mut leavings = self.leavings(shard);
            effect =
                shard.contents.lock().on_found(in_hand.index, found.into_iter(), &mut leavings);
            self.dispose(leavings);
        }
        in_hand.is_satisfied = match effect {
            Effect::Nothing => false,
            Effect::Check => self.check(operation),
            Effect::Satisfied => true,
        };
    }

    /// Brings an operation back that has just begun to wait, and sets its timeout. Almost always it
    /// waits from then on; else it is checked again, or has ended. If it exceeds a limit, another
    /// one is displaced.
    #[inline]
    fn bring_back(
        &self,
        key: OperationKey,
        mut in_hand: InHand<O, R>,
        since: u64,
        timeout: Option<Key>,
    ) {
        let number = key.shard();
        let shard = &*self.shards[number];
        let now = if in_hand.is_satisfied { self.timer.elapsed() } else { since };
        let mut announced = Announced::new();
        let mut surplus = Surplus::default();
        let mut leavings = self.leavings(shard);
        {
            let mut contents = shard.contents.lock();
            contents.set_timeout(in_hand.index, timeout);
            if timeout.is_some() {
                surplus = contents.count_in(in_hand.index, &self.capacity);
            }
            contents.bring_back(&mut in_hand, now, &mut announced, &mut leavings);
        }
        self.dispose(leavings);
        if let (Some(operation), Some((completion, timeout))) = (in_hand.operation, in_hand.end) {
            self.conclude(number, Finished { operation, completion, timeout });
        }
        self.displace_for(key, &surplus);
        if !announced.is_empty() {
            let mut batch = Batch::new();
            shard.contents.lock().take_out_again(&announced, &mut batch);
            self.check_out(number, &mut batch);
        }
    }

    /// Takes out an operation whose timeout was refused; or completes it, if its end was decided in
    /// the meantime.
    #[cold]
    fn withdraw(
        &self,
        key: OperationKey,
        in_hand: InHand<O, R>,
        since: u64,
        refused: ScheduleError<OperationKey>,
    ) -> Result<(), WatchError<O>> {
        let shard = &*self.shards[key.shard()];
        let mut leavings = self.leavings(shard);
        let is_withdrawn = shard.contents.lock().withdraw(in_hand.index, &mut leavings);
        self.dispose(leavings);
        if !is_withdrawn {
            self.bring_back(key, in_hand, since, None);
            return Ok(());
        }
        let operation = in_hand.operation.expect("it is in hand");
        Err(WatchError::from_timer(refused, operation))
    }
}
