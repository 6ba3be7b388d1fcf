//! The limits on waiting operations, in total and per key, and the policy when a limit is reached.
//!
//! An operation takes one permit of the total limit, and one of a key's limit for each watcher on
//! that key. It releases them under the lock of its shard, when it leaves the lists.

use std::{
    boxed::Box,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::Hash,
};

use crossbeam::utils::CachePadded;
use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::{
    operation::{DelayedOperation, OperationKey},
    shared::Shared,
};
use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    ticks::Nanos,
    wheel::Key,
};

/// Policy when a limit is reached.
///
/// # Examples
///
/// See [`PurgatoryBuilder::max_delayed`](super::PurgatoryBuilder::max_delayed).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overload {
    /// The purgatory refuses the new operation, and the error returns it.
    ///
    /// An operation that is refused because one of its keys is full may hold permits of its other
    /// keys, and of the total, for a moment. Another new operation may be refused meanwhile.
    #[default]
    Refuse,
    /// The new operation waits, and the purgatory completes the one that has waited longest as
    /// [`Completion::Displaced`](super::Completion::Displaced). If a thread is checking that one,
    /// that thread completes it.
    ///
    /// The new operation waits before another one leaves, so a refused operation never displaces
    /// another. For this moment, each such call may exceed the limit by one.
    ///
    /// If the clock reads the same time for two operations, either may leave first. A search for
    /// the oldest operation takes the lock of each shard, one after the other.
    DisplaceOldest,
}

/// A limit, and the policy when it is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) operations: u64,
    pub(super) overload: Overload,
}

/// The limits that count an operation, which holds their permits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) in_total: bool,
    pub(super) on_keys: bool,
}

impl Counted {
    pub(super) const NOWHERE: Self = Self { in_total: false, on_keys: false };
    pub(super) const EVERYWHERE: Self = Self { in_total: true, on_keys: true };
}

/// The limits that a newcomer exceeds. Each displaces one operation.
#[derive(Debug, Default)]
pub(super) struct Excess {
    pub(super) is_total_exceeded: bool,
    /// Hashes of the keys whose limits it exceeds.
    pub(super) hashes: SmallVec<[u64; 4]>,
}

/// The operation that has waited longest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Oldest {
    pub(super) since: Nanos,
    pub(super) waiter: Key,
}

/// The limits of a purgatory.
///
/// A limit that refuses counts an operation before registration, and its count never exceeds it. A
/// limit that displaces counts an operation after the last possible refusal. If the count then
/// exceeds the limit, the operation displaces another one, unless the count has dropped by then.
pub(super) struct Limits {
    total: Option<Total>,
    per_key: Option<PerKey>,
    pub(super) max_keys: usize,
    refused: AtomicU64,
}

struct Total {
    limit: Limit,
    count: AtomicU64,
}

/// Counts of waiting operations for each key.
///
/// Keys are identified by their 64-bit hash. Two keys with equal hashes share a limit. With a
/// million keys, that happens in one of thirty million purgatories.
struct PerKey {
    limit: Limit,
    stripes: Box<[CachePadded<Mutex<Counts>>]>,
}

type Counts = HashMap<u64, u64, FixedState>;

/// Number of locks for the counts.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

impl Limits {
    pub(super) fn new(total: Option<Limit>, per_key: Option<Limit>, max_keys: usize) -> Self {
        let total = total.map(|limit| Total { limit, count: AtomicU64::new(0) });
        let per_key = per_key.map(|limit| {
            let stripe = |_| CachePadded::new(Mutex::new(Counts::default()));
            PerKey { limit, stripes: (0..STRIPES).map(stripe).collect() }
        });
        Self { total, per_key, max_keys, refused: AtomicU64::new(0) }
    }

    /// Returns whether there is a limit per key.
    #[inline]
    pub(super) const fn is_per_key(&self) -> bool {
        self.per_key.is_some()
    }

    /// Returns whether the shards must keep the order of registration.
    pub(super) fn needs_order(&self) -> bool {
        self.total.as_ref().is_some_and(|total| total.limit.displaces())
    }

    /// Returns whether a limit displaces other operations, so counts after registration.
    #[inline]
    pub(super) fn displace(&self) -> bool {
        let Counted { in_total, on_keys } = self.counted_first();
        !(in_total && on_keys)
    }

    /// Returns the limits that count an operation before registration.
    #[inline]
    pub(super) fn counted_first(&self) -> Counted {
        Counted {
            in_total: !self.total.as_ref().is_some_and(|total| total.limit.displaces()),
            on_keys: !self.per_key.as_ref().is_some_and(|per_key| per_key.limit.displaces()),
        }
    }

