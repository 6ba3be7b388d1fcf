//! Operations that displace others or are refused, at limits of one.

use std::sync::Arc;

use loom::thread;

use super::{
    super::limits::{Limit, Overload},
    Completion::{Displaced, Satisfied},
    Limits, World, check, join,
};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Makes a purgatory in which one operation may wait, in total and per key. The oldest is
/// displaced.
fn displacing() -> World {
    let limit = Limit { operations: 1, overload: Overload::DisplaceOldest };
    World::with(Limits::new(Some(1), Some(limit), 8))
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
        let delayed = world.shared.stats().delayed;
        assert_eq!(delayed + ends.len() as u64, 2);
        assert_eq!(world.cancel_for_key(1) as u64, delayed);
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

#[test]
fn the_permit_of_an_ended_operation_is_taken_by_one_newcomer() {
    check(|| {
        let limit = Some(Limit { operations: 1, overload: Overload::Refuse });
        let world = World::with(Limits::new(None, limit, 8));
        let first = world.watch(&[0]).expect("it waits");
        let other = world.spawn(|world| world.try_watch(&[0]).is_ok());
        assert!(world.cancel(first));
        let waits = world.try_watch(&[0]).is_ok();
        assert!(waits != join(other), "both are refused, or both wait");
        assert_eq!(world.cancel_for_key(0), 1);
        world.check_empty();
    });
}

/// A newcomer while an operation ends and another one takes its permit, by hand.
fn newcomer_against_end(counts_itself_first: bool) {
    let count = Arc::new(Mutex::new(1));
    let admit = move |count: &Mutex<u32>| {
        let mut held = count.lock();
        if counts_itself_first {
            *held += 1;
            let is_admitted = *held <= 1;
            drop(held);
            if !is_admitted {
                *count.lock() -= 1;
            }
            is_admitted
        } else {
            let is_admitted = *held < 1;
            *held += u32::from(is_admitted);
            is_admitted
        }
    };
    let other = Arc::clone(&count);
    let other = thread::spawn(move || admit(&other));
    *count.lock() -= 1;
    let is_admitted = admit(&count);
    assert!(join(other) != is_admitted, "both are refused, or both wait");
}

#[test]
fn a_refused_newcomer_takes_no_permit() {
    check(|| newcomer_against_end(false));
}

#[test]
#[should_panic(expected = "both are refused, or both wait")]
fn broken_a_refused_newcomer_that_counts_itself_first_refuses_another_one() {
    check(|| newcomer_against_end(true));
}
