//! How many operations may wait, in all and on one key; exact, also under concurrency.

use std::{
    boxed::Box,
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU64,
};

use crossbeam::utils::CachePadded;
use rustc_hash::FxBuildHasher;

use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    timer::Limit,
};

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
    /// The one that has waited longest is completed as
    /// [`Completion::Displaced`](super::Completion::Displaced), and it takes the place of that. Those
    /// that are being checked at that moment are passed over, up to 64 of them.
    DisplaceOldest,
}

/// The limits of a purgatory.
pub(super) struct Capacity {
    total: Limit,
    pub(super) on_full: Overload,
    per_key: Option<PerKey>,
    pub(super) on_key_full: Overload,
    refused: AtomicU64,
}

/// Counts of waiting operations for each key.
///
/// Keys are told apart by their 64-bit hash. Two that share one share a limit, which among a million
/// keys happens once in thirty million purgatories.
struct PerKey {
    limit: u64,
    stripes: Box<[CachePadded<Mutex<Counts>>]>,
}

type Counts = HashMap<u64, u64, FxBuildHasher>;

/// Locks that the counts are spread over.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

impl Capacity {
    pub(super) fn new(
        (total, on_full): (Option<NonZeroU64>, Overload),
        (per_key, on_key_full): (Option<NonZeroU64>, Overload),
    ) -> Self {
        let per_key = per_key.map(|limit| {
            let stripe = |_| CachePadded::new(Mutex::new(Counts::default()));
            PerKey { limit: limit.get(), stripes: (0..STRIPES).map(stripe).collect() }
        });
        let refused = AtomicU64::new(0);
        Self { total: Limit::new(total), on_full, per_key, on_key_full, refused }
    }

    /// Whether the operations of a key are limited.
    #[inline]
    pub(super) const fn is_per_key(&self) -> bool {
        self.per_key.is_some()
    }

    /// Whether the order in which operations came has to be known.
    pub(super) fn needs_order(&self) -> bool {
        self.total.is_limited() && self.on_full == Overload::DisplaceOldest
    }

    /// Takes a place, if one is free.
    #[inline]
    pub(super) fn admit(&self) -> bool {
        self.total.admit()
    }

    /// Gives a place back.
    #[inline]
    pub(super) fn release(&self) {
        self.total.release(1);
    }

    /// Takes a place among those of a key, if one is free.
    pub(super) fn admit_to_key(&self, hash: u64) -> bool {
        let Some(per_key) = &self.per_key else { return true };
        let mut counts = per_key.stripe(hash).lock();
        let count = counts.entry(hash).or_insert(0);
        let is_admitted = *count < per_key.limit;
        *count += u64::from(is_admitted);
        is_admitted
    }

    /// Gives back a place among those of a key.
    pub(super) fn release_from_key(&self, hash: u64) {
        let Some(per_key) = &self.per_key else { return };
        if let Entry::Occupied(mut entry) = per_key.stripe(hash).lock().entry(hash) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Counts an operation that was refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl PerKey {
    fn stripe(&self, hash: u64) -> &Mutex<Counts> {
        #[expect(clippy::cast_possible_truncation, reason = "any of the bits will do")]
        let bits = hash as usize;
        &self.stripes[bits % STRIPES]
    }
}