    /// Takes a permit of the total limit. Returns `false` if none is left and the limit refuses.
    #[inline]
    pub(super) fn admit(&self) -> bool {
        let Some(Total { limit, count }) = &self.total else { return true };
        if limit.displaces() {
            return true;
        }
        let take = |count| (count < limit.operations).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Counts an operation unconditionally. Returns whether the count exceeds the limit.
    #[inline]
    pub(super) fn exceed(&self) -> bool {
        let Some(Total { limit, count }) = &self.total else { return false };
        count.fetch_add(1, Ordering::Relaxed) >= limit.operations
    }

    /// Returns whether more operations wait than the limit allows.
    pub(super) fn is_exceeded(&self) -> bool {
        self.total
            .as_ref()
            .is_some_and(|Total { limit, count }| count.load(Ordering::Relaxed) > limit.operations)
    }

    /// Releases a permit of the total limit.
    #[inline]
    pub(super) fn release(&self) {
        if let Some(Total { count, .. }) = &self.total {
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert_ne!(before, 0, "a total permit was released twice");
        }
    }

    /// Takes a permit for each of these keys. Takes none and returns `false` if a key has none left
    /// and the limit refuses. If the limit displaces, returns `false` only for an operation that
    /// alone exceeds it, with several conditions on one key.
    pub(super) fn admit_to_keys(&self, hashes: &[u64]) -> bool {
        let Some(per_key) = &self.per_key else { return true };
        if per_key.limit.displaces() {
            return per_key.fits(hashes);
        }
        for (taken, &hash) in hashes.iter().enumerate() {
            if !per_key.take(hash) {
                hashes[..taken].iter().for_each(|&hash| self.release_from_key(hash));
                return false;
            }
        }
        true
    }

    /// Counts an operation on a key unconditionally. Returns whether the count exceeds the limit.
    pub(super) fn exceed_key(&self, hash: u64) -> bool {
        self.per_key.as_ref().is_some_and(|per_key| per_key.add(hash))
    }

    /// Returns whether more operations wait on a key than its limit allows.
    pub(super) fn is_key_exceeded(&self, hash: u64) -> bool {
        self.per_key.as_ref().is_some_and(|per_key| {
            let counts = per_key.stripe(hash).lock();
            counts.get(&hash).is_some_and(|count| *count > per_key.limit.operations)
        })
    }

    /// Releases a permit of a key.
    pub(super) fn release_from_key(&self, hash: u64) {
        let Some(per_key) = &self.per_key else { return };
        let mut counts = per_key.stripe(hash).lock();
        let Entry::Occupied(mut entry) = counts.entry(hash) else {
            debug_assert!(false, "a permit of key {hash:x} was released twice");
            return;
        };
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }

    /// Releases the permits of an operation that is refused before it is on any list. `hashes` are
    /// the keys of its permits.
    pub(super) fn give_back(&self, hashes: &[u64]) {
        for &hash in hashes {
            self.release_from_key(hash);
        }
        if self.counted_first().in_total {
            self.release();
        }
    }

    /// Counts an operation that was refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Checks that the permits in use match the counted operations.
    ///
    /// # Panics
    ///
    /// Panics if they do not match.
    pub(super) fn check_invariants(&self, in_total: u64, on_keys: &BTreeMap<u64, u64>) {
        if let Some(Total { limit, count }) = &self.total {
            let count = count.load(Ordering::Relaxed);
            assert_eq!(count, in_total, "permits and counted operations differ");
            assert!(count <= limit.operations, "{count} operations exceed {limit:?}");
        }
        let Some(per_key) = &self.per_key else { return };
        let stripes = per_key.stripes.iter().map(|stripe| stripe.lock().clone());
        let counts: BTreeMap<_, _> = stripes.flatten().collect();
        assert_eq!(&counts, on_keys, "permits of keys and watchers differ");
        let most = counts.values().max().copied().unwrap_or(0);
        assert!(most <= per_key.limit.operations, "{most} operations on a key exceed its limit");
    }

    /// Frees the memory of keys that no operation watches. *O*(capacity), one stripe at a time
    /// under its lock.
    pub(super) fn shrink(&self) {
        for stripe in self.per_key.iter().flat_map(|per_key| &per_key.stripes) {
            stripe.lock().shrink_to_fit();
        }
    }
}

impl Limit {
    fn displaces(&self) -> bool {
        self.overload == Overload::DisplaceOldest
    }
}

impl PerKey {
    /// Returns whether one operation with these keys does not exceed the limit by itself.
    fn fits(&self, hashes: &[u64]) -> bool {
        if hashes.len() as u64 <= self.limit.operations {
            return true;
        }
        let mut sorted: SmallVec<[u64; 4]> = hashes.into();
        sorted.sort_unstable();
        let mut runs = sorted.chunk_by(|one, next| one == next);
        runs.all(|run| run.len() as u64 <= self.limit.operations)
    }

