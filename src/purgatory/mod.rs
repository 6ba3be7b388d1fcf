//! The purgatory: each request waits for an event or for its delay, and is answered once.
//!
//! Brokers call this a delayed operation purgatory. A fetch waits until there is enough data, and a
//! write until its replicas have it, each for a limited time. A thread changes the state, and then
//! announces an event on a key. This completes the operations on the key whose conditions hold.
//!
//! The [contract](crate::contract#the-purgatory) has the promises of a purgatory.
//!
//! # Implementation
//!
//! Threads are spread over shards, as in a [`Timer`](crate::Timer). A thread that registers an
//! operation and finds its own shard locked uses a shard whose lock is free. A `shard` holds its
//! operations, each as the value of its timeout, and the `lists` of the watchers of its `keys`. So
//! one lock covers all keys of an operation: a registration takes it twice, an end once. An event
//! visits every shard, except those for which a filter rules the key out. A thread takes an
//! operation out of its shard to check it.

mod builder;
mod calls;
mod check;
mod conditions;
mod end;
mod keys;
mod limits;
mod lists;
#[cfg(all(test, loom, feature = "future"))]
mod models;
mod operation;
mod pending;
mod shard;
mod stats;
mod watch;

use std::{boxed::Box, collections::BTreeMap, fmt, sync::Arc, time::Duration, vec::Vec};

use crossbeam::utils::CachePadded;
use foldhash::quality::SeedableRandomState;

#[cfg(feature = "future")]
pub(crate) use self::conditions::Conditions;
pub use self::{
    builder::{PurgatoryBuildError, PurgatoryBuilder},
    conditions::{Condition, Watch, Watches},
    end::OperationGuard,
    limits::Overload,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    stats::PurgatoryStats,
    watch::{WatchError, WatchErrorKind},
};
use self::{
    calls::Calls,
    keys::{Filter, Filters},
    limits::Limits,
    lists::Lists,
    shard::{DueOperation, PurgatoryShard},
};
use crate::{
    sync::{AtomicU64, Mutex, Ordering},
    ticks::Nanos,
    timer::{Events, ShardGuard, SharedTimer, TimerBuildError, TimerBuilder},
};

/// Operations that wait for events on keys, each for at most its delay.
///
/// `K` is the type of the keys, `O` of the operations. If a key panics when it is compared, hashed
/// or dropped, or if the clock panics, no operation is lost.
///
/// All clones share one purgatory. When the last clone is dropped, the purgatory shuts down and
/// completes the waiting operations as [`Completion::ShutDown`], so every request gets an answer.
/// An operation that owns a clone prevents this shutdown while it waits.
///
/// Hashes of keys have a random seed, which makes collisions hard to provoke. An attacker who
/// chooses keys and measures the time of calls may still find collisions. A call holds the lock of
/// a shard for a time proportional to the number of watched keys whose hashes collide. So limit the
/// operations of each client.
///
/// The [contract](crate::contract#the-purgatory) lists the promises of a purgatory.
///
/// # Examples
///
/// A fetch that waits until a partition has data:
///
/// ```
/// use std::{
///     sync::{
///         Arc,
///         atomic::{AtomicU64, Ordering},
///         mpsc,
///     },
///     time::Duration,
/// };
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory};
///
/// struct Fetch {
///     log_end: Arc<AtomicU64>,
///     from: u64,
///     answer: mpsc::Sender<Completion>,
/// }
///
/// impl DelayedOperation<u32> for Fetch {
///     fn try_complete(&mut self) -> bool {
///         self.log_end.load(Ordering::Acquire) > self.from
///     }
///
///     fn complete(self, completion: Completion) {
///         self.answer.send(completion).unwrap();
///     }
/// }
///
/// let (partition, log_end) = (3, Arc::new(AtomicU64::new(100)));
/// let (answer, answers) = mpsc::channel();
/// let fetch = Fetch { log_end: Arc::clone(&log_end), from: 100, answer };
///
/// let purgatory = Purgatory::new();
/// let watched = purgatory.watch(fetch, [partition], Duration::from_secs(30))?;
/// assert!(watched.key().is_some());
///
/// // An append changes the state first, and then announces the event.
/// log_end.store(101, Ordering::Release);
/// assert_eq!(purgatory.check_and_complete(&partition), 1);
/// assert_eq!(answers.recv(), Ok(Completion::Satisfied));
/// assert_eq!((purgatory.stats().watched, purgatory.stats().delayed), (0, 0));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Purgatory<K: Send + 'static, O: DelayedOperation<K>> {
    shared: Arc<SharedPurgatory<K, O>>,
}

