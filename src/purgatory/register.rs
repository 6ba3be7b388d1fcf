//! Registers an operation: checks it, adds it to its lists, and checks it again.

use std::{hash::Hash, mem, time::Duration};

use smallvec::SmallVec;

use super::{
    Purgatory, Watch,
    batch::{Batch, Out},
    conditions::{Conditions, Effect, Rule, Threshold},
    deferral,
    error::{Reason, WatchError},
    filter::fence_watch,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    shard::Shard,
    shared::Shared,
    slab::Index,
};
use crate::{
    sync::Ordering,
    ticks::Nanos,
    timer::{self, ScheduleError},
};

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Completes an operation if it can complete. Otherwise the operation waits for events on its
    /// keys, for at most `delay`.
    ///
    /// A repeated key counts once. Without a key, the operation waits until its delay ends or a
    /// caller ends it by its [`OperationKey`]. A delay of zero expires at once, if the operation
    /// cannot complete. A delay longer than the clock can count, such as [`Duration::MAX`], never
    /// expires.
    ///
    /// # Errors
    ///
    /// [`WatchError`] hands the operation back if a limit is reached, if the operation has too many
    /// keys, or if the purgatory is shut down. An operation that can complete at once completes
    /// even then. The first operation that waits starts the threads of the timer. It is also
    /// refused if a thread cannot start.
    ///
    /// # Complexity
    ///
    /// *O*(keys), under one lock that is held twice.
    /// [`max_keys`](super::PurgatoryBuilder::max_keys) bounds the number of keys.
    #[inline]
    pub fn try_complete_else_watch(
        &self,
        operation: O,
        keys: impl IntoIterator<Item = K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let shared = self.shared();
        let mut conditions = Conditions::new(shared.limits.max_keys);
        for key in keys {
            if let Some(not_added) = conditions.add_events(shared.hash(&key), key) {
                shared.catch(|| drop(not_added));
            }
            if conditions.is_too_large {
                break;
            }
        }
        shared.watch(operation, &mut conditions, delay)
    }

    /// Like [`try_complete_else_watch`](Self::try_complete_else_watch), but *one* condition
    /// satisfies the operation: a threshold is reached, or its check returns `true` after an event
    /// on another key. Without any watch it waits as without a key.
    ///
    /// # Examples
    ///
    /// A read that wants a record past the log's end, on either of two partitions:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, Watch};
    ///
    /// struct Read;
    ///
    /// impl DelayedOperation<u32> for Read {
    ///     fn has_reached(&mut self, _partition: &u32, _offset: u64) -> bool {
    ///         false // A look at the log.
    ///     }
    ///
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::Satisfied);
    ///     }
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// let watches = [Watch::Threshold(3, 100), Watch::Threshold(4, 200)];
    /// purgatory.watch_any(Read, watches, Duration::from_secs(30))?;
    /// assert_eq!(purgatory.advance(&3, 99), 0);
    /// assert_eq!(purgatory.advance(&4, 250), 1);
    /// assert_eq!(purgatory.watched(), 0);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `try_complete_else_watch`. Refuses an operation with more than
    /// [`max_keys`](super::PurgatoryBuilder::max_keys) watches without a check.
    ///
    /// # Complexity
    ///
    /// *O*(keys + thresholds log n), with n watchers of a value.
    pub fn watch_any(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        self.watch(operation, watches, false, delay)
    }

    /// Like [`try_complete_else_watch`](Self::try_complete_else_watch), but *all* conditions must
    /// hold. Every threshold is reached and, if the operation watches events of other keys, its
    /// check returns `true`. Without any watch the check is its only condition: it completes at
    /// once, or waits as without a key.
    ///
    /// # Examples
    ///
    /// A write that waits until two partitions have been replicated up to its offsets:
    ///
    /// ```
    /// use std::{collections::HashMap, sync::{Arc, Mutex}, time::Duration};
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, Watch};
    ///
    /// /// The high watermark of each partition.
    /// type Replicated = Arc<Mutex<HashMap<u32, u64>>>;
    ///
    /// struct Produce(Replicated);
    ///
    /// impl DelayedOperation<u32> for Produce {
    ///     fn has_reached(&mut self, partition: &u32, offset: u64) -> bool {
    ///         self.0.lock().unwrap().get(partition).is_some_and(|&at| at >= offset)
    ///     }
    ///
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::Satisfied);
    ///     }
    /// }
    ///
    /// let replicated = Replicated::default();
    /// let purgatory = Purgatory::new();
    /// let watches = [Watch::Threshold(3, 100), Watch::Threshold(4, 200)];
    /// let produce = Produce(Arc::clone(&replicated));
    /// purgatory.watch_all(produce, watches, Duration::from_secs(30))?;
    ///
    /// replicated.lock().unwrap().insert(3, 150);
    /// assert_eq!(purgatory.advance(&3, 150), 0);
    /// replicated.lock().unwrap().insert(4, 200);
    /// assert_eq!(purgatory.advance(&4, 200), 1);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`watch_any`](Self::watch_any).
    ///
    /// # Complexity
    ///
    /// *O*(keys + thresholds log n), with n watchers of a value.
    pub fn watch_all(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        self.watch(operation, watches, true, delay)
    }

    fn watch(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        is_all: bool,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        let shared = self.shared();
        let mut conditions = Conditions::new(shared.limits.max_keys);
        for watch in watches {
            let hash = shared.hash(watch.key());
            match watch {
                Watch::Events(key) => {
                    let is_not_added = conditions.add_events(hash, key);
                    shared.catch(|| drop(is_not_added));
                }
                Watch::Threshold(key, at) => {
                    let is_not_added = conditions.add_threshold(Threshold::new(hash, key, at));
                    shared.catch(|| drop(is_not_added));
                }
            }
            // The watches that do not fit may not hold, so the others decide nothing.
            if conditions.is_too_large {
                shared.limits.refuse();
                return Err(WatchError::new(Reason::TooManyKeys, operation));
            }
        }
        let is_checked = !conditions.events.is_empty() || conditions.thresholds.is_empty();
        conditions.rule = Rule::new(is_all, is_checked);
        shared.watch(operation, &mut conditions, delay)
    }
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    /// Completes an operation if it can complete. Otherwise registers it.
    #[inline]
    pub(super) fn watch(
        &self,
        mut operation: O,
        conditions: &mut Conditions<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let watched = if self.can_complete(&mut operation, conditions) {
            self.at_once[self.timer.current()].fetch_add(1, Ordering::Relaxed);
            self.complete(operation, Completion::Satisfied);
            Ok(Watched::Completed)
        } else {
            let mut hashes = SmallVec::new();
            let waiting = match self.admit(conditions, &mut hashes) {
                Ok(()) => self.wait(operation, conditions, &hashes, delay),
                Err(reason) => Err(WatchError::new(reason, operation)),
            };
            waiting.inspect_err(|_| self.limits.refuse())
        };
        deferral::run_checks();
        watched
    }

    /// Takes the permits that an operation needs before it waits. Sets `hashes` to those of the
    /// keys whose permits it holds.
    #[inline]
    fn admit(
        &self,
        conditions: &Conditions<K>,
        hashes: &mut SmallVec<[u64; 4]>,
    ) -> Result<(), Reason> {
        if conditions.is_too_large {
            return Err(Reason::TooManyKeys);
        }
        if !self.limits.admit() {
            return Err(Reason::Full);
        }
        if self.limits.is_per_key() { self.admit_to_keys(conditions, hashes) } else { Ok(()) }
    }

    fn admit_to_keys(
        &self,
        conditions: &Conditions<K>,
        hashes: &mut SmallVec<[u64; 4]>,
    ) -> Result<(), Reason> {
        debug_assert!(hashes.is_empty(), "permits of keys are taken once");
        *hashes = conditions.hashes();
        if self.limits.admit_to_keys(hashes) {
            if !self.limits.counted_first().on_keys {
                hashes.clear();
            }
            return Ok(());
        }
        self.limits.give_back(&[]);
        Err(Reason::KeyFull)
    }

    /// Returns whether an operation can complete before it waits. Removes the thresholds that are
    /// reached.
    #[inline]
    fn can_complete(&self, operation: &mut O, conditions: &mut Conditions<K>) -> bool {
        let count = conditions.thresholds.len();
        let mut rule = conditions.rule;
        if count > 0 {
            let mut is_missing = |key: &K, at| !self.has_reached(operation, key, at);
            let requested = mem::take(&mut conditions.thresholds);
            for threshold in requested {
                if is_missing(&threshold.key, threshold.at) {
                    conditions.thresholds.push(threshold);
                } else {
                    self.catch(|| drop(threshold));
                }
            }
            conditions.thresholds.iter().for_each(|_| rule.add_threshold());
        }
        match rule.at_first(conditions.thresholds.len() < count) {
            Effect::Nothing => false,
            Effect::Check => self.check(operation),
            Effect::Satisfied => true,
        }
    }

    /// Adds an operation and its timeout, and checks it once more. On an error it holds no permits.
    fn wait(
        &self,
        operation: O,
        conditions: &mut Conditions<K>,
        hashes: &[u64],
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let shard_index = self.timer.unlocked();
        let shard = self.shard(shard_index);
        let read = self.timer.clock().read();
        let deadline = self.timer.clock().deadline(read, delay.min(self.max_delay));
        let registered = match self.timer.ensure_started() {
            Ok(()) => {
                shard.register(conditions, read, deadline).map_err(ScheduleError::into_reason)
            }
            Err(cause) => Err(timer::Reason::NoThread(cause)),
        };
        let (key, is_timed) = match registered {
            Ok(registered) => registered,
            Err(reason) => {
                self.limits.give_back(hashes);
                return Err(WatchError::new(reason.into(), operation));
            }
        };
        fence_watch();
        let mut out = Out::new(key, is_timed, operation);
        self.check_again(shard, &mut out, conditions);
        let key = OperationKey::new(shard_index, key, is_timed);
        self.begin_to_wait(key, out, read.elapsed);
        Ok(Watched::Waiting(key))
    }

    /// Checks an operation again after it was added to its lists, including its thresholds.
    #[inline]
    fn check_again(
        &self,
        shard: Shard<'_, K, O, R>,
        out: &mut Out<O, R>,
        conditions: &mut Conditions<K>,
    ) {
        let Some(operation) = &mut out.operation else { return };
        debug_assert!(!conditions.is_too_large, "a condition was left out");
        let mut effect = conditions.rule.on_event();
        if !conditions.thresholds.is_empty() {
            let mut found = SmallVec::<[Index; 4]>::new();
            for Threshold { key, at, node, .. } in conditions.thresholds.drain(..) {
                debug_assert!(node.is_some(), "threshold {at} is on no list");
                if self.has_reached(operation, &key, at) {
                    found.extend(node);
                }
                self.catch(|| drop(key));
            }
            effect = shard.hold(|waiters, hold| waiters.on_found(out.key, &found, hold));
        }
        out.is_satisfied = match effect {
            Effect::Nothing => false,
            Effect::Check => self.check(operation),
            Effect::Satisfied => true,
        };
    }

    /// Brings back an operation that was just registered. It almost always waits from then on.
    /// Otherwise it is checked again, or it has ended. If it exceeds a limit, it displaces another
    /// operation.
    #[inline]
    fn begin_to_wait(&self, key: OperationKey, mut out: Out<O, R>, since: Nanos) {
        let shard = self.shard(key.shard());
        let is_timed = out.is_satisfied && out.is_timed;
        let now = if is_timed { self.timer.clock().elapsed() } else { since };
        let (excess, is_announced) = shard.begin_to_wait(&mut out, now);
        debug_assert_eq!(
            out.operation.is_some(),
            out.completion.is_some(),
            "{key:?} neither waits nor has ended"
        );
        if let (Some(operation), Some(completion)) = (out.operation, out.completion) {
            self.complete(operation, completion);
        }
        self.displace_for(key, &excess);
        if is_announced {
            let mut batch = Batch::new();
            shard.hold(|waiters, _| waiters.take_out_again(&[key.in_shard()], &mut batch));
            self.check_or_defer(key.shard(), &mut batch);
        }
    }
}
