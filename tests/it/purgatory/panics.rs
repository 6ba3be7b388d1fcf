//! Panics in user code: the purgatory counts them, and they affect no other operation.

use std::{
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use delaywheel::{
    Completion,
    Completion::Cancelled,
    Completion::Satisfied,
    Completion::ShutDown,
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock,
    Overload::{DisplaceOldest, Refuse},
    Purgatory, PurgatoryBuilder, Timer, Watch,
};

use super::support::{Cancel as _, HOUR, Key, Log, OnKeys, Op, World, all, must_return};
use crate::timer::support::HookedClock;

/// Makes a world with three operations on key 1. The `complete` of the second one panics.
fn with_a_bad_one() -> World {
    let world = World::new();
    world.watch(0, [1]);
    let held = Arc::clone(&world.held);
    let bad = world.op(1).end(move |_| panic!("in complete, with {held:?}"));
    world.waits(world.purgatory.watch(bad, Watch::any([Events(1), Threshold(2, 5)]), HOUR));
    world.watch(2, [1]);
    world
}

#[test]
fn the_drop_of_the_last_handle_completes_the_others_if_one_panics() {
    let World { purgatory, state, .. } = with_a_bad_one();
    drop(purgatory);
    assert_eq!(state.lock().unwrap().ended, all([0, 2], ShutDown));
}

#[test]
fn a_panic_in_has_reached_counts_as_not_reached() {
    let world = World::new();
    let op = world.op(1).reach(|_, _| panic!("in a question"));
    world.wait_on(op, Watch::all([Threshold(1, 5), Threshold(2, 5)]));
    assert_eq!(world.purgatory.stats().panicked, 4);
    assert_eq!(world.purgatory.advance(&1, 5) + world.purgatory.advance(&2, 5), 1);
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

/// Panics when it is dropped, unless its thread already panics.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the drop panics");
    }
}

#[test]
fn a_panic_in_the_drop_of_an_operation_is_counted() {
    let world = World::new();
    let mut guards = Vec::new();
    for name in 0..10 {
        let (ended, explosive) = (world.state.clone(), Explosive);
        let op = Op::new().check(|| false).end(move |end| {
            ended.lock().unwrap().ended.push((name, end));
            let _explodes_at_the_end = &explosive;
        });
        let key = world.waits(world.purgatory.watch(op, [1], HOUR));
        guards.push(world.purgatory.guard(key));
    }
    drop(guards);
    assert_eq!(world.ended(), all(0..10, Cancelled));
    assert_eq!(world.purgatory.stats().panicked, 10);
    world.check_empty();
}

/// A key whose drop panics while the switch is on.
fn bad_key(number: u32, is_bad: &Arc<AtomicBool>) -> Key {
    let is_bad = Arc::clone(is_bad);
    Key::new(number, move || {
        let is_bad = is_bad.load(Ordering::Relaxed) && !std::thread::panicking();
        assert!(!is_bad, "the drop of a key panics");
    })
}

