//! Panics in user code: the purgatory counts them, and they affect no other operation.

use std::{
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use delaywheel::{
    Completion,
    Completion::Cancelled,
    Completion::Satisfied,
    Completion::ShutDown,
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock, Purgatory, PurgatoryBuilder, Timer, Watch,
};

use super::support::{
    Cancel as _, HOUR, Idle, Log, MS, Op, SECOND, Tagged, World, all, must_return,
};

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

/// Its drop panics while the switch is on.
#[derive(Clone, Debug)]
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        let is_bad = self.0.load(Ordering::Relaxed) && !std::thread::panicking();
        assert!(!is_bad, "the drop of a key panics");
    }
}

type BadKey = Tagged<Bomb>;

fn bad_key(number: u32, is_bad: &Arc<AtomicBool>) -> BadKey {
    Tagged(number, Bomb(Arc::clone(is_bad)))
}

struct OnBadKeys(u32, Log<(u32, Completion)>);

impl DelayedOperation<BadKey> for OnBadKeys {
    fn has_reached(&mut self, _: &BadKey, _: u64) -> bool {
        self.0 > 2
    }

    fn complete(self, completion: Completion) {
        self.1.push((self.0, completion));
    }
}

#[test]
fn a_panic_in_the_drop_of_a_key_is_counted() {
    let timer = Timer::builder().clock(ManualClock::new()).shards(1);
    let purgatory = Purgatory::builder().timer(timer).build().unwrap();
    let (is_bad, log) = (Arc::new(AtomicBool::new(false)), Log::new());
    let [one, two, three] = [1, 2, 3].map(|number| bad_key(number, &is_bad));
    let keys = [one.clone(), two, three.clone()];
    let _ = purgatory.watch(OnBadKeys(1, log.clone()), keys, HOUR).unwrap();
    let _ = purgatory.watch(OnBadKeys(2, log.clone()), [three], HOUR).unwrap();
    is_bad.store(true, Ordering::Relaxed);
    assert_eq!(purgatory.cancel_on(&one), 1);
    assert_eq!(log.take(), [(1, Cancelled)]);
    assert_eq!((purgatory.stats().panicked, purgatory.stats().keys), (2, 1));
    assert_eq!(purgatory.cancel_on(&bad_key(3, &Arc::default())), 1);
    assert_eq!((purgatory.stats().panicked, log.take()), (3, vec![(2, Cancelled)]));
    // The purgatory drops keys that it has already.
    let bad = || bad_key(5, &is_bad);
    assert!(purgatory.watch(OnBadKeys(1, log.clone()), [bad(), bad()], HOUR).is_ok());
    let watch = Watch::any([Threshold(bad(), 5)]);
    assert!(purgatory.watch(OnBadKeys(2, log.clone()), watch, HOUR).is_ok());
    assert_eq!((purgatory.stats().panicked, purgatory.stats().keys), (6, 1));
    assert_eq!(purgatory.cancel_on(&bad_key(5, &Arc::default())), 2);
    assert_eq!(log.take(), [(1, Cancelled), (2, Cancelled)]);
    // The keys of a reached threshold, and of one that is asked again, are dropped as well.
    for (name, end) in [(3, Satisfied), (2, Cancelled)] {
        let conditions = [Threshold(bad_key(4, &is_bad), 5)];
        let watch = || purgatory.watch(OnBadKeys(name, log.clone()), Watch::any(conditions), HOUR);
        let _ = catch_unwind(AssertUnwindSafe(|| watch().is_ok()));
        assert_eq!(purgatory.delayed(), u64::from(end == Cancelled));
        purgatory.cancel_on(&bad_key(4, &Arc::default()));
        assert_eq!(log.take(), [(name, end)]);
    }
    is_bad.store(false, Ordering::Relaxed);
}

/// A key that is equal to all others. Its comparison panics if one of the two keys is bad.
#[derive(Clone)]
struct Incomparable {
    is_bad: bool,
}

impl PartialEq for Incomparable {
    fn eq(&self, other: &Self) -> bool {
        assert!(!self.is_bad && !other.is_bad, "in a comparison");
        true
    }
}

impl Eq for Incomparable {}

impl Hash for Incomparable {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// An [`Incomparable`] key whose drop calls a function.
#[derive(Clone)]
struct Calling(Incomparable, Arc<dyn Fn() + Send + Sync>);

impl PartialEq for Calling {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Calling {}

impl Hash for Calling {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.1();
    }
}

#[test]
fn a_key_whose_comparison_panics_is_dropped_without_a_lock() {
    must_return(|| {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let purgatory = Purgatory::<Calling, Idle>::builder().timer(timer).build().unwrap();
        let bad = Calling(Incomparable { is_bad: true }, Arc::new(|| ()));
        assert!(purgatory.watch(Idle, [bad], HOUR).is_ok());
        let used = purgatory.clone();
        let key = Calling(Incomparable { is_bad: false }, Arc::new(move || _ = used.stats()));
        for condition in [Events(key.clone()), Threshold(key, 5)] {
            let watch = || purgatory.watch(Idle, Watch::any([condition]), HOUR);
            assert!(catch_unwind(AssertUnwindSafe(|| watch().is_ok())).is_err());
            purgatory.check_invariants();
            assert_eq!((purgatory.delayed(), purgatory.stats().watched), (1, 1));
        }
    });
}

#[test]
fn an_operation_whose_key_panics_in_a_comparison_has_ended() {
    use delaywheel::Overload::{DisplaceOldest, Refuse};
    type Builder = PurgatoryBuilder<Incomparable, Idle>;
    let limits: [fn(Builder) -> Builder; 4] = [
        |builder| builder,
        |builder| builder.max_delayed(9, DisplaceOldest),
        |builder| builder.max_delayed(2, Refuse),
        |builder| builder.max_delayed_per_key(9, DisplaceOldest),
    ];
    for limit in limits {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let purgatory = limit(Purgatory::builder().timer(timer)).build().unwrap();
        let first = purgatory.watch(Idle, [Incomparable { is_bad: true }], HOUR).unwrap();
        let watched = || purgatory.watch(Idle, [Incomparable { is_bad: false }], MS);
        assert!(catch_unwind(AssertUnwindSafe(watched)).is_err(), "no keys were compared");
        purgatory.check_invariants();
        assert_eq!((purgatory.delayed(), purgatory.stats().watched), (1, 1));
        clock.advance(SECOND);
        assert_eq!(purgatory.stats().timer.panicked, 0);
        assert!(purgatory.cancel(first.key().unwrap()).is_some());
        for _ in 0..2 {
            assert!(purgatory.watch(Idle, [], HOUR).is_ok(), "a permit is lost");
        }
        assert_eq!(purgatory.shutdown().len(), 2);
    }
}
