//! How many operations may wait, in all and on one key; exact, also under concurrency.

use std::{
    boxed::Box,
    collections::{HashMap, hash_map::Entry},
};

use crossbeam::utils::CachePadded;
use rustc_hash::FxBuildHasher;

use super::shard::Counted;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// What becomes of an operation for which there is no room.
///
/// # Examples
///
/// See [`PurgatoryBuilder::max_delayed`](super::PurgatoryBuilder::max_delayed).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overload {
    /// It is refused, and handed back.
    #[default]
    Refuse,
    /// It waits, and the one that has waited longest is completed as
    /// [`Completion::Displaced`](super::Completion::Displaced). One that is being checked at that
    /// moment is completed by the thread that checks it.
    ///
    /// The newcomer waits before the other one leaves, so that none is displaced for one that is
    /// then refused: for a moment, each call in progress may exceed the limit by one.
    DisplaceOldest,
}

/// A limit, and the policy when it is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) operations: u64,
    pub(super) overload: Overload,
}

/// The limits of a purgatory.
///
/// A limit that refuses counts an operation before it is taken in, and never exceeds its number. A
/// limit that displaces counts an operation once nothing can refuse it any more. An operation by
/// which the count exceeds the limit displaces one other, unless the count has gone down by then.
pub(super) struct Capacity {
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
/// Keys are told apart by their 64-bit hash. Two that share one share a limit, which among a million
/// keys happens once in thirty million purgatories.
struct PerKey {
    limit: Limit,
    stripes: Box<[CachePadded<Mutex<Counts>>]>,
}

type Counts = HashMap<u64, u64, FxBuildHasher>;

/// Locks that the counts are spread over.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

impl Capacity {
    pub(super) fn new(total: Option<Limit>, per_key: Option<Limit>, max_keys: usize) -> Self {
        let total = total.map(|limit| Total { limit, count: AtomicU64::new(0) });
        let per_key = per_key.map(|limit| {
            let stripe = |_| CachePadded::new(Mutex::new(Counts::default()));
            PerKey { limit, stripes: (0..STRIPES).map(stripe).collect() }
        });
        Self { total, per_key, max_keys, refused: AtomicU64::new(0) }
    }

    /// Whether the operations of a key are limited.
    #[inline]
    pub(super) const fn is_per_key(&self) -> bool {
        self.per_key.is_some()
    }

    /// Whether the order in which operations came has to be known.
    pub(super) fn needs_order(&self) -> bool {
        self.total.as_ref().is_some_and(|total| total.limit.displaces())
    }

    /// Which limits count an operation before it is taken in.
    #[inline]
    pub(super) fn counted_first(&self) -> Counted {
        Counted {
            in_total: !self.total.as_ref().is_some_and(|total| total.limit.displaces()),
            on_keys: !self.per_key.as_ref().is_some_and(|per_key| per_key.limit.displaces()),
        }
    }

    /// Takes a permit, unless all are taken and this limit refuses.
    #[inline]
    pub(super) fn admit(&self) -> bool {
        let Some(Total { limit, count }) = &self.total else { return true };
        if limit.displaces() {
            return true;
        }
        let take = |count| (count < limit.operations).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Counts an operation in all cases. Returns whether it is one too many.
    #[inline]
    pub(super) fn exceed(&self) -> bool {
        let Some(Total { limit, count }) = &self.total else { return false };
        count.fetch_add(1, Ordering::Relaxed) >= limit.operations
    }

    /// Whether more operations wait than the limit allows.
    pub(super) fn is_exceeded(&self) -> bool {
        self.total
            .as_ref()
            .is_some_and(|Total { limit, count }| count.load(Ordering::Relaxed) > limit.operations)
    }

    /// Gives a permit back.
    #[inline]
    pub(super) fn release(&self) {
        if let Some(Total { count, .. }) = &self.total {
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert_ne!(before, 0, "a permit was released twice");
        }
    }

    /// Takes a permit of each of some keys, unless all of one of them are taken and this limit
    /// refuses; then it takes none.
    pub(super) fn admit_to_keys(&self, hashes: &[u64]) -> bool {
        let Some(per_key) = &self.per_key else { return true };
        if per_key.limit.displaces() {
            return true;
        }
        for (taken, &hash) in hashes.iter().enumerate() {
            if per_key.add(hash) {
                hashes[..=taken].iter().for_each(|&hash| self.release_from_key(hash));
                return false;
            }
        }
        true
    }

    /// Counts an operation on a key in all cases. Returns whether it is one too many.
    pub(super) fn exceed_key(&self, hash: u64) -> bool {
        self.per_key.as_ref().is_some_and(|per_key| per_key.add(hash))
    }

    /// Whether more operations wait on a key than its limit allows.
    pub(super) fn is_key_exceeded(&self, hash: u64) -> bool {
        self.per_key.as_ref().is_some_and(|per_key| {
            let counts = per_key.stripe(hash).lock();
            counts.get(&hash).is_some_and(|count| *count > per_key.limit.operations)
        })
    }

    /// Gives back a permit of a key.
    pub(super) fn release_from_key(&self, hash: u64) {
        let Some(per_key) = &self.per_key else { return };
        let mut counts = per_key.stripe(hash).lock();
        let Entry::Occupied(mut entry) = counts.entry(hash) else {
            debug_assert!(false, "a permit was released twice");
            return;
        };
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }

    /// Counts an operation that was refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Gives back the memory of keys that no operation watches. *O*(capacity), a part at a time under
    /// its lock.
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
    /// Counts an operation on a key. Returns whether it is one too many.
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
