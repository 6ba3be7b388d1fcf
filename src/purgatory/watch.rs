//! Registration: an operation begins to wait between two checks, or is refused.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    io, mem,
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    Purgatory, SharedPurgatory,
    calls::run_checks,
    conditions::{Conditions, Effect, Watches},
    limits::LimitOf,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    place::{Back, Out, Place},
    shard::{Claim, release},
};
use crate::{
    panics::{self, Panic},
    sync::{Ordering, fence},
    ticks::Nanos,
    timer::{Refused, ScheduleErrorKind},
    wheel::Key,
};

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    /// Completes an operation if it can complete. Otherwise the operation waits until its
    /// conditions hold, for at most `delay`. This is Kafka's `tryCompleteElseWatch`.
    ///
    /// `watches` are keys, or a [`Watch`](super::Watch) of conditions. An operation on plain keys
    /// waits until its check returns `true` after an event on one of them. A repeated key counts
    /// once. Without a key, the operation waits until its delay ends or a caller ends it by its
    /// [`OperationKey`]. A delay of zero expires at once, if the operation cannot complete. A delay
    /// longer than the clock can count, such as [`Duration::MAX`], never expires.
    ///
    /// An operation may watch 1024 keys, unless
    /// [`max_keys`](super::PurgatoryBuilder::max_keys) sets another number.
    ///
    /// # Examples
    ///
    /// A write that waits until two partitions have been replicated up to its offsets:
    ///
    /// ```
    /// use std::{collections::HashMap, sync::{Arc, Mutex}, time::Duration};
    ///
    /// use delaywheel::{Completion, Condition, DelayedOperation, Purgatory, Watch};
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
    /// let watch = Watch::all([Condition::Threshold(3, 100), Condition::Threshold(4, 200)]);
    /// purgatory.watch(Produce(Arc::clone(&replicated)), watch, Duration::from_secs(30))?;
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
    /// [`WatchError`] hands the operation back if a limit is reached, if the operation has too many
    /// keys, or if the purgatory is shut down. An operation that can complete at once completes
    /// even then, unless it has too many conditions of a `Watch`. The first operation that waits
    /// starts the threads of the timer. It is also refused if a thread cannot start.
    ///
    /// # Complexity
    ///
    /// *O*(conditions log n) with n watchers of a key, under one lock that is held twice.
    #[doc(alias = "try_complete_else_watch")]
    #[inline]
    pub fn watch(
        &self,
        operation: O,
        watches: impl Watches<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let mut conditions = Conditions::new();
        if let Err(panic) = panics::catch(|| self.collect(watches, &mut conditions)) {
            let shards = &self.shared.timer.shards;
            let mut shard = shards.lock(shards.current());
            shard.state_mut().lists.stats.count(Completion::Cancelled, Nanos::ZERO);
            release(shard);
            self.give_up(operation, &mut conditions, panic);
        }
        self.watch_conditions(operation, &mut conditions, delay)
    }

    /// Ends a watch in which a key has panicked, and continues the panic.
    #[cold]
    fn give_up(&self, operation: O, conditions: &mut Conditions<K>, panic: Panic) -> ! {
        let calls = &self.shared.calls;
        conditions.clear(|key| calls.catch(|| drop(key)));
        calls.complete(operation, Completion::Cancelled);
        run_checks();
        panic.resume()
    }

    /// Collects the conditions of an operation that is about to wait.
    #[inline]
    pub(crate) fn collect(&self, watches: impl Watches<K>, conditions: &mut Conditions<K>) {
        let SharedPurgatory { limits, hasher, calls, .. } = &*self.shared;
        let discard = |key| calls.catch(|| drop(key));
        conditions.collect(watches, limits.max_keys, |key| hasher.hash_one(key), discard);
    }

    /// Completes an operation if it can complete. Otherwise registers it.
    #[inline]
    pub(crate) fn watch_conditions(
        &self,
        mut operation: O,
        conditions: &mut Conditions<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let SharedPurgatory { timer, limits, calls, at_once, .. } = &*self.shared;
        // The conditions that were left out may not hold, so the others decide nothing.
        let is_checked = !conditions.is_too_large || conditions.is_plain;
        let watched = if is_checked && self.can_complete(&mut operation, conditions, None) {
            at_once[timer.shards.current()].fetch_add(1, Ordering::Relaxed);
            calls.complete(operation, Completion::Satisfied);
            Ok(Watched::Completed)
        } else if conditions.is_too_large {
            Err(WatchError::new(WatchErrorKind::TooManyKeys, operation))
        } else {
            self.register(operation, conditions, delay)
        };
        conditions.clear(|key| calls.catch(|| drop(key)));
        run_checks();
        watched.inspect_err(|_| _ = limits.refused.fetch_add(1, Ordering::Relaxed))
    }

    /// Checks an operation, and its thresholds: before it waits and, with its shard and its key,
    /// after it was added to its lists. Returns whether it can complete.
    #[inline]
    fn can_complete(
        &self,
        operation: &mut O,
        conditions: &mut Conditions<K>,
        waiting: Option<(usize, Key)>,
    ) -> bool {
        let effect = if conditions.thresholds.is_empty() {
            conditions.rule.effect()
        } else {
            self.ask(operation, conditions, waiting)
        };
        match effect {
            Effect::Nothing => false,
            Effect::Check => self.shared.calls.check(|| operation.try_complete()),
            Effect::Satisfied => true,
        }
    }

    /// Asks an operation which of its thresholds are reached. Removes these or, for one that is on
    /// its lists, all. Returns the effect.
    #[cold]
    fn ask(
        &self,
        operation: &mut O,
        conditions: &mut Conditions<K>,
        waiting: Option<(usize, Key)>,
    ) -> Effect {
        let (calls, mut reached) = (&self.shared.calls, SmallVec::<[u64; 4]>::new());
        for (threshold, index) in mem::take(&mut conditions.thresholds).into_iter().zip(0..) {
            let is_reached = calls.check(|| operation.has_reached(&threshold.key, threshold.at));
            if is_reached {
                reached.push(index);
            }
            if is_reached || waiting.is_some() {
                calls.catch(|| drop(threshold.key));
                calls.catch(|| drop(threshold.listed));
            } else {
                conditions.thresholds.push(threshold);
            }
        }
        match waiting {
            None => conditions.rule.at_first(conditions.thresholds.len(), reached.len()),
            Some((shard, key)) => {
                self.shared.timer.shards.lock(shard).state_mut().on_found(key, &reached)
            }
        }
    }

    /// Adds an operation and its timeout, and checks it once more. On an error it holds no permits.
    fn register(
        &self,
        operation: O,
        conditions: &mut Conditions<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let SharedPurgatory { timer, limits, max_delay, number, .. } = &*self.shared;
        let shards = &timer.shards;
        let read = shards.clock.read();
        let deadline = shards.clock.deadline(read, delay.min(*max_delay));
        if let Err(refused) = timer.ensure_started(()) {
            return Err(refused.map(|()| operation));
        }
        let has_limit = limits.per_key.is_some();
        let hashes = if has_limit { conditions.hashes() } else { SmallVec::new() };
        if has_limit && !limits.admit(&hashes) {
            return Err(WatchError::new(WatchErrorKind::KeyFull, operation));
        }
        let index = shards.unlocked();
        let mut shard = shards.lock(index);
        let place = Place::new(read.elapsed, conditions.rule);
        let key = match shard.insert(read.now, deadline, place) {
            Ok(key) => key,
            Err(refused) => {
                drop(shard);
                limits.give_back(&hashes);
                return Err(refused.map(|_| operation));
            }
        };
        if let Err(panic) = panics::catch(|| shard.state_mut().watch(key, conditions)) {
            shard.state_mut().end(key, Completion::Cancelled, read.elapsed);
            release(shard);
            limits.give_back(&conditions.hashes());
            self.give_up(operation, conditions, panic);
        }
        release(shard);
        timer.help_if_late(read);
        // The filter has the reason for this fence.
        fence(Ordering::SeqCst);
        self.begin_to_wait(index, key, operation, conditions, read.elapsed);
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        let shard = index as u32;
        Ok(Watched::Waiting(OperationKey { key, shard, purgatory: *number }))
    }

    /// Checks an operation that was just registered, and brings it back. It almost always waits
    /// from then on. Otherwise it is checked again, or it has ended. If it exceeds a limit, it
    /// displaces another operation.
    #[inline]
    fn begin_to_wait(
        &self,
        index: usize,
        key: Key,
        mut operation: O,
        conditions: &mut Conditions<K>,
        now: Nanos,
    ) {
        let SharedPurgatory { limits, calls, .. } = &*self.shared;
        let can_complete = self.can_complete(&mut operation, conditions, Some((index, key)));
        let mut out = Out { can_complete, ..Out::new(key, operation) };
        let mut shard = self.shared.timer.shards.lock(index);
        let is_counted = !can_complete && limits.displace;
        let exceeded = is_counted.then(|| shard.state_mut().count(key));
        shard.state_mut().bring_back(&mut out, now);
        release(shard);
        match (out.back, out.operation.take()) {
            (Back::Ended(completion), Some(operation)) => calls.complete(operation, completion),
            // First, since one that ends now exceeds no limit.
            (Back::IsAnnounced, _) => _ = self.check_announced(index, &mut [out]),
            _ => {}
        }
        if let Some(exceeded) = exceeded {
            exceeded.into_iter().for_each(|limit| self.displace(limit, (index, key), now));
        }
    }

    /// Displaces the operation of the least rank of all shards, if a limit is exceeded. That is the
    /// newcomer only if it was registered before the other one. Searches again if the operation
    /// found has already ended.
    fn displace(&self, limit: LimitOf, newcomer: (usize, Key), now: Nanos) {
        // One displacement at a time: two threads that see one excess would displace twice.
        let SharedPurgatory { displacing, timer, limits, calls, .. } = &*self.shared;
        let turn = displacing.lock();
        while limits.is_exceeded(limit) {
            let oldest = |shard, except| {
                let (rank, key) = timer.shards.lock(shard).state().oldest(limit, except)?;
                Some((rank, shard, key))
            };
            let except = |shard| (shard == newcomer.0).then_some(newcomer.1);
            let others = (0..timer.shards.count()).filter_map(|shard| oldest(shard, except(shard)));
            let Some(other @ (rank @ (is_by_threshold, _), ..)) = others.min() else { return };
            let own = oldest(newcomer.0, None).filter(|(own, ..)| !is_by_threshold && *own < rank);
            let (_, shard, key) = own.unwrap_or(other);
            let mut shard = timer.shards.lock(shard);
            let claim = shard.state_mut().claim(key, Completion::Displaced, now);
            // The drop of keys is user code.
            let dropped = shard.unlock();
            if let Claim::Late = claim {
                continue;
            }
            drop((turn, dropped));
            if let Claim::Taken(operation) = claim {
                calls.complete(operation, Completion::Displaced);
            }
            return;
        }
    }
}

