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
    conditions::{Conditions, Effect, Needs, Watches},
    limits::LimitOf,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    pending::{Out, Pending},
    shard::Claim,
};
use crate::{
    panics::{self, Panic},
    sync::{Ordering, fence},
    ticks::Nanos,
    timer::{Refused, ScheduleErrorKind, ShardState as _},
    wheel::Key,
};

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> Purgatory<K, O> {
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
    /// starts the threads of the timer. If a thread cannot start, the operation is refused as well.
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
        self.register(operation, delay, |conditions| self.collect(watches, conditions))
    }

    /// Collects the conditions of an operation.
    #[inline]
    pub(crate) fn collect(&self, watches: impl Watches<K>, conditions: &mut Conditions<K>) {
        conditions.collect(
            watches,
            self.shared.limits.max_keys,
            |key| self.shared.hasher.hash_one(key),
            |key| self.shared.calls.catch(|| drop(key)),
        );
    }

    /// Completes an operation if it can complete. Otherwise it begins to wait, or is refused. If a
    /// key, the iterator of keys or the clock panics, the operation completes as cancelled, and the
    /// panic continues.
    #[inline]
    pub(crate) fn register(
        &self,
        operation: O,
        delay: Duration,
        collect: impl FnOnce(&mut Conditions<K>),
    ) -> Result<Watched, WatchError<O>> {
        let mut new = Newcomer {
            operation: Some(operation),
            conditions: Conditions::new(),
            is_admitted: false,
            key: None,
        };
        let result = panics::catch(|| {
            collect(&mut new.conditions);
            self.begin_to_wait(&mut new, delay)
        });
        if !matches!(result, Ok(Ok(Watched::Waiting(_)))) {
            self.release_keys(&mut new);
        }
        let watched = match (result, new.operation) {
            (Ok(Ok(watched)), _) => Ok(watched),
            (Ok(Err(refused)), Some(operation)) => {
                self.shared.limits.refused.fetch_add(1, Ordering::Relaxed);
                Err(refused.map(|()| operation))
            }
            (Err(panic), operation) => self.give_up(operation, new.key, panic),
            (Ok(Err(_)), None) => unreachable!("a refused operation is handed back"),
        };
        run_checks();
        watched
    }

    /// Checks an operation, adds it to its lists, and checks it once more. Then the operation
    /// waits, unless it has ended meanwhile.
    #[inline]
    fn begin_to_wait(
        &self,
        new: &mut Newcomer<K, O>,
        delay: Duration,
    ) -> Result<Watched, WatchError<()>> {
        let SharedPurgatory { timer, limits, calls, max_delay, .. } = &*self.shared;
        let shards = &timer.shards;
        // Conditions of a `Watch` that were left out may not hold, so the others decide nothing.
        let is_checked = !new.conditions.is_too_large || new.conditions.rule.needs == Needs::Check;
        if is_checked && self.can_complete(new) {
            self.shared.at_once[shards.current()].fetch_add(1, Ordering::Relaxed);
            if let Some(operation) = new.operation.take() {
                calls.complete(operation, Completion::Satisfied);
            }
            return Ok(Watched::Completed);
        }
        if new.conditions.is_too_large {
            return Err(WatchError::new(WatchErrorKind::TooManyKeys, ()));
        }
        let read = shards.clock.read();
        let deadline = shards.clock.deadline(read, delay.min(*max_delay));
        timer.ensure_started(()).map_err(without_value)?;
        if limits.per_key.is_some() {
            new.is_admitted = limits.admit(&new.conditions.hashes());
            if !new.is_admitted {
                return Err(WatchError::new(WatchErrorKind::KeyFull, ()));
            }
        }
        // The first hold adds the timeout and the watchers of the operation, which is out until the
        // second hold.
        let index = shards.likely_free();
        let mut shard = shards.lock(index);
        let pending = Pending::new(read.elapsed, new.conditions.rule);
        let key = shard.insert(read.now, deadline, pending).map_err(without_value)?;
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        let named = OperationKey { key, shard: index as u32, purgatory: self.shared.number };
        new.key = Some(named);
        shard.state_mut().add_to_lists(key, &mut new.conditions);
        shard.unlock();
        // The protocol of the filter needs this fence; see `keys`.
        fence(Ordering::SeqCst);
        let end = self.can_complete(new).then_some(Completion::Satisfied);
        let mut out = [Out { end, ..Out::new(key, new.operation.take()) }];
        if self.bring_back(index, &mut out).1 {
            self.check_announced(index, &mut out);
        }
        if limits.displace {
            self.displace(named);
        }
        // Last, because help may let other threads run: events would wait for an operation that is
        // out.
        timer.help_if_late(read);
        Ok(Watched::Waiting(named))
    }

    /// Checks a new operation, and its thresholds. Returns whether it can complete.
    #[inline]
    fn can_complete(&self, new: &mut Newcomer<K, O>) -> bool {
        let Newcomer { operation: Some(operation), conditions, key, .. } = new else {
            return false;
        };
        let effect = if conditions.thresholds.is_empty() {
            conditions.rule.effect()
        } else {
            self.ask(operation, conditions, *key)
        };
        match effect {
            Effect::Nothing => false,
            Effect::Check => self.shared.calls.check(|| operation.try_complete()),
            Effect::Satisfied => true,
        }
    }

    /// Asks an operation which of its thresholds are reached. In the first check, the reached
    /// thresholds leave `conditions`. In the second check, when the operation is on its lists, all
    /// thresholds leave `conditions`, and the shard notes the reached ones. Returns the effect.
    #[cold]
    fn ask(
        &self,
        operation: &mut O,
        conditions: &mut Conditions<K>,
        key: Option<OperationKey>,
    ) -> Effect {
        let (calls, mut reached) = (&self.shared.calls, SmallVec::<[u64; 4]>::new());
        for (threshold, index) in mem::take(&mut conditions.thresholds).into_iter().zip(0..) {
            let is_reached = calls.check(|| operation.has_reached(&threshold.key, threshold.at));
            if is_reached {
                reached.push(index);
            }
            if is_reached || key.is_some() {
                calls.catch(|| drop(threshold.key));
                calls.catch(|| drop(threshold.listed));
            } else {
                conditions.thresholds.push(threshold);
            }
        }
        match key {
            None => conditions.rule.at_first(conditions.thresholds.len(), reached.len()),
            Some(OperationKey { shard, key, .. }) => {
                let mut shard = self.shared.timer.shards.lock(shard as usize);
                shard.state_mut().on_found(key, &reached)
            }
        }
    }

    /// Drops the keys that are on no list, and releases their permits.
    fn release_keys(&self, new: &mut Newcomer<K, O>) {
        let SharedPurgatory { limits, calls, .. } = &*self.shared;
        if new.is_admitted {
            limits.release_keys(&new.conditions.hashes());
        }
        new.conditions.clear(|key| calls.catch(|| drop(key)));
    }

    /// Ends an operation whose registration has panicked, and continues the panic.
    #[cold]
    fn give_up(&self, operation: Option<O>, key: Option<OperationKey>, panic: Panic) -> ! {
        let SharedPurgatory { timer, calls, .. } = &*self.shared;
        match (operation, key) {
            (Some(operation), Some(OperationKey { shard, key, .. })) => {
                let end = Some(Completion::Cancelled);
                let out = Out { end, ..Out::new(key, Some(operation)) };
                self.bring_back(shard as usize, &mut [out]);
            }
            (Some(operation), None) => {
                let mut shard = timer.shards.lock(timer.shards.current());
                shard.state_mut().lists.stats.count(Completion::Cancelled, Nanos::ZERO);
                shard.unlock();
                calls.complete(operation, Completion::Cancelled);
            }
            // `displace` has ended it.
            (None, _) => {}
        }
        run_checks();
        panic.resume()
    }

    /// Counts a new operation in the limits that displace, and displaces an operation for each
    /// exceeded limit.
    ///
    /// If the clock panics, cancels the newcomer, but still displaces: the newcomer may have been
    /// displaced before, so that its cancellation makes no room. Then continues the panic.
    #[cold]
    fn displace(&self, newcomer: OperationKey) {
        let SharedPurgatory { displacing, timer, limits, .. } = &*self.shared;
        let (shards, mut broken) = (&timer.shards, None);
        let exceeded = shards.lock(newcomer.shard as usize).state_mut().count(newcomer.key);
        for limit in exceeded {
            let present = panics::catch(|| shards.clock.elapsed()).unwrap_or_else(|panic| {
                broken = Some(panic);
                self.end(newcomer, Completion::Cancelled);
                self.shared.now()
            });
            let (mut claim, mut dropped) = (Claim::Late, None);
            // One displacement at a time: two threads that see one excess would displace twice.
            let only_one = displacing.lock();
            // A selected operation may end before this thread locks its shard again.
            while matches!(claim, Claim::Late) && limits.is_exceeded(limit) {
                let Some((index, key)) = self.select(limit, newcomer, present) else { break };
                let mut shard = shards.lock(index);
                claim = shard.state_mut().claim(key, Completion::Displaced, present);
                // The drop of keys is user code, so it follows the release of both locks.
                dropped = shard.state_mut().take_dropped();
            }
            drop((only_one, dropped));
            self.complete_claimed(claim, Completion::Displaced);
        }
        if let Some(panic) = broken {
            panic.resume();
        }
    }

    /// Selects the operation that a limit displaces, the one with the least rank. Returns its shard
    /// and its key there.
    ///
    /// Selects the newcomer only if the next operation was registered after it. If the time of that
    /// registration is after `now`, the clock has stepped back, and the newcomer only seems older.
    fn select(&self, limit: LimitOf, new: OperationKey, now: Nanos) -> Option<(usize, Key)> {
        let (shards, own) = (&self.shared.timer.shards, new.shard as usize);
        let oldest = |index, except| {
            let (rank, key) = shards.lock(index).state().oldest(limit, except)?;
            Some((rank, index, key))
        };
        let others = (0..shards.count())
            .filter_map(|index| oldest(index, (index == own).then_some(new.key)));
        let next @ (rank @ (is_by_threshold, since), ..) = others.min()?;
        let may_be_new = !is_by_threshold && since <= now.get();
        let first = oldest(own, None).filter(|(first, ..)| may_be_new && *first < rank);
        let (_, index, key) = first.unwrap_or(next);
        Some((index, key))
    }
}

