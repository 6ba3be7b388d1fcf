//! Operations that wait for a key to reach a threshold.

use delaywheel::{Completion::Satisfied, Condition, Condition::Threshold, Watch};

use super::support::{World, all};

#[test]
fn a_threshold_found_in_two_ways_during_registration_counts_once() {
    // The third question is the one about key 1 once both thresholds are on their lists. The
    // answer is yes. In the second case, the key is advanced before it.
    for advances in [false, true] {
        let world = World::new();
        let (purgatory, mut asked) = (world.purgatory.clone(), 0);
        let op = world.op(1).reach(move |key, at| {
            asked += 1;
            asked == 3 && (!advances || purgatory.advance(key, at) == 0)
        });
        world.wait_on(op, Watch::all([Threshold(1, 5), Threshold(2, 5)]));
        assert_eq!((world.purgatory.stats().watched, world.ended()), (1, vec![]));
        assert_eq!(world.purgatory.advance(&1, 5), 0, "the reached threshold is still on its list");
        assert_eq!(world.purgatory.advance(&2, 5), 1);
        world.check_empty();
    }
}

#[test]
fn a_threshold_found_during_registration_causes_one_check() {
    let (world, mut was_asked) = (World::new(), false);
    let op = world.op(1).reach(move |_, _| std::mem::replace(&mut was_asked, true));
    world.wait_on(op, Watch::all([Threshold(1, 5), Condition::Events(2)]));
    assert_eq!(world.state().checked, [1]);
}

#[test]
fn an_advance_from_within_has_reached_is_not_lost() {
    let world = World::new();
    let purgatory = world.purgatory.clone();
    let mut asked = 0;
    let op = world.op(1).reach(move |key, at| {
        asked += 1;
        if asked == 3 {
            assert_eq!(purgatory.advance(&2, 5), 0, "the operation is being checked");
            assert_eq!(purgatory.advance(key, at), 0, "the operation is being checked");
        }
        false
    });
    world.wait_on(op, Watch::all([Threshold(1, 5), Threshold(2, 5)]));
    assert_eq!(world.ended(), [(1, Satisfied)]);
    world.check_empty();
}

#[test]
fn an_advance_completes_the_operations_of_all_threads_in_order() {
    let world = World::new();
    for at in (0..300).rev() {
        let watch = Watch::any([Threshold(1, u64::from(at))]);
        // Threads are spread over the shards.
        std::thread::scope(|scope| {
            scope.spawn(|| world.wait_on(world.op(at), watch)).join().unwrap();
        });
    }
    assert_eq!(world.advance(1, 199), 200);
    assert_eq!(world.ended(), all(0..200, Satisfied));
    assert_eq!(world.advance(1, 300), 100);
    assert_eq!(world.ended(), all(200..300, Satisfied));
    world.check_empty();
}

#[test]
fn thresholds_of_0_and_of_the_greatest_value_are_reached() {
    let world = World::new();
    let key = world.wait_on(world.op(0), Watch::all([Threshold(1, 0), Threshold(2, u64::MAX)]));
    world.purgatory.guard(key).disarm();
    assert_eq!((world.advance(1, 0), world.advance(2, u64::MAX - 1)), (0, 0));
    assert_eq!(world.advance(2, u64::MAX), 1);
    assert_eq!(world.ended(), [(0, Satisfied)]);
    world.check_empty();
}
