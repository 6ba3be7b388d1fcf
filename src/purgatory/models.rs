//! The protocols of the purgatory under a model checker, which tries every interleaving.
//!
//! The timer is real. Its clock stands still until a thread of the model moves the clock past the
//! delay of the operations and does the work of the reaper. Operations read relaxed state, so that
//! only the protocols order it. Canaries break the protocols, and the models must fail.

mod executors;
mod expiry;
mod limits;
mod shards;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic},
    time::{Duration, Instant},
    vec,
    vec::Vec,
};

use foldhash::quality::SeedableRandomState;
use loom::thread;

use super::{
    Completion::{self, Cancelled, Expired, Satisfied, ShutDown},
    DelayedOperation, Purgatory, SharedPurgatory, WatchError, WatchErrorKind, Watched,
    conditions::{Condition, Watch, Watches},
    limits::Limits,
    operation::OperationKey,
};
use crate::{
    clock::{Clock, Driven},
    sync::{AtomicBool, AtomicU64, Ordering, explore},
    timer::{TimerBuilder, models::join},
};

/// A clock that only the models move, each time past [`DELAY`]. Not part of any protocol, so the
/// model checker does not track it.
#[derive(Debug, Clone)]
struct Still {
    start: Instant,
    moves: Arc<atomic::AtomicU32>,
}

impl Clock for Still {
    fn now(&self) -> Instant {
        self.start + 2 * DELAY * self.moves.load(atomic::Ordering::Relaxed)
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    explore(None, model);
}

/// The delay of the operations that can expire: one tick.
const DELAY: Duration = Duration::from_millis(1);

const HOUR: Duration = Duration::from_secs(3600);

/// The ends of operations, in order. Not part of any protocol, so the model checker does not track
/// it.
type Ends = Arc<std::sync::Mutex<Vec<Completion>>>;

/// The state that operations read: a flag, and the values of keys.
#[derive(Default)]
struct State {
    is_ready: AtomicBool,
    values: [AtomicU64; 2],
}

struct Op {
    state: Arc<State>,
    ends: Ends,
}

impl DelayedOperation<usize> for Op {
    fn try_complete(&mut self) -> bool {
        self.state.is_ready.load(Ordering::Relaxed)
    }

    fn has_reached(&mut self, key: &usize, threshold: u64) -> bool {
        self.state.values[*key].load(Ordering::Relaxed) >= threshold
    }

    fn complete(self, completion: Completion) {
        self.ends.lock().expect("no model panics here").push(completion);
    }
}

#[derive(Clone)]
struct World {
    purgatory: Purgatory<usize, Op>,
    clock: Still,
    state: Arc<State>,
    ends: Ends,
    /// Whether the shard is checked after each step. With three threads or many steps, that takes
    /// too long.
    checks_steps: bool,
}

impl World {
    fn new() -> Self {
        Self::with_limits(Limits::new(None, None, 8))
    }

    fn with_limits(limits: Limits) -> Self {
        Self::with(limits, |timer| timer.shards(1).inline())
    }

    /// Makes a world without limits, whose shards are not checked after each step.
    fn with_timer(set_up: impl FnOnce(TimerBuilder) -> TimerBuilder) -> Self {
        Self { checks_steps: false, ..Self::with(Limits::new(None, None, 8), set_up) }
    }

    /// Makes such a world with one shard.
    fn unchecked() -> Self {
        Self::with_timer(|timer| timer.shards(1).inline())
    }

    fn with(limits: Limits, set_up: impl FnOnce(TimerBuilder) -> TimerBuilder) -> Self {
        let clock = Still { start: Instant::now(), moves: Arc::default() };
        let timer = set_up(TimerBuilder::default().clock(clock.clone()).wheel_size(2));
        let shared =
            SharedPurgatory::new(timer, Duration::MAX, limits, SeedableRandomState::fixed())
                .expect("the settings are in range");
        // A timer without its starter starts no threads: the models do the work of these threads.
        shared.timer.need_no_threads();
        let purgatory = Purgatory { shared: Arc::new(shared) };
        Self { purgatory, clock, state: Arc::default(), ends: Arc::default(), checks_steps: true }
    }

    fn op(&self) -> Op {
        Op { state: Arc::clone(&self.state), ends: Arc::clone(&self.ends) }
    }

    fn try_watch(&self, keys: &[usize]) -> Result<Watched, WatchError<Op>> {
        self.try_watch_all(keys.iter().copied(), HOUR)
    }

    fn try_watch_all(
        &self,
        watches: impl Watches<usize>,
        delay: Duration,
    ) -> Result<Watched, WatchError<Op>> {
        let watched = self.purgatory.watch(self.op(), watches, delay);
        self.check_shard();
        watched
    }

