//! Limits on waiting operations, of the purgatory and of a key, and the policies when one is
//! reached.

use std::{
    error::Error,
    hash::{Hash, Hasher},
    io,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use delaywheel::{
    Clock, Completion,
    Completion::Satisfied,
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock, Overload, Purgatory, Timer, TimerBuildError, Watch,
    WatchErrorKind, Watched,
};

use super::support::{Builder, Cancel as _, HOUR, MS, Op, World, all, must_return};
use crate::{
    edges::must_panic,
    timer::support::{HookedClock, Set},
};

#[test]
fn the_builder_refuses_limits_of_0() {
    let text = |builder: Builder| builder.build().expect_err("it is 0").to_string();
    for overload in [Overload::Refuse, Overload::DisplaceOldest] {
        let total = Purgatory::builder().max_delayed(0, overload);
        assert_eq!(text(total), "limit on waiting operations is 0");
        let per_key = Purgatory::builder().max_delayed_per_key(0, overload);
        assert_eq!(text(per_key), "limit on waiting operations per key is 0");
    }
    assert_eq!(text(Purgatory::builder().max_keys(0)), "limit on keys per operation is 0");
    let most = Purgatory::builder().max_delayed(u64::MAX, Overload::Refuse).max_keys(usize::MAX);
    let most: Builder = most.max_delayed_per_key(u64::MAX, Overload::DisplaceOldest);
    assert!(most.build().is_ok());
}

#[test]
fn settings_of_the_timer_are_checked() {
    let timer = delaywheel::Timer::builder().shards(0);
    let refused = Purgatory::<u32, Op>::builder().timer(timer).build();
    let error = refused.expect_err("a timer has a shard");
    assert_eq!(error.to_string(), "cannot build the timer of the purgatory");
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(TimerBuildError::ShardsOutOfRange { shards: 0 })));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_same_key_twice_takes_one_permit() {
    let world = World::with(|builder| builder.max_delayed_per_key(1, Overload::Refuse));
    let key = world.watch(1, [1, 1, 2, 1]);
    assert_eq!(world.purgatory.stats().watched, 2);
    let refused = world.purgatory.watch(world.op(2), [1], HOUR);
    assert!(refused.is_err());
    drop(refused);
    world.purgatory.cancel_one(key);
    world.watch(3, [1, 2]);
    world.check_books();
}

#[test]
fn a_refused_operation_displaces_no_other() {
    let timer = Timer::builder().clock(ManualClock::new()).max_pending(2);
    let world = World::with(|builder| {
        let builder = builder.timer(timer).max_delayed(2, Overload::DisplaceOldest);
        builder.max_delayed_per_key(1, Overload::DisplaceOldest)
    });
    for key in [1, 2] {
        world.watch(key, [key]);
    }
    // The timer refuses the operation, and not a limit of the purgatory.
    let refused = world.purgatory.watch(world.op(3), [1, 2, 3], HOUR);
    assert_eq!(refused.expect_err("the timer is full").kind(), WatchErrorKind::Full);
    assert_eq!((world.purgatory.stats().watched, world.ended()), (2, vec![]));
    world.check_books();
    let operations = world.purgatory.shutdown();
    let refused = world.purgatory.watch(world.op(3), [1, 2, 3], HOUR);
    assert_eq!(refused.expect_err("it is shut down").kind(), WatchErrorKind::ShutDown);
    assert_eq!((operations.len(), world.purgatory.stats().displaced), (2, 0));
    assert_eq!(world.ended(), []);
}

#[test]
fn an_operation_with_too_many_keys_is_refused() {
    let world = World::with(|builder| builder.max_keys(20));
    world.watch(1, (0..100_000).map(|number| number % 20));
    assert_eq!(world.purgatory.stats().watched, 20);
    for extra in [Events(20), Threshold(1, 5)] {
        let watches = (0..20).map(Events).chain([extra]);
        let refused = world.purgatory.watch(world.op(2), Watch::any(watches), HOUR);
        let error = refused.expect_err("it has one key too many");
        assert_eq!(error.kind(), WatchErrorKind::TooManyKeys);
        assert_eq!(error.to_string(), "operation waits on too many keys");
    }
    world.make_ready(3);
    assert!(world.at_once(world.purgatory.watch(world.op(3), 0..100, HOUR)));
    assert_eq!((world.ended(), world.purgatory.stats().refused), (vec![(3, Satisfied)], 2));
    world.check_books();
}

#[test]
fn an_operation_with_too_many_watches_is_refused_before_any_is_asked_for() {
    let world = World::with(|builder| builder.max_keys(2));
    let asked = Arc::new(Mutex::new(0));
    // Without the watch that does not fit, the operation would be satisfied.
    for last in [Threshold(3, 1), Events(3)] {
        for is_all in [false, true] {
            let (reached, ended) = (Arc::clone(&asked), Arc::clone(&asked));
            let operation = Op::new()
                .reach(move |&key, _| {
                    *reached.lock().unwrap() += 1;
                    key < 3
                })
                .end(move |_| *ended.lock().unwrap() += 10);
            let watches = [Threshold(1, 1), Threshold(2, 1), last];
            let watch = if is_all { Watch::all(watches) } else { Watch::any(watches) };
            let refused = world.purgatory.watch(operation, watch, HOUR);
            let error = refused.expect_err("it has one watch too many");
            assert_eq!((error.kind(), *asked.lock().unwrap()), (WatchErrorKind::TooManyKeys, 0));
            error.into_value().complete(Satisfied);
            assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), 10, "it came back");
        }
    }
    assert_eq!(world.purgatory.stats().refused, 4);
    world.check_empty();
}

