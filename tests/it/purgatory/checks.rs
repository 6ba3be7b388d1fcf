//! `Checks`: budgets, the turns of keys, and changes between two runs.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use delaywheel::Completion::{Cancelled, Satisfied};

use super::support::{Cancel as _, HOUR, Op, World, all};

/// Makes a world with `count` operations on key 1, and forgets their first checks.
fn crowd(count: u32) -> World {
    let world = World::new();
    for name in 0..count {
        world.watch(name, [1]);
    }
    world.checked();
    world
}

#[test]
fn a_run_makes_as_many_checks_as_its_budget() {
    let world = crowd(1000);
    let mut checks = world.purgatory.checks([1]);
    assert_eq!(world.checked(), [0; 0], "without a run, no operation is checked");
    let mut done = 0;
    for budget in [0, 1, 2, 31, 32, 33, 64, 100, 0, 300, 400] {
        assert!(!checks.is_done());
        assert_eq!(checks.run(budget), 0);
        let budget = u32::try_from(budget).unwrap();
        assert!(world.checked().into_iter().eq(done..done + budget));
        done += budget;
    }
    assert_eq!(done, 963);
    checks.run(1000);
    assert!(checks.is_done() && world.checked().into_iter().eq(963..1000));
    assert_eq!((checks.run(1000), world.checked()), (0, vec![]));
    world.check_books();
}

#[test]
fn keys_take_turns() {
    let world = World::new();
    for name in 0..3000 {
        world.watch(name, [name % 3]);
    }
    world.checked();
    let mut checks = world.purgatory.checks([0, 1, 2]);
    let mut counts = [0_usize; 3];
    while !checks.is_done() {
        checks.run(50);
        for name in world.checked() {
            counts[name as usize % 3] += 1;
        }
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 64, "{counts:?}");
    }
    assert_eq!(counts, [1000; 3]);
}

#[test]
fn an_operation_on_several_keys_is_checked_once_in_a_pass() {
    let world = World::new();
    for name in 0..500 {
        world.watch(name, [1, 2, 3 + name % 2]);
    }
    world.checked();
    let in_one_go = |world: &World| {
        let mut checked = world.checked();
        checked.sort_unstable();
        assert!(checked.into_iter().eq(0..500));
    };
    assert_eq!(world.purgatory.checks([1, 2, 3, 4, 1]).run(usize::MAX), 0);
    in_one_go(&world);
    let mut checks = world.purgatory.checks([4, 3, 2, 1, 2]);
    while !checks.is_done() {
        checks.run(3);
    }
    in_one_go(&world);
    assert_eq!(world.purgatory.checks([1, 2]).run(usize::MAX), 0);
    in_one_go(&world);
}

#[test]
fn an_event_during_a_pass_checks_from_the_first_operation() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks([1]);
    checks.run(50);
    world.make_ready(10);
    assert_eq!(world.purgatory.check_and_complete(&1), 1, "the pass checked it before the event");
    world.make_ready(60);
    assert_eq!(checks.run(usize::MAX) + world.purgatory.check_and_complete(&1), 1);
    assert_eq!(world.ended(), all([10, 60], Satisfied));
}

#[test]
fn a_pass_does_not_check_operations_that_come_later() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks([1]);
    let mut runs = 0;
    while !checks.is_done() {
        checks.run(10);
        world.watch(1000 + runs, [1]);
        runs += 1;
    }
    assert!(runs <= 11, "a pass does not end while operations come");
    let checked = world.checked();
    let newcomers = checked.iter().filter(|name| **name >= 1000).count();
    assert_eq!(
        newcomers,
        2 * runs as usize,
        "a new operation is checked twice when it comes, and not by the pass"
    );
}

#[test]
fn a_pass_skips_operations_that_have_ended() {
    let world = World::new();
    let keys: Vec<_> = (0..300).map(|name| world.watch(name, [1])).collect();
    world.checked();
    let mut checks = world.purgatory.checks([1]);
    checks.run(100);
    // Operations around the position of the pass, and then all others but the last.
    for at in (95..105).chain(0..95).chain(105..299) {
        assert!(world.purgatory.cancel_one(keys[at]));
    }
    assert!(!checks.is_done());
    world.make_ready(299);
    assert_eq!(checks.run(usize::MAX), 1);
    assert!(world.checked()[100..].iter().eq([&299]));
    assert!(checks.is_done());
    drop(checks);
    world.check_empty();
}

#[test]
fn leaked_checks_delay_no_operation() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks([1]);
    checks.run(50);
    std::mem::forget(checks);
    world.state().ready.extend(0..100);
    assert_eq!(world.purgatory.check_and_complete(&1), 100);
    world.check_empty();
    world.watch(200, [1]);
    world.make_ready(200);
    assert_eq!(world.purgatory.checks([1]).run(1), 1);
    world.check_empty();
}

#[test]
fn an_operation_whose_check_announces_its_key_is_checked_again() {
    let world = World::new();
    let (purgatory, count) = (world.purgatory.clone(), Arc::new(AtomicUsize::new(0)));
    let checks = Arc::clone(&count);
    let op = Op::new().check(move || {
        let check = checks.fetch_add(1, Ordering::Relaxed);
        if check == 2 {
            assert_eq!(purgatory.check_and_complete(&1), 0, "another check is under way");
        }
        check == 3
    });
    world.waits(world.purgatory.watch(op, [1], HOUR));
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(world.purgatory.check_and_complete(&1), 1);
    assert_eq!(count.load(Ordering::Relaxed), 4);
    world.check_empty();
}

#[test]
fn a_list_longer_than_one_hold_of_the_lock_is_checked_to_its_end() {
    let world = crowd(2000);
    world.state().ready.extend((0..2000).filter(|name| name % 500 == 499));
    assert_eq!(world.purgatory.check_and_complete(&1), 4);
    assert!(world.checked().into_iter().eq(0..2000), "not in the order of registration");
    assert_eq!(world.purgatory.cancel_on(&1), 1996);
    let ended = world.ended();
    assert_eq!(ended[..4], all([499, 999, 1499, 1999], Satisfied));
    let others = (0..2000).filter(|name| name % 500 != 499);
    assert_eq!(ended[4..], all(others, Cancelled));
    world.check_empty();
}
