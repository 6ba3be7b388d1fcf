//! Operations that displace others, at limits of one.

use std::sync::Arc;

use loom::thread;

use super::{
    super::limits::{Limit, Overload},
    Completion::{Displaced, Satisfied},
    Limits, World, check, join,
};
use crate::sync::{AtomicU64, Ordering};

/// Makes a purgatory in which one operation may wait, in total and per key. The oldest is
/// displaced.
fn displacing() -> World {
    let limit = Some(Limit { operations: 1, overload: Overload::DisplaceOldest });
    World::with(Limits::new(limit, limit, 8))
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
        assert_eq!(world.shared.stats().delayed, 1);
        assert_eq!(world.shared.cancel_key(&0, &|| 7), 1);
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
        let delayed = world.shared.stats().delayed;
        assert_eq!(delayed + ends.len() as u64, 2);
        assert_eq!(world.shared.cancel_key(&1, &|| 7) as u64, delayed);
        world.check_empty();
    });
}

/// Two newcomers at a limit of one, by hand: each adds itself to the count, and displaces.
fn newcomers_at_a_limit(displaces_until_it_fits: bool) {
    let count = Arc::new(AtomicU64::new(1));
    let displaced = Arc::new(AtomicU64::new(0));
    let newcomer = move |count: &AtomicU64, displaced: &AtomicU64| {
        let mut is_exceeded = count.fetch_add(1, Ordering::Relaxed) >= 1;
        while is_exceeded && count.load(Ordering::Relaxed) > 1 {
            // The displaced operation leaves the count a moment later.
            displaced.fetch_add(1, Ordering::Relaxed);
            count.fetch_sub(1, Ordering::Relaxed);
            is_exceeded = displaces_until_it_fits;
        }
    };
    let other = (Arc::clone(&count), Arc::clone(&displaced));
    let other = thread::spawn(move || newcomer(&other.0, &other.1));
    newcomer(&count, &displaced);
    join(other);
    assert_eq!(displaced.load(Ordering::Relaxed), 2, "an operation was displaced without need");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn newcomers_that_displace_one_each_leave_the_limit_filled() {
    check(|| newcomers_at_a_limit(false));
}

#[test]
#[should_panic(expected = "an operation was displaced without need")]
fn broken_newcomers_that_displace_until_they_fit_displace_too_many() {
    check(|| newcomers_at_a_limit(true));
}
