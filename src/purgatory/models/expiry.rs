//! Operations that expire while other threads end them, or while they begin to wait.

use super::{
    Completion::{Expired, Satisfied},
    World, check, join,
};

#[test]
fn either_an_event_or_the_delay_ends_an_operation() {
    check(|| {
        let world = World::new();
        world.watch_for_delay(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        world.expire();
        // If the operation is out when it expires, the thread of the event completes it as expired.
        let is_expired = join(event) == 0;
        assert_eq!(world.ends(), [if is_expired { Expired } else { Satisfied }]);
        world.check_empty();
    });
}

#[test]
fn an_operation_that_expires_while_it_begins_to_wait_ends_once() {
    check(|| {
        let world = World::new();
        let reaper = world.spawn(World::expire);
        world.watch_for_delay(&[0]);
        join(reaper);
        // An operation that was registered after the turn of the reaper still waits.
        let is_waiting = world.ends().is_empty();
        let stats = world.purgatory.stats();
        assert_eq!([stats.delayed, stats.watched], [u64::from(is_waiting); 2]);
        assert_eq!(world.satisfy(0), usize::from(is_waiting));
        assert_eq!(world.ends(), [if is_waiting { Satisfied } else { Expired }]);
        world.check_empty();
    });
}
