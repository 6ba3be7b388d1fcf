//! Checks after events: checks the operations on keys, all at once or a few at a time, and
//! completes those that can complete.

use std::{borrow::Borrow, collections::VecDeque, fmt, hash::Hash, vec::Vec};

use smallvec::SmallVec;

use super::{
    Purgatory,
    batch::{BATCH, Batch, Out},
    deferral,
    filter::fence_event,
    lists::HashedKey,
    operation::DelayedOperation,
    shared::Shared,
    walk::Walk,
};
use crate::ticks::Nanos;

impl<K, O, R> Purgatory<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Checks the operations that watch a key, after an event on it, and completes those that can
    /// complete. Returns their number.
    ///
    /// If another thread is checking an operation, that thread checks it again, and this call does
    /// not count it. This call also does not count an operation that ends in another way meanwhile.
    ///
    /// A check may call this. When checks have called each other eight deep, this returns 0, and
    /// the thread makes the checks once the outermost check has returned.
    ///
    /// # Complexity
    ///
    /// *O*(shards), plus a check for each operation that watches the key.
    #[inline]
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared().check_key(key)
    }

    /// Like [`check_and_complete`](Self::check_and_complete) for several keys. An operation that
    /// watches several of them is checked once. [`checks`](Self::checks) has an example, and makes
    /// the checks a few at a time.
    pub fn check_and_complete_all<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        self.shared().check_keys(keys)
    }

    /// Returns the checks for events on some keys, which the caller runs a few at a time.
    #[must_use = "no check is made until it is run"]
    pub fn checks<'a, Q>(&'a self, keys: impl IntoIterator<Item = &'a Q>) -> Checks<'a, K, O, R, Q>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'a,
    {
        Checks::new(self.shared(), keys)
    }
}

/// Checks to run after events on some keys; from [`Purgatory::checks`].
///
/// Each operation that waited when the checks began is checked at most once. Keys take turns, so a
/// key with very many watchers does not delay the others. Dropping the value skips the remaining
/// checks. Operations that these would have completed wait for the next event, or for their delay.
///
/// # Examples
///
/// ```
/// use std::{
///     sync::atomic::{AtomicBool, Ordering},
///     time::Duration,
/// };
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory};
///
/// static IS_READY: AtomicBool = AtomicBool::new(false);
///
/// struct Fetch;
///
/// impl DelayedOperation<u32> for Fetch {
///     fn try_complete(&mut self) -> bool {
///         IS_READY.load(Ordering::Acquire)
///     }
///
///     fn complete(self, _: Completion) {}
/// }
///
/// let purgatory = Purgatory::new();
/// for _ in 0..10 {
///     purgatory.try_complete_else_watch(Fetch, [1, 2], Duration::from_secs(60))?;
/// }
/// IS_READY.store(true, Ordering::Release);
/// let mut checks = purgatory.checks(&[1, 2]);
/// assert_eq!(checks.run(4), 4);
/// assert!(!checks.is_done());
/// assert_eq!(checks.run(usize::MAX), 6);
/// assert!(checks.is_done());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Checks<'a, K, O, R = (), Q: ?Sized = K> {
    shared: &'a Shared<K, O, R>,
    turns: VecDeque<Turn<'a, K, O, R>>,
    keys: Vec<HashedKey<'a, Q>>,
    /// The pass in each shard; 0 if it has not begun. Empty before the first run.
    passes: Vec<u64>,
}

/// A key in a shard.
struct Turn<'a, K, O, R> {
    key: usize,
    shard_index: usize,
    /// `None` if it has not begun.
    walk: Option<Walk<'a, K, O, R>>,
}

/// Operations of one key that are checked in one turn.
const TURN: usize = 32;