    /// Ends an operation as cancelled. Returns whether this call decided that.
    fn cancel(&self, key: OperationKey) -> bool {
        self.purgatory.end(key, Cancelled)
    }

    /// Cancels the operations on a key, and completes those that wait. Returns their number.
    fn cancel_for_key(&self, key: usize) -> usize {
        let answer = |operation| self.purgatory.shared.calls.complete(operation, Cancelled);
        self.purgatory.cancel_for_key(&key).into_iter().map(answer).count()
    }

    fn watch_for_delay(&self, keys: &[usize]) -> Option<OperationKey> {
        let watched = self.try_watch_all(keys.iter().copied(), DELAY);
        watched.expect("there is room").key()
    }

    /// Moves the clock past [`DELAY`], and expires due operations, as the reaper does.
    fn expire(&self) {
        self.clock.moves.fetch_add(1, atomic::Ordering::Relaxed);
        self.purgatory.shared.timer.turn();
        self.check_shard();
    }

    fn watch(&self, keys: &[usize]) -> Option<OperationKey> {
        self.try_watch(keys).expect("there is room").key()
    }

    /// Registers an operation that waits until the values of both keys, or of one, have reached 5.
    fn watch_values(&self, is_all: bool) {
        let thresholds = [Condition::Threshold(0, 5), Condition::Threshold(1, 5)];
        let watch = if is_all { Watch::all(thresholds) } else { Watch::any(thresholds) };
        assert!(self.try_watch_all(watch, HOUR).is_ok());
    }

    /// Changes the state, and announces an event on a key.
    fn satisfy(&self, key: usize) -> usize {
        self.state.is_ready.store(true, Ordering::Relaxed);
        let completed = self.purgatory.check_and_complete(&key);
        self.check_shard();
        completed
    }

    fn advance(&self, key: usize) -> usize {
        self.state.values[key].store(5, Ordering::Relaxed);
        let completed = self.purgatory.advance(&key, 5);
        self.check_shard();
        completed
    }

    /// Checks the invariants that hold whenever a lock is free, also during other calls.
    fn check_shard(&self) {
        if self.checks_steps {
            for shard in self.purgatory.shared.timer.shards.lock_each() {
                shard.state().check_invariants(&mut BTreeMap::new());
            }
        }
    }

    fn spawn<V: 'static>(&self, run: impl FnOnce(&Self) -> V + 'static) -> thread::JoinHandle<V> {
        let world = self.clone();
        thread::spawn(move || run(&world))
    }

    fn ends(&self) -> Vec<Completion> {
        self.ends.lock().expect("no model panics here").clone()
    }

    /// Checks that no operation is left, here or in the timer.
    fn check_empty(&self) {
        let stats = self.purgatory.stats();
        self.purgatory.check_invariants();
        assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0), "missed");
        assert_eq!(self.purgatory.shared.timer.stats().pending, 0);
    }
}

#[test]
fn no_event_is_missed_while_an_operation_begins_to_wait() {
    check(|| {
        let world = World::new();
        // The shard publishes this operation's expiration even after its end. So the registration
        // below is not the earliest, executes no fence to wake the reaper, and needs its own fence.
        let earlier = world.watch_for_delay(&[0]).expect("it waits");
        assert_eq!(world.purgatory.complete_all(vec![earlier]), 1);
        let event = world.spawn(|world| world.satisfy(0));
        world.watch(&[0]);
        join(event);
        assert_eq!(world.ends(), [Satisfied, Satisfied]);
        world.check_empty();
    });
}

#[test]
fn no_event_is_missed_during_a_check_for_an_earlier_one() {
    check(|| {
        let world = World::new();
        world.watch(&[0]);
        // This event may take the operation out, and find that it cannot complete.
        let earlier = world.spawn(|world| world.purgatory.check_and_complete(&0));
        let completed = world.satisfy(0);
        assert_eq!(completed + join(earlier), 1);
        assert_eq!(world.ends(), [Satisfied]);
        world.check_empty();
    });
}

#[test]
fn no_value_is_missed_while_an_operation_begins_to_wait_for_one_or_two() {
    for is_all in [false, true] {
        check(move || {
            let world = World { checks_steps: !is_all, ..World::new() };
            let advance = world.spawn(move |world| {
                (0..=usize::from(is_all)).map(|key| world.advance(key)).sum::<usize>()
            });
            world.watch_values(is_all);
            join(advance);
            assert_eq!(world.ends(), [Satisfied]);
            world.check_empty();
        });
    }
}

/// The value may be reached while the operation is out, which then needs another check.
#[test]
fn no_value_is_missed_while_an_operation_begins_to_wait_for_a_value_and_an_event() {
    check(|| {
        let world = World::unchecked();
        world.state.is_ready.store(true, Ordering::Relaxed);
        let advance = world.spawn(|world| world.advance(0));
        let watch = Watch::all([Condition::Threshold(0, 5), Condition::Events(1)]);
        assert!(world.try_watch_all(watch, HOUR).is_ok());
        join(advance);
        assert_eq!(world.ends(), [Satisfied]);
        world.check_empty();
    });
}

