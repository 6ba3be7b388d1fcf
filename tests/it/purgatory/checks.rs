//! Checks a few at a time: budgets, turns of keys, and what happens in between.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use delaywheel::{
    Completion::{Cancelled, Satisfied},
    Watch::{Events, Threshold},
};

use super::support::{HOUR, Op, World, all};

/// Operations that wait on one key, none checked since.
fn crowd(count: u32) -> World {
    let world = World::new();
    for name in 0..count {
        world.watch(name, [1]);
    }
    world.checked();
    world
}

#[test]
fn a_budget_is_what_is_checked_and_no_more() {
    let world = crowd(1000);
    let mut checks = world.purgatory.checks(&[1]);
    assert_eq!(world.checked(), [0; 0], "nothing is checked before it is run");
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
fn checks_of_nothing_are_done_or_soon_are() {
    let world = World::new();
    assert!(world.purgatory.checks::<u32>([]).is_done());
    let mut checks = world.purgatory.checks(&[1, 2, 3]);
    assert_eq!(checks.run(1), 0);
    assert!(checks.is_done());
    assert!(format!("{checks:?}").starts_with("Checks"));
}

#[test]
fn a_key_with_few_watchers_does_not_wait_for_one_with_many() {
    let world = crowd(10_000);
    world.watch(20_000, [2]);
    world.watch(20_001, [3]);
    world.checked();
    let mut checks = world.purgatory.checks(&[1, 2, 3]);
    checks.run(100);
    let checked = world.checked();
    assert_eq!(checked.len(), 100);
    assert!(checked.contains(&20_000) && checked.contains(&20_001), "{checked:?}");
}

#[test]
fn keys_take_turns() {
    let world = World::new();
    for name in 0..3000 {
        world.watch(name, [name % 3]);
    }
    world.checked();
    let mut checks = world.purgatory.checks(&[0, 1, 2]);
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
    assert_eq!(world.purgatory.check_and_complete_all([&1, &2, &3, &4, &1]), 0);
    in_one_go(&world);
    let mut checks = world.purgatory.checks(&[4, 3, 2, 1, 2]);
    while !checks.is_done() {
        checks.run(3);
    }
    in_one_go(&world);
    assert_eq!(world.purgatory.checks(&[1, 2]).run(usize::MAX), 0);
    in_one_go(&world);
}

#[test]
fn two_passes_at_once_each_check_what_the_other_has_not() {
    let world = crowd(1000);
    let (mut first, mut second) = (world.purgatory.checks(&[1]), world.purgatory.checks(&[1]));
    while !first.is_done() || !second.is_done() {
        first.run(10);
        second.run(17);
    }
    let mut checked = world.checked();
    assert!(checked.len() <= 2000);
    checked.sort_unstable();
    checked.dedup();
    assert_eq!(checked.len(), 1000, "everybody was checked");
}

#[test]
fn an_event_while_checks_are_under_way_begins_from_the_start() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks(&[1]);
    checks.run(50);
    world.make_ready(10);
    assert_eq!(world.purgatory.check_and_complete(&1), 1, "it was checked before the event");
    world.make_ready(60);
    assert_eq!(checks.run(usize::MAX) + world.purgatory.check_and_complete(&1), 1);
    assert_eq!(world.ended(), all([10, 60], Satisfied));
}

#[test]
fn what_comes_while_checks_are_under_way_is_left_to_the_next_event() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks(&[1]);
    let mut runs = 0;
    while !checks.is_done() {
        checks.run(10);
        world.watch(1000 + runs, [1]);
        runs += 1;
    }
    assert!(runs <= 11, "it ends though others keep coming");
    let checked = world.checked();
    let newcomers = checked.iter().filter(|name| **name >= 1000).count();
    assert_eq!(newcomers, 2 * runs as usize, "each was checked when it came, twice");
}

