//! Registration: an operation begins to wait between two checks, or is refused.

use std::{error::Error, fmt, hash::Hash, io, mem, time::Duration};

use smallvec::SmallVec;

use super::{
    Purgatory, SharedPurgatory,
    conditions::{Conditions, Effect, Watches},
    deferral,
    filter::fence_watch,
    limits::Excess,
    operation::{Completion, DelayedOperation, OperationKey, Watched},
    place::{Back, Out, Place},
    shard::{Claim, Shard, release},
};
use crate::{error::Exclusive, sync::Ordering, ticks::Nanos, timer::ScheduleErrorKind, wheel::Key};

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
        self.shared().add(watches, &mut conditions);
        self.shared().watch(operation, &mut conditions, delay)
    }
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> SharedPurgatory<K, O> {
    /// Completes an operation if it can complete. Otherwise registers it.
    #[inline]
    pub(crate) fn watch(
        &self,
        mut operation: O,
        conditions: &mut Conditions<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        // The conditions that were left out may not hold, so the others decide nothing.
        let is_checked = !conditions.is_too_large || conditions.is_plain;
        let watched = if is_checked && self.can_complete(&mut operation, conditions) {
            self.at_once[self.timer.shards.current()].fetch_add(1, Ordering::Relaxed);
            self.complete(operation, Completion::Satisfied);
            Ok(Watched::Completed)
        } else if conditions.is_too_large {
            Err(WatchError::new(WatchErrorKind::TooManyKeys, operation))
        } else {
            self.wait(operation, conditions, delay)
        };
        deferral::run_checks();
        watched.inspect_err(|_| self.limits.refuse())
    }

    /// Returns whether an operation can complete before it waits. Removes the thresholds that are
    /// reached.
    #[inline]
    fn can_complete(&self, operation: &mut O, conditions: &mut Conditions<K>) -> bool {
        let reached =
            if conditions.thresholds.is_empty() { 0 } else { self.ask(operation, conditions) };
        match conditions.rule.at_first(conditions.thresholds.len(), reached) {
            Effect::Nothing => false,
            Effect::Check => !conditions.needs_event && self.check(operation),
            Effect::Satisfied => true,
        }
    }

    /// Asks an operation which of its thresholds are reached. Removes these, and returns their
    /// number.
    fn ask(&self, operation: &mut O, conditions: &mut Conditions<K>) -> usize {
        let count = conditions.thresholds.len();
        for threshold in mem::take(&mut conditions.thresholds) {
            if self.has_reached(operation, &threshold.key, threshold.at) {
                self.catch(|| drop(threshold));
            } else {
                conditions.thresholds.push(threshold);
            }
        }
        count - conditions.thresholds.len()
    }

    /// Adds an operation and its timeout, and checks it once more. On an error it holds no permits.
    fn wait(
        &self,
        operation: O,
        conditions: &mut Conditions<K>,
        delay: Duration,
    ) -> Result<Watched, WatchError<O>> {
        let shards = &self.timer.shards;
        let read = shards.clock().read();
        let deadline = shards.clock().deadline(read, delay.min(self.max_delay));
        if let Err(cause) = self.timer.ensure_started() {
            return Err(WatchError::no_thread(cause, operation));
        }
        let hashes =
            if self.limits.is_per_key() { conditions.hashes() } else { SmallVec::default() };
        if self.limits.is_per_key() && !self.limits.admit(&hashes) {
            return Err(WatchError::new(WatchErrorKind::KeyFull, operation));
        }
        let index = shards.unlocked();
        let mut shard = self.lock(index);
        let waiting = Place::new(read.elapsed, conditions.rule);
        let key = match shard.insert(read.now, deadline, waiting) {
            Ok(key) => key,
            Err(refused) => {
                drop(shard);
                self.limits.give_back(&hashes);
                let kind = match refused.kind() {
                    ScheduleErrorKind::ShutDown => WatchErrorKind::ShutDown,
                    _ => WatchErrorKind::Full,
                };
                return Err(WatchError::new(kind, operation));
            }
        };
        let (state, now) = (shard.state_mut(), read.elapsed);
        let mut registration = Registration { shard: state, key, now, is_complete: false };
        registration.shard.watch(key, conditions);
        registration.is_complete = true;
        drop(registration);
        release(shard);
        self.timer.help_if_late(read);
        fence_watch();
        let mut out = Out::new(key, operation);
        out.can_complete = self.check_again(index, &mut out, conditions);
        self.begin_to_wait(index, out, read.elapsed);
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16 shards")]
        let shard = index as u32;
        Ok(Watched::Waiting(OperationKey { key, shard, purgatory: self.number }))
    }

    /// Checks an operation again after it was added to its lists, including its thresholds. Returns
    /// whether it can complete.
    #[inline]
    fn check_again(&self, shard: usize, out: &mut Out<O>, conditions: &mut Conditions<K>) -> bool {
        let mut effect = conditions.rule.on_event();
        let operation = out.operation.as_mut().expect("it is out");
        if !conditions.thresholds.is_empty() {
            let mut reached = SmallVec::<[u64; 4]>::new();
            for (threshold, index) in conditions.thresholds.drain(..).zip(0..) {
                if self.has_reached(operation, &threshold.key, threshold.at) {
                    reached.push(index);
                }
                self.catch(|| drop(threshold));
            }
            effect = self.lock(shard).state_mut().on_found(out.key, &reached);
        }
        match effect {
            Effect::Nothing => false,
            Effect::Check => !conditions.needs_event && self.check(operation),
            Effect::Satisfied => true,
        }
    }

    /// Brings back an operation that was just registered. It almost always waits from then on.
    /// Otherwise it is checked again, or it has ended. If it exceeds a limit, it displaces another
    /// operation.
    #[inline]
    fn begin_to_wait(&self, index: usize, mut out: Out<O>, now: Nanos) {
        let key = out.key;
        let mut shard = self.lock(index);
        let is_counted = !out.can_complete && self.limits.displace();
        let excess = is_counted.then(|| shard.state_mut().count(key));
        shard.state_mut().bring_back(&mut out, now);
        release(shard);
        if let (Back::Ended(completion), Some(operation)) = (out.back, out.operation.take()) {
            self.complete(operation, completion);
            return;
        }
        // First, since one that ends now exceeds no limit.
        if out.back == Back::IsAnnounced {
            self.check_announced(index, &mut [out]);
        }
        if let Some(excess) = excess {
            self.displace(index, key, now, &excess);
        }
    }

    /// Displaces one operation for each limit that a newcomer exceeds.
    fn displace(&self, index: usize, newcomer: Key, now: Nanos, excess: &Excess) {
        let Excess { is_total_exceeded, hashes } = excess;
        let newcomer = |shard| (shard == index).then_some(newcomer);
        // An operation displaced for one key also leaves the total, and may leave other keys of the
        // newcomer.
        for &hash in hashes {
            self.displace_one(
                now,
                || self.limits.is_key_exceeded(hash),
                |shard| self.lock(shard).state().oldest_on_key(hash, newcomer(shard)),
            );
        }
        if *is_total_exceeded {
            self.displace_one(
                now,
                || self.limits.is_exceeded(),
                |shard| self.lock(shard).state().oldest(newcomer(shard)),
            );
        }
    }

    /// Displaces one operation if a limit is exceeded: that of the least rank of all shards.
    /// Searches again if the operation found has already ended.
    fn displace_one(
        &self,
        now: Nanos,
        is_exceeded: impl Fn() -> bool,
        find: impl Fn(usize) -> Option<(super::shard::Rank, Key)>,
    ) {
        // One displacement at a time: two threads that see one excess would displace twice.
        let turn = self.displacing.lock();
        while is_exceeded() {
            let of_shard = |shard| find(shard).map(|(rank, key)| (rank, shard, key));
            let oldest = (0..self.timer.shards.count()).filter_map(of_shard).min();
            let Some((_, shard, key)) = oldest else { return };
            let mut shard = self.lock(shard);
            let claim = shard.state_mut().claim(key, Completion::Displaced, now);
            // The drop of keys is user code.
            let dropped = shard.unlock();
            if let Claim::Late = claim {
                continue;
            }
            drop((turn, dropped));
            if let Claim::Taken(operation) = claim {
                self.complete(operation, Completion::Displaced);
            }
            return;
        }
    }
}