#[test]
fn two_values_reached_at_once_satisfy_an_operation_that_waits_for_both_or_either() {
    for is_all in [true, false] {
        check(move || {
            let world = World::new();
            world.watch_values(is_all);
            let advance = world.spawn(|world| world.advance(0));
            let completed = world.advance(1);
            assert_eq!(completed + join(advance), 1);
            assert_eq!(world.ends(), [Satisfied]);
            world.check_empty();
        });
    }
}

#[test]
fn a_cancellation_by_key_cancels_a_new_operation_or_leaves_it_waiting() {
    check(|| {
        let world = World::new();
        let cancel = world.spawn(|world| world.cancel_for_key(0));
        let key = world.watch(&[0]).expect("it waits");
        // If the operation is out at its cancellation, the thread that registers it completes it.
        assert!(join(cancel) <= world.ends().len());
        let is_cancelled = !world.ends().is_empty();
        assert_eq!(world.purgatory.is_waiting(key), !is_cancelled);
        assert_eq!(world.cancel(key), !is_cancelled);
        assert_eq!(world.ends(), [Cancelled]);
        world.check_empty();
    });
}

#[test]
fn operations_completed_together_end_once_each_while_one_is_checked_and_another_expires() {
    explore(Some(4), || {
        let world = World::unchecked();
        let keys = [world.watch(&[0]), world.watch_for_delay(&[1])];
        let keys = keys.map(|key| key.expect("it waits"));
        let event = world.spawn(|world| world.satisfy(0));
        let reaper = world.spawn(World::expire);
        let claimed = world.purgatory.complete_all(vec![keys[0], keys[1], keys[0]]);
        let completed = join(event);
        join(reaper);
        let expired = world.ends().iter().filter(|end| **end == Expired).count();
        assert_eq!(claimed + completed + expired, 2);
        assert_eq!(world.ends().len(), 2, "each ends once");
        world.check_empty();
    });
}

#[test]
fn an_operation_that_comes_during_a_shutdown_is_refused_or_answered() {
    explore(Some(4), || {
        let world = World::unchecked();
        let event = world.spawn(|world| world.satisfy(0));
        let closer = world.spawn(|world| {
            world.purgatory.shared.shut_down();
        });
        let refused = world.try_watch(&[0]).err();
        join(event);
        join(closer);
        match refused {
            Some(error) => {
                assert_eq!((error.kind(), world.ends()), (WatchErrorKind::ShutDown, Vec::new()));
            }
            None => assert!(matches!(world.ends()[..], [Satisfied] | [ShutDown]), "lost"),
        }
        world.check_empty();
        assert!(matches!(world.try_watch(&[0]), Ok(Watched::Completed)));
    });
}

#[test]
fn an_operation_that_is_out_during_a_shutdown_is_answered_once() {
    check(|| {
        let world = World::new();
        world.watch(&[0]);
        // The event finds that the operation cannot complete, and brings the operation back.
        let event = world.spawn(|world| world.purgatory.check_and_complete(&0));
        world.purgatory.shared.shut_down();
        // If the event has taken the operation out, the thread of the event completes it.
        assert_eq!(join(event), 0);
        assert_eq!(world.ends(), [ShutDown]);
        world.check_empty();
    });
}

#[test]
fn two_walks_over_one_list_check_each_operation_once_or_leave_it_to_the_other() {
    check(|| {
        let world = World::new();
        world.watch(&[0]);
        world.watch(&[0]);
        // A hold visits one operation, so each walk has a position in the list while the other walk
        // changes the list.
        let walk = |world: &World| {
            world.state.is_ready.store(true, Ordering::Relaxed);
            world.purgatory.check_and_complete(&0)
        };
        let other = world.spawn(walk);
        assert_eq!(walk(&world) + join(other), 2);
        assert_eq!(world.ends(), [Satisfied, Satisfied]);
        world.check_empty();
    });
}

#[test]
fn a_walk_skips_an_operation_that_leaves_at_its_position() {
    check(|| {
        let world = World::new();
        let keys = [0, 1, 2].map(|_| world.watch(&[0]).expect("it waits"));
        let canceller = world.spawn(move |world| world.cancel(keys[1]));
        world.state.is_ready.store(true, Ordering::Relaxed);
        let completed = world.purgatory.check_and_complete(&0);
        let is_cancelled = join(canceller);
        assert_eq!((completed, world.ends().len()), (3 - usize::from(is_cancelled), 3));
        assert_eq!(world.ends().contains(&Cancelled), is_cancelled);
        world.check_empty();
    });
}
