//! Limits on waiting operations, of the purgatory and of a key, and the policies when one is
//! reached.

use std::{
    error::Error,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use delaywheel::{
    Completion,
    Completion::{Displaced, Satisfied},
    Condition::{Events, Threshold},
    DelayedOperation, ManualClock, Overload, Purgatory, Timer, TimerBuildError, Watch,
    WatchErrorKind,
};

use super::support::{Builder, Cancel as _, HOUR, MS, Op, World, YEAR, all, must_return};
use crate::timer::support::HookedClock;

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
fn an_operation_that_completes_at_once_needs_no_permit() {
    let world = World::with(|builder| {
        builder.max_delayed(1, Overload::Refuse).max_delayed_per_key(1, Overload::Refuse)
    });
    world.watch(1, [1]);
    world.make_ready(2);
    assert!(world.at_once(world.purgatory.watch(world.op(2), [1], HOUR)));
    assert_eq!(world.ended(), [(2, Satisfied)]);
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
fn the_displaced_operation_is_the_oldest_of_all_threads() {
    // The operations alternate between two keys.
    let limits: [fn(Builder) -> Builder; 2] = [
        |builder| builder.max_delayed(8, Overload::DisplaceOldest),
        |builder| builder.max_delayed_per_key(4, Overload::DisplaceOldest),
    ];
    // Of operations on values, that with the greatest threshold is displaced, here the oldest.
    for (limit, is_for_value) in [(limits[0], false), (limits[1], false), (limits[1], true)] {
        let world = World::with(limit);
        for name in 0..30 {
            // Threads are spread over the shards.
            std::thread::scope(|scope| {
                let watch = || {
                    if is_for_value {
                        world.any(name, [Threshold(name % 2, u64::MAX - u64::from(name))]);
                    } else {
                        world.watch_for(name, [name % 2], YEAR);
                    }
                };
                scope.spawn(watch).join().unwrap();
            });
            world.clock.advance(MS);
            let displaced = name.checked_sub(8).map(|name| (name, Displaced));
            assert!(world.ended().into_iter().eq(displaced));
            world.check_books();
        }
    }
}

/// Registers an operation on three full keys. The watcher of the last key is being checked.
#[test]
fn a_new_operation_displaces_one_on_each_key_even_one_that_is_being_checked() {
    let world = World::with(|builder| builder.max_delayed_per_key(1, Overload::DisplaceOldest));
    world.watch(1, [1]);
    world.watch(2, [2]);
    let (purgatory, mut newer, mut checks) = (world.purgatory.clone(), Some(world.op(4)), 0);
    let op = world.op(3).check(move || {
        checks += 1;
        if checks == 3 {
            let newer = newer.take().expect("the third check comes once");
            assert!(purgatory.watch(newer, [1, 2, 3], HOUR).is_ok());
        }
        false
    });
    world.waits(world.purgatory.watch(op, [3], HOUR));
    world.state().accepted += 1;
    world.purgatory.check_and_complete(&3);
    assert_eq!(world.ended(), all([1, 2, 3], Displaced));
    assert_eq!(world.purgatory.stats().refused, 0);
    world.check_books();
}

#[test]
fn a_refused_operation_displaces_no_other() {
    let clock = ManualClock::new();
    let ended = Arc::new(Mutex::new(Vec::new()));
    let op = || {
        let ended = Arc::clone(&ended);
        Op::new().end(move |end: Completion| ended.lock().unwrap().push(end))
    };
    let timer = Timer::builder().clock(clock.clone()).max_pending(2);
    let purgatory = Purgatory::builder()
        .timer(timer)
        .max_delayed(2, Overload::DisplaceOldest)
        .max_delayed_per_key(1, Overload::DisplaceOldest)
        .build()
        .expect("the settings are valid");
    for key in [1, 2] {
        assert!(purgatory.watch(op(), [key], HOUR).is_ok());
    }
    // The timer refuses the operation, and not a limit of the purgatory.
    let refused = purgatory.watch(op(), [1, 2, 3], HOUR);
    assert_eq!(refused.expect_err("the timer is full").kind(), WatchErrorKind::Full);
    assert_eq!((purgatory.delayed(), purgatory.stats().watched), (2, 2));
    assert_eq!(*ended.lock().unwrap(), []);
    let operations = purgatory.shutdown();
    let refused = purgatory.watch(op(), [1, 2, 3], HOUR);
    assert_eq!(refused.expect_err("it is shut down").kind(), WatchErrorKind::ShutDown);
    assert_eq!((operations.len(), purgatory.stats().displaced), (2, 0));
    assert_eq!(*ended.lock().unwrap(), []);
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
                .reach(move |key, _| {
                    *reached.lock().unwrap() += 1;
                    key < 3
                })
                .end(move |_| *ended.lock().unwrap() += 10);
            let watches = [Threshold(1, 1), Threshold(2, 1), last];
            let refused = if is_all {
                world.purgatory.watch(operation, Watch::all(watches), HOUR)
            } else {
                world.purgatory.watch(operation, Watch::any(watches), HOUR)
            };
            let error = refused.expect_err("it has one watch too many");
            assert_eq!((error.kind(), *asked.lock().unwrap()), (WatchErrorKind::TooManyKeys, 0));
            error.into_value().complete(Satisfied);
            assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), 10, "it came back");
        }
    }
    assert_eq!(world.purgatory.stats().refused, 4);
    world.check_empty();
}