#[test]
fn a_panic_in_the_drop_of_a_key_is_counted() {
    let timer = Timer::builder().clock(ManualClock::new()).shards(1);
    let purgatory: OnKeys = Purgatory::builder().timer(timer).build().unwrap();
    let (is_bad, log) = (Arc::new(AtomicBool::new(false)), Log::new());
    let op = |name| {
        let log = log.clone();
        Op::new().reach(move |_, _| name > 2).end(move |end| log.push((name, end)))
    };
    let [one, two, three] = [1, 2, 3].map(|number| bad_key(number, &is_bad));
    let keys = [one.clone(), two, three.clone()];
    let _ = purgatory.watch(op(1), keys, HOUR).unwrap();
    let _ = purgatory.watch(op(2), [three], HOUR).unwrap();
    is_bad.store(true, Ordering::Relaxed);
    assert_eq!(purgatory.cancel_on(&one), 1);
    assert_eq!(log.take(), [(1, Cancelled)]);
    assert_eq!((purgatory.stats().panicked, purgatory.stats().keys), (2, 1));
    assert_eq!(purgatory.cancel_on(&bad_key(3, &Arc::default())), 1);
    assert_eq!((purgatory.stats().panicked, log.take()), (3, vec![(2, Cancelled)]));
    // The purgatory drops keys that it has already.
    let bad = || bad_key(5, &is_bad);
    assert!(purgatory.watch(op(1), [bad(), bad()], HOUR).is_ok());
    let watch = Watch::any([Threshold(bad(), 5)]);
    assert!(purgatory.watch(op(2), watch, HOUR).is_ok());
    assert_eq!((purgatory.stats().panicked, purgatory.stats().keys), (6, 1));
    assert_eq!(purgatory.cancel_on(&bad_key(5, &Arc::default())), 2);
    assert_eq!(log.take(), [(1, Cancelled), (2, Cancelled)]);
    // The keys of a reached threshold, and of one that is asked again, are dropped as well.
    for (name, end) in [(3, Satisfied), (2, Cancelled)] {
        let conditions = [Threshold(bad_key(4, &is_bad), 5)];
        let watch = || purgatory.watch(op(name), Watch::any(conditions), HOUR);
        let _ = catch_unwind(AssertUnwindSafe(|| watch().is_ok()));
        assert_eq!(purgatory.stats().delayed, u64::from(end == Cancelled));
        purgatory.cancel_on(&bad_key(4, &Arc::default()));
        assert_eq!(log.take(), [(name, end)]);
    }
    is_bad.store(false, Ordering::Relaxed);
}

/// What a [`Fused`] key, or the clock, does when it panics.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Use {
    Comparison,
    Hash,
    Drop,
    Clock,
}

/// Makes one use of the keys and of the clock that share it panic: the one after so many others of
/// its kind.
#[derive(Default)]
struct Fuse {
    left: Mutex<Option<(Use, u32)>>,
    /// The drop of each key uses it, which deadlocks if a lock is held.
    purgatory: Mutex<Option<Purgatory<Fused, Noting>>>,
}

fn burn(fuse: &Fuse, this: Use) {
    let mut fuse = fuse.left.lock().unwrap();
    let is_over = match fuse.as_mut().filter(|(kind, _)| *kind == this) {
        Some((_, 0)) => fuse.take().is_some(),
        Some((_, left)) => {
            *left -= 1;
            false
        }
        None => false,
    };
    drop(fuse);
    assert!(!is_over, "a key or the clock panics in its {this:?}");
}

#[derive(Clone)]
struct Fused(u32, Arc<Fuse>);

impl PartialEq for Fused {
    fn eq(&self, other: &Self) -> bool {
        burn(&self.1, Use::Comparison);
        self.0 == other.0
    }
}

impl Eq for Fused {}

impl Hash for Fused {
    fn hash<H: Hasher>(&self, state: &mut H) {
        burn(&self.1, Use::Hash);
        self.0.hash(state);
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        let used = self.1.purgatory.lock().unwrap().clone();
        drop(used.map(|purgatory| purgatory.stats()));
        burn(&self.1, Use::Drop);
    }
}

/// An operation that uses the purgatory when it ends, and notes its end.
struct Noting {
    name: u32,
    is_ready: Arc<AtomicBool>,
    purgatory: Purgatory<Fused, Self>,
    ends: Log<(u32, Completion)>,
}

impl DelayedOperation<Fused> for Noting {
    fn try_complete(&mut self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    fn complete(self, completion: Completion) {
        drop(self.purgatory.stats());
        self.ends.push((self.name, completion));
    }
}

/// Operations of which each end is noted, on keys that may panic.
struct Trial {
    purgatory: Purgatory<Fused, Noting>,
    fuse: Arc<Fuse>,
    is_ready: Arc<AtomicBool>,
    ends: Log<(u32, Completion)>,
    names: AtomicU32,
    refused: AtomicU32,
}

type Limit = fn(PurgatoryBuilder<Fused, Noting>) -> PurgatoryBuilder<Fused, Noting>;

impl Trial {
    fn new(limit: Limit) -> Self {
        let (fuse, is_ready) = (Arc::<Fuse>::default(), Arc::default());
        let (clock, own) = (HookedClock::new(), Arc::clone(&fuse));
        clock.set(move || burn(&own, Use::Clock));
        let timer = Timer::builder().clock(clock).shards(1);
        let purgatory = limit(Purgatory::builder().timer(timer)).build().unwrap();
        let (names, refused) = (AtomicU32::new(0), AtomicU32::new(0));
        *fuse.purgatory.lock().unwrap() = Some(purgatory.clone());
        Self { purgatory, fuse, is_ready, ends: Log::new(), names, refused }
    }

