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

use super::support::{Cancel as _, HOUR, Log, MS, Op, SECOND, World, all, must_return, wait_until};

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

/// Three operations expire.
fn expire(clock: &ManualClock) -> usize {
    clock.advance(HOUR);
    3
}

#[test]
fn a_panic_in_complete_is_counted_and_the_others_complete() {
    type Way = fn(&World) -> usize;
    let ways: [(Way, Completion); 2] = [
        (|world| world.purgatory.check_and_complete(&1), Satisfied),
        (|world| expire(&world.clock), Completion::Expired),
    ];
    for (way, end) in ways {
        let world = with_a_bad_one();
        world.state().ready.extend(0..3);
        assert_eq!(way(&world), 3);
        assert_eq!(world.ended(), all([0, 2], end));
        assert_eq!(world.purgatory.stats().panicked, 1);
        assert_eq!(world.purgatory.stats().timer.panicked, 0);
        world.check_empty();
    }
}

#[test]
fn the_drop_of_the_last_handle_completes_the_others_if_one_panics() {
    let World { purgatory, state, .. } = with_a_bad_one();
    drop(purgatory);
    assert_eq!(state.lock().unwrap().ended, all([0, 2], ShutDown));
}

#[test]
fn a_check_that_panics_does_not_complete_its_operation() {
    let world = World::new();
    world.watch(0, [1]);
    let is_bad = Arc::new(AtomicBool::new(true));
    let bad = Arc::clone(&is_bad);
    let op = world.op(1).check(move || {
        assert!(!bad.load(Ordering::Relaxed), "in a check");
        true
    });
    let key = world.waits(world.purgatory.watch(op, [1], HOUR));
    world.watch(2, [1]);
    assert_eq!(world.purgatory.stats().panicked, 2, "before and after it began to wait");
    world.state().ready.extend([0, 2]);
    assert_eq!(world.purgatory.check_and_complete(&1), 2);
    assert_eq!(world.ended(), all([0, 2], Satisfied));
    assert_eq!(world.purgatory.stats().panicked, 3);
    assert!(world.purgatory.is_waiting(key));
    is_bad.store(false, Ordering::Relaxed);
    assert_eq!(world.purgatory.check_and_complete(&1), 1);
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

#[test]
fn a_panic_in_has_reached_counts_as_not_reached() {
    let world = World::new();
    let op = world.op(1).reach(|_, _| panic!("in a question"));
    world.all_of(op, [Threshold(1, 5), Threshold(2, 5)]);
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

#[test]
fn a_panic_payload_whose_drop_panics_affects_no_other_operation() {
    let world = World::new();
    let op = Op::new().end(|_| std::panic::panic_any(Explosive));
    let keys = [world.waits(world.purgatory.watch(op, [1], HOUR)), world.watch(2, [1])];
    assert_eq!(world.purgatory.complete_all(keys), 2);
    assert_eq!(world.ended(), [(2, Satisfied)]);
    assert_eq!(world.purgatory.stats().panicked, 1);
    world.check_empty();
}

/// A key whose drop panics while the switch is on.
#[derive(Clone)]
struct BadKey(u32, Arc<AtomicBool>);

impl Drop for BadKey {
    fn drop(&mut self) {
        let is_bad = self.1.load(Ordering::Relaxed) && !std::thread::panicking();
        assert!(!is_bad, "the drop of a key panics");
    }
}

impl PartialEq for BadKey {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for BadKey {}

impl Hash for BadKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::borrow::Borrow<u32> for BadKey {
    fn borrow(&self) -> &u32 {
        &self.0
    }
}

struct OnBadKeys {
    name: u32,
    log: Log<(u32, Completion)>,
    /// Answers of `has_reached`, the last one first. After them, `false`.
    answers: Vec<bool>,
}

impl DelayedOperation<BadKey> for OnBadKeys {
    fn has_reached(&mut self, _: &BadKey, _: u64) -> bool {
        self.answers.pop().unwrap_or(false)
    }

    fn complete(self, completion: Completion) {
        self.log.push((self.name, completion));
    }
}

struct BadKeys {
    purgatory: Purgatory<BadKey, OnBadKeys>,
    is_bad: Arc<AtomicBool>,
    log: Log<(u32, Completion)>,
}

impl BadKeys {
    fn new() -> Self {
        let timer = Timer::builder().clock(ManualClock::new()).shards(1);
        let builder = Purgatory::builder().timer(timer);
        let builder = builder.max_delayed(2, delaywheel::purgatory::Overload::Refuse);
        let is_bad = Arc::new(AtomicBool::new(false));
        Self { purgatory: builder.build().unwrap(), is_bad, log: Log::new() }
    }

    fn key(&self, number: u32) -> BadKey {
        BadKey(number, Arc::clone(&self.is_bad))
    }

    fn op(&self, name: u32) -> OnBadKeys {
        OnBadKeys { name, log: self.log.clone(), answers: Vec::new() }
    }

    fn set_bad(&self, is_bad: bool) {
        self.is_bad.store(is_bad, Ordering::Relaxed);
    }
}

impl Drop for BadKeys {
    fn drop(&mut self) {
        self.set_bad(false);
    }
}

#[test]
fn a_panic_in_the_drop_of_a_key_is_counted() {
    let bad = BadKeys::new();
    let keys = [bad.key(1), bad.key(2), bad.key(3)];
    let _ = bad.purgatory.watch(bad.op(1), keys, HOUR).unwrap();
    let _ = bad.purgatory.watch(bad.op(2), [bad.key(3)], HOUR).unwrap();
    bad.set_bad(true);
    assert_eq!(bad.purgatory.cancel_on(&1), 1);
    assert_eq!(bad.log.take(), [(1, Cancelled)]);
    assert_eq!((bad.purgatory.stats().panicked, bad.purgatory.stats().keys), (2, 1));
    assert_eq!(bad.purgatory.shutdown().len(), 1);
    assert_eq!(bad.log.take(), []);
    assert_eq!(bad.purgatory.stats().panicked, 3);
}

#[test]
fn a_panic_in_the_drop_of_a_duplicate_key_is_counted() {
    let bad = BadKeys::new();
    let _ = bad.purgatory.watch(bad.op(1), [bad.key(1)], HOUR).unwrap();
    bad.set_bad(true);
    let keys = [bad.key(1), bad.key(1)];
    let _ = bad.purgatory.watch(bad.op(2), keys, HOUR).unwrap();
    assert_eq!(bad.purgatory.stats().panicked, 2);
    assert_eq!(bad.purgatory.cancel_on(&1), 2);
    assert_eq!(bad.log.take(), all_bad([1, 2]));
}

fn all_bad<const N: usize>(names: [u32; N]) -> [(u32, Completion); N] {
    names.map(|name| (name, Cancelled))
}

#[test]
fn a_panic_in_the_drop_of_a_reached_key_loses_no_operation() {
    // Reached before registration; during it; never.
    for answers in [vec![true], vec![true, false], vec![]] {
        let bad = BadKeys::new();
        bad.set_bad(true);
        let reached = !answers.is_empty();
        let op = OnBadKeys { answers, ..bad.op(1) };
        let watched = catch_unwind(AssertUnwindSafe(|| {
            bad.purgatory.watch(op, Watch::any([Threshold(bad.key(1), 5)]), HOUR).is_ok()
        }));
        // The caller may see the panic or not. The operation has ended or waits.
        let ended = bad.log.take();
        let satisfied = vec![(1, Satisfied)];
        assert_eq!(ended, if reached { satisfied } else { vec![] }, "{watched:?}");
        assert_eq!(bad.purgatory.delayed(), u64::from(!reached));
        assert_eq!(bad.purgatory.cancel_on(&1), usize::from(!reached));
        assert_eq!((bad.purgatory.delayed(), bad.purgatory.stats().watched), (0, 0));
    }
}

#[test]
fn a_panic_in_the_drop_of_refused_keys_leaks_no_permit() {
    let bad = BadKeys::new();
    for name in 0..2 {
        let _ = bad.purgatory.watch(bad.op(name), [bad.key(1)], HOUR).unwrap();
    }
    bad.set_bad(true);
    for name in 2..10 {
        let refused = catch_unwind(AssertUnwindSafe(|| {
            bad.purgatory.watch(bad.op(name), [bad.key(2)], HOUR).is_err()
        }));
        assert!(refused.unwrap_or(true));
    }
    assert_eq!(bad.purgatory.cancel_on(&1), 2);
    for name in 10..12 {
        let _ = bad.purgatory.watch(bad.op(name), [], HOUR).unwrap();
    }
    assert_eq!(bad.purgatory.delayed(), 2);
}

/// A key that is equal to all others. Its comparison panics if one of the two keys is bad.
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

struct Ends(Arc<AtomicBool>);

impl DelayedOperation<Incomparable> for Ends {
    fn complete(self, _: Completion) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_panic_in_the_comparison_of_a_key_delays_no_other_operation() {
    must_return(|| {
        let timer = Timer::builder().shards(1);
        let purgatory: Purgatory<_, _> = Purgatory::builder().timer(timer).build().unwrap();
        let watch = |key: Option<Incomparable>, delay| {
            let has_ended = Arc::new(AtomicBool::new(false));
            let op = Ends(Arc::clone(&has_ended));
            assert!(purgatory.watch(op, key, delay).is_ok());
            has_ended
        };
        watch(Some(Incomparable { is_bad: false }), HOUR);
        // Until the reaper sleeps.
        std::thread::sleep(50 * MS);
        let bad = || watch(Some(Incomparable { is_bad: true }), 10 * MS);
        assert!(catch_unwind(AssertUnwindSafe(bad)).is_err());
        let has_ended = watch(None, 20 * MS);
        wait_until("the operation expires", || has_ended.load(Ordering::Acquire));
        drop(purgatory.shutdown());
    });
}

#[test]
fn an_operation_whose_key_panics_in_a_comparison_has_ended() {
    use delaywheel::purgatory::Overload::{DisplaceOldest, Refuse};
    type Builder = PurgatoryBuilder<Incomparable, Ends>;
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
        let op = || Ends(Arc::default());
        let first = purgatory.watch(op(), [Incomparable { is_bad: true }], HOUR).unwrap();
        let watched = || purgatory.watch(op(), [Incomparable { is_bad: false }], MS);
        assert!(catch_unwind(AssertUnwindSafe(watched)).is_err(), "no keys were compared");
        purgatory.check_invariants();
        assert_eq!((purgatory.delayed(), purgatory.stats().watched), (1, 1));
        clock.advance(SECOND);
        assert_eq!(purgatory.stats().timer.panicked, 0);
        assert!(purgatory.cancel(first.key().unwrap()).is_some());
        for _ in 0..2 {
            assert!(purgatory.watch(op(), [], HOUR).is_ok(), "a permit is lost");
        }
        assert_eq!(purgatory.shutdown().len(), 2);
    }
}
