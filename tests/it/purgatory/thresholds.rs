//! Operations that wait for the values of keys.

use delaywheel::{
    Completion::{Expired, Satisfied},
    Watch::{Events, Threshold},
};

use super::support::{HOUR, World, all};

#[test]
fn an_advance_completes_exactly_those_it_reaches_in_order() {
    let world = World::new();
    let mut ats: Vec<u32> = (0..2000).map(|number| number * 3).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut ats);
    for &at in &ats {
        world.any(at, [Threshold(1, u64::from(at))]);
    }
    // Zero is reached when there is a value at all.
    let mut done = 0;
    for value in [0, 2, 3, 299, 300, 301, 2999, 6000] {
        let end = value / 3 + 1;
        let end = end.min(2000);
        assert_eq!(world.advance(1, u64::from(value)), (end - done) as usize);
        assert_eq!(world.ended(), all((done..end).map(|number| number * 3), Satisfied));
        world.check_books();
        done = end;
    }
    assert_eq!(world.checked(), [0; 0], "thresholds need no check");
    world.check_empty();
}

#[test]
fn an_advance_of_one_key_leaves_those_of_others() {
    let world = World::new();
    for name in 0..10 {
        world.any(name, [Threshold(name, 5)]);
    }
    assert_eq!(world.advance(3, 100), 1);
    assert_eq!(world.ended(), [(3, Satisfied)]);
    assert_eq!(world.advance(11, 100), 0);
    assert_eq!(world.purgatory.delayed(), 9);
}

#[test]
fn an_advance_that_goes_back_or_repeats_does_nothing() {
    let world = World::new();
    for at in 1..=10 {
        world.any(at, [Threshold(1, u64::from(at))]);
    }
    assert_eq!(world.advance(1, 5), 5);
    for value in [5, 4, 0, 5] {
        assert_eq!(world.purgatory.advance(&1, value), 0);
    }
    assert_eq!(world.ended(), all(1..=5, Satisfied));
    assert_eq!(world.advance(1, u64::MAX), 5);
    world.check_empty();
}

#[test]
fn equal_thresholds_are_reached_together() {
    let world = World::new();
    for name in 0..1000 {
        world.any(name, [Threshold(1, u64::from(name) / 500)]);
    }
    assert_eq!(world.advance(1, 0), 500);
    let mut ended = world.ended();
    ended.sort_by_key(|(name, _)| *name);
    assert_eq!(ended, all(0..500, Satisfied));
    assert_eq!(world.advance(1, 1), 500);
    world.check_empty();
}

#[test]
fn a_threshold_that_was_reached_before_satisfies_at_once() {
    let world = World::new();
    world.advance(1, 10);
    let watches = [Threshold(2, 1), Threshold(1, 10), Events(3)];
    assert!(world.at_once(world.purgatory.watch_any(world.op(1), watches, HOUR)));
    let watches = [Threshold(1, 10), Threshold(1, 9)];
    assert!(world.at_once(world.purgatory.watch_all(world.op(2), watches, HOUR)));
    assert_eq!(world.ended(), all(1..3, Satisfied));
    assert_eq!(world.checked(), [0; 0]);
    world.check_empty();
}

#[test]
fn of_all_conditions_those_that_held_before_are_not_watched() {
    let world = World::new();
    world.advance(1, 10);
    world.all(1, [Threshold(1, 10), Threshold(2, 20)]);
    assert_eq!(world.purgatory.watched(), 1);
    assert_eq!(world.purgatory.advance(&1, 11), 0);
    assert_eq!(world.advance(2, 20), 1);
    world.check_empty();
}

#[test]
fn a_threshold_that_is_reached_while_the_operation_begins_to_wait_is_seen() {
    for is_all in [false, true] {
        let world = World::new();
        let mut asked = 0;
        let op = world.op(1).reach(move |_, _| {
            asked += 1;
            asked > 2
        });
        // Both are asked before, in vain; and both again, when they are on their lists.
        let watches = [Threshold(1, 5), Threshold(2, 5)];
        let result = if is_all {
            world.purgatory.watch_all(op, watches, HOUR)
        } else {
            world.purgatory.watch_any(op, watches, HOUR)
        };
        world.waits(result);
        assert_eq!(world.ended(), [(1, Satisfied)]);
        world.check_empty();
    }
}

