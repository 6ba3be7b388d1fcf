//! Operations that wait for the values of keys.

use delaywheel::{Completion::Satisfied, Watch::Threshold};

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
