//! Completions without a check: by a handle, by a key, by a shutdown.

use std::{borrow::Borrow, hash::Hash, vec::Vec};

use smallvec::SmallVec;

use super::{
    OperationGuard, Purgatory,
    batch::BATCH,
    claim::{Claim, Finished},
    expiry::Due,
    filter::fence_event,
    lists::{HashedKey, ThresholdPass},
    operation::{Completion, DelayedOperation, OperationKey},
    shard::Shard,
    shared::Shared,
    walk::Walk,
};
use crate::{sync::Ordering, ticks::Nanos};

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Cancels every operation that watches a key, for example because the key has moved away.
    /// Returns their number.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        R: Default,
    {
        self.shared().cancel_key(key, &R::default)
    }

    /// Cancels every operation that watches a key, with a reason. Returns their number.
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
        self.shared().cancel_key(key, &|| reason.clone())
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
        self.shared().claim(key, Completion::Satisfied)
    }

    /// Completes operations as satisfied, without a check. Returns how many of them were waiting.
    ///
    /// This is like [`complete`](Self::complete) for each, with fewer lock acquisitions. Use it in
    /// a thread that receives many answers at once. It holds a shard's lock for 32 operations at a
    /// time. Operations of one shard complete in the order of the given keys. There is no order
    /// between shards. A repeated key counts once.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory};
    ///
    /// struct Produce;
    ///
    /// impl DelayedOperation<u32> for Produce {
    ///     fn complete(self, completion: Completion) {
    ///         assert_eq!(completion, Completion::Satisfied);
    ///     }
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// let mut keys = Vec::new();
    /// for partition in 0..100 {
    ///     let minute = Duration::from_secs(60);
    ///     let watched = purgatory.try_complete_else_watch(Produce, [partition], minute)?;
    ///     keys.extend(watched.key());
    /// }
    /// assert!(purgatory.complete(keys[7]));
    /// assert_eq!(purgatory.complete_all(keys), 99);
    /// assert_eq!(purgatory.stats().satisfied, 100);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Complexity
    ///
    /// *O*(k log k + the keys that the operations watch) for k operations.
    pub fn complete_all(&self, keys: impl IntoIterator<Item = OperationKey>) -> usize {
        self.shared().claim_all(keys.into_iter().collect())
    }

    /// Cancels an operation. Returns whether it was waiting.
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn cancel(&self, key: OperationKey) -> bool
    where
        R: Default,
    {
        self.cancel_with(key, R::default())
    }

    /// Cancels an operation with a reason. Returns whether it was waiting.
    ///
    /// Reasons are of the type that the purgatory was built for; see the example of
    /// [`cancel_for_key_with`](Self::cancel_for_key_with).
    pub fn cancel_with(&self, key: OperationKey, reason: R) -> bool {
        self.shared().claim(key, Completion::Cancelled(reason))
    }

    /// Returns a guard that cancels an operation when it is dropped.
    pub fn guard(&self, key: OperationKey) -> OperationGuard<K, O, R>
    where
        R: Default,
    {
        self.guard_with(key, R::default())
    }

    /// Returns a guard that cancels an operation with a reason when it is dropped.
    pub fn guard_with(&self, key: OperationKey, reason: R) -> OperationGuard<K, O, R> {
        OperationGuard::new(self.downgrade(), key, reason)
    }

    /// Returns whether an operation has not ended. Also returns `false` if another thread has
    /// decided the end of an operation that is being checked.
    #[must_use]
    pub fn is_waiting(&self, key: OperationKey) -> bool {
        self.shared().is_waiting(key)
    }

    /// Shuts the purgatory down: refuses new operations, and returns the waiting ones. The caller
    /// answers them.
    ///
    /// If another thread is checking an operation, that thread completes it as
    /// [`Completion::ShutDown`], and this call does not return it. All of them count as [shut
    /// down](super::PurgatoryStats::shut_down). An operation may call this. A second call returns
    /// an empty vector.
    ///
    /// Expired operations whose completion a pool or a turn of an inline timer already has are not
    /// returned: they complete as [`Completion::Expired`], perhaps after this call.
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
        self.shared().shut_down(|operation| operations.push(operation));
        operations
    }
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    /// Cancels all operations that watch a key. Returns their number.
    pub(super) fn cancel_key<Q>(&self, key: &Q, reason: &impl Fn() -> R) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = self.hashed(key);
        fence_event();
        // A cancelled request may register again. The serials keep this call from cancelling it
        // twice.
        let mut watched = SmallVec::<[_; 16]>::new();
        self.filters.for_each(key.hash, |shard_index| {
            let shard = self.shard(shard_index);
            watched.push((shard, shard.begin_cancel(key)));
        });
        let mut cancelled = 0;
        for (shard, (next_serial, thresholds)) in watched {
            cancelled += self.cancel_events(shard, key, next_serial, reason);
            if let Some(pass) = thresholds {
                cancelled += self.cancel_thresholds(shard, key, pass, reason);
            }
        }
        cancelled
    }

    /// Cancels the operations of a shard that watch a key's events and have a serial number below
    /// `next_serial`.
    fn cancel_events<Q>(
        &self,
        shard: Shard<'_, K, O, R>,
        key: HashedKey<'_, Q>,
        next_serial: u64,
        reason: &impl Fn() -> R,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut walk = Walk::before(shard, next_serial);
        self.cancel_each(reason, |completion, now| {
            let claim = shard.claim_next(&mut walk, key, completion, now);
            (!walk.is_done(), claim)
        })
    }

    /// Cancels the operations of a shard whose thresholds a pass visits.
    fn cancel_thresholds<Q>(
        &self,
        shard: Shard<'_, K, O, R>,
        key: HashedKey<'_, Q>,
        mut pass: ThresholdPass,
        reason: &impl Fn() -> R,
    ) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.cancel_each(reason, |completion, now| {
            shard.claim_threshold(&mut pass, key, completion, now)
        })
    }

    /// Cancels operations that `claim_next` claims one by one, until it returns false.
    fn cancel_each(
        &self,
        reason: &impl Fn() -> R,
        mut claim_next: impl FnMut(Completion<R>, Nanos) -> (bool, Option<Claim<O, R>>),
    ) -> usize {
        let mut cancelled = 0;
        loop {
            // Each operation gets its own reason, made and dropped without a lock.
            let completion = Completion::Cancelled(reason());
            let (is_more, claim) = claim_next(completion, self.timer.clock().elapsed());
            if let Some(claim) = claim {
                cancelled += 1;
                self.complete_claimed(claim);
            }
            if !is_more {
                return cancelled;
            }
        }
    }

    /// Ends an operation. Returns `false` if it has ended, or if its end was decided before.
    pub(super) fn claim(&self, key: OperationKey, completion: Completion<R>) -> bool {
        let Some(shard) = self.shard_of(key) else { return false };
        // The clock is read only if the wait is measured.
        let now = if key.is_timed() { self.timer.clock().elapsed() } else { Nanos::ZERO };
        shard
            .claim(key.in_shard(), completion, now)
            .map(|claim| self.complete_claimed(claim))
            .is_ok()
    }

    /// Ends operations as satisfied. Returns how many ends this call decided.
    pub(super) fn claim_all(&self, mut keys: Vec<OperationKey>) -> usize {
        keys.sort_by_key(|key| key.shard());
        let mut claimed = 0;
        for of_shard in keys.chunk_by(|one, next| one.shard() == next.shard()) {
            let Some(shard) = self.shard_of(of_shard[0]) else { continue };
            for of_hold in of_shard.chunks(BATCH) {
                let is_timed = of_hold.iter().any(|key| key.is_timed());
                let now = if is_timed { self.timer.clock().elapsed() } else { Nanos::ZERO };
                let claims = shard.claim_all(of_hold, now);
                debug_assert!(claims.len() <= of_hold.len(), "an operation is claimed twice");
                claimed += claims.len();
                let finished = claims.finished.into_iter();
                finished.for_each(|end| self.complete(end.operation, end.completion));
            }
        }
        claimed
    }

    /// Completes a claimed operation, unless another thread has it out.
    #[inline]
    pub(super) fn complete_claimed(&self, claim: Claim<O, R>) {
        if let Claim::Finished(Finished { operation, completion }) = claim {
            self.complete(operation, completion);
        }
    }

    pub(super) fn is_waiting(&self, key: OperationKey) -> bool {
        let shard = self.shard_of(key);
        shard.is_some_and(|shard| shard.hold(|_, hold| hold.timeouts().has(key.in_shard())))
    }

    /// Refuses further operations, and ends the waiting ones. Passes each to `take` after it has
    /// left the timer and the limits. Also decides the end of the operations that are out, and
    /// takes back those that have expired and whose completion has not begun.
    pub(super) fn shut_down(&self, mut take: impl FnMut(O)) {
        self.shards().for_each(|shard| shard.close());
        for shard in self.shards() {
            let mut position = Some(0);
            while let Some(start) = position {
                let (claims, next) = shard.shut_down_some(start, self.timer.clock().elapsed());
                debug_assert!(next.is_none_or(|next| next > start), "a shutdown stops at {start}");
                claims.finished.into_iter().for_each(|end| take(end.operation));
                position = next;
            }
        }
        for operation in self.timer.shut_down().into_iter().filter_map(Due::take) {
            self.taken_back.fetch_add(1, Ordering::Release);
            take(operation);
        }
    }
}
