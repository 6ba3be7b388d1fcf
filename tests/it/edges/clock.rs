//! Clocks.

use std::time::Duration;

use delaywheel::{Clock, ManualClock, SystemClock, Timer};

use super::{DELAYS, must_panic};
use crate::timer::support::YEAR;

#[test]
fn a_clock_without_timers_shows_the_time_that_was_set() {
    let clock = ManualClock::new();
    clock.advance(Duration::ZERO);
    clock.advance(Duration::from_nanos(1));
    assert_eq!((clock.elapsed(), clock.advance_to_next()), (Duration::from_nanos(1), None));
    assert!(clock.run_until_idle(0) && clock.run_until_idle(usize::MAX));
    clock.advance(1000 * YEAR);
    assert!(clock.elapsed() > 1000 * YEAR && clock.now() > SystemClock.now());
}

#[test]
fn a_time_past_the_last_instant_panics_and_the_clock_still_works() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    timer.schedule(Duration::ZERO, || ()).unwrap();
    for delay in DELAYS.into_iter().filter(|&delay| clock.now().checked_add(delay).is_none()) {
        must_panic(|| clock.advance(delay));
    }
    clock.advance(Duration::ZERO);
    assert_eq!(timer.stats().expired, 1);
}
