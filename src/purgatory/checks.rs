//! Checks after events on several keys, a few operations at a time.

use std::{borrow::Borrow, collections::VecDeque, fmt, hash::Hash, vec::Vec};

use super::{
    core::Core, filter::fence_event, lists::HashedKey, operation::DelayedOperation, walk::Walk,
};

/// Checks to run after events on some keys; from [`Purgatory::checks`](super::Purgatory::checks).
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
    core: &'a Core<K, O, R>,
    turns: VecDeque<Turn<'a, K, O, R>>,
    keys: Vec<HashedKey<'a, Q>>,
    /// The pass in each shard; 0 if it has not begun.
    passes: Vec<u64>,
}

/// A key in a shard.
struct Turn<'a, K, O, R> {
    key: usize,
    number: usize,
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
    pub(super) fn new(core: &'a Core<K, O, R>, keys: impl IntoIterator<Item = &'a Q>) -> Self {
        let keys: Vec<_> = keys.into_iter().map(|key| core.hashed(key)).collect();
        fence_event();
        let passes = core.passes().into_vec();
        let turns = (0..keys.len())
            .flat_map(|key| (0..passes.len()).map(move |number| Turn { key, number, walk: None }));
        Self { core, turns: turns.collect(), keys, passes }
    }

    /// Checks at most `budget` operations. Returns how many of them completed.
    pub fn run(&mut self, mut budget: usize) -> usize {
        let mut completed = 0;
        while budget > 0 {
            let Some(mut turn) = self.turns.pop_front() else { break };
            let key = self.keys[turn.key];
            let pass = &mut self.passes[turn.number];
            let Some(mut walk) =
                turn.walk.take().or_else(|| self.core.walk(turn.number, *pass, key.hash))
            else {
                continue;
            };
            let share = TURN.min(budget);
            let checked = self.core.check_walk(turn.number, &mut walk, key, share);
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
