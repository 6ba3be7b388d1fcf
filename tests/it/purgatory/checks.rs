//! Checks after an event: which operations it checks, how often, and in which order.

use std::sync::Arc;

use delaywheel::{
    Completion::Satisfied,
    Condition::{Events, Threshold},
    Watch,
};

use super::support::{Cancel as _, HOUR, Op, World};

/// Makes a world with `count` operations on key 1, and forgets their first checks.
fn crowd(count: u32) -> World {
    let world = World::new();
    for name in 0..count {
        world.watch(name, [1]);
    }
    world.checked();
    world
}

/// Adds an operation on key 1 that does something at its first check after an event.
fn acts_when_checked(world: &World, mut act: impl FnMut() + Send + 'static) {
    let mut checks = 0;
    let op = Op::new().check(move || {
        checks += 1;
        if checks == 3 {
            act();
        }
        false
    });
    world.waits(world.purgatory.watch(op, [1], HOUR));
}

#[test]
fn an_operation_on_several_keys_is_checked_once_for_each_event() {
    let world = World::new();
    for name in 0..500 {
        world.watch(name, [1, 2, 3 + name % 2]);
    }
    world.checked();
    for key in [1, 2, 1] {
        assert_eq!(world.purgatory.check_and_complete(&key), 0);
        assert!(world.checked().into_iter().eq(0..500));
    }
    assert_eq!(world.purgatory.check_and_complete(&3), 0);
    assert!(world.checked().into_iter().eq((0..500).step_by(2)));
}

#[test]
fn an_operation_that_needs_a_value_and_an_event_is_checked_once_for_the_last_of_both() {
    let world = World::new();
    world.wait_on(world.op(0), Watch::all([Events(1), Threshold(2, 5)]));
    world.purgatory.check_and_complete(&1);
    assert_eq!(world.checked(), [0; 0], "its value is missing");
    assert_eq!((world.advance(2, 5), world.checked()), (0, vec![0]));
    world.make_ready(0);
    assert_eq!((world.purgatory.check_and_complete(&1), world.checked()), (1, vec![0]));
    assert_eq!(world.ended(), [(0, Satisfied)]);
}

#[test]
fn an_event_does_not_check_operations_that_come_later() {
    let world = crowd(100);
    let (purgatory, state) = (world.purgatory.clone(), Arc::clone(&world.state));
    acts_when_checked(&world, move || {
        for name in 1000..1200 {
            let (checked, op) = (Arc::clone(&state), Op::new());
            let op = op.check(move || {
                checked.lock().unwrap().checked.push(name);
                false
            });
            assert!(purgatory.watch(op, [1], HOUR).is_ok());
        }
    });
    for name in 100..200 {
        world.watch(name, [1]);
    }
    world.checked();
    assert_eq!(world.purgatory.check_and_complete(&1), 0);
    let checked = world.checked();
    assert!(checked.iter().filter(|&&name| name < 1000).copied().eq(0..200));
    let newcomers = checked.iter().filter(|&&name| name >= 1000).count();
    assert_eq!(newcomers, 400, "a newcomer is checked twice when it comes, and not by the event");
    assert_eq!(world.purgatory.cancel_on(&1), 401);
}

#[test]
fn an_event_skips_operations_that_have_ended_and_visits_the_others() {
    for count in [40, 300, 3000] {
        let world = World::new();
        let keys: Vec<_> = (0..count).map(|name| world.watch(name, [1])).collect();
        let purgatory = world.purgatory.clone();
        // Operations before and after the one that is checked end, but for the last one.
        acts_when_checked(&world, move || {
            for key in &keys {
                purgatory.cancel_one(*key);
            }
            purgatory.shrink();
        });
        for name in count..2 * count {
            world.watch(name, [1]);
        }
        world.checked();
        world.make_ready(2 * count - 1);
        assert_eq!(world.purgatory.check_and_complete(&1), 1);
        assert!(world.checked().into_iter().eq(0..2 * count));
        assert_eq!(world.purgatory.cancel_on(&1), count as usize);
    }
}
