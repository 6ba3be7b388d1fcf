//! The state that the handles of a purgatory share: its shards, its timer, its limits.

use std::{
    boxed::Box,
    collections::BTreeMap,
    hash::{BuildHasher, Hash},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use crossbeam::utils::CachePadded;
use foldhash::fast::RandomState;

use super::{
    deferral,
    hold::Hold,
    limits::Limits,
    operation::{Completion, DelayedOperation, OperationKey},
    shard::Shard,
    stats::PurgatoryStats,
};
use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    timer::ValueTimer,
    wheel::Key,
};

/// A purgatory without its handles.
pub(super) struct Core<K, O, R> {
    /// A reference to itself, for deferred checks.
    this: Weak<Self>,
    pub(super) shards: Box<[CachePadded<Shard<K, O, R>>]>,
    hasher: RandomState,
    pub(super) timer: ValueTimer<OperationKey>,
    pub(super) max_delay: Duration,
    pub(super) limits: Limits,
    /// Held while a thread selects an operation to displace.
    pub(super) displacing: Mutex<()>,
    /// Number of operations that completed without waiting, by shard.
    pub(super) at_once: Box<[CachePadded<AtomicU64>]>,
    panicked: Arc<AtomicU64>,
}

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    pub(super) fn new(
        timer: ValueTimer<OperationKey>,
        max_delay: Duration,
        limits: Limits,
    ) -> Arc<Self> {
        let count = timer.shard_count();
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            shards: (0..count).map(|_| CachePadded::new(Shard::new())).collect(),
            hasher: RandomState::default(),
            timer,
            max_delay,
            limits,
            displacing: Mutex::new(()),
            at_once: (0..count).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            panicked: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Returns a strong reference to itself, or `None` after the last handle was dropped.
    pub(super) fn shared(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    #[inline]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the number of waiting operations and the number of their watchers.
    pub(super) fn counts(&self) -> (u64, u64) {
        let counts = self.shards.iter().map(|shard| shard.counts());
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    pub(super) fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::new();
        self.shards.iter().for_each(|shard| shard.add_stats(&mut stats));
        stats.at_once = self.at_once.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        stats.refused = self.limits.refused();
        stats.panicked = self.panicked.load(Ordering::Relaxed);
        stats
    }

    /// Frees the memory of operations that have ended. *O*(capacity), each shard under its lock.
    pub(super) fn shrink(&self) {
        self.shards.iter().for_each(|shard| shard.shrink());
        self.timer.shrink();
        self.limits.shrink();
    }

    /// Checks the invariants of the shards, and that the limits agree with them.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken, or if a call is in progress.
    pub(super) fn check_invariants(&self) {
        let mut on_keys = BTreeMap::new();
        let in_total = self.shards.iter().map(|shard| shard.check_invariants(&mut on_keys)).sum();
        self.limits.check_invariants(in_total, &on_keys);
    }

    /// Drops the keys that have lost their last watcher.
    #[inline]
    pub(super) fn dispose(&self, hold: Hold<'_, K>) {
        if hold.is_empty() {
            return;
        }
        for key in hold {
            self.catch(|| drop(key));
        }
    }

    /// Removes the timeout of an ended operation from the timer.
    #[inline]
    pub(super) fn cancel_timeout(&self, number: usize, timeout: Option<Key>) {
        if let Some(timeout) = timeout {
            self.timer.cancel_in(number, timeout);
        }
    }

    /// Removes the timeouts of ended operations from the timer, in one hold of its lock.
    pub(super) fn cancel_timeouts(&self, number: usize, timeouts: impl Iterator<Item = Key>) {
        self.timer.cancel_all_in(number, timeouts);
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
    pub(super) fn complete(&self, operation: O, completion: Completion<R>) {
        deferral::complete(&self.panicked, operation, completion);
    }

    /// Runs user code. Counts a panic in it, and returns the default then.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        catch(&self.panicked, user_code)
    }
}

/// Runs user code. Counts a panic in it, and returns the default then. The drop of the payload is
/// user code too, and may panic.
#[inline]
pub(super) fn catch<V: Default>(panicked: &AtomicU64, user_code: impl FnOnce() -> V) -> V {
    catch_unwind(AssertUnwindSafe(user_code)).unwrap_or_else(|payload| {
        panicked.fetch_add(1, Ordering::Relaxed);
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(second);
        }
        V::default()
    })
}