/// Drops the value of an error of the timer.
fn without_value<T>(refused: Refused<T, ScheduleErrorKind>) -> WatchError<()> {
    refused.map(drop)
}

/// An operation that begins to wait. It is kept here while user code runs that may panic.
struct Newcomer<K, O> {
    /// `None` once it has completed or waits.
    operation: Option<O>,
    conditions: Conditions<K>,
    /// Whether it has permits of its keys.
    is_admitted: bool,
    /// Its key, once it is in a shard.
    key: Option<OperationKey>,
}

/// Error of a purgatory that refuses an operation. Holds the operation.
///
/// The operation could not complete at that moment, or has too many conditions of a
/// [`Watch`](super::Watch), and was not checked. [`kind`](Self::kind) returns the reason, and
/// [`into_value`](Self::into_value) the operation. The error is `Send` and `Sync` if the operation
/// is `Send`, so `?` works into `anyhow::Error`, `Box<dyn Error + Send + Sync>` and [`io::Error`].
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

/// A limit becomes [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), a shutdown
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe), and a thread that cannot start
/// [`Other`](io::ErrorKind::Other).
impl From<WatchErrorKind> for io::ErrorKind {
    fn from(kind: WatchErrorKind) -> Self {
        match kind {
            WatchErrorKind::ShutDown => Self::BrokenPipe,
            WatchErrorKind::NoThread => Self::Other,
            _ => Self::QuotaExceeded,
        }
    }
}