#[test]
fn what_ends_while_checks_are_under_way_is_passed_over() {
    let world = World::new();
    let keys: Vec<_> = (0..300).map(|name| world.watch(name, [1])).collect();
    world.checked();
    let mut checks = world.purgatory.checks(&[1]);
    checks.run(100);
    // The one at which the checks stand, those around it, and then all others but the last.
    for at in (95..105).chain(0..95).chain(105..299) {
        assert!(world.purgatory.cancel(keys[at]));
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
fn checks_end_when_all_that_is_left_has_ended() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks(&[1]);
    checks.run(50);
    assert_eq!(world.purgatory.cancel_for_key(&1), 100);
    world.check_empty();
    for name in 200..300 {
        world.watch(name, [1]);
    }
    world.checked();
    assert_eq!(checks.run(usize::MAX), 0);
    assert!(checks.is_done());
    assert_eq!(world.checked(), [0; 0], "those came later");
    world.purgatory.cancel_for_key(&1);
    world.check_empty();
}

#[test]
fn memory_may_be_given_back_while_checks_are_under_way() {
    let world = World::new();
    let keys: Vec<_> = (0..3000).map(|name| world.watch(name, [1])).collect();
    let mut checks = world.purgatory.checks(&[1]);
    checks.run(2900);
    for key in &keys[..2990] {
        world.purgatory.cancel(*key);
    }
    world.purgatory.shrink();
    world.state().ready.extend(0..3000);
    assert_eq!(checks.run(usize::MAX), 10);
    world.purgatory.shrink();
    world.check_empty();
}

#[test]
fn checks_that_are_dropped_half_way_give_up_their_place() {
    let world = crowd(100);
    // Places that were not given up would be moved along at every end, and never be used again.
    for round in 0..1000 {
        let mut checks = world.purgatory.checks(&[1]);
        checks.run(round % 99 + 1);
        assert!(!checks.is_done());
    }
    world.state().ready.extend(0..100);
    assert_eq!(world.purgatory.check_and_complete(&1), 100, "the rest waits for the next event");
    world.check_empty();
}

#[test]
fn checks_that_are_leaked_hold_nothing_up() {
    let world = crowd(100);
    let mut checks = world.purgatory.checks(&[1]);
    checks.run(50);
    std::mem::forget(checks);
    world.state().ready.extend(0..100);
    assert_eq!(world.purgatory.check_and_complete(&1), 100);
    world.check_empty();
    world.watch(200, [1]);
    world.make_ready(200);
    assert_eq!(world.purgatory.checks(&[1]).run(1), 1);
    world.check_empty();
}

#[test]
fn what_needs_no_check_costs_no_budget() {
    let world = World::new();
    for name in 0..1000 {
        world.all(name, [Events(1), Threshold(2, 5)]);
    }
    world.watch(1000, [1]);
    world.checked();
    world.make_ready(1000);
    let mut checks = world.purgatory.checks(&[1]);
    assert_eq!((checks.run(1), world.checked()), (1, vec![1000]));
}

#[test]
fn a_check_that_announces_its_own_key_once_is_made_again() {
    let world = World::new();
    let (purgatory, count) = (world.purgatory.clone(), Arc::new(AtomicUsize::new(0)));
    let checks = Arc::clone(&count);
    let op = Op::new().check(move || {
        let check = checks.fetch_add(1, Ordering::Relaxed);
        if check == 2 {
            assert_eq!(purgatory.check_and_complete(&1), 0, "it is in hand");
        }
        check == 3
    });
    world.waits(world.purgatory.try_complete_else_watch(op, [1], HOUR));
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
    assert!(world.checked().into_iter().eq(0..2000), "in the order in which they came");
    assert_eq!(world.purgatory.cancel_for_key(&1), 1996);
    let ended = world.ended();
    assert_eq!(ended[..4], all([499, 999, 1499, 1999], Satisfied));
    let others = (0..2000).filter(|name| name % 500 != 499);
    assert_eq!(ended[4..], all(others, Cancelled("")));
    world.check_empty();
}