/// Error of a purgatory that refuses an operation. Holds the operation.
///
/// The operation could not complete at that moment, or has too many keys for a check.
/// [`kind`](Self::kind) returns the reason, and [`into_value`](Self::into_value) the operation. The
/// error is `Send` and `Sync` if the operation is `Send`, so `?` works into `anyhow::Error`,
/// `Box<dyn Error + Send + Sync>` and [`io::Error`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory, WatchErrorKind};
///
/// struct Never;
///
/// impl DelayedOperation<u32> for Never {
///     fn complete(self, _: Completion) {}
/// }
///
/// let purgatory = Purgatory::<u32, Never>::new();
/// assert!(purgatory.shutdown().is_empty());
/// let error =
///     purgatory.watch(Never, [1], Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.kind(), WatchErrorKind::ShutDown);
/// let Never = error.into_value();
/// ```
pub type WatchError<O> = Refused<O, WatchErrorKind>;

/// Reason of a [`WatchError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchErrorKind {
    /// [`max_delayed`](crate::PurgatoryBuilder::max_delayed) operations wait, or the purgatory's
    /// timer is full.
    Full,
    /// One of the keys has [`max_delayed_per_key`](crate::PurgatoryBuilder::max_delayed_per_key)
    /// operations.
    KeyFull,
    /// The operation waits on more keys than [`max_keys`](crate::PurgatoryBuilder::max_keys)
    /// allows.
    TooManyKeys,
    /// The purgatory is shut down.
    ShutDown,
    /// The operating system refused to start a thread of the timer. The cause is the
    /// [`source`](std::error::Error::source) of the error. A later call tries again.
    NoThread,
}

impl From<ScheduleErrorKind> for WatchErrorKind {
    fn from(kind: ScheduleErrorKind) -> Self {
        match kind {
            ScheduleErrorKind::Full => Self::Full,
            ScheduleErrorKind::ShutDown => Self::ShutDown,
            ScheduleErrorKind::NoThread => Self::NoThread,
        }
    }
}

impl fmt::Display for WatchErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "purgatory is full",
            Self::KeyFull => "too many operations wait on a key",
            Self::TooManyKeys => "operation waits on too many keys",
            Self::ShutDown => "purgatory is shut down",
            Self::NoThread => "cannot start a thread of the timer",
        })
    }
}

/// A limit is [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), and a purgatory that is shut down
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
impl From<WatchErrorKind> for io::ErrorKind {
    fn from(kind: WatchErrorKind) -> Self {
        match kind {
            WatchErrorKind::ShutDown => Self::BrokenPipe,
            WatchErrorKind::NoThread => Self::Other,
            _ => Self::QuotaExceeded,
        }
    }
}
