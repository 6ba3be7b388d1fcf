//! Repeated, debounced and throttled callbacks.

use std::time::Duration;

use delaywheel::{Clock, Debounce, ManualClock, MissedTicks, Repeating, Throttle, Timer};

use super::DELAYS;
use crate::timer::support::MS;

const MISSED: [MissedTicks; 3] = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];

fn timer() -> (ManualClock, Timer) {
    let clock = ManualClock::new();
    let builder = Timer::builder().tick(Duration::from_micros(1)).clock(clock.clone());
    (clock, builder.build().unwrap())
}

#[test]
fn a_repetition_accepts_every_period() {
    for period in DELAYS {
        let (clock, timer) = timer();
        let mut all: Vec<Repeating> = MISSED
            .map(|missed| timer.repeat(period).at_fixed_rate(missed, |_: &Repeating| ()).unwrap())
            .into();
        let other =
            timer.repeat(period).first(period).jitter(period).seed(0).with_fixed_delay(|_| ());
        assert!(other.unwrap().stop());
        let past = clock.now().checked_sub(MS).unwrap();
        let repeating = timer.repeat(MS).first_at(past).at_fixed_rate(MISSED[0], |_| ()).unwrap();
        assert!(repeating.next_run().is_some() && repeating.stop());
        assert_eq!(repeating.next_run(), None);
        all.push(timer.repeat(period).with_fixed_delay(|_: &Repeating| ()).unwrap());
        let stop = |own: &Repeating| {
            own.stop();
        };
        all.push(timer.repeat(period).with_fixed_delay(stop).unwrap());
        clock.advance(Duration::from_micros(20));
        assert_eq!(timer.stats().panicked, 0);
        assert!(all[..4].iter().all(|one| one.is_running() && one.stop()));
        assert!(all[..4].iter().all(|one| !one.is_running() && !one.stop()));
        all[4].stop();
        assert_eq!(timer.stats().pending, 0, "{period:?}");
    }
}

#[test]
fn a_timer_that_has_ended_stops_repetitions_and_refuses_new_ones() {
    let (clock, timer) = timer();
    let repeating = timer.repeat(MS).with_fixed_delay(|_: &Repeating| ()).unwrap();
    timer.shutdown();
    assert!(!repeating.is_running() && !repeating.stop());
    for period in DELAYS {
        for missed in MISSED {
            assert!(timer.repeat(period).at_fixed_rate(missed, |_: &Repeating| ()).is_err());
        }
        assert!(timer.repeat(period).with_fixed_delay(|_: &Repeating| ()).is_err());
    }
    clock.advance(MS);
}

#[test]
fn debounce_and_throttle_accept_every_period() {
    for period in DELAYS {
        let (clock, timer) = timer();
        let debounce = Debounce::new(&timer, period, || ());
        let throttle = Throttle::new(&timer, period, || ());
        assert!(!debounce.cancel() && !throttle.cancel());
        for _ in 0..3 {
            debounce.call().unwrap();
            throttle.call().unwrap();
            clock.advance(Duration::from_micros(5));
        }
        debounce.cancel();
        throttle.cancel();
        assert_eq!((timer.stats().pending, timer.stats().panicked), (0, 0));
        timer.shutdown();
        assert!(debounce.call().is_err() && throttle.call().is_err());
        assert!(!debounce.cancel() && !throttle.cancel());
    }
}
