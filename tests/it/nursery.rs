//! The latest timeouts, which wait outside the levels.

use delaywheel::{Key, Tick, TimingWheel};

use crate::support::{drain_at, wheel_of};

/// More than the nursery holds.
const MANY: u64 = 100;

fn fill(wheel: &mut TimingWheel<u64>, deadlines: impl Iterator<Item = u64>) -> Vec<Key> {
    deadlines.map(|deadline| wheel.insert(Tick::new(deadline), deadline).unwrap()).collect()
}

fn in_no_level<T>(wheel: &TimingWheel<T>) -> usize {
    wheel.shape().latest.map_or(0, |latest| latest.pending)
}

#[test]
fn timeouts_that_are_cancelled_soon_never_reach_a_level() {
    let mut wheel = wheel_of(64, 0);
    for round in 0..50 {
        let keys = fill(&mut wheel, (1..=20).map(|i| round + 1000 * i));
        wheel.check_invariants();
        for (i, key) in (1..=20).zip(keys) {
            assert_eq!(wheel.next_expiration(), Some(Tick::new(round + 1000 * i)));
            wheel.cancel(key).unwrap();
        }
        assert_eq!(wheel.next_expiration(), None);
    }
    assert_eq!(wheel.levels(), 0);
}

#[test]
fn a_survivor_is_placed_once_and_expires_once() {
    let mut wheel = wheel_of(64, 0);
    let mut survivors = Vec::new();
    for i in 0..10 * MANY {
        let key = wheel.insert(Tick::new(10_000 + i), i).unwrap();
        if i % 8 == 0 {
            survivors.push(i);
        } else {
            wheel.cancel(key).unwrap();
        }
        wheel.check_invariants();
        assert_eq!(wheel.len(), survivors.len());
        assert!(wheel.next_expiration() <= Some(Tick::new(10_000)));
    }
    assert!(wheel.levels() > 0 && in_no_level(&wheel) < 10, "no survivor is in a level");
    assert_eq!(drain_at(&mut wheel, 20_000), survivors);
    assert!(wheel.is_empty());
}

#[test]
fn a_crowd_of_survivors_is_placed_at_once() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, (0..MANY).map(|i| 5000 + i));
    assert_eq!(in_no_level(&wheel), 0, "the nursery is closed");
    assert_eq!(drain_at(&mut wheel, 6000), (5000..5000 + MANY).collect::<Vec<_>>());
}

#[test]
fn timeouts_of_the_nursery_and_the_levels_expire_in_order() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, [7000, 150].into_iter());
    wheel.shrink();
    assert_eq!(in_no_level(&wheel), 0);
    // Opens the nursery again: every 16th of these inserts finds its bucket full, which is slow.
    for _ in 0..20 * 256 {
        let key = wheel.insert(Tick::new(1 << 30), 0).unwrap();
        wheel.cancel(key).unwrap();
    }
    fill(&mut wheel, [149, 151, 6999, 7001].into_iter());
    assert_eq!(in_no_level(&wheel), 4, "the nursery has opened");
    let mut seen = Vec::new();
    while let Some(next) = wheel.next_expiration() {
        let due = drain_at(&mut wheel, next.get());
        assert_eq!(due, [next.get()], "each tick expires its timeout");
        seen.extend(due);
        wheel.check_invariants();
    }
    assert_eq!(seen, [149, 150, 151, 6999, 7000, 7001]);
}

#[test]
fn a_passed_deadline_counts_as_now_after_the_only_due_timeout_was_cancelled() {
    let mut wheel = wheel_of(64, 0);
    let keys = fill(&mut wheel, [10, 500].into_iter());
    wheel.cancel(keys[0]).unwrap();
    wheel.observe(Tick::new(100));
    let late = wheel.insert(Tick::new(50), 50).unwrap();
    assert_eq!(wheel.deadline(late), Some(Tick::new(100)), "nothing was due at 10");
}

#[test]
fn an_advance_with_a_limit_of_0_leaves_the_nursery_as_it_is() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, [10, 20].into_iter());
    let mut due = wheel.advance(Tick::new(15)).limit(0);
    assert!(due.next().is_none() && !due.is_drained());
    assert_eq!(in_no_level(&wheel), 2);
    assert_eq!(drain_at(&mut wheel, 15), [10]);
    assert_eq!(in_no_level(&wheel), 0);
}
