//! The limits on waiting operations, in total and per key, and the policy when a limit is reached.
//!
//! A limit that refuses counts an operation before its registration, so the count never exceeds the
//! limit. For the total, the limit of the timer on pending timeouts serves as this limit. A limit
//! that displaces counts an operation when it begins to wait, after the last possible refusal. If
//! the count then exceeds the limit, the operation displaces another one, unless the count drops
//! first.
//!
//! A key's limit counts an operation once for each of its watchers on that key. An operation leaves
//! the counts under the lock of its shard, when it leaves the lists.

use std::{boxed::Box, collections::BTreeMap, mem};

use crossbeam::utils::CachePadded;
use smallvec::SmallVec;

use super::keys::Table;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

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
    /// An operation that is refused may hold permits of some of its keys for a moment. Another new
    /// operation may be refused meanwhile, because it finds these permits taken.
    #[default]
    Refuse,
    /// The new operation waits, and the purgatory completes another one as
    /// [`Completion::Displaced`](super::Completion::Displaced). For the total limit, this is the
    /// operation that has waited longest. For a key, it is the operation that has watched the
    /// events of the key longest or, if none watches them, the one with the greatest threshold. If
    /// a thread is checking the displaced operation, that thread completes it.
    ///
    /// The new operation begins to wait before the other one leaves, so a refused operation never
    /// displaces another. For this moment, each call of `watch` may exceed the limit by one.
    ///
    /// If later operations overtake the new one while it begins to wait, the new operation may
    /// itself have waited longest. Then the purgatory displaces the new operation.
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

/// Names a limit: the hash of the key that it limits, or `None` for the total.
pub(super) type LimitOf = Option<u64>;

/// The limits of a purgatory, except the one of its timer.
pub(super) struct Limits {
    /// The total limit, if it displaces. Then each shard lists its operations in the order of
    /// registration.
    pub(super) total: Option<Total>,
    pub(super) per_key: Option<PerKey>,
    /// Whether a limit displaces operations. Such a limit counts operations that begin to wait.
    pub(super) displace: bool,
    pub(super) max_keys: usize,
    /// Number of refused operations.
    pub(super) refused: AtomicU64,
}

pub(super) struct Total {
    operations: u64,
    count: AtomicU64,
}

/// Counts of waiting operations for each key.
///
/// Keys are identified by their 64-bit hash. Two keys with equal hashes share a limit. With a
/// million keys, that happens in one of thirty million purgatories.
pub(super) struct PerKey {
    limit: Limit,
    stripes: Box<[CachePadded<Mutex<Counts>>]>,
}

/// The count of each key.
pub(super) type Counts = Table<(), u64>;

/// Number of locks for the counts.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

impl Limits {
    /// Makes limits. `total` is the total limit if its policy is to displace the oldest operation.
    #[inline]
    pub(super) fn new(total: Option<u64>, per_key: Option<Limit>, max_keys: usize) -> Self {
        let total = total.map(|operations| Total { operations, count: AtomicU64::new(0) });
        let per_key = per_key.map(|limit| {
            let stripe = |_| CachePadded::new(Mutex::new(Counts::new()));
            PerKey { limit, stripes: (0..STRIPES).map(stripe).collect() }
        });
        let displace = total.is_some() || per_key.as_ref().is_some_and(PerKey::displaces);
        Self { total, per_key, displace, max_keys, refused: AtomicU64::new(0) }
    }

    /// Returns whether the limit per key counts an operation. A limit that refuses counts each
    /// admitted operation. A limit that displaces counts an operation that has begun to wait.
    #[inline]
    pub(super) fn count_on_keys(&self, has_begun: bool) -> bool {
        self.per_key.as_ref().is_some_and(|per_key| has_begun || !per_key.displaces())
    }

    /// Takes a permit for each of these keys, or returns `false` if a key has none left. A limit
    /// that displaces takes no permits here, and refuses only an operation that has more conditions
    /// on one key than the limit allows.
    #[inline]
    pub(super) fn admit(&self, hashes: &[u64]) -> bool {
        let Some(per_key) = &self.per_key else { return true };
        if per_key.displaces() {
            let mut sorted: SmallVec<[u64; 4]> = hashes.into();
            sorted.sort_unstable();
            let mut of_keys = sorted.chunk_by(|one, next| one == next);
            return of_keys.all(|of_key| of_key.len() as u64 <= per_key.limit.operations);
        }
        let full = hashes.iter().position(|hash| !per_key.take(*hash));
        self.release_keys(&hashes[..full.unwrap_or(0)]);
        full.is_none()
    }

    /// Releases the permits that an operation took at its admission, of keys that it does not
    /// watch.
    #[inline]
    pub(super) fn release_keys(&self, hashes: &[u64]) {
        if self.count_on_keys(false) {
            for hash in hashes {
                drop(self.release_key(*hash));
            }
        }
    }

    /// Counts an operation on these keys that begins to wait, in the limits that displace. Returns
    /// the exceeded limits. The caller displaces one operation for each, first for the keys: an
    /// operation that is displaced for one key also leaves the total, and may leave other keys.
    #[inline]
    pub(super) fn begin(&self, hashes: impl Iterator<Item = u64>) -> SmallVec<[LimitOf; 4]> {
        let mut exceeded = SmallVec::new();
        if let Some(per_key) = self.per_key.as_ref().filter(|per_key| per_key.displaces()) {
            let hashes = hashes.filter(|hash| per_key.add(*hash) > per_key.limit.operations);
            exceeded.extend(hashes.map(Some));
        }
        if let Some(Total { operations, count }) = &self.total {
            if count.fetch_add(1, Ordering::Relaxed) >= *operations {
                exceeded.push(None);
            }
        }
        exceeded
    }

