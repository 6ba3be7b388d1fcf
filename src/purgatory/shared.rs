//! The state that the handles of a purgatory share: its timer, whose shards are those of the
//! purgatory, its filters and its limits.

use std::{
    boxed::Box,
    collections::BTreeMap,
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
    time::Duration,
};

use crossbeam::utils::CachePadded;
use foldhash::fast::SeedableRandomState;

use super::{
    conditions::{Conditions, Watches},
    deferral::{self, Panics},
    filter::{Filter, Filters},
    limits::Limits,
    operation::{Completion, DelayedOperation, OperationKey},
    shard::Shard,
    stats::PurgatoryStats,
};
use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    ticks::Nanos,
    timer::{ShardGuard, Shared, TimerBuildError, TimerBuilder},
};

/// A purgatory without its handles.
pub(crate) struct SharedPurgatory<K: Send + 'static, O: DelayedOperation<K>> {
    /// A reference to itself, for deferred checks.
    pub(super) this: Weak<Self>,
    /// Its number in the process.
    pub(super) number: u32,
    /// Shows which shards may have watchers of a key.
    pub(super) filters: Arc<Filters>,
    hasher: SeedableRandomState,
    pub(super) timer: Arc<Shared<Shard<K, O>>>,
    pub(super) max_delay: Duration,
    pub(super) limits: Arc<Limits>,
    /// Held while a thread selects an operation to displace.
    pub(super) displacing: Mutex<()>,
    /// Number of operations that completed without waiting, by shard.
    pub(super) at_once: Box<[CachePadded<AtomicU64>]>,
    /// Number of expired operations that a shutdown took back before their completion began.
    pub(super) taken_back: AtomicU64,
    panics: Panics,
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> SharedPurgatory<K, O> {
    pub(super) fn new(
        timer: TimerBuilder,
        max_delay: Duration,
        limits: Limits,
        hasher: SeedableRandomState,
    ) -> Result<Arc<Self>, TimerBuildError> {
        static PURGATORIES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let (limits, panics) = (Arc::new(limits), Panics::new());
        let mut filters = None;
        let state = |wheel, index, count| {
            let filters = filters.get_or_insert_with(|| Arc::new(Filters::new(count)));
            let filter = Filter::new(Arc::clone(filters), index);
            Shard::new(wheel, filter, Arc::clone(&limits), panics.clone())
        };
        // The drop of an expired operation completes it.
        let timer = timer.build_with_state(state, drop)?;
        let at_once = (0..timer.shards.count()).map(|_| CachePadded::default()).collect();
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            number: PURGATORIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            filters: filters.expect("a timer has a shard"),
            hasher,
            timer,
            max_delay,
            limits,
            displacing: Mutex::new(()),
            at_once,
            taken_back: AtomicU64::new(0),
            panics,
        }))
    }

    /// Locks a shard.
    #[inline]
    pub(super) fn lock(&self, shard: usize) -> ShardGuard<'_, Shard<K, O>> {
        self.timer.shards.lock(shard)
    }

    /// Locks the shard of an operation; `None` for a key of another purgatory.
    #[inline]
    pub(super) fn lock_of(&self, key: OperationKey) -> Option<ShardGuard<'_, Shard<K, O>>> {
        (key.purgatory == self.number).then(|| self.lock(key.shard as usize))
    }

    /// Locks one shard after the other.
    pub(super) fn lock_each(&self) -> impl Iterator<Item = ShardGuard<'_, Shard<K, O>>> {
        (0..self.timer.shards.count()).map(|shard| self.lock(shard))
    }

    /// Returns the time up to which waits are measured. A call that ends operations reads the clock
    /// once before each hold, without the lock: the clock is user code.
    #[inline]
    pub(super) fn now(&self) -> Nanos {
        let clock = self.timer.shards.clock();
        let read = self.catch(|| Some(clock.elapsed_coarsely()));
        read.unwrap_or_else(|| clock.start(clock.latest()))
    }

    #[inline]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    pub(crate) fn conditions(&self, watches: impl Watches<K>) -> Conditions<K> {
        let mut conditions = Conditions::new();
        let discard = |key| self.catch(|| drop(key));
        conditions.add(watches, self.limits.max_keys, |key| self.hash(key), discard);
        conditions
    }

    pub(super) fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::new();
        // Loaded before the counts of the shards, which include these.
        let taken_back = self.taken_back.load(Ordering::Acquire);
        for shard in self.lock_each() {
            let Shard { wheel, lists, .. } = shard.state();
            stats.delayed += wheel.len() as u64;
            stats.watched += lists.watched;
            stats.keys += lists.keys.len() as u64;
            lists.stats.add_to(&mut stats);
        }
        stats.at_once = self.at_once.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        stats.refused = self.limits.refused();
        stats.panicked = self.panics.count();
        stats.expired -= taken_back;
        stats.shut_down += taken_back;
        stats
    }

    /// Frees the memory of operations that have ended. *O*(capacity), each shard under its lock.
    pub(super) fn shrink(&self) {
        for mut shard in self.lock_each() {
            let Shard { wheel, lists, .. } = shard.state_mut();
            wheel.shrink();
            lists.shrink();
        }
        self.limits.shrink();
    }

    #[inline]
    pub(super) fn check(&self, operation: &mut O) -> bool {
        deferral::check(|| self.catch(|| operation.try_complete()))
    }

    /// Asks an operation whether a key has reached a threshold.
    pub(super) fn has_reached(&self, operation: &mut O, key: &K, at: u64) -> bool {
        deferral::check(|| self.catch(|| operation.has_reached(key, at)))
    }

    /// Completes an operation at once or, when called in a completion, after that completion has
    /// returned.
    #[inline]
    pub(super) fn complete(&self, operation: O, completion: Completion) {
        deferral::complete(&self.panics, operation, completion);
    }

    /// Runs user code. Counts a panic in it, and returns the default then.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        self.panics.catch(user_code)
    }

    /// Checks the invariants of the shards, and that the limits agree with them.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken, or if a call is in progress.
    pub(super) fn check_invariants(&self) {
        let mut on_keys = BTreeMap::new();
        let mut in_total = 0;
        for mut shard in self.lock_each() {
            shard.check_invariants();
            in_total += shard.state_mut().check_invariants(&mut on_keys);
        }
        self.limits.check_invariants(in_total, &on_keys);
    }
}