/// A key whose hash leaves its number out.
#[derive(PartialEq, Eq)]
struct Vague(u32);

impl Hash for Vague {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[test]
fn keys_with_equal_hashes_share_a_limit() {
    let (clock, ended) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
    let timer = Timer::builder().clock(clock.clone()).shards(3);
    let limit = Purgatory::builder().timer(timer).max_delayed_per_key(2, Overload::DisplaceOldest);
    let purgatory = limit.build().expect("the settings are valid");
    // Each thread has a shard of its own.
    for names in [0..6, 6..8] {
        let watch = |name: u32| {
            let ended = Arc::clone(&ended);
            let op = Op::new().end(move |end| ended.lock().unwrap().push((name, end)));
            assert!(purgatory.watch(op, [Vague(name % 3)], HOUR).is_ok());
            clock.advance(MS);
            purgatory.check_invariants();
        };
        thread::scope(|scope| scope.spawn(|| names.for_each(watch)).join().unwrap());
    }
    assert_eq!(*ended.lock().unwrap(), all(0..6, Completion::Displaced));
}

/// Returns a purgatory of one operation, which a newer one displaces, and its clock.
fn displacing<C: Clock + Clone>(clock: C, shards: usize) -> (C, Purgatory<u32, Op>) {
    let timer = Timer::builder().clock(clock.clone()).shards(shards);
    let builder = Purgatory::builder().timer(timer).max_delayed(1, Overload::DisplaceOldest);
    (clock, builder.build().unwrap())
}

#[test]
fn a_clock_may_register_an_operation_that_displaces_another() {
    must_return(|| {
        let (clock, purgatory) = displacing(HookedClock::new(), 1);
        let watch = |purgatory: &Purgatory<u32, Op>| {
            purgatory.watch(Op::new(), [1], HOUR).expect("it displaces another");
        };
        watch(&purgatory);
        let again = purgatory.clone();
        clock.set(move || watch(&again));
        watch(&purgatory);
        clock.set(|| ());
        purgatory.check_invariants();
        assert_eq!(purgatory.stats().delayed, 1);
    });
}

#[test]
fn a_limit_holds_though_the_clock_panics_once_a_newcomer_has_been_displaced() {
    let (clock, purgatory) = displacing(HookedClock::new(), 1);
    let younger = |purgatory: &Purgatory<u32, Op>, clock: &HookedClock| {
        clock.clock.advance(MS);
        assert!(purgatory.watch(Op::new(), [1], HOUR).is_ok());
    };
    let (mut checks, hooked, again) = (0, clock.clone(), purgatory.clone());
    let newcomer = Op::new().check(move || {
        checks += 1;
        if checks == 2 {
            younger(&again, &hooked);
            let (other, again) = (hooked.clone(), again.clone());
            hooked.set(move || {
                younger(&again, &other);
                panic!("the clock panics");
            });
        }
        false
    });
    must_panic(|| purgatory.watch(newcomer, [1], HOUR));
    purgatory.check_invariants();
    let stats = purgatory.stats();
    assert_eq!((stats.displaced, stats.delayed), (2, 1));
}

#[test]
fn a_new_operation_is_not_displaced_because_the_clock_steps_back() {
    let (clock, purgatory) = displacing(Set::new(), 2);
    let watch = || purgatory.watch(Op::new(), [1], HOUR).ok().and_then(Watched::key).unwrap();
    // Threads are spread over the shards. Both times are in one tick.
    for micros in [10_900, 10_000] {
        clock.show(Duration::from_micros(micros));
        let key = thread::scope(|scope| scope.spawn(watch).join().unwrap());
        assert!(purgatory.is_waiting(key), "at {micros} us");
    }
    assert_eq!(purgatory.shutdown().len(), 1);
}

#[test]
fn the_oldest_is_displaced_also_if_it_begins_to_wait_last() {
    for is_per_key in [false, true] {
        let world = World::with(|builder| {
            if is_per_key {
                builder.max_delayed_per_key(1, Overload::DisplaceOldest)
            } else {
                builder.max_delayed(1, Overload::DisplaceOldest)
            }
        });
        world.watch(1, [7]);
        world.clock.advance(MS);
        let (purgatory, clock) = (world.purgatory.clone(), world.clock.clone());
        let (mut checks, mut younger) = (0, Some(world.op(3)));
        let older = world.op(2).check(move || {
            checks += 1;
            match checks {
                // Announced while it is out. So it is checked again after it was counted, and
                // before it displaces another one.
                2 => drop(purgatory.check_and_complete(&7)),
                3 => {
                    clock.advance(MS);
                    let younger = younger.take().expect("it is added once");
                    purgatory.watch(younger, [7], HOUR).expect("it displaces another");
                }
                _ => {}
            }
            false
        });
        world.purgatory.watch(older, [7], HOUR).expect("it waits");
        assert_eq!(world.ended(), [(1, Completion::Displaced), (2, Completion::Displaced)]);
        world.purgatory.check_invariants();
    }
}