    /// Takes a permit of a key. Returns `false` if none is left.
    fn take(&self, hash: u64) -> bool {
        let mut counts = self.stripe(hash).lock();
        let count = counts.entry(hash).or_insert(0);
        let is_left = *count < self.limit.operations;
        *count += u64::from(is_left);
        is_left
    }

    /// Counts an operation on a key. Returns whether the count exceeds the limit.
    fn add(&self, hash: u64) -> bool {
        let mut counts = self.stripe(hash).lock();
        let count = counts.entry(hash).or_insert(0);
        *count += 1;
        *count > self.limit.operations
    }

    fn stripe(&self, hash: u64) -> &Mutex<Counts> {
        #[expect(clippy::cast_possible_truncation, reason = "any of the bits will do")]
        let bits = hash as usize;
        &self.stripes[bits % STRIPES]
    }
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    /// Displaces one operation for each limit that a newcomer exceeds.
    #[inline]
    pub(super) fn displace_for(&self, newcomer: OperationKey, excess: &Excess) {
        if excess.is_total_exceeded || !excess.hashes.is_empty() {
            self.displace_excess(newcomer, excess);
        }
    }

    #[cold]
    fn displace_excess(&self, newcomer: OperationKey, excess: &Excess) {
        // An operation displaced for one key also leaves the total, and may leave other keys of the
        // newcomer.
        for &hash in &excess.hashes {
            self.displace_one(
                || self.limits.is_key_exceeded(hash),
                || self.oldest_on_key(hash, newcomer),
            );
        }
        if excess.is_total_exceeded {
            self.displace_one(|| self.limits.is_exceeded(), || self.oldest(newcomer));
        }
    }

    /// Displaces one operation if a limit is exceeded. Searches again if the operation found has
    /// already ended.
    fn displace_one(
        &self,
        is_exceeded: impl Fn() -> bool,
        find: impl Fn() -> Option<(usize, Key)>,
    ) {
        let mut displaced = None;
        // The clock is user code, so it is read before the lock is taken.
        let now = self.timer.clock().elapsed();
        // One displacement at a time: two threads that see one excess would displace twice.
        let turn = self.displacing.lock();
        while displaced.is_none() && is_exceeded() {
            let Some((shard_index, key)) = find() else { break };
            displaced = self.shard(shard_index).displace(key, now);
        }
        drop(turn);
        if let Some((claim, dropped_later)) = displaced {
            self.discard(dropped_later);
            self.complete_claimed(claim);
        }
    }

    /// Returns the operation that has waited longest, except the newcomer, and its shard.
    fn oldest(&self, newcomer: OperationKey) -> Option<(usize, Key)> {
        let oldest = self.shards().enumerate().filter_map(|(shard_index, shard)| {
            let oldest = shard.hold(|waiters, _| waiters.oldest(newcomer.index_in(shard_index)))?;
            Some((oldest.since, (shard_index, oldest.waiter)))
        });
        oldest.min_by_key(|&(since, _)| since).map(|(_, key)| key)
    }

    /// Returns the operation that has watched a key's events longest, except the newcomer. If all
    /// others wait for the key's value, returns the one with the greatest threshold.
    fn oldest_on_key(&self, hash: u64, newcomer: OperationKey) -> Option<(usize, Key)> {
        let oldest = self.shards().enumerate().filter_map(|(shard_index, shard)| {
            let except = newcomer.index_in(shard_index);
            let oldest = shard.hold(|waiters, _| waiters.oldest_on_key(hash, except))?;
            Some((oldest.since, (shard_index, oldest.waiter)))
        });
        let oldest = oldest.min_by_key(|&(since, _)| since).map(|(_, key)| key);
        oldest.or_else(|| {
            let greatest = self.shards().enumerate().filter_map(|(shard_index, shard)| {
                let except = newcomer.index_in(shard_index);
                let (at, key) = shard.hold(|waiters, _| waiters.greatest_on_key(hash, except))?;
                Some((at, (shard_index, key)))
            });
            greatest.max_by_key(|&(at, _)| at).map(|(_, key)| key)
        })
    }
}
