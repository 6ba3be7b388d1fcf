//! Checks after events: checks the operations on keys, all at once or a few at a time, and
//! completes those that can complete.

use std::{borrow::Borrow, collections::VecDeque, fmt, hash::Hash, vec::Vec};

use smallvec::SmallVec;

use super::{
    Purgatory, deferral,
    filter::fence_event,
    list::BATCH,
    operation::DelayedOperation,
    shard::{Back, Batch, Walk},
    shared::SharedPurgatory,
};
use crate::{ticks::Nanos, wheel::Key};

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
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

    /// Returns the checks for events on some keys, which the caller runs a few at a time. An
    /// operation that watches several of them is checked once.
    #[must_use = "no check is made until it is run"]
    pub fn checks(&self, keys: impl IntoIterator<Item = K>) -> Checks<'_, K, O> {
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
///     purgatory.watch(Fetch, [1, 2], Duration::from_secs(60))?;
/// }
/// IS_READY.store(true, Ordering::Release);
/// let mut checks = purgatory.checks([1, 2]);
/// assert_eq!(checks.run(4), 4);
/// assert!(!checks.is_done());
/// assert_eq!(checks.run(usize::MAX), 6);
/// assert!(checks.is_done());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Checks<'a, K: Send + 'static, O: DelayedOperation<K>> {
    shared: &'a SharedPurgatory<K, O>,
    /// The keys, with their hashes.
    keys: Vec<(u64, K)>,
    /// The walks that are not done.
    walks: VecDeque<(usize, usize, Walk)>,
    has_begun: bool,
}

/// Operations of one key that are checked in one turn.
const TURN: usize = BATCH;

/// Operations that a run with a small budget passes over.
const PASSED_OVER: usize = 4096;

impl<'a, K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> Checks<'a, K, O> {
    pub(super) fn new(
        shared: &'a SharedPurgatory<K, O>,
        keys: impl IntoIterator<Item = K>,
    ) -> Self {
        // The caller's iterator may change the state that the checks read, so it runs before the
        // fence.
        let keys: Vec<_> = keys.into_iter().map(|key| (shared.hash(&key), key)).collect();
        fence_event();
        let mut walks = VecDeque::new();
        for (index, (hash, _)) in keys.iter().enumerate() {
            let begin = |shard| walks.push_back((index, shard, Walk::of_events(0)));
            shared.filters.for_each(*hash, begin);
        }
        Self { shared, keys, walks, has_begun: false }
    }

    /// Checks at most `budget` operations. Returns how many of them completed.
    ///
    /// Operations that also need unreached thresholds are passed over, and do not count. A run
    /// passes over `budget` of them, or 4096 if that is more, and may then end before its budget is
    /// used up.
    pub fn run(&mut self, budget: usize) -> usize {
        if !self.has_begun {
            self.begin();
        }
        let now = self.shared.now();
        let (mut checks, mut visits) = (budget, budget.max(PASSED_OVER));
        let mut completed = 0;
        while checks > 0 && visits > 0 {
            let Some((index, shard, mut walk)) = self.walks.pop_front() else { break };
            let (hash, key) = &self.keys[index];
            let turn = TURN.min(checks);
            let checked = self.shared.check_walk(shard, &mut walk, (*hash, key), turn, visits, now);
            checks -= checked.checks;
            visits = visits.saturating_sub(checked.visits - checked.checks);
            completed += checked.completed;
            if !walk.is_done() {
                self.walks.push_back((index, shard, walk));
            }
        }
        completed
    }

    /// Begins a pass in each shard before the first check. That may lead to new operations in any
    /// shard, which these checks do not visit.
    fn begin(&mut self) {
        self.has_begun = true;
        let mut passes = SmallVec::<[u64; 16]>::from_elem(0, self.shared.timer.shards.count());
        for (_, shard, walk) in &mut self.walks {
            if passes[*shard] == 0 {
                passes[*shard] = self.shared.lock(*shard).state_mut().begin_pass();
            }
            walk.pass = passes[*shard];
        }
    }

    /// Returns whether all checks have been run.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.walks.is_empty()
    }
}

impl<K: Send + 'static, O: DelayedOperation<K>> fmt::Debug for Checks<'_, K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("walks", &self.walks.len()).finish_non_exhaustive()
    }
}