impl<'a, K, O, R, Q> Checks<'a, K, O, R, Q>
where
    K: Borrow<Q> + Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
    Q: Hash + Eq + ?Sized,
{
    pub(super) fn new(shared: &'a Shared<K, O, R>, keys: impl IntoIterator<Item = &'a Q>) -> Self {
        let keys: Vec<_> = keys.into_iter().map(|key| shared.hashed(key)).collect();
        fence_event();
        let mut turns = VecDeque::new();
        for (key, hashed) in keys.iter().enumerate() {
            let begin = |shard_index| turns.push_back(Turn { key, shard_index, walk: None });
            shared.filters.for_each(hashed.hash, begin);
        }
        Self { shared, turns, passes: Vec::new(), keys }
    }

    /// Checks at most `budget` operations. Returns how many of them completed. Operations that also
    /// need unreached thresholds are passed over, and do not count.
    pub fn run(&mut self, mut budget: usize) -> usize {
        if self.passes.is_empty() {
            let shards = self.turns.iter().map(|turn| turn.shard_index);
            self.passes = self.shared.begin_passes(shards).into_vec();
        }
        let mut completed = 0;
        while budget > 0 {
            let Some(mut turn) = self.turns.pop_front() else { break };
            let key = self.keys[turn.key];
            let pass = &mut self.passes[turn.shard_index];
            let walk = turn.walk.take();
            let mut walk =
                walk.unwrap_or_else(|| Walk::new(self.shared.shard(turn.shard_index), *pass));
            let share = TURN.min(budget);
            let checked = self.shared.check_walk(turn.shard_index, &mut walk, key, share);
            budget -= checked.operations;
            completed += checked.completed;
            *pass = walk.pass();
            if !walk.is_done() {
                turn.walk = Some(walk);
                self.turns.push_back(turn);
            }
        }
        completed
    }

    /// Returns whether all checks have been run.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.turns.is_empty()
    }
}

impl<K, O, R, Q: ?Sized> fmt::Debug for Checks<'_, K, O, R, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("turns", &self.turns.len()).finish_non_exhaustive()
    }
}

