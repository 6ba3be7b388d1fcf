//! Edges of time that the oracle's scripts do not reach.

use std::mem::ManuallyDrop;

use delaywheel::Tick;

use crate::support::{drain_at, wheel_of};

#[test]
fn an_advance_after_a_leaked_one_continues_where_it_stopped() {
    let mut wheel = wheel_of(4, 0);
    for deadline in 1..=40 {
        wheel.insert(Tick::new(deadline), deadline).unwrap();
    }
    let mut seen = Vec::new();
    while !wheel.is_empty() {
        let mut due = ManuallyDrop::new(wheel.advance(Tick::new(100)));
        seen.extend(due.by_ref().take(3).map(|expired| expired.value));
        wheel.check_invariants();
    }
    assert!(seen.into_iter().eq(1..=40));
}

#[test]
fn observe_moves_the_clock_and_expires_nothing() {
    let mut wheel = wheel_of(64, 0);
    let due = wheel.insert(Tick::new(5), 5).unwrap();
    wheel.observe(Tick::new(100));
    wheel.observe(Tick::new(50));
    assert_eq!((wheel.now(), wheel.len()), (Tick::new(100), 1));
    assert_eq!(wheel.next_expiration(), Some(Tick::new(5)));
    assert_eq!(wheel.cancel(due), Some(5));
    let late = wheel.insert(Tick::new(7), 7).unwrap();
    assert_eq!(wheel.deadline(late), Some(Tick::new(100)), "nothing was due");
    wheel.check_invariants();
    assert_eq!(drain_at(&mut wheel, 0), [7]);
}