impl<K: Send + 'static, O: DelayedOperation<K>> Purgatory<K, O> {
    /// Returns a builder with the default settings.
    pub fn builder() -> PurgatoryBuilder<K, O> {
        PurgatoryBuilder::new()
    }

    /// Returns a purgatory with the default settings. Starts no thread yet.
    ///
    /// [`builder`](Self::builder) has other settings.
    #[must_use]
    pub fn new() -> Self {
        let Ok(purgatory) = Self::builder().build() else {
            unreachable!("the default settings are valid")
        };
        purgatory
    }

    /// Makes the reaper read the clock and expire the due operations, after the clock has jumped
    /// ahead.
    ///
    /// See [`Timer::wake`](crate::Timer::wake) for details.
    pub fn wake(&self) {
        self.shared.timer.shards.wakeup.wake();
    }

    /// Returns the counts of the purgatory and of its timer.
    ///
    /// # Complexity
    ///
    /// *O*(shards).
    #[must_use]
    pub fn stats(&self) -> PurgatoryStats {
        let SharedPurgatory { timer, limits, calls, at_once, taken_back, .. } = &*self.shared;
        let mut stats = PurgatoryStats { timer: timer.stats(), ..PurgatoryStats::default() };
        // Loaded first: a shard counts an operation as expired before this counts it.
        let taken_back = taken_back.load(Ordering::Acquire);
        for shard in self.shared.timer.shards.lock_each() {
            let PurgatoryShard { wheel, lists, .. } = shard.state();
            stats.delayed += wheel.len() as u64;
            stats.keys += lists.keys.entries.len() as u64;
            stats.add(&lists.stats);
        }
        stats.at_once = at_once.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        stats.refused = limits.refused.load(Ordering::Relaxed);
        stats.panicked = calls.0.panics.load(Ordering::Relaxed);
        stats.expired -= taken_back;
        stats.shut_down += taken_back;
        stats
    }

    /// Checks the invariants of the purgatory, for our own tests.
    ///
    /// # Panics
    ///
    /// Panics if an invariant is broken. Other threads must not call the purgatory meanwhile.
    ///
    /// # Complexity
    ///
    /// *O*(operations and keys), a shard at a time under its lock.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let mut on_keys = BTreeMap::new();
        let mut in_total = 0;
        for mut shard in self.shared.timer.shards.lock_each() {
            shard.check_invariants();
            in_total += shard.state_mut().check_invariants(&mut on_keys);
        }
        self.shared.limits.check_invariants(in_total, &on_keys);
    }

    /// Frees the memory of operations that have ended.
    ///
    /// A shard that held more than 1024 operations frees its memory, including that of their
    /// timeouts, when its last operation ends. Before that, a shard with room for more than 2048
    /// further operations frees most memory of segments of which at most an eighth is in use. This
    /// call frees more.
    ///
    /// # Complexity
    ///
    /// *O*(capacity), a shard at a time under its lock.
    pub fn shrink(&self) {
        for mut shard in self.shared.timer.shards.lock_each() {
            let PurgatoryShard { wheel, lists, .. } = shard.state_mut();
            wheel.shrink();
            lists.keys.shrink();
            lists.groups.shrink();
        }
        self.shared.limits.shrink();
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> Clone for Purgatory<K, O> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> Default for Purgatory<K, O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> fmt::Debug for Purgatory<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purgatory").field("number", &self.shared.number).finish_non_exhaustive()
    }
}

