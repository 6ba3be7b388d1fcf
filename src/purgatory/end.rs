//! Ends of operations without an event: by a value of a key, by an [`OperationKey`], for all
//! operations on a key, by a shutdown.

use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash},
    sync::{Arc, Weak},
    vec::Vec,
};

use smallvec::SmallVec;

use super::{
    Purgatory, SharedPurgatory,
    lists::BATCH,
    operation::{Completion, DelayedOperation, OperationKey},
    pending::Out,
    shard::{Claim, NextWatcher, Walk},
};
use crate::{
    panics,
    sync::{Ordering, fence},
};

impl<K: Send + 'static, O: DelayedOperation<K>> Purgatory<K, O> {
    /// Announces that the value of a key has reached `value`. Completes the operations that wait
    /// for this value or a lower one, in the order of their thresholds. Returns how many completed.
    ///
    /// The purgatory does not remember values. As before an event, first change the state that
    /// [`DelayedOperation::has_reached`] reads.
    ///
    /// Operations that also need a check are checked after the others have completed. `advance`
    /// does not check the operations that watch the key's events. If the change is also an event,
    /// call [`check_and_complete`](Self::check_and_complete) too. `advance` does not reach the
    /// thresholds of operations that its completions add.
    ///
    /// # Complexity
    ///
    /// *O*(shards + c log n) if c of n operations that wait for the value complete. The call
    /// collects these c operations before it completes the first.
    pub fn advance<Q>(&self, key: &Q, value: u64) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let SharedPurgatory { hasher, filters, calls, .. } = &*self.shared;
        let hash = hasher.hash_one(key);
        fence(Ordering::SeqCst);
        let mut shards = filters.shards(hash).peekable();
        if shards.peek().is_none() {
            return 0;
        }
        // No method of an operation runs before the call has visited all thresholds. If a key
        // panics, the call ends the operations that it has reached, and then continues the panic.
        let (mut satisfied, mut unchecked, mut completed) = (Vec::new(), Vec::new(), 0);
        let walked = panics::catch(|| {
            for shard in shards {
                let is_key = |other: &K| other.borrow() == key;
                let mut walk = Walk::new(hash, is_key, NextWatcher::THRESHOLDS);
                while walk.next.is_some() {
                    let now = self.shared.now();
                    make_room(&mut satisfied);
                    make_room(&mut unchecked);
                    let mut guard = self.shared.timer.shards.lock(shard);
                    let (state, check) = (guard.state_mut(), |key| unchecked.push((shard, key)));
                    completed += state.reach(&mut walk, value, now, &mut satisfied, check);
                    guard.unlock();
                }
            }
        });
        satisfied.sort_by_key(|&(at, _)| at);
        completed += satisfied.len();
        for (_, operation) in satisfied {
            calls.complete(operation, Completion::Satisfied);
        }
        let of_shards = unchecked.chunk_by(|(one, _), (next, _)| one == next);
        for keys in of_shards.flat_map(|of_shard| of_shard.chunks(BATCH)) {
            let mut batch: Vec<_> = keys.iter().map(|&(_, key)| Out::new(key, None)).collect();
            completed += self.check_announced(keys[0].0, &mut batch);
        }
        walked.map_or_else(|panic| panic.resume(), |()| completed)
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
    /// use delaywheel::{Completion, DelayedOperation, Purgatory};
    ///
    /// struct Fetch;
    ///
    /// impl DelayedOperation<u32> for Fetch {
    ///     fn complete(self, _: Completion) {}
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// let watched = purgatory.watch(Fetch, [3], Duration::from_secs(30))?;
    /// let fetch = watched.key().expect("there is nothing to fetch");
    /// assert!(purgatory.is_waiting(fetch));
    /// assert!(purgatory.complete(fetch));
    /// assert!(purgatory.cancel(fetch).is_none(), "it has ended");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "most callers do not care which it was")]
    pub fn complete(&self, key: OperationKey) -> bool {
        self.end(key, Completion::Satisfied)
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
    ///     let watched = purgatory.watch(Produce, [partition], Duration::from_secs(60))?;
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
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by_key(|key| (key.purgatory, key.shard));
        let mut decided = 0;
        let of_shards =
            keys.chunk_by(|one, next| (one.purgatory, one.shard) == (next.purgatory, next.shard));
        for keys in of_shards.flat_map(|of_shard| of_shard.chunks(BATCH)) {
            let now = self.shared.now();
            let Some(mut shard) = self.shared.lock_of(keys[0]) else { continue };
            shard.state().read_ahead(keys);
            let claims: SmallVec<[_; BATCH]> = keys
                .iter()
                .map(|key| shard.state_mut().claim(key.key, Completion::Satisfied, now))
                .collect();
            shard.unlock();
            for claim in claims {
                decided += usize::from(self.complete_claimed(claim, Completion::Satisfied));
            }
        }
        decided
    }

    /// Cancels an operation and returns it. The caller answers it.
    ///
    /// Returns `None` if the operation has ended, or if another thread is checking it: that thread
    /// completes it as [`Completion::Cancelled`].
    #[must_use = "the operation has not been answered"]
    pub fn cancel(&self, key: OperationKey) -> Option<O> {
        let now = self.shared.now();
        let mut shard = self.shared.lock_of(key)?;
        match shard.state_mut().claim(key.key, Completion::Cancelled, now) {
            Claim::Taken(operation) => Some(operation),
            Claim::IsOut | Claim::Late => None,
        }
    }

    /// Cancels every operation that watches a key, for example because the key has moved away.
    /// Returns the operations that waited. The caller answers them.
    ///
    /// If another thread is checking an operation, that thread completes it as
    /// [`Completion::Cancelled`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Completion, DelayedOperation, Purgatory};
    ///
    /// struct Fetch(u32);
    ///
    /// impl Fetch {
    ///     fn moved(self) {}
    /// }
    ///
    /// impl DelayedOperation<u32> for Fetch {
    ///     fn complete(self, _: Completion) {}
    /// }
    ///
    /// let purgatory = Purgatory::new();
    /// purgatory.watch(Fetch(7), [3], Duration::from_secs(30))?;
    /// for fetch in purgatory.cancel_for_key(&3) {
    ///     fetch.moved();
    /// }
    /// assert_eq!(purgatory.stats().delayed, 0);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use = "the operations have not been answered"]
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<O>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let SharedPurgatory { hasher, filters, timer, calls, .. } = &*self.shared;
        let hash = hasher.hash_one(key);
        fence(Ordering::SeqCst);
        let mut cancelled = Vec::new();
        let walked = panics::catch(|| {
            for shard in filters.shards(hash) {
                let is_key = |other: &K| other.borrow() == key;
                let mut walk = Walk::new(hash, is_key, NextWatcher::EVENTS);
                while walk.next.is_some() {
                    let now = self.shared.now();
                    make_room(&mut cancelled);
                    let mut guard = timer.shards.lock(shard);
                    guard.state_mut().cancel_some(&mut walk, now, &mut cancelled);
                }
            }
        });
        if let Err(panic) = walked {
            for operation in cancelled {
                calls.complete(operation, Completion::Cancelled);
            }
            panic.resume();
        }
        cancelled
    }

    /// Returns a guard that cancels an operation when it is dropped.
    pub fn guard(&self, key: OperationKey) -> OperationGuard<K, O> {
        OperationGuard { shared: Arc::downgrade(&self.shared), key }
    }

    /// Returns whether an operation has not ended. Also returns `false` if another thread has
    /// decided the end of an operation that is being checked.
    #[must_use]
    pub fn is_waiting(&self, key: OperationKey) -> bool {
        let shard = self.shared.lock_of(key);
        shard.is_some_and(|shard| shard.state().wheel.get(key.key).is_some())
    }

    /// Shuts the purgatory down: refuses new operations, and returns the waiting ones. The caller
    /// answers them. Without this call, the drop of the last handle answers them as
    /// [`Completion::ShutDown`].
    ///
    /// If another thread is checking an operation, that thread completes it as
    /// [`Completion::ShutDown`], and this call does not return it. Both kinds count as [shut
    /// down](super::PurgatoryStats::shut_down). An operation may call this function. A second call
    /// returns an empty vector.
    ///
    /// This call does not return expired operations that a pool or a turn of an inline timer
    /// already has. They complete as [`Completion::Expired`], perhaps after this call.
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
    /// purgatory.watch(Fetch, [3], Duration::from_secs(30))?;
    /// for fetch in purgatory.shutdown() {
    ///     fetch.complete(Completion::ShutDown);
    /// }
    /// let late = purgatory.watch(Fetch, [3], Duration::from_secs(30));
    /// assert_eq!(late.unwrap_err().kind(), WatchErrorKind::ShutDown);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use = "the operations have not been answered"]
    pub fn shutdown(&self) -> Vec<O> {
        let mut operations = Vec::new();
        self.shared.end_all(|ended| operations.append(ended));
        operations
    }

    /// Ends an operation. Returns `false` if its end was decided before.
    #[inline]
    pub(super) fn end(&self, key: OperationKey, completion: Completion) -> bool {
        let now = self.shared.now();
        let Some(mut shard) = self.shared.lock_of(key) else { return false };
        let claim = shard.state_mut().claim(key.key, completion, now);
        shard.unlock();
        self.complete_claimed(claim, completion)
    }

    /// Completes an operation unless another thread does. Returns whether this thread decided its
    /// end.
    #[inline]
    pub(super) fn complete_claimed(&self, claim: Claim<O>, completion: Completion) -> bool {
        match claim {
            Claim::Late => return false,
            Claim::IsOut => {}
            Claim::Taken(operation) => self.shared.calls.complete(operation, completion),
        }
        true
    }
}

