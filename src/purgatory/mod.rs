//! The purgatory: requests that wait for an event or for their delay, and are answered once.
//!
//! It is what brokers call a delayed operation purgatory. A fetch waits until there is enough data,
//! a write until its replicas have it; both for a while only. Whoever changes the state that they
//! wait for announces it by key, and the operations that can complete by then do.
//!
//! # Promises
//!
//! - *Exactly once.* An operation is a value, and completing it consumes it. Whatever comes first
//!   ends it: an event, its delay, a cancellation, a shutdown.
//! - *No missed event.* An event that happens before, during or after
//!   [`try_complete_else_watch`](Purgatory::try_complete_else_watch) completes the operation without
//!   waiting for its delay. An operation is checked, put on its lists, and checked again.
//! - *Nothing lingers.* An operation that has ended is off all lists and out of the timer before it
//!   is told so. There is no purge. A key that nobody watches is forgotten.
//! - *No lock over user code*, except for `Eq` and `Borrow` of keys. Checks and completions may take
//!   locks, and call the purgatory. Two threads that complete each other's operations cannot
//!   deadlock in here.
//! - *Never early.* An operation expires when its delay is over, and less than a tick plus
//!   scheduling delay later. One that a thread is checking expires when the checks of its batch are
//!   over, which are at most 32. Neither completions nor further events prolong that.
//! - *Bounded holds.* A lock is held for the keys of 32 operations, or for 256 steps along a list.
//!   An operation has at most [`max_keys`](PurgatoryBuilder::max_keys) keys.
//!   [`shrink`](Purgatory::shrink) holds a lock for longer.
//! - *Bounded stack.* A completion that another completion causes on the same thread runs when that
//!   one has returned, however long the chain is.
//!
//! # Implementation
//!
//! Threads are spread over shards, as in a [`Timer`](crate::Timer), and an operation is wholly in
//! the shard of the thread that brought it: itself, its place on the lists of its keys, its timeout.
//! So it waits and ends under one short lock each, however many keys it has, and threads do not
//! contend for keys that they share. An event looks into every shard, past those whose
//! [`filter`] rules the key out. Operations are checked outside of the lock, in the hands of the
//! one thread that took them; see [`shard`].

mod admission;
mod advancing;
mod builder;
mod capacity;
mod checking;
mod checks;
mod core;
mod deferral;
mod demand;
mod ending;
mod error;
mod filter;
mod guard;
mod lists;
#[cfg(all(test, loom))]
mod models;
mod operation;
mod rule;
mod shard;
mod slab;
mod stats;
mod table;
mod walk;
mod watch;
mod watching;

use std::{
    borrow::Borrow,
    convert::Infallible,
    fmt,
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
    vec::Vec,
};

pub use self::{
    builder::PurgatoryBuilder,
    capacity::Overload,
    checks::Checks,
    error::{PurgatoryBuildError, WatchError, WatchErrorKind},
    guard::OperationGuard,
    operation::{Completion, DelayedOperation},
    stats::PurgatoryStats,
    watch::{OperationKey, Watch, Watched},
};
use self::{
    core::Core,
    demand::{Demand, Threshold},
    rule::Rule,
};
use crate::TimerStats;

