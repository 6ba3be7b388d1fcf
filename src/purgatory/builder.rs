//! The settings of a purgatory, and the error for a setting that is out of range.

use std::{error::Error, fmt, hash::Hash, io, marker::PhantomData, sync::Arc, time::Duration};

use foldhash::{SharedSeed, quality::SeedableRandomState};

use super::{
    Purgatory, SharedPurgatory,
    limits::{Limit, Limits, Overload},
    operation::DelayedOperation,
};
use crate::timer::{TimerBuildError, TimerBuilder};

/// Default number of shards for each thread that the machine runs at once. A thread that ends
/// operations holds the lock of their shard. With more shards than threads, a thread that registers
/// an operation finds a shard whose lock is free. See
/// `docs/decisions/0007-operations-live-with-their-thread.md`.
const SHARDS_PER_THREAD: usize = 8;

/// Settings of a [`Purgatory`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Completion, DelayedOperation, Overload, Purgatory, Timer};
///
/// struct Fetch;
///
/// impl DelayedOperation<u32> for Fetch {
///     fn complete(self, _: Completion) {}
/// }
///
/// let purgatory = Purgatory::<u32, Fetch>::builder()
///     .timer(Timer::builder().tick(Duration::from_micros(500)).name("fetches"))
///     .max_delay(Duration::from_secs(300))
///     .max_delayed(1_000_000, Overload::Refuse)
///     .max_delayed_per_key(1_000, Overload::DisplaceOldest)
///     .build()?;
/// # drop(purgatory);
/// # Ok::<_, delaywheel::PurgatoryBuildError>(())
/// ```
#[must_use]
pub struct PurgatoryBuilder<K, O> {
    timer: TimerBuilder,
    max_delay: Duration,
    max_delayed: Option<Limit>,
    max_delayed_per_key: Option<Limit>,
    max_keys: usize,
    hasher: SeedableRandomState,
    types: PhantomData<fn() -> (K, O)>,
}

impl<K, O> PurgatoryBuilder<K, O> {
    pub(super) fn new() -> Self {
        let timer = TimerBuilder::default().name("purgatory");
        Self {
            timer,
            max_delay: Duration::MAX,
            max_delayed: None,
            max_delayed_per_key: None,
            max_keys: 1024,
            hasher: SeedableRandomState::random(),
            types: PhantomData,
        }
    }

    /// Sets the builder of the purgatory's timer: its tick, its clock, and the threads that expire
    /// operations. Default: the settings of a new timer, with "purgatory" as the prefix of the
    /// names of its threads. A builder that is passed here keeps its own prefix, which is "timer"
    /// unless the caller has set another one.
    ///
    /// With a [`Reaper`](crate::Reaper), one thread serves many purgatories.
    ///
    /// A purgatory has as many shards as its timer. The default is eight shards for each thread
    /// that the machine runs at once, at most 64, and one with a manual clock;
    /// [`TimerBuilder::shards`] sets another number. If the timer is full, so is the purgatory.
    ///
    /// Before its first operation, a purgatory of 64 shards takes 390 KB, one of 16 shards 105 KB,
    /// and one of a single shard 77 KB. Each shard takes 4 KB more once an operation has ended in
    /// it. A program with dozens of purgatories may want few shards in each.
    pub fn timer(self, timer: TimerBuilder) -> Self {
        Self { timer, ..self }
    }

    /// Sets the longest time that an operation waits. The purgatory shortens longer delays to this
    /// time. Default: no limit.
    pub fn max_delay(self, delay: Duration) -> Self {
        Self { max_delay: delay, ..self }
    }