/// Makes room for the operations of a hold, before the thread takes the lock. A vector that grows
/// under the lock would copy the operations of all earlier holds there.
fn make_room<T>(ended: &mut Vec<T>) {
    if !ended.is_empty() {
        ended.reserve(BATCH);
    }
}

/// Cancels an operation when it is dropped; from [`Purgatory::guard`].
///
/// The operation completes as [`Completion::Cancelled`]. Keep a guard in a connection that may
/// close, or in a future that may be dropped. A guard does not keep its purgatory alive.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory};
///
/// struct Poll;
///
/// impl DelayedOperation<u32> for Poll {
///     fn complete(self, completion: Completion) {
///         assert_eq!(completion, Completion::Cancelled);
///     }
/// }
///
/// let purgatory = Purgatory::new();
/// let watched = purgatory.watch(Poll, [1], Duration::from_secs(30))?;
/// let guard = watched.key().map(|key| purgatory.guard(key));
/// drop(guard);
/// assert_eq!(purgatory.stats().cancelled, 1);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[must_use = "the operation is cancelled as soon as this is dropped"]
pub struct OperationGuard<K: Send + 'static, O: DelayedOperation<K>> {
    /// Dangling once the guard is disarmed.
    shared: Weak<SharedPurgatory<K, O>>,
    key: OperationKey,
}

impl<K: Send + 'static, O: DelayedOperation<K>> OperationGuard<K, O> {
    /// Drops the guard without cancelling the operation.
    pub fn disarm(mut self) {
        self.shared = Weak::new();
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> Drop for OperationGuard<K, O> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            Purgatory { shared }.end(self.key, Completion::Cancelled);
        }
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> fmt::Debug for OperationGuard<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationGuard").field("key", &self.key).finish_non_exhaustive()
    }
}