    fn key(&self, number: u32) -> Fused {
        Fused(number, Arc::clone(&self.fuse))
    }

    /// Registers an operation, or notes that it was refused.
    fn watch(&self, watch: impl delaywheel::Watches<Fused>) {
        let (name, purgatory) =
            (self.names.fetch_add(1, Ordering::Relaxed), self.purgatory.clone());
        let (is_ready, ends) = (Arc::clone(&self.is_ready), self.ends.clone());
        let noting = Noting { name, is_ready, purgatory, ends };
        if let Err(refused) = self.purgatory.watch(noting, watch, HOUR) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            refused.into_value().complete(Cancelled);
        }
    }

    /// Checks that each operation has one end or waits, and that the counts say so.
    fn check(&self) {
        self.purgatory.check_invariants();
        let (stats, ends, names) =
            (self.purgatory.stats(), self.ends.take(), self.names.load(Ordering::Relaxed));
        let mut ended: Vec<_> = ends.iter().map(|(name, _)| *name).collect();
        ended.sort_unstable();
        assert!(ended.windows(2).all(|two| two[0] < two[1]), "an operation has ended twice");
        assert_eq!(ended.len() as u64 + stats.delayed, names.into(), "an operation is lost");
        assert_eq!(stats.refused, self.refused.load(Ordering::Relaxed).into());
        assert_eq!(super::support::sum(&stats) + stats.refused, names.into(), "{stats:?}");
        assert_eq!(stats.timer.pending, stats.delayed, "a timeout is left");
        for end in ends {
            self.ends.push(end);
        }
    }
}