    /// Sets how many operations may wait at once, and the policy when the limit is reached.
    /// Default: no limit.
    ///
    /// With [`Overload::Refuse`], the number never exceeds the limit. The limit does not count
    /// expired operations whose completion waits for a busy executor.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Overload, Purgatory};
    ///
    /// struct Print(&'static str);
    ///
    /// impl DelayedOperation<u32> for Print {
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!((self.0, completion), ("older", Completion::Displaced));
    ///     }
    /// }
    ///
    /// let builder = Purgatory::builder().max_delayed(1, Overload::DisplaceOldest);
    /// let purgatory = builder.build()?;
    /// purgatory.watch(Print("older"), [1], Duration::from_secs(9))?;
    /// purgatory.watch(Print("newer"), [2], Duration::from_secs(9))?;
    /// assert_eq!((purgatory.stats().delayed, purgatory.stats().displaced), (1, 1));
    /// # std::mem::forget(purgatory);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn max_delayed(self, operations: u64, overload: Overload) -> Self {
        Self { max_delayed: Some(Limit { operations, overload }), ..self }
    }

    /// Sets how many operations may wait at once on any one key, and the policy when the limit is
    /// reached. Default: no limit.
    ///
    /// With this limit, a call takes another short lock for each key of an operation. An operation
    /// takes a permit for each of its conditions on a key, for example one for the events of the
    /// key and one for a threshold. Keys with equal hashes share a limit, so `Hash` should include
    /// all parts of a key. [`Overload::DisplaceOldest`] displaces the operation that has watched
    /// the events of the key longest. If all operations on the key wait for its value, this policy
    /// displaces the one with the greatest threshold.
    pub fn max_delayed_per_key(self, operations: u64, overload: Overload) -> Self {
        Self { max_delayed_per_key: Some(Limit { operations, overload }), ..self }
    }

    /// Sets the number of keys and thresholds that one operation may wait on. Default: 1024.
    ///
    /// The purgatory holds a lock while it puts an operation on the lists of its keys, and while it
    /// removes up to 32 operations. It refuses an operation with more keys as [`TooManyKeys`]. So a
    /// client that names a million keys does not delay other clients.
    ///
    /// [`TooManyKeys`]: super::WatchErrorKind::TooManyKeys
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
    ///     fn complete(self, _: Completion) {}
    /// }
    ///
    /// let purgatory = Purgatory::builder().max_keys(2).build()?;
    /// let minute = Duration::from_secs(60);
    /// purgatory.watch(Fetch, [1, 2, 2, 1], minute)?;
    /// let refused = purgatory.watch(Fetch, [1, 2, 3], minute);
    /// assert_eq!(refused.unwrap_err().kind(), WatchErrorKind::TooManyKeys);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn max_keys(self, keys: usize) -> Self {
        Self { max_keys: keys, ..self }
    }

    /// Sets the seed of the hash of keys, for our own benchmarks, which must repeat exactly. The
    /// default is a random seed, so that it is hard to choose keys whose hashes collide.
    #[doc(hidden)]
    pub fn hash_seed(self, seed: u64) -> Self {
        Self { hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()), ..self }
    }

    /// Builds the purgatory. Starts no thread: the first operation that waits starts the threads of
    /// the timer.
    ///
    /// # Errors
    ///
    /// [`PurgatoryBuildError`] if a limit is 0, or a setting of the timer is out of range.
    pub fn build(self) -> Result<Purgatory<K, O>, PurgatoryBuildError>
    where
        K: Send + 'static,
        O: DelayedOperation<K>,
    {
        if self.max_delayed.is_some_and(|limit| limit.operations == 0) {
            return Err(PurgatoryBuildError::NothingDelayed);
        }
        if self.max_delayed_per_key.is_some_and(|limit| limit.operations == 0) {
            return Err(PurgatoryBuildError::NothingDelayedPerKey);
        }
        if self.max_keys == 0 {
            return Err(PurgatoryBuildError::NoKeys);
        }
        let mut timer = self.timer.shards_per_thread(SHARDS_PER_THREAD);
        let total = match self.max_delayed {
            Some(Limit { operations, overload: Overload::DisplaceOldest }) => Some(operations),
            Some(Limit { operations, .. }) => {
                let limit = timer.max_pending.map_or(operations, |limit| limit.min(operations));
                timer = timer.max_pending(limit);
                None
            }
            None => None,
        };
        let limits = Limits::new(total, self.max_delayed_per_key, self.max_keys);
        let shared = SharedPurgatory::new(timer, self.max_delay, limits, self.hasher)?;
        let shared = Arc::new(shared);
        let weak = Arc::downgrade(&shared);
        let end = move || drop(weak.upgrade().inspect(|shared| shared.shut_down()));
        shared.timer.on_clock_panic.get_or_init(|| Arc::new(end));
        Ok(Purgatory { shared })
    }
}

impl<K, O> fmt::Debug for PurgatoryBuilder<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PurgatoryBuilder").field("timer", &self.timer).finish_non_exhaustive()
    }
}

/// Error of [`PurgatoryBuilder::build`](crate::PurgatoryBuilder::build): a setting is out of range.
///
/// # Examples
///
/// ```
/// use delaywheel::{Completion, DelayedOperation, Overload, Purgatory, PurgatoryBuildError};
///
/// struct Fetch;
///
/// impl DelayedOperation<u32> for Fetch {
///     fn complete(self, _: Completion) {}
/// }
///
/// let builder = Purgatory::<u32, Fetch>::builder().max_delayed(0, Overload::Refuse);
/// let refused = builder.build().unwrap_err();
/// assert_eq!(refused, PurgatoryBuildError::NothingDelayed);
/// assert_eq!(refused.to_string(), "limit on waiting operations is 0");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PurgatoryBuildError {
    /// [`max_delayed`](crate::PurgatoryBuilder::max_delayed) is 0.
    NothingDelayed,
    /// [`max_delayed_per_key`](crate::PurgatoryBuilder::max_delayed_per_key) is 0.
    NothingDelayedPerKey,
    /// [`max_keys`](crate::PurgatoryBuilder::max_keys) is 0.
    NoKeys,
    /// A setting of the timer is out of range.
    Timer(TimerBuildError),
}

impl fmt::Display for PurgatoryBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingDelayed => "limit on waiting operations is 0",
            Self::NothingDelayedPerKey => "limit on waiting operations per key is 0",
            Self::NoKeys => "limit on keys per operation is 0",
            Self::Timer(_) => "cannot build the timer of the purgatory",
        })
    }
}

impl Error for PurgatoryBuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Timer(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TimerBuildError> for PurgatoryBuildError {
    fn from(error: TimerBuildError) -> Self {
        Self::Timer(error)
    }
}

/// The kind is [`InvalidInput`](io::ErrorKind::InvalidInput).
impl From<PurgatoryBuildError> for io::Error {
    fn from(error: PurgatoryBuildError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
