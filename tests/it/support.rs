//! Helpers of the tests of the wheel.

use delaywheel::{
    Tick,
    wheel::{TimingWheel, WheelBuilder},
};

pub(crate) fn wheel_of<T>(size: usize, start: u64) -> TimingWheel<T> {
    let mut wheel = WheelBuilder::new().size(size).build().expect("the size is in range");
    wheel.observe(Tick::new(start));
    wheel
}

/// Advances without a limit, and returns the values that expired.
pub(crate) fn drain_at<T>(wheel: &mut TimingWheel<T>, now: u64) -> Vec<T> {
    wheel.advance(Tick::new(now)).map(|expired| expired.value).collect()
}

/// Advances one step at a time until nothing is due; returns the number of steps.
pub(crate) fn count_steps<T>(wheel: &mut TimingWheel<T>, now: u64) -> u64 {
    let mut steps = 0;
    while !wheel.advance(Tick::new(now)).limit(0).is_drained() {
        wheel.advance(Tick::new(now)).limit(1).for_each(drop);
        steps += 1;
    }
    steps
}
