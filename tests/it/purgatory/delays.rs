//! Delays in virtual time: never early, at the tick, from zero to `Duration::MAX`.

use std::time::Duration;

use delaywheel::Completion::{Expired, Satisfied};

use super::support::{HOUR, MS, SECOND, World, YEAR, all};

#[test]
fn an_operation_expires_exactly_at_its_tick() {
    for delay in [MS, 7 * MS, SECOND, 64 * SECOND, HOUR, YEAR] {
        let world = World::new();
        let key = world.watch_for(1, [1], delay);
        world.clock.advance(delay.saturating_sub(Duration::from_nanos(1)));
        assert!(world.purgatory.is_waiting(key) && world.ended().is_empty(), "early: {delay:?}");
        world.clock.advance(Duration::from_nanos(1));
        assert_eq!(world.ended(), [(1, Expired)]);
        world.check_empty();
    }
}

#[test]
fn a_delay_of_zero_checks_first_and_then_expires_at_once() {
    let world = World::new();
    world.watch_for(1, [1], Duration::ZERO);
    world.make_ready(2);
    let watched = world.purgatory.try_complete_else_watch(world.op(2), [1], Duration::ZERO);
    assert!(world.at_once(watched));
    assert_eq!(world.ended(), [(2, Satisfied)]);
    world.clock.advance(Duration::ZERO);
    assert_eq!(world.ended(), [(1, Expired)]);
    world.check_empty();
}

#[test]
fn a_delay_above_max_delay_counts_as_max_delay() {
    let world = World::with(|builder| builder.max_delay(10 * SECOND));
    for (name, delay) in
        [9 * SECOND, 10 * SECOND, 11 * SECOND, Duration::MAX].into_iter().enumerate()
    {
        world.watch_for(u32::try_from(name).unwrap(), [1], delay);
    }
    world.clock.advance(9 * SECOND);
    assert_eq!(world.ended(), [(0, Expired)]);
    world.clock.advance(999 * MS);
    assert_eq!(world.ended(), []);
    world.clock.advance(MS);
    let mut ended = world.ended();
    ended.sort_by_key(|(name, _)| *name);
    assert_eq!(ended, all(1..4, Expired));
    world.check_empty();
}