/// A registration in progress. Unless it completes, its drop ends the operation.
struct Registration<'a, K: Send + 'static, O: Send + 'static> {
    shard: &'a mut Shard<K, O>,
    key: Key,
    now: Nanos,
    is_complete: bool,
}

impl<K: Send + 'static, O: Send + 'static> Drop for Registration<'_, K, O> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_complete {
            self.shard.end(self.key, Completion::Cancelled, self.now);
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
pub struct WatchError<O> {
    kind: WatchErrorKind,
    /// The cause of [`NoThread`](WatchErrorKind::NoThread).
    cause: Option<io::Error>,
    operation: Exclusive<O>,
}

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
    /// [`source`](Error::source) of the error. A later call tries again.
    NoThread,
}

impl<O> WatchError<O> {
    pub(super) const fn new(kind: WatchErrorKind, operation: O) -> Self {
        Self { kind, cause: None, operation: Exclusive::new(operation) }
    }

    pub(super) const fn no_thread(cause: io::Error, operation: O) -> Self {
        let kind = WatchErrorKind::NoThread;
        Self { kind, cause: Some(cause), operation: Exclusive::new(operation) }
    }

    /// Returns the reason.
    #[must_use]
    pub const fn kind(&self) -> WatchErrorKind {
        self.kind
    }

    /// Returns the operation.
    pub fn into_value(self) -> O {
        self.operation.into_inner()
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

impl<O> fmt::Debug for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<O> fmt::Display for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl<O> Error for WatchError<O> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

/// A limit is [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), a purgatory that is shut down is
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe), and without a thread the kind is that of the cause.
impl<O: Send + 'static> From<WatchError<O>> for io::Error {
    fn from(error: WatchError<O>) -> Self {
        let kind = match (error.kind, &error.cause) {
            (_, Some(cause)) => cause.kind(),
            (WatchErrorKind::ShutDown, None) => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}
