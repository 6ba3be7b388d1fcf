//! What one call costs or withholds, whatever other operations on its key do, and permits that are
//! taken and released once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use delaywheel::{Completion::Displaced, Overload, Purgatory, Timer};

use super::support::{HOUR, Op, World};
use crate::timer::support::HookedClock;

#[test]
fn a_clock_that_panics_loses_no_operation_and_stops_no_deferred_check() {
    let clock = HookedClock::new();
    let timer = Timer::builder().clock(clock.clone()).shards(1);
    let purgatory = Purgatory::<u32, Op>::builder().timer(timer).build().unwrap();
    let is_ready = Arc::new(AtomicBool::new(false));
    for number in 0..32 {
        let (is_ready, own) = (Arc::clone(&is_ready), purgatory.clone());
        let op = Op::new().check(move || {
            let can_complete = is_ready.load(Ordering::Relaxed);
            if can_complete && number < 31 {
                // Each check announces the next, so most of them are deferred.
                own.check_and_complete(&(number + 1));
            }
            can_complete
        });
        let _ = purgatory.watch(op, [number], HOUR).unwrap();
    }
    is_ready.store(true, Ordering::Relaxed);
    clock.set(|| panic!("the clock is broken"));
    purgatory.check_and_complete(&0);
    clock.set(|| ());
    assert_eq!((purgatory.stats().delayed, purgatory.stats().satisfied), (0, 32));
    purgatory.check_invariants();
}

fn at_second_check(world: &World, name: u32) -> Op {
    let mut checks = 0;
    world.op(name).check(move || {
        checks += 1;
        checks == 2
    })
}

#[test]
fn an_operation_that_completes_at_its_second_check_holds_and_displaces_nothing() {
    for overload in [Overload::Refuse, Overload::DisplaceOldest] {
        for per_key in [false, true] {
            let world = World::with(|builder| {
                if per_key {
                    builder.max_delayed_per_key(2, overload)
                } else {
                    builder.max_delayed(2, overload)
                }
            });
            world.watch(0, [1]);
            for name in 1..10 {
                world.waits(world.purgatory.watch(at_second_check(&world, name), [1], HOUR));
                world.check_books();
            }
            assert_eq!((world.ended().len(), world.purgatory.stats().delayed), (9, 1));
            world.watch(10, [1]);
            assert_eq!((world.ended(), world.purgatory.stats().delayed), (vec![], 2));
            if overload == Overload::DisplaceOldest {
                world.watch(11, [1]);
                assert_eq!(world.ended(), [(0, Displaced)]);
            } else {
                assert!(world.purgatory.watch(world.op(11), [1], HOUR).is_err());
            }
            world.check_books();
        }
    }
}

#[test]
fn the_key_of_an_operation_names_none_in_another_purgatory() {
    let (one, other) = (World::new(), World::new());
    let (key, own) = (one.watch(1, [1]), other.watch(2, [1]));
    assert_ne!(key, own);
    assert!(!other.purgatory.is_waiting(key) && !other.purgatory.complete(key));
    assert!(other.purgatory.cancel(key).is_none());
    drop(other.purgatory.guard(key));
    assert_eq!(other.purgatory.complete_all([key, own, key]), 1);
    assert!(one.purgatory.is_waiting(key));
}
