//! Records of cancelled and reset timeouts are removed.

use allocation_counter::measure;
use delaywheel::{Tick, wheel::TimingWheel};

use crate::support::{count_steps, drain_at, wheel_of};

/// Limit of the memory of a few hundred timeouts, in bytes.
const A_FEW_SEGMENTS: i64 = 256 << 10;

#[test]
fn cancelling_as_fast_as_inserting_takes_no_more_memory() {
    for (lasting, advances) in [(1, false), (20, false), (200, false), (10, true)] {
        let mut wheel = wheel_of(64, 0);
        for i in 0..lasting {
            wheel.insert(Tick::new(5000), i).unwrap();
        }
        let churn = |wheel: &mut TimingWheel<u64>| {
            for i in 0..100_000 {
                let key = wheel.insert(Tick::new(5000 + i % 10), i).unwrap();
                wheel.cancel(key).unwrap();
                if advances {
                    wheel.advance(Tick::new(i / 25)).for_each(drop);
                }
            }
        };
        assert!(measure(|| churn(&mut wheel)).bytes_max < A_FEW_SEGMENTS.unsigned_abs());
        wheel.check_invariants();
        assert_eq!(wheel.len() as u64, lasting);
        assert!(
            count_steps(&mut wheel, 5000) < 20 * lasting + 400,
            "records of cancelled timeouts remain"
        );
        assert!(wheel.is_empty());
    }
}

#[test]
fn many_resets_of_one_timeout_take_no_more_memory() {
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
    assert_eq!(wheel.len(), others.len() + 1, "a timeout was lost or doubled");
    assert_eq!(drain_at(&mut wheel, 20_000).len(), others.len() + 1);
}