/// Where operations wait for events on keys, each for at most its delay.
///
/// `K` is what events happen to; `O` an operation; `R` why one is cancelled. Comparing keys, hashing
/// and dropping them must not panic.
///
/// Clones are the same purgatory. When the last one is dropped, the purgatory shuts down and completes
/// the waiting operations as [`Completion::ShutDown`]: every request is answered. The
/// [module](self#promises) lists what a purgatory promises.
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
/// let watched = purgatory.try_complete_else_watch(fetch, [partition], Duration::from_secs(30))?;
/// assert!(!watched.is_completed());
///
/// // An append changes the state first, and then says so.
/// log_end.store(101, Ordering::Release);
/// assert_eq!(purgatory.check_and_complete(&partition), 1);
/// assert_eq!(answers.recv(), Ok(Completion::Satisfied));
/// assert_eq!((purgatory.watched(), purgatory.delayed()), (0, 0));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Purgatory<K, O, R = ()>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    owner: Arc<Owner<K, O, R>>,
}

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn from_core(core: Core<K, O, R>) -> Self {
        Self { owner: Arc::new(Owner(Arc::new(core))) }
    }

    fn core(&self) -> &Core<K, O, R> {
        &self.owner.0
    }

    fn downgrade(&self) -> Weak<Core<K, O, R>> {
        Arc::downgrade(&self.owner.0)
    }

    /// Completes an operation if it can; else has it wait for events on its keys, until `delay` is
    /// over.
    ///
    /// A key that is there twice is watched once. Without any key the operation waits for its delay
    /// or its handle. A delay of zero expires at once, if the operation cannot complete; one that is
    /// longer than the clock can count, [`Duration::MAX`] for one, never does.
    ///
    /// # Errors
    ///
    /// [`WatchError`] hands the operation back if a limit is reached, it has too many keys, the
    /// purgatory is shut down, or a thread of the timer cannot be started, which the first operation
    /// that waits does.
    ///
    /// # Complexity
    ///
    /// *O*(keys), under one lock that is held twice. [`max_keys`](PurgatoryBuilder::max_keys) bounds
    /// their number.
    #[inline]
    pub fn try_complete_else_watch(
        &self,
        operation: O,
        keys: impl IntoIterator<Item = K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let core = self.core();
        let mut demand = Demand::new(core.capacity.max_keys);
        for key in keys {
            let is_not_added = demand.add_events(core.hash(&key), key);
            core.catch(|| drop(is_not_added));
            if demand.is_too_large {
                break;
            }
        }
        core.watch(operation, demand, delay)
    }

    /// Like [`try_complete_else_watch`](Self::try_complete_else_watch), for an operation that is
    /// satisfied when *one* of its conditions holds: a threshold is reached, or its check says so
    /// after an event on one of its other keys. Without any watch it waits for its delay or its
    /// handle.
    ///
    /// # Examples
    ///
    /// A read that wants a record past the log's end, on either of two partitions:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, Watch};
    ///
    /// struct Read;
    ///
    /// impl DelayedOperation<u32> for Read {
    ///     fn has_reached(&mut self, _partition: &u32, _offset: u64) -> bool {
    ///         false // A look at the log.
    ///     }
    ///
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::Satisfied);
    ///     }
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// let watches = [Watch::Threshold(3, 100), Watch::Threshold(4, 200)];
    /// purgatory.watch_any(Read, watches, Duration::from_secs(30))?;
    /// assert_eq!(purgatory.advance(&3, 99), 0);
    /// assert_eq!(purgatory.advance(&4, 250), 1);
    /// assert_eq!(purgatory.watched(), 0);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `try_complete_else_watch`.
    ///
    /// # Complexity
    ///
    /// *O*(keys + thresholds log n), with n watchers of a value.
    pub fn watch_any(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        self.watch(operation, watches, false, delay)
    }

    /// Like [`try_complete_else_watch`](Self::try_complete_else_watch), for an operation that is
    /// satisfied when *all* of its conditions hold: every threshold is reached, and, if it watches
    /// the events of other keys, its check says so. Without any watch the check is its only
    /// condition: it completes at once, or waits for its delay or its handle.
    ///
    /// # Examples
    ///
    /// A write that waits until two partitions have been replicated up to its offsets:
    ///
    /// ```
    /// use std::{collections::HashMap, sync::{Arc, Mutex}, time::Duration};
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, Watch};
    ///
    /// /// The high watermark of each partition.
    /// type Replicated = Arc<Mutex<HashMap<u32, u64>>>;
    ///
    /// struct Produce(Replicated);
    ///
    /// impl DelayedOperation<u32> for Produce {
    ///     fn has_reached(&mut self, partition: &u32, offset: u64) -> bool {
    ///         self.0.lock().unwrap().get(partition).is_some_and(|&at| at >= offset)
    ///     }
    ///
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::Satisfied);
    ///     }
    /// }
    ///
    /// let replicated = Replicated::default();
    /// let purgatory = Purgatory::new();
    /// let watches = [Watch::Threshold(3, 100), Watch::Threshold(4, 200)];
    /// let produce = Produce(Arc::clone(&replicated));
    /// purgatory.watch_all(produce, watches, Duration::from_secs(30))?;
    ///
    /// replicated.lock().unwrap().insert(3, 150);
    /// assert_eq!(purgatory.advance(&3, 150), 0);
    /// replicated.lock().unwrap().insert(4, 200);
    /// assert_eq!(purgatory.advance(&4, 200), 1);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `try_complete_else_watch`.
    ///
    /// # Complexity
    ///
    /// *O*(keys + thresholds log n), with n watchers of a value.
    pub fn watch_all(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        self.watch(operation, watches, true, delay)
    }

    fn watch(
        &self,
        operation: O,
        watches: impl IntoIterator<Item = Watch<K>>,
        is_all: bool,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>>
    where
        K: Clone,
    {
        let core = self.core();
        let mut demand = Demand::new(core.capacity.max_keys);
        for watch in watches {
            let hash = core.hash(watch.key());
            match watch {
                Watch::Events(key) => {
                    let is_not_added = demand.add_events(hash, key);
                    core.catch(|| drop(is_not_added));
                }
                Watch::Threshold(key, at) => {
                    let threshold = Threshold { hash, asked: key.clone(), key, at };
                    let is_not_added = demand.add_threshold(threshold);
                    core.catch(|| drop(is_not_added));
                }
            }
            if demand.is_too_large {
                break;
            }
        }
        let is_checked = !demand.events.is_empty() || demand.thresholds.is_empty();
        demand.rule = Rule::new(is_all, is_checked);
        core.watch(operation, demand, delay)
    }

    /// Completes the operations that watch a key and can complete, after something happened to it.
    /// Returns how many those were.
    ///
    /// Operations that another thread is checking are checked again by that thread; they do not
    /// count here, nor do those that end in another way meanwhile.
    ///
    /// # Complexity
    ///
    /// *O*(shards), and a check for each operation that watches the key.
    #[inline]
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.core().check_key(key)
    }

    /// Like [`check_and_complete`](Self::check_and_complete) for several keys. An operation that
    /// watches several of them is checked once. [`checks`](Self::checks), whose example shows such
    /// an event, makes the checks a few at a time.
    pub fn check_and_complete_all<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        self.core().check_keys(keys)
    }

    /// Begins the checks after something happened to some keys, to be made a few at a time.
    #[must_use = "no check is made until it is run"]
    pub fn checks<'a, Q>(&'a self, keys: impl IntoIterator<Item = &'a Q>) -> Checks<'a, K, O, R, Q>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        Checks::new(self.core(), keys)
    }

    /// Tells that the value of a key has reached `value`, and ends the operations that waited for
    /// that or less, in the order of what they waited for. Returns how many completed.
    ///
    /// The purgatory does not remember values. Like an event, an advance changes what
    /// [`DelayedOperation::has_reached`] looks at first.
    ///
    /// One for which a check is a condition too ends when that has been made, which is before the
    /// others. Operations that watch the key's events are not checked: an append that is both calls
    /// [`check_and_complete`](Self::check_and_complete) too.
    ///
    /// # Complexity
    ///
    /// *O*(shards + c log n) if c of n complete.
    pub fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.core().advance(key, value)
    }

    /// Cancels every operation that watches a key, which has moved away for one. Returns how many
    /// those were.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        R: Default,
    {
        self.core().cancel_key(key, &R::default)
    }

    /// Cancels every operation that watches a key, and tells each the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, PurgatoryBuilder};
    ///
    /// struct Fetch;
    ///
    /// impl DelayedOperation<u32, &'static str> for Fetch {
    ///     fn try_complete(&mut self) -> bool {
    ///         false
    ///     }
    ///
    ///     fn complete(self, completion: Completion<&'static str>) {
    ///         assert_eq!(completion, Completion::Cancelled("moved"));
    ///     }
    /// }
    ///
    /// let purgatory = PurgatoryBuilder::new().build::<u32, Fetch, &'static str>()?;
    /// purgatory.try_complete_else_watch(Fetch, [3], Duration::from_secs(30))?;
    /// assert_eq!(purgatory.cancel_for_key_with(&3, &"moved"), 1);
    /// assert_eq!(purgatory.stats().panicked, 0);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn cancel_for_key_with<Q>(&self, key: &Q, reason: &R) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        R: Clone,
    {
        self.core().cancel_key(key, &|| reason.clone())
    }

    /// Completes an operation as satisfied, without a check. Returns whether it was waiting.
    ///
    /// If another thread is checking it, that thread completes it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, Watched};
    ///
    /// struct Fetch;
    ///
    /// impl DelayedOperation<u32> for Fetch {
    ///     fn try_complete(&mut self) -> bool {
    ///         false
    ///     }
    ///
    ///     fn complete(self, _: Completion) {}
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// let watched = purgatory.try_complete_else_watch(Fetch, [3], Duration::from_secs(30))?;
    /// let Watched::Waiting(fetch) = watched else { panic!("nothing is there to be fetched") };
    /// assert!(purgatory.is_waiting(fetch));
    /// assert!(purgatory.complete(fetch));
    /// assert!(!purgatory.cancel(fetch), "it has ended");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn complete(&self, key: OperationKey) -> bool {
        self.core().claim(key, Completion::Satisfied)
    }

    /// Cancels an operation. Returns whether it was waiting.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn cancel(&self, key: OperationKey) -> bool
    where
        R: Default,
    {
        self.cancel_with(key, R::default())
    }

    /// Cancels an operation, and tells it the reason. Returns whether it was waiting.
    ///
    /// Reasons are of the type that the purgatory was built for; see the example of
    /// [`cancel_for_key_with`](Self::cancel_for_key_with).
    pub fn cancel_with(&self, key: OperationKey, reason: R) -> bool {
        self.core().claim(key, Completion::Cancelled(reason))
    }

    /// Returns a guard that cancels an operation when it is dropped.
    pub fn guard(&self, key: OperationKey) -> OperationGuard<K, O, R>
    where
        R: Default,
    {
        self.guard_with(key, R::default())
    }

    /// Returns a guard that cancels an operation when it is dropped, and tells it the reason.
    pub fn guard_with(&self, key: OperationKey, reason: R) -> OperationGuard<K, O, R> {
        OperationGuard::new(self.downgrade(), key, reason)
    }

    /// Returns whether an operation has not ended. One that is being checked may have been told how
    /// it ends, and does not wait any more.
    #[must_use]
    pub fn is_waiting(&self, key: OperationKey) -> bool {
        self.core().is_waiting(key)
    }

    /// Returns the number of watchers: an operation counts once for each key that it waits on.
    /// *O*(shards).
    #[must_use]
    pub fn watched(&self) -> u64 {
        self.core().counts().1
    }

    /// Returns the number of operations that wait. *O*(shards).
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.core().counts().0
    }

    /// Has the reaper look at the clock and expire what is due, after the clock has jumped ahead.
    ///
    /// In full at [`Timer::wake`](crate::Timer::wake).
    pub fn wake(&self) {
        self.core().timer.wake();
    }

    /// Returns what the purgatory holds and has done so far. *O*(shards).
    #[must_use]
    pub fn stats(&self) -> PurgatoryStats {
        self.core().stats()
    }

    /// Returns what the timer of the purgatory has done so far: lateness, wake-ups.
    #[must_use]
    pub fn timer_stats(&self) -> TimerStats {
        self.core().timer.stats()
    }

    /// Gives back memory of operations that have ended. *O*(capacity), a shard at a time under its
    /// lock.
    ///
    /// A shard that held more than a thousand operations gives it back by itself when nobody waits.
    pub fn shrink(&self) {
        self.core().shrink();
    }

    /// Shuts the purgatory down: it refuses new operations, and returns those that wait. The caller
    /// answers them.
    ///
    /// An operation that another thread is checking is completed by that thread as
    /// [`Completion::ShutDown`], and is not among them. All of them count as
    /// [shut down](PurgatoryStats::shut_down). May be called from within an operation. The second
    /// call returns nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory, WatchErrorKind};
    ///
    /// struct Fetch;
    ///
    /// impl DelayedOperation<u32> for Fetch {
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::ShutDown);
    ///     }
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// purgatory.try_complete_else_watch(Fetch, [3], Duration::from_secs(30))?;
    /// for fetch in purgatory.shutdown() {
    ///     fetch.complete(Completion::ShutDown);
    /// }
    /// let late = purgatory.try_complete_else_watch(Fetch, [3], Duration::from_secs(30));
    /// assert_eq!(late.unwrap_err().kind(), WatchErrorKind::ShutDown);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use = "the operations have not been answered"]
    pub fn shutdown(&self) -> Vec<O> {
        let mut operations = Vec::new();
        self.core().shut_down(|operation| operations.push(operation));
        operations
    }
}

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    /// Makes a purgatory with the default settings. Starts no thread yet.
    ///
    /// For other settings, or reasons of a type of your own, see [`PurgatoryBuilder`].
    #[must_use]
    pub fn new() -> Self {
        match PurgatoryBuilder::new().build() {
            Ok(purgatory) => purgatory,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }
}

impl Purgatory<(), Infallible> {
    /// Returns a builder with the default settings. The types are those of the purgatory that it
    /// builds.
    pub fn builder() -> PurgatoryBuilder {
        PurgatoryBuilder::new()
    }
}

impl<K, O, R> Clone for Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<K, O> Default for Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K, O, R> fmt::Debug for Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (delayed, watched) = self.core().counts();
        f.debug_struct("Purgatory")
            .field("delayed", &delayed)
            .field("watched", &watched)
            .finish_non_exhaustive()
    }
}

/// The users' part of a purgatory: when the last one is dropped, it shuts down.
struct Owner<K, O, R>(Arc<Core<K, O, R>>)
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static;

impl<K, O, R> Drop for Owner<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn drop(&mut self) {
        let core = &self.0;
        core.shut_down(|operation| core.complete(operation, Completion::ShutDown));
    }
}
