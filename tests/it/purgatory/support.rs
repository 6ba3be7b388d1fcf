//! Helpers of the purgatory tests: operations made of closures, and a world for them.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
};

use delaywheel::{
    Completion, DelayedOperation, ManualClock, OperationKey, Purgatory, PurgatoryBuilder,
    PurgatoryStats, Timer, WatchError, Watched, Watches,
};

pub(crate) use crate::timer::support::{
    HOUR, Log, MS, OnDrop, SECOND, YEAR, must_return, wait_until,
};

type Reach<K> = dyn FnMut(&K, u64) -> bool + Send;

/// Tests share its types, since each pair of keys and operations takes half a second to compile.
pub(crate) struct Op<K = u32> {
    check: Box<dyn FnMut() -> bool + Send>,
    reach: Box<Reach<K>>,
    end: Box<dyn FnOnce(Completion) + Send>,
}

impl<K> Op<K> {
    /// Makes an operation that never completes by itself, and ignores its end.
    pub(crate) fn new() -> Self {
        Self { check: Box::new(|| false), reach: Box::new(|_, _| false), end: Box::new(drop) }
    }

    pub(crate) fn check(mut self, check: impl FnMut() -> bool + Send + 'static) -> Self {
        self.check = Box::new(check);
        self
    }

    pub(crate) fn reach(mut self, reach: impl FnMut(&K, u64) -> bool + Send + 'static) -> Self {
        self.reach = Box::new(reach);
        self
    }

    pub(crate) fn end(mut self, end: impl FnOnce(Completion) + Send + 'static) -> Self {
        self.end = Box::new(end);
        self
    }
}

impl<K: 'static> DelayedOperation<K> for Op<K> {
    fn try_complete(&mut self) -> bool {
        (self.check)()
    }

    fn has_reached(&mut self, key: &K, threshold: u64) -> bool {
        (self.reach)(key, threshold)
    }

    fn complete(self, completion: Completion) {
        (self.end)(completion);
    }
}

pub(crate) type Builder = PurgatoryBuilder<u32, Op>;

pub(crate) type Shared = Purgatory<u32, Op>;

/// A key whose drop calls a function.
pub(crate) type Key = Tagged<OnDrop>;

pub(crate) type OnKeys = Purgatory<Key, Op<Key>>;

/// The state that operations wait for, and a log of their checks and ends.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) ready: BTreeSet<u32>,
    pub(crate) values: BTreeMap<u32, u64>,
    pub(crate) checked: Vec<u32>,
    pub(crate) ended: Vec<(u32, Completion)>,
    /// Number of accepted operations, whether they waited or not.
    pub(crate) accepted: u64,
}

