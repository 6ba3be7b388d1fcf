//! The state that the handles of a purgatory share: its shards, its timer, its limits.

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
    deferral::{self, Panics},
    expiry::ShardState,
    filter::Filters,
    hold::DroppedLater,
    limits::Limits,
    lists::HashedKey,
    operation::{Completion, DelayedOperation, OperationKey},
    shard::{Shard, Timer},
    stats::{Counts, PurgatoryStats},
};
use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    timer::{TimerBuildError, TimerBuilder},
};

/// A purgatory without its handles.
pub(super) struct Shared<K, O, R> {
    /// A reference to itself, for deferred checks.
    this: Weak<Self>,
    /// Shows which shards may have watchers of a key.
    pub(super) filters: Filters,
    hasher: SeedableRandomState,
    pub(super) timer: Timer<K, O, R>,
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

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    pub(super) fn new(
        timer: TimerBuilder,
        max_delay: Duration,
        limits: Limits,
        hasher: SeedableRandomState,
    ) -> Result<Arc<Self>, TimerBuildError> {
        let (limits, panics) = (Arc::new(limits), Panics::new());
        let mut filters = None;
        let state = |index, count| {
            let filters = filters.get_or_insert_with(|| Filters::new(count));
            let complete = |panics: &_, operation| {
                deferral::complete(panics, operation, Completion::<R>::Expired);
            };
            ShardState::new(filters.of(index), Arc::clone(&limits), panics.clone(), complete)
        };
        // The drop of an expired operation completes it.
        let timer = timer.build_with_annex(state, drop)?;
        let filters = filters.expect("a timer has a shard");
        let at_once = (0..timer.count()).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            filters,
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

    /// Returns a strong reference to itself, or `None` after the last handle was dropped.
    pub(super) fn upgrade(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// Returns the shard with an index.
    #[inline]
    pub(super) fn shard(&self, index: usize) -> Shard<'_, K, O, R> {
        Shard::new(index, &self.timer, &self.panics)
    }

    /// Returns the shard of an operation; `None` for a key of another purgatory.
    #[inline]
    pub(super) fn shard_of(&self, key: OperationKey) -> Option<Shard<'_, K, O, R>> {
        (key.shard() < self.timer.count()).then(|| self.shard(key.shard()))
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = Shard<'_, K, O, R>> {
        (0..self.timer.count()).map(|index| self.shard(index))
    }

    #[inline]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    pub(super) fn hashed<'q, Q: Hash + ?Sized>(&self, key: &'q Q) -> HashedKey<'q, Q> {
        HashedKey { hash: self.hash(key), key }
    }

    pub(super) fn counts(&self) -> Counts {
        self.shards().map(|shard| shard.counts()).fold(Counts::default(), |sum, of_shard| Counts {
            delayed: sum.delayed + of_shard.delayed,
            watched: sum.watched + of_shard.watched,
        })
    }

    pub(super) fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::new();
        // Loaded before the counts of the shards, which include these.
        let taken_back = self.taken_back.load(Ordering::Acquire);
        self.shards().for_each(|shard| shard.add_stats(&mut stats));
        stats.at_once = self.at_once.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        stats.refused = self.limits.refused();
        stats.panicked = self.panics.count();
        debug_assert!(
            taken_back <= stats.expired,
            "{taken_back} expired operations were taken back, but {} expired",
            stats.expired
        );
        stats.expired -= taken_back;
        stats.shut_down += taken_back;
        stats
    }

    /// Frees the memory of operations that have ended. *O*(capacity), each shard under its lock.
    pub(super) fn shrink(&self) {
        self.shards().for_each(|shard| shard.hold(|waiters, _| waiters.shrink()));
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
        let in_total = self.shards().map(|shard| shard.check_invariants(&mut on_keys)).sum();
        self.limits.check_invariants(in_total, &on_keys);
    }

    /// Drops the values that a hold left to its caller.
    pub(super) fn discard(&self, mut dropped_later: DroppedLater<K>) {
        dropped_later.discard(&self.panics);
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
        deferral::complete(&self.panics, operation, completion);
    }

    /// Runs user code. Counts a panic in it, and returns the default then.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        self.panics.catch(user_code)
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::{
        clock::ManualClock,
        purgatory::{conditions::Conditions, waiters::CROWD},
    };

    /// An operation that only ends by a call.
    pub(in crate::purgatory) struct Endless;

    impl DelayedOperation<u32> for Endless {
        fn complete(self, _: Completion) {}
    }

    /// Returns a purgatory with one shard, in virtual time.
    pub(in crate::purgatory) fn in_one_shard() -> Arc<Shared<u32, Endless, ()>> {
        let timer = TimerBuilder::new().clock(ManualClock::new()).shards(1);
        let (limits, hasher) = (Limits::new(None, None, 8), SeedableRandomState::fixed());
        let shared = Shared::new(timer, Duration::MAX, limits, hasher);
        shared.expect("the settings are in range")
    }

    #[test]
    fn a_shard_frees_its_memory_once_after_a_crowd_also_if_the_wheel_keeps_its_slots() {
        let shared = in_one_shard();
        let watch = || {
            let watched = shared.watch(Endless, &mut Conditions::new(8), Duration::MAX);
            watched.expect("there is room").key().expect("it waits")
        };
        let end = |key: OperationKey| assert!(shared.claim(key, Completion::Satisfied));
        let slots = || shared.shard(0).hold(|waiters, _| waiters.end());
        // The keys that follow use up half of the generations.
        let newest = u32::MAX / 2 - 1;
        let old = shared.shard(0).hold(|_, hold| hold.timeouts().take_memory(newest));
        assert!(old.is_some());
        let crowd: std::vec::Vec<_> = (0..=CROWD).map(|_| watch()).collect();
        crowd.into_iter().for_each(end);
        assert_eq!(slots(), 0);
        let next = watch();
        assert!(next.in_shard().index() >= CROWD, "the wheel has freed its slots");
        end(next);
        assert!(slots() > CROWD, "an operation that was alone frees memory");
    }
}