#[test]
fn millions_of_duplicate_keys_take_linear_time() {
    must_return(|| {
        let world = World::with(|builder| builder.max_delayed_per_key(9, Overload::Refuse));
        // An algorithm that moves the other keys for each duplicate would take an hour.
        world.watch(1, (0..3_000_000).map(|number| number % 1000));
        assert_eq!(world.purgatory.stats().watched, 1000);
    });
}

#[test]
fn the_limit_of_the_timer_also_limits_the_purgatory() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).max_pending(1);
    let purgatory = Purgatory::builder()
        .timer(timer)
        .max_delayed(5, Overload::Refuse)
        .max_delayed_per_key(1, Overload::Refuse)
        .build()
        .expect("the settings are valid");
    let minute = Duration::from_secs(60);
    for _ in 0..3 {
        let first = purgatory.watch(Idle, [1], minute).expect("there is room");
        let refused = purgatory.watch(Idle, [2], minute);
        assert_eq!(refused.unwrap_err().kind(), WatchErrorKind::Full);
        assert_eq!((purgatory.delayed(), purgatory.stats().watched), (1, 1));
        assert!(purgatory.cancel_one(first.key().expect("it waits")));
    }
    assert_eq!(purgatory.stats().refused, 3);
}

#[test]
fn a_clock_may_register_an_operation_that_displaces_another() {
    must_return(|| {
        let clock = HookedClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(1);
        let builder = Purgatory::builder().timer(timer);
        let builder = builder.max_delayed(1, Overload::DisplaceOldest);
        let purgatory = builder.build().unwrap();
        let watch = |purgatory: &Purgatory<u32, Op>| {
            purgatory.watch(Op::new(), [1], HOUR).expect("it displaces another");
        };
        watch(&purgatory);
        let again = purgatory.clone();
        clock.set(move || watch(&again));
        watch(&purgatory);
        clock.set(|| ());
        purgatory.check_invariants();
        assert_eq!(purgatory.delayed(), 1);
    });
}

/// Waits, and ignores its end.
struct Idle;

impl DelayedOperation<u32> for Idle {
    fn complete(self, _: Completion) {}
}

#[test]
fn a_displacement_for_a_key_also_makes_room_in_the_total() {
    let world = World::with(|builder| {
        let builder = builder.max_delayed(2, Overload::DisplaceOldest);
        builder.max_delayed_per_key(1, Overload::DisplaceOldest)
    });
    world.watch(1, [1]);
    world.watch(2, [2]);
    world.watch(3, [2]);
    assert_eq!(world.ended(), [(2, Displaced)]);
    world.check_books();
}

#[test]
fn the_completion_of_a_displaced_operation_may_displace_another() {
    must_return(|| {
        let world = World::with(|builder| builder.max_delayed(2, Overload::DisplaceOldest));
        let (purgatory, again, state) = (world.purgatory.clone(), world.op(4), world.state.clone());
        let first = world.op(1).end(move |end| {
            state.lock().unwrap().ended.push((1, end));
            let _ = purgatory.watch(again, [1], HOUR).unwrap();
        });
        world.waits(world.purgatory.watch(first, [1], HOUR));
        world.watch(2, [1]);
        world.watch(3, [1]);
        assert_eq!(world.ended(), all([1, 2], Displaced));
        world.state().accepted += 1;
        world.check_books();
    });
}