/// A purgatory in virtual time with ticks of 1 ms, and the state that its operations read.
pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) purgatory: Shared,
    pub(crate) state: Arc<Mutex<State>>,
    /// Each operation holds a clone, so its count tells how many exist.
    pub(crate) held: Arc<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(3);
        let purgatory = change(Purgatory::builder().timer(timer)).build();
        Self {
            clock,
            purgatory: purgatory.expect("the settings are in range"),
            state: Arc::default(),
            held: Arc::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics in here")
    }

    /// Makes an operation that reads the state, and logs its checks and its end there.
    pub(crate) fn op(&self, name: u32) -> Op {
        let (checked, reached, ended) =
            (Arc::clone(&self.state), Arc::clone(&self.state), Arc::clone(&self.state));
        let held = Arc::clone(&self.held);
        Op::new()
            .check(move || {
                let mut state = checked.lock().expect("no test panics in here");
                state.checked.push(name);
                state.ready.contains(&name)
            })
            .reach(move |key, at| {
                let state = reached.lock().expect("no test panics in here");
                state.values.get(key).is_some_and(|&value| value >= at)
            })
            .end(move |completion| {
                ended.lock().expect("no test panics in here").ended.push((name, completion));
                drop(held);
            })
    }

    /// Registers an operation for events, with a delay of an hour.
    pub(crate) fn watch(&self, name: u32, keys: impl IntoIterator<Item = u32>) -> OperationKey {
        self.waits(self.purgatory.watch(self.op(name), keys, HOUR))
    }

    /// Registers an operation, which must wait, with a delay of an hour.
    #[track_caller]
    pub(crate) fn wait_on(&self, op: Op, watches: impl Watches<u32>) -> OperationKey {
        self.waits(self.purgatory.watch(op, watches, HOUR))
    }

    #[track_caller]
    pub(crate) fn waits(&self, watched: Result<Watched, WatchError<Op>>) -> OperationKey {
        self.state().accepted += 1;
        watched.expect("there is room").key().expect("it cannot complete yet")
    }

    /// Counts an accepted operation. Returns whether it completed at once.
    #[track_caller]
    pub(crate) fn at_once(&self, watched: Result<Watched, WatchError<Op>>) -> bool {
        self.state().accepted += 1;
        watched.expect("there is room").key().is_none()
    }

    /// Makes the checks of an operation succeed, without announcing it.
    pub(crate) fn make_ready(&self, name: u32) {
        self.state().ready.insert(name);
    }

    pub(crate) fn advance(&self, key: u32, value: u64) -> usize {
        self.state().values.insert(key, value);
        self.purgatory.advance(&key, value)
    }

    pub(crate) fn ended(&self) -> Vec<(u32, Completion)> {
        std::mem::take(&mut self.state().ended)
    }

    pub(crate) fn checked(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().checked)
    }

    /// Checks the invariants, and that the counts agree with each other.
    #[track_caller]
    pub(crate) fn check_books(&self) {
        self.purgatory.check_invariants();
        let stats = self.purgatory.stats();
        assert_eq!(sum(&stats), self.state().accepted, "{stats:?}");
        let waited = sum(&stats) - stats.at_once - stats.delayed;
        assert_eq!(stats.waits.count(), waited, "each wait is measured");
        assert_eq!(stats.timer.pending, stats.delayed);
    }

    #[track_caller]
    pub(crate) fn check_empty(&self) {
        self.check_books();
        let stats = self.purgatory.stats();
        assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0));
        assert_eq!(Arc::strong_count(&self.held), 1, "an operation is left");
    }
}

/// A key that is equal to each one of its number, whatever it carries.
#[derive(Debug, Clone)]
pub(crate) struct Tagged<T>(pub(crate) u32, pub(crate) T);

impl Key {
    pub(crate) fn new(number: u32, dropped: impl Fn() + Send + Sync + 'static) -> Self {
        Self(number, OnDrop::new(dropped))
    }
}

impl Borrow<u32> for Key {
    fn borrow(&self) -> &u32 {
        &self.0
    }
}

impl<T> PartialEq for Tagged<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Tagged<T> {}

impl<T> Hash for Tagged<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Returns the number of accepted operations: the sum of those that wait and all ends.
pub(crate) fn sum(stats: &PurgatoryStats) -> u64 {
    let ended = stats.satisfied + stats.expired + stats.cancelled + stats.displaced;
    stats.at_once + stats.delayed + ended + stats.shut_down
}

/// Returns the same end for each of these operations, in order.
pub(crate) fn all(names: impl IntoIterator<Item = u32>, end: Completion) -> Vec<(u32, Completion)> {
    names.into_iter().map(|name| (name, end)).collect()
}

pub(crate) trait Cancel<K> {
    /// Announces events on keys, one after the other. Returns how many operations completed.
    fn check_each(&self, keys: impl IntoIterator<Item = K>) -> usize;

    fn cancel_one(&self, key: OperationKey) -> bool;

    /// Cancels the operations that watch a key. Returns the number of those that were waiting.
    fn cancel_on<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>;
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>> Cancel<K> for Purgatory<K, O> {
    fn check_each(&self, keys: impl IntoIterator<Item = K>) -> usize {
        keys.into_iter().map(|key| self.check_and_complete(&key)).sum()
    }

    fn cancel_one(&self, key: OperationKey) -> bool {
        self.cancel(key).map(|op| op.complete(Completion::Cancelled)).is_some()
    }

    fn cancel_on<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let answer = |op: O| op.complete(Completion::Cancelled);
        self.cancel_for_key(key).into_iter().map(answer).count()
    }
}
