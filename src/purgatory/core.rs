//! The shards of a purgatory, and what is done across them.
//!
//! # Locks
//!
//! A shard has one lock. It is held for the keys of at most 32 operations, or for 256 steps along a
//! list. No method of an operation runs under it, nor does the clone of a reason or the drop of a key.
//! `Eq` and `Borrow` of keys do, as in any map. So they must not call the purgatory, nor wait for a
//! lock that is held while the purgatory is called.
//!
//! Two other locks exist if there are limits. A thread that displaces an operation holds `displacing`
//! while it takes the locks of the shards, one after the other. A count of the operations on a key
//! has a lock, which is taken under that of a shard. So the order is: displacing, shard, count. No
//! thread holds two shards, nor a shard and one of the timer's locks. A check may wait for a user's
//! lock, also if a thread holds that while it announces an event.

use std::{
    boxed::Box,
    hash::{BuildHasher, Hash},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crossbeam::utils::CachePadded;
use foldhash::fast::RandomState;

use super::{
    capacity::Capacity,
    deferral,
    lists::Leavings,
    operation::{Completion, DelayedOperation},
    shard::{Announced, Batch, Finished, Finishes, InHand, Shard},
    stats::PurgatoryStats,
    watch::OperationKey,
};
use crate::{
    Key, ValueTimer,
    sync::{AtomicU64, Mutex, Ordering},
};

/// Steps along a list between two holds of a lock.
pub(super) const STEPS_PER_HOLD: u32 = 256;

/// Everything of a purgatory but its users' handles.
pub(super) struct Core<K, O, R> {
    pub(super) shards: Box<[CachePadded<Shard<K, O, R>>]>,
    hasher: RandomState,
    pub(super) timer: ValueTimer<OperationKey>,
    pub(super) max_delay: Duration,
    pub(super) capacity: Capacity,
    /// Held while an operation is chosen to be displaced.
    pub(super) displacing: Mutex<()>,
    /// Operations that never waited, by shard.
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
        capacity: Capacity,
    ) -> Self {
        let (count, _) = timer.shards();
        Self {
            shards: (0..count).map(|_| CachePadded::new(Shard::new())).collect(),
            hasher: RandomState::default(),
            timer,
            max_delay,
            capacity,
            displacing: Mutex::new(()),
            at_once: (0..count).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            panicked: Arc::new(AtomicU64::new(0)),
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
            (u64::from(contents.waiting()), contents.lists.watching())
        });
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    pub(super) fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::new();
        for shard in &self.shards {
            let contents = shard.contents.lock();
            stats.delayed += u64::from(contents.waiting());
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
        self.capacity.shrink();
    }

    #[inline]
    pub(super) fn leavings<'a>(&'a self, shard: &'a Shard<K, O, R>) -> Leavings<'a, K> {
        Leavings::new(&shard.filter, &self.capacity)
    }

    /// Drops keys that nobody watches any more.
    #[inline]
    pub(super) fn dispose(&self, leavings: Leavings<'_, K>) {
        if leavings.is_empty() {
            return;
        }
        for key in leavings {
            self.catch(|| drop(key));
        }
    }

    /// Checks operations that are out, brings them back, and tells those that have ended. Then it
    /// checks those again for which an event was announced meanwhile, until there are none. Returns
    /// how many completed by a check.
    ///
    /// In between, all wait again: nobody is told late because events go on.
    #[inline]
    pub(super) fn check_out(&self, number: usize, batch: &mut Batch<O, R>) -> usize {
        let shard = &*self.shards[number];
        let mut completed = 0;
        loop {
            for in_hand in batch.iter_mut() {
                in_hand.is_satisfied =
                    in_hand.operation.as_mut().is_some_and(|operation| self.check(operation));
            }
            let now = self.timer.elapsed();
            let mut leavings = self.leavings(shard);
            let mut announced = Announced::new();
            {
                let mut contents = shard.contents.lock();
                for in_hand in batch.iter_mut() {
                    contents.bring_back(in_hand, now, &mut announced, &mut leavings);
                }
            }
            self.dispose(leavings);
            completed += self.settle(number, batch);
            if announced.is_empty() {
                return completed;
            }
            shard.contents.lock().take_out_again(&announced, batch);
        }
    }

    /// Tells operations that they have ended, and empties the batch. Returns how many of them did by
    /// a check.
    #[inline]
    fn settle(&self, number: usize, batch: &mut Batch<O, R>) -> usize {
        for (_, timeout) in batch.iter().filter_map(|in_hand| in_hand.end.as_ref()) {
            self.cancel_timeout(number, *timeout);
        }
        let mut completed = 0;
        for InHand { operation, end, is_satisfied, .. } in batch.drain(..) {
            if let (Some(operation), Some((completion, _))) = (operation, end) {
                completed += usize::from(is_satisfied);
                self.complete(operation, completion);
            }
        }
        completed
    }

    /// Tells operations that they have ended, when all of them have left the timer.
    #[inline]
    pub(super) fn conclude_all(&self, number: usize, finishes: Finishes<O, R>) -> usize {
        let count = finishes.len();
        finishes.iter().for_each(|finished| self.cancel_timeout(number, finished.timeout));
        for Finished { operation, completion, .. } in finishes {
            self.complete(operation, completion);
        }
        count
    }

    /// Tells an operation that it has ended, when it has left the timer.
    #[inline]
    pub(super) fn conclude(&self, number: usize, finished: Finished<O, R>) {
        self.cancel_timeout(number, finished.timeout);
        self.complete(finished.operation, finished.completion);
    }

    /// Has an operation that has ended leave the timer.
    #[inline]
    pub(super) fn cancel_timeout(&self, number: usize, timeout: Option<Key>) {
        if let Some(timeout) = timeout {
            self.timer.cancel_in(number, timeout);
        }
    }

    #[inline]
    pub(super) fn check(&self, operation: &mut O) -> bool {
        self.catch(|| operation.try_complete())
    }

    /// Completes an operation: at once, or when the completion has returned in which this is called.
    #[inline]
    pub(super) fn complete(&self, operation: O, completion: Completion<R>) {
        deferral::complete(&self.panicked, operation, completion);
    }

    /// Runs user code. A panic in it is counted, and stands for the default.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        catch(&self.panicked, user_code)
    }
}

/// Runs user code. A panic in it is counted, and stands for the default. Its payload is user code
/// too: the drop of that may panic.
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
