//! Operations that displace others or are refused, at limits of one.

use super::{
    super::limits::{Limit, Overload},
    Completion::{Displaced, Satisfied},
    Limits, World, check, join,
};

/// Makes a purgatory in which one operation may wait, in total and per key. A further one displaces
/// the oldest.
fn displacing() -> World {
    let limit = Limit { operations: 1, overload: Overload::DisplaceOldest };
    World::with_limits(Limits::new(Some(1), Some(limit), 8))
}

#[test]
fn of_newcomers_at_once_each_displaces_one_and_one_remains() {
    check(|| {
        let world = displacing();
        world.watch(&[0]);
        let other = world.spawn(|world| world.watch(&[0]).is_some());
        assert!(world.watch(&[0]).is_some());
        assert!(join(other));
        assert_eq!(world.ends(), [Displaced, Displaced]);
        assert_eq!(world.purgatory.stats().delayed, 1);
        assert_eq!(world.cancel_for_key(0), 1);
        world.check_empty();
    });
}

#[test]
fn an_operation_displaced_while_it_is_checked_ends_once() {
    check(|| {
        let world = displacing();
        world.watch(&[0]);
        let event = world.spawn(|world| world.satisfy(0));
        let is_waiting = world.try_watch(&[1]).expect("nothing is refused").key().is_some();
        let completed = join(event);
        let ends = world.ends();
        let satisfied = ends.iter().filter(|end| **end == Satisfied).count();
        // The newcomer may complete in its second check.
        assert!(satisfied >= completed + usize::from(!is_waiting));
        let delayed = world.purgatory.stats().delayed;
        assert_eq!(delayed + ends.len() as u64, 2);
        assert_eq!(world.cancel_for_key(1) as u64, delayed);
        world.check_empty();
    });
}

#[test]
fn the_permit_of_an_ended_operation_is_taken_by_one_newcomer() {
    check(|| {
        let limit = Some(Limit { operations: 1, overload: Overload::Refuse });
        let world = World::with_limits(Limits::new(None, limit, 8));
        let first = world.watch(&[0]).expect("it waits");
        let other = world.spawn(|world| world.try_watch(&[0]).is_ok());
        assert!(world.cancel(first));
        let waits = world.try_watch(&[0]).is_ok();
        assert!(waits != join(other), "both are refused, or both wait");
        assert_eq!(world.cancel_for_key(0), 1);
        world.check_empty();
    });
}
