//! Records of cancelled timeouts are removed.

use allocation_counter::measure;
use delaywheel::{Tick, wheel::TimingWheel};

use crate::support::{count_steps, wheel_of};

/// Limit of the memory of a few hundred timeouts, in bytes.
const A_FEW_SEGMENTS: u64 = 256 << 10;

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
        assert!(measure(|| churn(&mut wheel)).bytes_max < A_FEW_SEGMENTS);
        wheel.check_invariants();
        assert_eq!(wheel.len() as u64, lasting);
        assert!(
            count_steps(&mut wheel, 5000) < 20 * lasting + 400,
            "records of cancelled timeouts remain"
        );
        assert!(wheel.is_empty());
    }
}