/// Calls a function, in which a key may panic. Returns whether one did.
fn panics(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

#[test]
fn no_operation_is_lost_wherever_a_key_or_the_clock_panics() {
    let limits: [Limit; 3] = [
        |builder| builder,
        |builder| builder.max_delayed(30, Refuse).max_delayed_per_key(20, Refuse),
        |builder| builder.max_delayed(30, DisplaceOldest).max_delayed_per_key(20, DisplaceOldest),
    ];
    let script = |trial: &Trial| {
        let key = |number| trial.key(number);
        let mut panicked = false;
        for at in 0..36 {
            panicked |= panics(|| match at % 4 {
                0 => trial.watch([key(1), key(3), key(1), key(4), key(5)]),
                1 => trial.watch(Watch::any([Threshold(key(2), at / 8), Events(key(4))])),
                2 => trial.watch(Watch::all([Threshold(key(2), at / 8), Events(key(3))])),
                _ => trial.watch(Watch::any([Threshold(key(2), at), Threshold(key(6), at)])),
            });
        }
        panicked |= panics(|| _ = trial.purgatory.advance(&key(2), 4));
        panicked |= panics(|| _ = trial.purgatory.check_and_complete(&key(3)));
        let cancel = |number| {
            for operation in trial.purgatory.cancel_for_key(&key(number)) {
                operation.complete(Cancelled);
            }
        };
        panicked |= panics(|| cancel(4)) | panics(|| cancel(2));
        trial.is_ready.store(true, Ordering::Relaxed);
        panicked |= panics(|| trial.watch([key(1)]));
        panicked |= panics(|| _ = trial.purgatory.check_and_complete(&key(1)));
        panicked
    };
    must_return(move || {
        for kind in [Use::Comparison, Use::Hash, Use::Drop, Use::Clock] {
            for limit in limits {
                for count in (0..).step_by(if cfg!(debug_assertions) { 3 } else { 1 }) {
                    let trial = Trial::new(limit);
                    *trial.fuse.left.lock().unwrap() = Some((kind, count));
                    let panicked = script(&trial);
                    let is_used_up = trial.fuse.left.lock().unwrap().take().is_none();
                    trial.check();
                    assert!(is_used_up || !panicked, "other code panicked");
                    for operation in trial.purgatory.shutdown() {
                        operation.complete(ShutDown);
                    }
                    trial.check();
                    *trial.fuse.purgatory.lock().unwrap() = None;
                    if !is_used_up {
                        assert!(count > 30, "few uses were made");
                        break;
                    }
                }
            }
        }
    });
}

#[test]
fn after_a_panic_of_a_key_the_call_ends_the_operations_that_it_has_reached() {
    let panicking = |trial: &Trial, call: &dyn Fn()| {
        *trial.fuse.left.lock().unwrap() = Some((Use::Comparison, 1));
        assert!(panics(call), "no key panicked");
        trial.check();
        trial.ends.take()
    };
    must_return(move || {
        // A hold ends 32 operations, and the next one compares the key again.
        let trial = Trial::new(|builder| builder);
        let one = trial.key(1);
        for at in 0..40 {
            trial.watch(Watch::any([Threshold(one.clone(), at)]));
        }
        let ends = panicking(&trial, &|| _ = trial.purgatory.advance(&one, 50));
        assert_eq!(ends, all(0..32, Satisfied));
        assert_eq!(trial.purgatory.advance(&one, 50), 8, "the others wait for the next call");
        assert_eq!(trial.ends.take(), all(32..40, Satisfied));

        // Those that need a check are checked.
        let trial = Trial::new(|builder| builder);
        let (one, two) = (trial.key(1), trial.key(2));
        for _ in 0..40 {
            trial.watch(Watch::all([Threshold(one.clone(), 5), Events(two.clone())]));
        }
        trial.is_ready.store(true, Ordering::Relaxed);
        let ends = panicking(&trial, &|| _ = trial.purgatory.advance(&one, 5));
        assert_eq!(ends, all(0..32, Satisfied));
    });
    must_return(move || {
        let trial = Trial::new(|builder| builder);
        let one = trial.key(1);
        for _ in 0..40 {
            trial.watch([one.clone()]);
        }
        let ends = panicking(&trial, &|| drop(trial.purgatory.cancel_for_key(&one)));
        assert_eq!(ends, all(0..32, Cancelled));
        assert_eq!(trial.purgatory.cancel_for_key(&one).len(), 8);
    });
    let limits: [Limit; 5] = [
        |builder| builder,
        |builder| builder.max_delayed(2, DisplaceOldest),
        |builder| builder.max_delayed(2, Refuse),
        |builder| builder.max_delayed_per_key(2, DisplaceOldest),
        |builder| builder.max_delayed_per_key(2, Refuse),
    ];
    must_return(move || {
        for limit in limits {
            let trial = Trial::new(limit);
            let [one, two] = [1, 2].map(|number| trial.key(number));
            trial.watch([one.clone(), two.clone()]);
            let ends = panicking(&trial, &|| trial.watch([one.clone(), two.clone()]));
            assert_eq!(ends, [(1, Cancelled)]);
            assert_eq!(trial.purgatory.stats().cancelled, 1);
            trial.watch([one]);
            assert_eq!(trial.purgatory.stats().delayed, 2, "a permit is lost");
        }
    });
}

#[test]
fn an_operation_is_cancelled_wherever_the_clock_panics_while_it_begins_to_wait() {
    let limits: [Limit; 3] = [
        |builder| builder,
        |builder| builder.max_delayed(1, DisplaceOldest),
        |builder| builder.max_delayed_per_key(1, DisplaceOldest),
    ];
    must_return(move || {
        for (limit, reads) in limits.into_iter().zip([1, 2, 2]) {
            for count in 0..reads {
                let trial = Trial::new(limit);
                trial.watch([trial.key(1)]);
                *trial.fuse.left.lock().unwrap() = Some((Use::Clock, count));
                assert!(panics(|| trial.watch([trial.key(1)])), "fewer reads than {reads}");
                trial.check();
                assert_eq!(trial.ends.take(), [(1, Cancelled)]);
                assert_eq!(trial.purgatory.stats().delayed, 1);
            }
        }
    });
}