/// Result of a part of a walk.
#[derive(Debug, Default)]
struct Checked {
    /// Number of operations that the walk visited.
    visits: usize,
    /// Number of those that were taken out for a check.
    checks: usize,
    /// Number of operations that completed by a check.
    completed: usize,
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> SharedPurgatory<K, O> {
    /// Checks the operations on a key after an event, and completes those that can complete.
    /// Returns their number.
    #[inline]
    pub(super) fn check_key<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        fence_event();
        let mut shards = SmallVec::<[(usize, u64); 4]>::new();
        self.filters.for_each(hash, |shard| shards.push((shard, 0)));
        if shards.is_empty() {
            return 0;
        }
        let now = self.now();
        // As in `Checks::begin`. The walk of the first shard begins its pass before any check.
        for (shard, pass) in shards.iter_mut().skip(1) {
            *pass = self.lock(*shard).state_mut().begin_pass();
        }
        let mut completed = 0;
        for &(shard, pass) in &shards {
            // The checks before may have ended all operations there.
            if pass == 0 || self.filters.may_have(hash, shard) {
                let (mut walk, all) = (Walk::of_events(pass), usize::MAX);
                let checked = self.check_walk(shard, &mut walk, (hash, key), all, all, now);
                completed += checked.completed;
            }
        }
        completed
    }

    /// Continues a walk until its end, or until it has taken out `checks` operations or has visited
    /// `visits`.
    #[inline]
    fn check_walk<Q>(
        &self,
        shard: usize,
        walk: &mut Walk,
        key: (u64, &Q),
        checks: usize,
        visits: usize,
        now: Nanos,
    ) -> Checked
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut batch = Batch::new();
        let mut checked = Checked::default();
        while !walk.is_done() && checked.checks < checks && checked.visits < visits {
            let most = BATCH.min(checks - checked.checks);
            let mut guard = self.lock(shard);
            checked.visits += guard.state_mut().take_out(walk, key, most, &mut batch);
            guard.unlock();
            checked.checks += batch.len();
            if !batch.is_empty() {
                checked.completed += self.check_or_defer(shard, &mut batch, now);
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
    pub(super) fn check_or_defer(&self, shard: usize, batch: &mut Batch<O>, now: Nanos) -> usize {
        if deferral::is_too_deep() {
            self.defer_checks(shard, batch, now);
            return 0;
        }
        let mut completed = 0;
        while !batch.is_empty() {
            debug_assert!(batch.len() <= BATCH, "{} operations are out at once", batch.len());
            for out in batch.iter_mut() {
                out.can_complete = self.check(&mut out.operation);
            }
            let (announced, ended) = self.bring_back(shard, batch, now);
            completed += ended;
            if !announced.is_empty() {
                self.lock(shard).state_mut().take_out_again(&announced, batch);
            }
        }
        deferral::run_checks();
        completed
    }

    /// Brings operations back, and completes those that have ended. Returns those that wait but had
    /// an event meanwhile, and how many completed by a check.
    #[inline]
    fn bring_back(&self, shard: usize, batch: &mut Batch<O>, now: Nanos) -> (Vec<Key>, usize) {
        let (mut announced, mut ended) = (Vec::new(), SmallVec::<[_; 1]>::new());
        ended.reserve_exact(batch.len());
        let mut guard = self.lock(shard);
        for out in batch.drain(..) {
            let key = out.key;
            match guard.state_mut().bring_back(out, now) {
                Back::Waits => {}
                Back::IsAnnounced => announced.push(key),
                Back::Ended(operation, completion, by_check) => {
                    ended.push((operation, completion, by_check));
                }
            }
        }
        guard.unlock();
        let mut completed = 0;
        for (operation, completion, by_check) in ended {
            completed += usize::from(by_check);
            self.complete(operation, completion);
        }
        (announced, completed)
    }

    #[cold]
    fn defer_checks(&self, shard: usize, batch: &mut Batch<O>, now: Nanos) {
        for out in batch.iter() {
            self.lock(shard).state_mut().announce(out.key);
        }
        let (announced, _) = self.bring_back(shard, batch, now);
        let this = self.this.upgrade();
        deferral::defer_checks(move || {
            let Some(this) = this else { return };
            let mut batch = Batch::new();
            this.lock(shard).state_mut().take_out_again(&announced, &mut batch);
            this.check_or_defer(shard, &mut batch, now);
        });
    }
}