    /// Returns whether more operations wait than a limit allows.
    #[inline]
    pub(super) fn is_exceeded(&self, limit: LimitOf) -> bool {
        match (limit, &self.total, &self.per_key) {
            (None, Some(Total { operations, count }), _) => {
                count.load(Ordering::Relaxed) > *operations
            }
            (Some(hash), _, Some(per_key)) => {
                let counts = per_key.lock(hash);
                let found = counts.find(hash, |()| true);
                found.is_some_and(|(_, entry)| entry.list > per_key.limit.operations)
            }
            _ => false,
        }
    }

    /// Removes an operation from the count of the total limit.
    #[inline]
    pub(super) fn leave_total(&self) {
        if let Some(Total { count, .. }) = &self.total {
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert_ne!(before, 0, "an operation left the total twice");
        }
    }

    /// Releases a permit of a key. Returns memory for the caller to free without a lock.
    #[inline]
    pub(super) fn release_key(&self, hash: u64) -> Option<Counts> {
        let mut counts = self.per_key.as_ref()?.lock(hash);
        let Some((index, _)) = counts.find(hash, |()| true) else {
            debug_assert!(false, "a permit of key {hash:x} was released twice");
            return None;
        };
        let count = &mut counts.entries.at_mut(index).list;
        *count -= 1;
        if *count == 0 {
            counts.remove(index);
        }
        let is_emptied = counts.entries.is_empty() && counts.entries.slots() > KEPT_KEYS;
        is_emptied.then(|| mem::replace(&mut *counts, Counts::new()))
    }

    /// Checks the counts: `in_total` is the number of operations that have begun to wait, and
    /// `on_keys` has the number of watchers that the limit per key counts, by hash.
    ///
    /// # Panics
    ///
    /// Panics if they do not match.
    #[inline]
    pub(super) fn check_invariants(&self, in_total: u64, on_keys: &BTreeMap<u64, u64>) {
        if let Some(Total { operations, count }) = &self.total {
            let count = count.load(Ordering::Relaxed);
            assert_eq!(count, in_total, "the total and the operations differ");
            assert!(count <= *operations, "{count} operations exceed {operations}");
        }
        let Some(per_key) = &self.per_key else { return };
        let mut counts = BTreeMap::new();
        for stripe in &per_key.stripes {
            counts.extend(stripe.lock().iter().map(|(_, entry)| (entry.hash, entry.list)));
        }
        assert_eq!(&counts, on_keys, "permits of keys and watchers differ");
        let most = counts.values().max().copied().unwrap_or(0);
        assert!(most <= per_key.limit.operations, "{most} operations on a key exceed its limit");
    }

    /// Frees the memory of keys that no operation watches. *O*(capacity), one stripe at a time
    /// under its lock.
    #[inline]
    pub(super) fn shrink(&self) {
        for stripe in self.per_key.iter().flat_map(|per_key| &per_key.stripes) {
            stripe.lock().shrink();
        }
    }
}

/// Number of keys for which an empty stripe keeps its memory.
const KEPT_KEYS: u32 = 64;

impl PerKey {
    fn displaces(&self) -> bool {
        self.limit.overload == Overload::DisplaceOldest
    }

    /// Takes a permit of a key. Returns `false` if none is left. Then the count does not change,
    /// not even for a moment: another thread could be refused meanwhile.
    #[inline]
    fn take(&self, hash: u64) -> bool {
        self.count(hash, |count| {
            let is_left = *count < self.limit.operations;
            *count += u64::from(is_left);
            is_left
        })
    }

    /// Counts an operation on a key. Returns the count.
    #[inline]
    fn add(&self, hash: u64) -> u64 {
        self.count(hash, |count| {
            *count += 1;
            *count
        })
    }

    /// Changes the count of a key, which begins with 0.
    #[inline]
    fn count<R>(&self, hash: u64, change: impl FnOnce(&mut u64) -> R) -> R {
        let mut counts = self.lock(hash);
        let found = counts.find(hash, |()| true).map(|(index, _)| index);
        let index = found.unwrap_or_else(|| counts.insert(hash, (), 0));
        change(&mut counts.entries.at_mut(index).list)
    }

    /// Locks the stripe of a key. The table of the stripe uses other bits of the hash.
    fn lock(&self, hash: u64) -> MutexGuard<'_, Counts> {
        self.stripes[(hash >> 32) as usize % STRIPES].lock()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_permit_of_a_stripe_returns_its_memory() {
        let limit = Limit { operations: 1, overload: Overload::Refuse };
        let limits = Limits::new(None, Some(limit), 1);
        let hashes: Box<[u64]> = (0..1000).collect();
        assert!(limits.admit(&hashes) && !limits.admit(&[7]));
        let (last, others) = hashes.split_last().expect("there are some");
        assert!(others.iter().all(|hash| limits.release_key(*hash).is_none()));
        assert!(limits.release_key(*last).is_some());
    }
}
