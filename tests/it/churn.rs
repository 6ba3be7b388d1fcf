//! Stale records: what timeouts leave behind when they are cancelled or brought forward is swept.

use allocation_counter::measure;
use delaywheel::{Tick, TimingWheel};

use crate::support::{count_steps, drain_at, wheel_of};

/// What the records of a few hundred timeouts may take, whatever has been done to them.
const A_FEW_SEGMENTS: i64 = 256 << 10;

#[test]
fn cancelling_as_fast_as_inserting_takes_no_more_memory() {
    for lasting in [1, 20, 200] {
        let mut wheel = wheel_of(64, 0);
        for i in 0..lasting {
            wheel.insert(Tick::new(5000), i).unwrap();
        }
        let churn = |wheel: &mut TimingWheel<u64>| {
            for i in 0..100_000 {
                let key = wheel.insert(Tick::new(5000 + i % 10), i).unwrap();
                wheel.cancel(key).unwrap();
            }
        };
        assert!(measure(|| churn(&mut wheel)).bytes_max < A_FEW_SEGMENTS.unsigned_abs());
        wheel.check_invariants();
        assert!(count_steps(&mut wheel, 5000) < 20 * lasting + 400, "stale records remain");
        assert!(wheel.is_empty());
    }
}

#[test]
fn a_storm_of_resets_on_one_timeout_takes_no_more_memory() {
    let mut wheel = wheel_of(64, 0);
    let others: Vec<_> = (0..200).map(|i| wheel.insert(Tick::new(9000 + i), i).unwrap()).collect();
    let restless = wheel.insert(Tick::new(9000), 200).unwrap();
    let mut storm = 0;
    let used = measure(|| {
        for now in (0..8000).step_by(2) {
            for ahead in [9000, 700, 70, 7, 1, 700, 9000, 1, 70] {
                wheel.reset(restless, Tick::new(now + ahead)).unwrap();
                storm += 1;
            }
            wheel.advance(Tick::new(now)).for_each(drop);
        }
    });
    assert!(storm > 30_000 && used.bytes_current < A_FEW_SEGMENTS, "{used:?}");
    wheel.check_invariants();
    assert_eq!(wheel.len(), others.len() + 1, "none was lost or doubled");
    assert_eq!(drain_at(&mut wheel, 20_000).len(), others.len() + 1);
}

#[test]
fn storms_of_resets_to_earlier_deadlines_leave_each_timeout_once() {
    let mut wheel = wheel_of(64, 0);
    let keys: Vec<_> = (0..300).map(|i| wheel.insert(Tick::new(1 << 40), i).unwrap()).collect();
    let mut now = 0;
    let used = measure(|| {
        for round in 0..300 {
            for (i, &key) in (0..).zip(&keys) {
                let ahead = [300_000, 5000, 4100, 200, 65][(round + i) % 5];
                wheel.reset(key, Tick::new(now + ahead)).unwrap();
            }
            now += 60;
            assert!(drain_at(&mut wheel, now).is_empty());
        }
    });
    assert!(used.bytes_current < A_FEW_SEGMENTS, "{used:?}");
    wheel.check_invariants();
    let mut expired = drain_at(&mut wheel, u64::MAX);
    expired.sort_unstable();
    assert!(expired.into_iter().eq(0..300));
}

#[test]
fn shrink_drops_stale_records_and_keeps_every_timeout() {
    let mut wheel = wheel_of(4, 0);
    let mut keys: Vec<_> = (0..3000).map(|i| wheel.insert(Tick::new(i), i).unwrap()).collect();
    for (i, &key) in keys.iter().enumerate().filter(|(i, _)| i % 3 == 0) {
        wheel.reset(key, Tick::new(i as u64 / 2)).unwrap();
    }
    for key in keys.drain(..).rev().step_by(2) {
        wheel.cancel(key).unwrap();
    }
    wheel.shrink();
    wheel.check_invariants();
    assert_eq!(drain_at(&mut wheel, 3000).len(), 1500);
}

#[test]
fn cancelling_between_advances_takes_no_more_memory() {
    let mut wheel = wheel_of(64, 0);
    let far = Tick::new(1 << 40);
    for i in 0..10 {
        wheel.insert(far, i).unwrap();
    }
    let churn = |wheel: &mut TimingWheel<u64>| {
        for i in 0..200_000 {
            let key = wheel.insert(far, i).unwrap();
            wheel.cancel(key).unwrap();
            wheel.advance(Tick::new(i)).for_each(drop);
        }
    };
    assert!(measure(|| churn(&mut wheel)).bytes_max < A_FEW_SEGMENTS.unsigned_abs());
    wheel.check_invariants();
    assert_eq!(wheel.len(), 10);
}

#[test]
fn a_sweep_that_was_under_way_may_leave_a_bucket_full() {
    let mut wheel = wheel_of(64, 0);
    let insert = |wheel: &mut TimingWheel<u64>, tick, count: u64| -> Vec<_> {
        (0..count).map(|i| wheel.insert(Tick::new(tick), i).unwrap()).collect()
    };
    let others = insert(&mut wheel, 5000, 20);
    let crowd = insert(&mut wheel, 10, 76);
    // The last eight have the others counted out, which begins a sweep of the crowd's bucket.
    for &key in crowd[..75].iter().chain(&others[..8]) {
        wheel.cancel(key).unwrap();
    }
    // The bucket is walked until a record that is good is the only one that was not swept.
    assert!(wheel.advance(Tick::new(10)).limit(43).next().is_none());
    for key in insert(&mut wheel, 10, 14) {
        wheel.cancel(key).unwrap();
    }
    assert!(wheel.advance(Tick::new(10)).limit(0).next().is_none());
    insert(&mut wheel, 10, 1);
    wheel.check_invariants();
    assert_eq!(drain_at(&mut wheel, 10).len(), 2);
    assert_eq!(wheel.len(), 12);
}
