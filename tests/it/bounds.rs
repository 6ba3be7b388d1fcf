//! The contract's clauses on work: bounded steps, no spurious wake-up.

use delaywheel::{Tick, wheel::TimingWheel};

use crate::support::{count_steps, drain_at, wheel_of};

const CENTURY: u64 = 3_155_760_000_000;

#[test]
fn a_century_before_one_timeout_takes_one_step() {
    for size in [2, 64, 65536] {
        let mut wheel = wheel_of(size, 12_345);
        wheel.insert(Tick::new(CENTURY), ()).unwrap();
        assert_eq!(count_steps(&mut wheel, CENTURY - 1), 0);
        assert_eq!(count_steps(&mut wheel, CENTURY), 1);
        assert!(wheel.is_empty());
    }
}

#[test]
fn an_advance_by_2_to_the_63_ticks_takes_at_most_one_step() {
    let mut wheel = wheel_of(64, 0);
    wheel.insert(Tick::MAX, ()).unwrap();
    assert_eq!(count_steps(&mut wheel, 1 << 63), 0);
    wheel.insert(Tick::new((1 << 63) + 5), ()).unwrap();
    assert_eq!(count_steps(&mut wheel, u64::MAX - 1), 1);
}

#[test]
fn a_crowd_takes_at_most_one_step_for_each_timeout_and_level() {
    for (size, power) in [(2, 5_u32), (4, 9), (64, 13), (64, 19), (256, 25), (1024, 25)] {
        let mut wheel = wheel_of(size, 0);
        let crowd = size as u64 * 2 / 3 + 40;
        for _ in 0..crowd {
            wheel.insert(Tick::new((1 << power) + 1), ()).unwrap();
        }
        let (mut steps, mut wakeups) = (0, 0);
        let levels = u64::from(power / size.ilog2());
        while let Some(next) = wheel.next_expiration() {
            steps += count_steps(&mut wheel, next.get());
            wakeups += 1;
            wheel.check_invariants();
        }
        assert!(steps <= crowd * (levels + 1), "{steps} steps for {crowd}");
        assert!(wakeups <= levels + 1, "{wakeups} wake-ups");
    }
}

#[test]
fn an_emptied_bucket_leaves_no_wake_up() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (0..60).map(|i| wheel.insert(Tick::new(1 << i), ()).unwrap()).collect();
    for (i, key) in keys.into_iter().enumerate() {
        assert_eq!(wheel.next_expiration(), Some(Tick::new(1 << i)));
        wheel.cancel(key).unwrap();
    }
    assert_eq!(wheel.next_expiration(), None);
    assert_eq!(count_steps(&mut wheel, u64::MAX), 0);
}

/// The wheel lists a crowded bucket by tick when it is due. Later timeouts take the memory of those
/// that are cancelled after that.
#[test]
fn a_cancelled_timeout_of_a_bucket_that_is_due_leaves_no_wake_up_to_its_successor() {
    let mut wheel = wheel_of(256, 0);
    let mut insert = |at| wheel.insert(Tick::new(at), ()).unwrap();
    let crowd: Vec<_> = (300..332).map(&mut insert).collect();
    assert_eq!((count_steps(&mut wheel, 256), wheel.next_expiration()), (2, Some(Tick::new(300))));
    // The first one is cancelled last.
    for &key in crowd.iter().rev() {
        wheel.cancel(key).unwrap();
        wheel.insert(Tick::new(1 << 20), ()).unwrap();
    }
    assert_eq!(wheel.next_expiration(), Some(Tick::new(1 << 20)));
    wheel.check_invariants();
}

#[test]
fn a_limit_is_exact_if_every_step_expires_a_timeout() {
    let mut wheel = wheel_of(64, 0);
    fill(&mut wheel, 100, 10);
    for limit in [0, 1, 7, 64] {
        let left = wheel.len();
        assert_eq!(wheel.advance(Tick::new(10)).limit(limit).count() as u64, limit);
        assert_eq!((left - wheel.len()) as u64, limit);
    }
}

#[test]
fn a_limit_used_up_by_moves_leaves_the_advance_undrained() {
    let mut wheel = wheel_of(4, 0);
    // A crowded bucket of level 2 is due at 16, ahead of its timeouts.
    fill(&mut wheel, 36, 31);
    let mut due = wheel.advance(Tick::new(20)).limit(5);
    assert_eq!(due.by_ref().count(), 0);
    assert!(!due.is_drained(), "the bucket still has timeouts to move");
    let mut due = wheel.advance(Tick::new(20));
    assert_eq!(due.by_ref().count(), 0);
    assert!(due.is_drained());
    assert_eq!(drain_at(&mut wheel, 31).len(), 36);
}

fn fill(wheel: &mut TimingWheel<()>, count: usize, deadline: u64) {
    for _ in 0..count {
        wheel.insert(Tick::new(deadline), ()).unwrap();
    }
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