/// The part that all clones share. Its drop shuts the purgatory down.
struct SharedPurgatory<K: Send + 'static, O: DelayedOperation<K>> {
    /// The number of this purgatory in the process.
    number: u32,
    /// Shows which shards may have watchers of a key.
    filters: Arc<Filters>,
    hasher: SeedableRandomState,
    timer: Arc<SharedTimer<PurgatoryShard<K, O>>>,
    max_delay: Duration,
    limits: Arc<Limits>,
    /// Held while a thread selects an operation to displace.
    displacing: Mutex<()>,
    /// Number of operations that completed without waiting, by shard.
    at_once: Box<[CachePadded<AtomicU64>]>,
    /// Number of expired operations that a shutdown took back before their completion began.
    taken_back: AtomicU64,
    calls: Calls,
}

impl<K: Send + 'static, O: DelayedOperation<K>> SharedPurgatory<K, O> {
    fn new(
        timer: TimerBuilder,
        max_delay: Duration,
        limits: Limits,
        hasher: SeedableRandomState,
    ) -> Result<Self, TimerBuildError> {
        static PURGATORIES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let calls = Calls(Arc::new(Events::new(timer.name.clone(), Duration::MAX)));
        let limits = Arc::new(limits);
        let mut filters = None;
        let state = |wheel, index, count| {
            let filters = filters.get_or_insert_with(|| Arc::new(Filters::new(count)));
            let filter = Filter::new(Arc::clone(filters), index);
            PurgatoryShard::new(wheel, Lists::new(filter, Arc::clone(&limits), calls.clone()))
        };
        // To complete an expired operation, the timer drops its `DueOperation`.
        let timer = timer.build_with_state(None, state, drop)?;
        let at_once = (0..timer.shards.count()).map(|_| CachePadded::default()).collect();
        Ok(Self {
            number: PURGATORIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            filters: filters.expect("a timer has a shard"),
            hasher,
            timer,
            max_delay,
            limits,
            displacing: Mutex::new(()),
            at_once,
            taken_back: AtomicU64::new(0),
            calls,
        })
    }

    /// Locks the shard of an operation; `None` for a key of another purgatory.
    #[inline]
    fn lock_of(&self, key: OperationKey) -> Option<ShardGuard<'_, PurgatoryShard<K, O>>> {
        (key.purgatory == self.number).then(|| self.timer.shards.lock(key.shard as usize))
    }

    /// Returns the time at which waits end. A call that ends operations reads the clock before each
    /// hold: the clock is user code, which must not run under the lock. If the clock panics,
    /// returns the time of the latest reading.
    #[inline]
    fn now(&self) -> Nanos {
        let clock = &self.timer.shards.clock;
        let read = self.calls.catch(|| Some(clock.elapsed()));
        read.unwrap_or_else(|| clock.ticks.until_start(clock.latest()))
    }

    /// Refuses further operations, and ends the waiting ones. Passes the ended operations to `take`
    /// after they have left the timer and the limits. Also decides the end of operations that are
    /// out, and takes back expired operations whose completion has not begun.
    fn end_all(&self, mut take: impl FnMut(&mut Vec<O>)) {
        let mut ended = Vec::new();
        self.timer.shards.lock_each().for_each(|mut shard| shard.close());
        for shard in 0..self.timer.shards.count() {
            let mut slot = Some(0);
            while let Some(start) = slot {
                let now = self.now();
                slot = self.timer.shards.lock(shard).state_mut().end_some(start, now, &mut ended);
                take(&mut ended);
            }
        }
        ended.extend(self.timer.stop(false).1.into_iter().filter_map(DueOperation::take));
        self.taken_back.fetch_add(ended.len() as u64, Ordering::Release);
        take(&mut ended);
    }

    /// Shuts down, and completes the waiting operations.
    fn shut_down(&self) {
        self.end_all(|ended| {
            let operations = ended.drain(..);
            operations.for_each(|operation| self.calls.complete(operation, Completion::ShutDown));
        });
    }
}

/// Models shut their purgatory down themselves: a drop in a model that has failed must take no
/// further step.
#[cfg(not(all(test, loom)))]
impl<K: Send + 'static, O: DelayedOperation<K>> Drop for SharedPurgatory<K, O> {
    fn drop(&mut self) {
        self.shut_down();
    }
}
