//! Every public function with values at the edges: it panics only where its documentation says so,
//! and always returns.

mod ticks;
mod timer;
mod wheel;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError},
    time::{Duration, Instant},
};

use delaywheel::{
    Clock, Debounce, DelayQueue, ManualClock, MissedTicks, Repeating, SystemClock, Throttle, Timer,
};

use crate::timer::support::{MS, YEAR, manual, manual_with, must_return};

/// Numbers at which arithmetic overflows, or another level begins.
pub(crate) const NUMBERS: [u64; 14] =
    [0, 1, 2, 63, 64, 65, 4095, 4096, !0 >> 32, 1 << 32, !0 >> 1, 1 << 63, !0 - 1, !0];

pub(crate) const DELAYS: [Duration; 10] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_nanos(999_999),
    Duration::from_millis(1),
    Duration::from_secs(1),
    Duration::from_nanos(i64::MAX as u64),
    Duration::from_nanos(u64::MAX),
    Duration::from_millis(u64::MAX),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

/// Numbers for percentages, some of which are out of range.
pub(crate) const PERCENTS: [f64; 9] =
    [0.0, -0.0, -1.0, 50.0, 100.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

/// Instants as far from the present as there are, in both directions.
pub(crate) fn instants() -> Vec<Instant> {
    let now = Instant::now();
    let far = DELAYS.into_iter().flat_map(|delay| [now.checked_add(delay), now.checked_sub(delay)]);
    far.flatten().collect()
}

/// Runs a call that must panic, as its documentation says.
#[track_caller]
pub(crate) fn must_panic<R>(run: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the documentation says that it panics");
}

#[test]
fn a_clock_without_timers_shows_the_time_that_was_set() {
    let clock = ManualClock::new();
    clock.advance(Duration::ZERO);
    clock.advance(Duration::from_nanos(1));
    assert_eq!((clock.elapsed(), clock.advance_to_next()), (Duration::from_nanos(1), None));
    assert!(clock.run_until_idle(0) && clock.run_until_idle(usize::MAX));
    clock.advance(1000 * YEAR);
    assert!(clock.elapsed() > 1000 * YEAR && clock.now() > SystemClock.now());
    assert!(delaywheel::BootClock.now() <= SystemClock.now(), "until the first suspension");
}

#[test]
fn a_time_past_the_last_instant_panics_and_the_clock_still_works() {
    let (clock, timer) = manual();
    timer.schedule(Duration::ZERO, || ()).unwrap();
    for delay in DELAYS.into_iter().filter(|&delay| clock.now().checked_add(delay).is_none()) {
        must_panic(|| clock.advance(delay));
    }
    clock.advance(Duration::ZERO);
    assert_eq!(timer.stats().expired, 1);
}

#[test]
fn a_queue_accepts_every_delay_and_instant() {
    let clock = ManualClock::new();
    let queue = Timer::builder().clock(clock.clone()).build_queue().unwrap();
    let mut keys: Vec<_> =
        DELAYS.iter().map(|&delay| queue.insert(delay, 1_u32).unwrap()).collect();
    keys.extend(instants().into_iter().map(|instant| queue.insert_at(instant, 2).unwrap()));
    clock.advance(MS);
    assert_eq!(queue.len(), keys.len(), "due values are still in the queue");
    assert!(queue.recv().is_ok() && queue.try_recv().is_ok());
    assert!(DELAYS[..3].iter().all(|&delay| queue.recv_timeout(delay).is_ok()));
    while queue.try_recv().is_ok() {}
    let timed_out = |&delay| queue.recv_timeout(delay) == Err(RecvTimeoutError::Timeout);
    assert!(DELAYS[..4].iter().all(timed_out));
    queue.insert(Duration::ZERO, 3).unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(queue.recv_timeout(Duration::MAX), Ok(3));
    for key in keys {
        let is_there = queue.timer().is_pending(key);
        assert!(DELAYS.into_iter().rev().all(|delay| queue.reset(key, delay) == is_there));
        assert_eq!(queue.cancel(key).is_some(), is_there);
        assert!(!queue.reset(key, Duration::ZERO) && queue.cancel(key).is_none());
    }
    assert!(queue.is_empty() && queue.timer().stats().panicked == 0);
}

#[test]
fn a_queue_that_has_ended_refuses_values_and_receivers_get_an_error() {
    let queue = DelayQueue::default();
    queue.insert(Duration::MAX, 1_u32).unwrap();
    assert_eq!(queue.finish(Duration::ZERO), [1]);
    assert!(queue.shutdown().is_empty());
    assert!(DELAYS.into_iter().all(|delay| queue.finish(delay).is_empty()));
    assert!(DELAYS.into_iter().all(|delay| queue.insert(delay, 2).is_err()));
    assert!(instants().into_iter().all(|instant| queue.insert_at(instant, 2).is_err()));
    let ended = must_return(move || {
        let timed = DELAYS.map(|delay| queue.recv_timeout(delay));
        (queue.recv(), queue.try_recv(), timed)
    });
    let timed = [Err(RecvTimeoutError::Disconnected); 10];
    assert_eq!(ended, (Err(RecvError), Err(TryRecvError::Disconnected), timed));
}

#[test]
fn repetitions_debounce_and_throttle_accept_every_period() {
    for period in DELAYS {
        let (clock, timer) = manual_with(|builder| builder.tick(Duration::from_micros(1)));
        let debounce = Debounce::new(&timer, period, || ());
        let throttle = Throttle::new(&timer, period, || ());
        assert!(!debounce.cancel() && !throttle.cancel());
        let run = move |_: &Repeating| assert!(period < YEAR, "it is too far ahead");
        let repeat = || timer.repeat(period);
        let at_rate = repeat().at_fixed_rate(MissedTicks::Burst, run).unwrap();
        let delayed = repeat().with_fixed_delay(run).unwrap();
        for _ in 0..3 {
            debounce.call().unwrap();
            throttle.call().unwrap();
            clock.advance(Duration::from_micros(5));
        }
        debounce.cancel();
        throttle.cancel();
        assert!(at_rate.stop() && delayed.stop());
        assert_eq!((timer.stats().pending, timer.stats().panicked), (0, 0));
        timer.shutdown();
        assert!(debounce.call().is_err() && throttle.call().is_err());
        assert!(!debounce.cancel() && !throttle.cancel());
    }
}
