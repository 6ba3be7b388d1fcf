//! The purgatory: each request waits for an event or for its delay, and is answered once.
//!
//! Brokers call this a delayed operation purgatory. A fetch waits until there is enough data, and a
//! write until its replicas have it, each for a limited time. A thread changes the state, and then
//! announces the event by its key. This completes the operations whose conditions hold.
//!
//! # Promises
//!
//! - *Exactly once.* An operation is a value, and completing it consumes it. An event, its delay, a
//!   cancellation or a shutdown ends it, whichever comes first.
//! - *No missed event.* An event that happens before, during or after
//!   [`watch`](Purgatory::watch) completes the operation
//!   without waiting for its delay. The purgatory checks an operation, puts it on its lists, and
//!   checks it again.
//! - *Nothing lingers.* An ended operation leaves all lists and the timer before it is completed.
//!   There is no purge. A key without watchers takes no memory.
//! - *No lock over user code*, except for `Eq` and `Borrow` of keys, which must not panic. Checks
//!   and completions may take locks, and call the purgatory. Two threads that complete each other's
//!   operations do not deadlock in the purgatory.
//! - *Never early.* An operation expires after its delay, less than a tick plus scheduling delay
//!   later. If a thread is checking the operation, it expires after that batch of at most 32
//!   checks. Neither completions nor further events delay this.
//! - *Bounded holds.* A thread holds a lock for the keys of 32 operations, and a shutdown for 256
//!   slots. A late reaper holds it until operations have left up to 4096 lists. An operation has at
//!   most [`max_keys`](PurgatoryBuilder::max_keys) keys. [`shrink`](Purgatory::shrink) holds a lock
//!   for longer.
//! - *Bounded stack.* A completion that another completion causes on the same thread runs after
//!   that one has returned. Checks run within checks at most eight deep; further ones run when the
//!   outermost one has returned. So chains of any length end.
//!
//! # Implementation
//!
//! Threads are spread over shards, as in a [`Timer`](crate::Timer). A thread that registers an
//! operation and finds its shard locked uses a free one. The `shard` holds the operation as the
//! value of its timeout, and the `list` of each of its keys in a `table`. So a registration and an
//! end take one short lock each, for any number of keys. An event visits every shard, except those
//! whose `filter` rules the key out. A thread takes operations out of the shard to check them.

mod builder;
mod check;
mod conditions;
mod deferral;
mod end;
mod error;
mod filter;
mod limits;
mod list;
#[cfg(all(test, loom))]
mod models;
mod operation;
mod shard;
mod shared;
mod stats;
mod table;
mod watch;

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, Weak},
};

#[cfg(feature = "future")]
pub(crate) use self::conditions::Conditions;
use self::shared::SharedPurgatory;
pub use self::{
    builder::PurgatoryBuilder,
    conditions::{Condition, Watch, Watches},
    end::OperationGuard,
    error::{PurgatoryBuildError, WatchError, WatchErrorKind},
    limits::Overload,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    stats::PurgatoryStats,
};
use crate::timer::TimerStats;

/// Operations that wait for events on keys, each for at most its delay.
///
/// `K` is the type of the keys, `O` of the operations. A key must not panic when it is compared,
/// hashed or dropped.
///
/// Clones are the same purgatory. When the last clone is dropped, the purgatory shuts down and
/// completes the waiting operations as [`Completion::ShutDown`], so every request gets an answer.
/// An operation that owns a clone prevents this while it waits.
///
/// The [module](self#promises) lists the promises of a purgatory.
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
/// assert!(!watched.is_completed());
///
/// // An append changes the state first, and then announces the event.
/// log_end.store(101, Ordering::Release);
/// assert_eq!(purgatory.check_and_complete(&partition), 1);
/// assert_eq!(answers.recv(), Ok(Completion::Satisfied));
/// assert_eq!((purgatory.watched(), purgatory.delayed()), (0, 0));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    owner: Arc<Owner<K, O>>,
}

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    fn from_shared(shared: Arc<SharedPurgatory<K, O>>) -> Self {
        Self { owner: Arc::new(Owner(shared)) }
    }

    pub(crate) fn shared(&self) -> &SharedPurgatory<K, O> {
        &self.owner.0
    }

    fn downgrade(&self) -> Weak<SharedPurgatory<K, O>> {
        Arc::downgrade(&self.owner.0)
    }

    /// Returns the number of watchers: an operation counts once for each key that it waits on.
    ///
    /// # Complexity
    ///
    /// *O*(shards).
    #[must_use]
    pub fn watched(&self) -> u64 {
        self.shared().lock_each().map(|shard| shard.state().lists.watched).sum()
    }

    /// Returns the number of operations that wait.
    ///
    /// # Complexity
    ///
    /// *O*(shards).
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.shared().lock_each().map(|shard| shard.state().wheel.len() as u64).sum()
    }

    /// Makes the reaper read the clock and expire the due operations, after the clock has jumped
    /// ahead.
    ///
    /// See [`Timer::wake`](crate::Timer::wake) for details.
    pub fn wake(&self) {
        self.shared().timer.shards.unpark_reaper();
    }

    /// Returns the counts of the purgatory.
    ///
    /// # Complexity
    ///
    /// *O*(shards).
    #[must_use]
    pub fn stats(&self) -> PurgatoryStats {
        self.shared().stats()
    }

    /// Returns the counts of the purgatory's timer: lateness, wake-ups.
    #[must_use]
    pub fn timer_stats(&self) -> TimerStats {
        self.shared().timer.stats()
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
        self.shared().check_invariants();
    }

    /// Frees the memory of operations that have ended.
    ///
    /// A shard that held more than a thousand operations frees its memory, including that of their
    /// timeouts, when its last operation ends.
    ///
    /// # Complexity
    ///
    /// *O*(capacity), a shard at a time under its lock.
    pub fn shrink(&self) {
        self.shared().shrink();
    }
}

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    /// Returns a builder with the default settings.
    pub fn builder() -> PurgatoryBuilder<K, O> {
        PurgatoryBuilder::new()
    }

    /// Returns a purgatory with the default settings. Starts no thread yet.
    ///
    /// [`builder`](Self::builder) has other settings.
    #[must_use]
    pub fn new() -> Self {
        match PurgatoryBuilder::new().build() {
            Ok(purgatory) => purgatory,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }
}

impl<K, O> Clone for Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
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

impl<K, O> fmt::Debug for Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purgatory")
            .field("delayed", &self.delayed())
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}

/// The part that all clones share. Its drop shuts the purgatory down.
struct Owner<K, O>(Arc<SharedPurgatory<K, O>>)
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>;

impl<K, O> Drop for Owner<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    fn drop(&mut self) {
        self.0.shut_down_now();
    }
}