#[test]
fn one_of_all_thresholds_that_is_reached_while_it_begins_to_wait_is_not_counted_twice() {
    let world = World::new();
    let mut asked = 0;
    // Of the first question only the second answer is yes; of the other both are no.
    let op = world.op(1).reach(move |key, _| {
        asked += u32::from(key == 1);
        key == 1 && asked == 2
    });
    world.all_of(op, [Threshold(1, 5), Threshold(2, 5)]);
    assert_eq!((world.purgatory.watched(), world.ended()), (1, vec![]));
    assert_eq!(world.purgatory.advance(&1, 5), 0, "it was off that list");
    assert_eq!(world.purgatory.advance(&2, 5), 1);
    world.check_empty();
}

#[test]
fn an_advance_from_within_the_question_is_not_lost() {
    let world = World::new();
    let purgatory = world.purgatory.clone();
    let mut asked = 0;
    let op = world.op(1).reach(move |key, at| {
        asked += 1;
        if asked == 3 {
            assert_eq!(purgatory.advance(&2, 5), 0, "it is in hand");
            assert_eq!(purgatory.advance(&key, at), 0, "it is in hand");
        }
        false
    });
    world.all_of(op, [Threshold(1, 5), Threshold(2, 5)]);
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

#[test]
fn any_threshold_or_a_check_satisfies_one_that_watches_both() {
    let watches = [Events(1), Threshold(2, 5), Threshold(3, 5)];
    let ways: [fn(&World) -> usize; 4] = [
        |world| {
            world.make_ready(1);
            world.purgatory.check_and_complete(&1)
        },
        |world| world.advance(2, 5),
        |world| world.advance(3, 6),
        |world| {
            world.make_ready(1);
            world.purgatory.check_and_complete_all([&3, &1])
        },
    ];
    for way in ways {
        let world = World::new();
        world.any(1, watches);
        assert_eq!(world.purgatory.check_and_complete(&1), 0);
        assert_eq!(world.advance(2, 4) + world.advance(3, 4), 0);
        assert_eq!(way(&world), 1);
        assert_eq!(world.ended(), [(1, Satisfied)]);
        world.check_empty();
    }
}

#[test]
fn an_event_on_a_key_that_is_watched_for_its_value_checks_nobody() {
    let world = World::new();
    world.make_ready(1);
    world.all(1, [Threshold(1, 5)]);
    assert_eq!(world.purgatory.check_and_complete(&1), 0);
    world.watch(2, [1]);
    world.checked();
    world.make_ready(2);
    assert_eq!(world.purgatory.advance(&1, 4), 0, "nor does an advance check those on events");
    assert_eq!(world.checked(), [0; 0]);
}

#[test]
fn all_needs_every_threshold_and_then_the_check() {
    let world = World::new();
    world.all(1, [Threshold(1, 5), Threshold(2, 5), Events(3)]);
    assert_eq!(world.checked(), [0; 0], "thresholds are missing");
    assert_eq!(world.purgatory.check_and_complete(&3), 0);
    assert_eq!(world.advance(1, 5), 0);
    assert_eq!(world.purgatory.check_and_complete(&3), 0);
    assert_eq!(world.checked(), [0; 0], "one is missing");
    assert_eq!(world.advance(2, 5), 0);
    assert_eq!(world.checked(), [1], "the last threshold has it checked");
    assert_eq!(world.purgatory.check_and_complete(&3), 0);
    assert_eq!(world.checked(), [1]);
    world.make_ready(1);
    assert_eq!(world.purgatory.check_and_complete(&3), 1);
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

#[test]
fn the_last_threshold_completes_one_whose_check_succeeds_by_then() {
    let world = World::new();
    world.make_ready(1);
    world.all(1, [Threshold(1, 5), Events(3)]);
    assert_eq!(world.advance(1, 5), 1);
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

#[test]
fn all_with_thresholds_that_hold_from_the_start_waits_for_its_check_only() {
    let world = World::new();
    world.advance(1, 5);
    world.all(1, [Threshold(1, 5), Events(3)]);
    assert_eq!(world.checked(), [1, 1]);
    world.make_ready(2);
    let watches = [Threshold(1, 5), Events(3)];
    assert!(world.at_once(world.purgatory.watch_all(world.op(2), watches, HOUR)));
    world.make_ready(1);
    assert_eq!(world.purgatory.check_and_complete(&3), 1);
    world.check_empty();
}

#[test]
fn several_thresholds_of_one_key_are_reached_one_by_one_or_at_once() {
    let world = World::new();
    let watches = [Threshold(1, 5), Threshold(1, 7), Threshold(1, 6), Threshold(1, 5)];
    for value in [vec![5, 6, 7], vec![6, 7], vec![9]] {
        world.state().values.clear();
        world.all(1, watches);
        let (last, before) = value.split_last().unwrap();
        assert!(before.iter().all(|&value| world.advance(1, value) == 0));
        assert_eq!(world.advance(1, *last), 1);
        assert_eq!(world.ended(), [(1, Satisfied)]);
        world.check_empty();
        world.state().values.clear();
        world.any(2, watches);
        assert_eq!(world.advance(1, value[0]), 1);
        assert_eq!(world.ended(), [(2, Satisfied)]);
        world.check_empty();
    }
}

#[test]
fn a_threshold_that_is_not_reached_in_time_expires_and_leaves_its_lists() {
    let world = World::new();
    world.all(1, [Threshold(1, 5), Threshold(2, 5)]);
    world.any(2, [Threshold(1, 5), Threshold(2, 5)]);
    assert_eq!(world.advance(1, 4), 0);
    world.clock.advance(HOUR);
    let mut ended = world.ended();
    ended.sort_by_key(|(name, _)| *name);
    assert_eq!(ended, all(1..3, Expired));
    world.check_empty();
    assert_eq!(world.advance(1, 5), 0);
}

#[test]
fn the_greatest_value_is_a_threshold_like_any_other() {
    let world = World::new();
    world.any(1, [Threshold(1, u64::MAX)]);
    assert_eq!(world.advance(1, u64::MAX - 1), 0);
    assert_eq!(world.advance(1, u64::MAX), 1);
    world.any(2, [Threshold(2, 0)]);
    assert_eq!(world.advance(2, 0), 1);
    world.check_empty();
}

#[test]
fn more_thresholds_than_one_hold_of_the_lock_are_reached_in_order() {
    let world = World::new();
    for at in (0..5000).rev() {
        world.all(at, [Threshold(1, u64::from(at)), Threshold(2, u64::from(5000 - at))]);
    }
    assert_eq!(world.advance(1, 4000), 0);
    assert_eq!(world.advance(2, 5000), 4001);
    let ended = world.ended();
    assert_eq!(ended, all((0..=4000).rev(), Satisfied), "by what they waited for last");
    assert_eq!(world.advance(1, 5000), 999);
    assert_eq!(world.ended(), all(4001..5000, Satisfied));
    world.check_empty();
}

#[test]
fn a_threshold_that_is_reached_and_found_is_counted_once() {
    let world = World::new();
    let purgatory = world.purgatory.clone();
    let mut asked = 0;
    let op = world.op(1).reach(move |key, at| {
        asked += 1;
        // The first of them, when both are on their lists.
        asked == 3 && purgatory.advance(&key, at) == 0
    });
    world.all_of(op, [Threshold(1, 5), Threshold(2, 5)]);
    assert_eq!((world.ended(), world.purgatory.watched()), (vec![], 1));
    assert_eq!(world.purgatory.advance(&2, 5), 1);
    world.check_empty();
}

#[test]
fn an_advance_completes_those_of_all_threads_in_order() {
    let world = World::new();
    for at in (0..300).rev() {
        // Threads are spread over the shards.
        std::thread::scope(|scope| {
            scope.spawn(|| world.any(at, [Threshold(1, u64::from(at))])).join().unwrap();
        });
    }
    assert_eq!(world.advance(1, 199), 200);
    assert_eq!(world.ended(), all(0..200, Satisfied));
    assert_eq!(world.advance(1, 300), 100);
    assert_eq!(world.ended(), all(200..300, Satisfied));
    world.check_empty();
}