/// Result of a part of a walk.
#[derive(Debug, Default)]
struct Checked {
    /// Number of operations that were taken out for a check.
    operations: usize,
    /// Number of operations that completed by a check.
    completed: usize,
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K, R>, R: Send + 'static> Shared<K, O, R> {
    /// Checks the operations on a key after an event, and completes those that can complete.
    /// Returns their number.
    #[inline]
    pub(super) fn check_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let key = self.hashed(key);
        fence_event();
        let (mut first, mut further) = (None, SmallVec::<[_; 4]>::new());
        self.filters.for_each(key.hash, |shard_index| match first {
            None => first = Some(shard_index),
            Some(_) => further.push((shard_index, 0)),
        });
        let Some(first) = first else { return 0 };
        // As in `begin_passes`: no check has run when the first walk begins its pass.
        for (shard_index, pass) in &mut further {
            *pass = self.shard(*shard_index).begin_pass();
        }
        let check = |(shard_index, pass): &mut _| self.check_in_pass(*shard_index, pass, key);
        self.check_in_pass(first, &mut 0, key) + further.iter_mut().map(check).sum::<usize>()
    }

    /// Like [`check_key`](Self::check_key) for several keys. Checks each operation once.
    pub(super) fn check_keys<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        // The caller's iterator may change the state that the checks read, so it runs before the
        // fence.
        let keys: SmallVec<[_; 8]> = keys.into_iter().map(|key| self.hashed(key)).collect();
        fence_event();
        let mut watched = SmallVec::<[_; 8]>::new();
        for &key in &keys {
            self.filters.for_each(key.hash, |shard_index| watched.push((shard_index, key)));
        }
        let mut passes = self.begin_passes(watched.iter().map(|(shard_index, _)| *shard_index));
        let check = |(shard_index, key): (usize, _)| {
            self.check_in_pass(shard_index, &mut passes[shard_index], key)
        };
        watched.into_iter().map(check).sum()
    }

    /// Begins a pass in each of these shards, except the first, where the first walk begins it.
    /// Returns the pass of each shard; 0 if it has not begun.
    ///
    /// All passes begin before the first check, which may lead to new operations in any shard: the
    /// event does not check these.
    fn begin_passes(&self, mut shards: impl Iterator<Item = usize>) -> SmallVec<[u64; 16]> {
        let mut passes = SmallVec::from_elem(0, self.timer.count());
        let first = shards.next();
        for shard_index in shards.filter(|shard_index| Some(*shard_index) != first) {
            if passes[shard_index] == 0 {
                passes[shard_index] = self.shard(shard_index).begin_pass();
            }
        }
        passes
    }

    /// Checks the operations on a key in a shard. Reads the filter again, because the checks before
    /// may have ended all of them. The caller has executed [`fence_event`], so the filter still
    /// shows each operation that the event must check.
    ///
    /// The first walk of a shard begins its pass in any case: a later one would begin it after the
    /// first check.
    fn check_in_pass<Q>(&self, shard_index: usize, pass: &mut u64, key: HashedKey<'_, Q>) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if *pass > 0 && !self.filters.may_have(key.hash, shard_index) {
            return 0;
        }
        let mut walk = Walk::new(self.shard(shard_index), *pass);
        let Checked { completed, .. } = self.check_walk(shard_index, &mut walk, key, usize::MAX);
        *pass = walk.pass();
        completed
    }

    /// Continues a walk until its end, or until it has taken out `budget` operations.
    #[inline]
    fn check_walk<Q>(
        &self,
        shard_index: usize,
        walk: &mut Walk<'_, K, O, R>,
        key: HashedKey<'_, Q>,
        budget: usize,
    ) -> Checked
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = walk.shard();
        let mut batch = Batch::new();
        let mut checked = Checked::default();
        while !walk.is_done() && checked.operations < budget {
            let size = BATCH.min(budget - checked.operations);
            shard.take_out(walk, key, size, &mut batch);
            checked.operations += batch.len();
            if !batch.is_empty() {
                checked.completed += self.check_or_defer(shard_index, &mut batch);
            }
        }
        checked
    }

    /// Checks operations that are out, brings them back, and completes those that have ended.
    /// Repeats this for those that had an event meanwhile, until there are none. Returns how many
    /// completed by a check.
    ///
    /// Between two rounds all of them wait again. So further events do not delay an end that
    /// another thread decided.
    ///
    /// If checks on this thread are nested too deep, all operations wait again. The thread checks
    /// them when the outermost check has returned.
    #[inline]
    pub(super) fn check_or_defer(&self, shard_index: usize, batch: &mut Batch<O, R>) -> usize {
        if deferral::is_too_deep() {
            self.defer_checks(shard_index, batch);
            return 0;
        }
        let completed = self.check_now(shard_index, batch);
        debug_assert!(batch.is_empty(), "an operation is still out");
        deferral::run_checks();
        completed
    }

    #[cold]
    fn defer_checks(&self, shard_index: usize, batch: &mut Batch<O, R>) {
        let announced = self.shard(shard_index).bring_back_unchecked(batch);
        self.complete_finished(batch);
        let shared = self.upgrade();
        deferral::defer_checks(move || {
            let Some(shared) = shared else { return };
            let mut batch = Batch::new();
            shared
                .shard(shard_index)
                .hold(|waiters, _| waiters.take_out_again(&announced, &mut batch));
            if !batch.is_empty() {
                shared.check_or_defer(shard_index, &mut batch);
            }
        });
    }

    #[inline]
    fn check_now(&self, shard_index: usize, batch: &mut Batch<O, R>) -> usize {
        let shard = self.shard(shard_index);
        let mut completed = 0;
        loop {
            debug_assert!(batch.len() <= BATCH, "{} operations are out at once", batch.len());
            let mut is_timed = false;
            batch.for_each(|out| {
                out.is_satisfied =
                    out.operation.as_mut().is_some_and(|operation| self.check(operation));
                is_timed |= out.is_satisfied && out.is_timed;
            });
            // The clock is read only if the wait of one of the operations is measured.
            let now = if is_timed { self.timer.clock().elapsed() } else { Nanos::ZERO };
            let announced = shard.bring_back(batch, now);
            completed += self.complete_finished(batch);
            if announced.is_empty() {
                return completed;
            }
            shard.hold(|waiters, _| waiters.take_out_again(&announced, batch));
        }
    }

    /// Completes the operations that have ended, and empties the batch. Returns how many completed
    /// by a check.
    #[inline]
    fn complete_finished(&self, batch: &mut Batch<O, R>) -> usize {
        let mut completed = 0;
        batch.drain(|Out { key, operation, completion, is_satisfied, .. }| {
            debug_assert_eq!(
                operation.is_some(),
                completion.is_some(),
                "{key:?} neither waits nor has ended"
            );
            if let (Some(operation), Some(completion)) = (operation, completion) {
                completed += usize::from(is_satisfied);
                self.complete(operation, completion);
            }
        });
        completed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        purgatory::{
            conditions::Conditions,
            shared::tests::{Endless, in_one_shard},
        },
        tick::Tick,
        timer::Reading,
    };

    #[test]
    fn a_walk_takes_256_steps_in_a_hold() {
        let purgatory = in_one_shard();
        let shard = purgatory.shard(0);
        for _ in 0..600 {
            let mut conditions = Conditions::new(8);
            assert_eq!(conditions.add_events(7, 1), None);
            let registered = shard.register(&mut conditions, Reading::ZERO, Tick::MAX);
            let registered = registered.unwrap_or_else(|_| panic!("it is open"));
            let mut out = Out::new(registered.0, true, Endless);
            let _ = shard.begin_to_wait(&mut out, Nanos::ZERO);
        }
        let mut walk = Walk::new(shard, 0);
        let mut holds = std::vec::Vec::new();
        while !walk.is_done() {
            holds.push(shard.visit_all(&mut walk, HashedKey { hash: 7, key: &1 }));
        }
        assert_eq!(holds, [256, 256, 88]);
        shard.check_invariants(&mut std::collections::BTreeMap::new());
    }
}
