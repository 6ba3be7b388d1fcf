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
    boxed::Box,
    hash::{BuildHasher, Hash},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crossbeam::utils::CachePadded;
use foldhash::fast::RandomState;

use super::{
    capacity::Capacity,
    lists::{Leaving, Leavings},
    operation::{Completion, DelayedOperation},
    shard::{Batch, Finished, Finishes, InHand, Shard},
    slab::Index,
    stats::PurgatoryStats,
};
use crate::{
    Key, ValueTimer,
    sync::{AtomicU64, Ordering},
};

/// Steps along a list between two holds of a lock.
pub(super) const STEPS_PER_HOLD: u32 = 256;

/// The name of an operation: its shard, its place there, and a number that tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    serial: u64,
    index: Index,
    shard: u32,
}

impl Ticket {
    #[inline]
    pub(super) fn new(shard: usize, (index, serial): (Index, u64)) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        Self { serial, index, shard: shard as u32 }
    }

    pub(super) const fn shard(self) -> usize {
        self.shard as usize
    }

    pub(super) const fn place(self) -> (Index, u64) {
        (self.index, self.serial)
    }
}

/// Everything of a purgatory but its users' handles.
pub(super) struct Core<K, O, R> {
    pub(super) shards: Box<[CachePadded<Shard<K, O, R>>]>,
    hasher: RandomState,
    pub(super) timer: ValueTimer<Ticket>,
    pub(super) max_delay: Duration,
    pub(super) capacity: Capacity,
    /// Operations that never waited, by shard.
    pub(super) at_once: Box<[CachePadded<AtomicU64>]>,
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
            hasher: RandomState::default(),
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
            stats.keys += u64::from(contents.lists.keys());
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
        self.timer.shrink();
    }

    #[inline]
    pub(super) fn leavings<'a>(&self, shard: &'a Shard<K, O, R>) -> Leavings<'a, K> {
        Leavings::new(&shard.filter, self.capacity.is_per_key())
    }

    /// Gives back the places of watchers that left, and drops keys.
    #[inline]
    pub(super) fn dispose(&self, leavings: Leavings<'_, K>) {
        if leavings.is_empty() {
            return;
        }
        for leaving in leavings {
            match leaving {
                Leaving::Key(key) => self.catch(|| drop(key)),
                Leaving::Watcher(hash) => self.capacity.release_from_key(hash),
            }
        }
    }

    /// Checks operations that are out until none is to be checked again, and only then tells those
    /// that have ended: nobody waits, in hand, for what others do when they complete. Returns how
    /// many completed by a check.
    #[inline]
    pub(super) fn check_out(&self, number: usize, batch: &mut Batch<O, R>) -> usize {
        let shard = &*self.shards[number];
        let mut is_again = true;
        while is_again {
            for in_hand in batch.iter_mut().filter(|in_hand| in_hand.is_out()) {
                in_hand.is_satisfied =
                    in_hand.operation.as_mut().is_some_and(|operation| self.check(operation));
            }
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            is_again = false;
            {
                let mut contents = shard.contents.lock();
                for in_hand in batch.iter_mut().filter(|in_hand| in_hand.is_out()) {
                    contents.bring_back(in_hand, now, &mut leavings);
                    is_again |= in_hand.is_out();
                }
            }
            self.dispose(leavings);
        }
        self.settle(number, batch)
    }

    /// Tells operations that they have ended. Returns how many of them did by a check.
    #[inline]
    fn settle(&self, number: usize, batch: &mut Batch<O, R>) -> usize {
        batch.retain(|in_hand| in_hand.end.is_some());
        for (_, timeout) in batch.iter().filter_map(|in_hand| in_hand.end.as_ref()) {
            self.retire(number, *timeout);
        }
        let mut completed = 0;
        for InHand { operation, end, is_satisfied, .. } in batch.drain(..) {
            completed += usize::from(is_satisfied);
            if let (Some(operation), Some((completion, _))) = (operation, end) {
                self.complete(operation, completion);
            }
        }
        completed
    }

    /// Tells operations that they have ended, when all of them have left the timer and their places.
    #[inline]
    pub(super) fn conclude_all(&self, number: usize, finishes: Finishes<O, R>) -> usize {
        let count = finishes.len();
        finishes.iter().for_each(|finished| self.retire(number, finished.timeout));
        for Finished { operation, completion, .. } in finishes {
            self.complete(operation, completion);
        }
        count
    }

    /// Tells an operation that it has ended, when it has left the timer and its place.
    #[inline]
    pub(super) fn conclude(&self, number: usize, finished: Finished<O, R>) {
        self.retire(number, finished.timeout);
        self.complete(finished.operation, finished.completion);
    }

    /// Has an operation that has ended leave the timer and its place.
    #[inline]
    pub(super) fn retire(&self, number: usize, timeout: Option<Key>) {
        if let Some(timeout) = timeout {
            self.timer.cancel_in(number, timeout);
        }
        self.capacity.release();
    }

    #[inline]
    pub(super) fn check(&self, operation: &mut O) -> bool {
        self.catch(|| operation.try_complete())
    }

    #[inline]
    pub(super) fn complete(&self, operation: O, completion: Completion<R>) {
        self.catch(|| operation.complete(completion));
    }

    /// Runs user code. A panic in it is counted, and stands for the default. Its payload is user
    /// code too: the drop of that may panic.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        catch_unwind(AssertUnwindSafe(user_code)).unwrap_or_else(|payload| {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(second);
            }
            V::default()
        })
    }
}
