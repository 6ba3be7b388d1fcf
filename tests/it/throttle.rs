//! Throttled calls, in virtual time.

use std::sync::{Arc, OnceLock};

use delaywheel::{ManualClock, Throttle, Timer};

use crate::timer::support::{
    HookedClock, Log, MS, SECOND, Set, manual, manual_with, must_return, timer_on,
};

/// A throttle of 100 ms, and a log of its runs in milliseconds.
fn throttled(timer: &Timer, clock: &ManualClock) -> (Arc<Throttle>, Log<u128>) {
    let (runs, clock) = (Log::new(), clock.clone());
    let log = runs.clone();
    let run = move || log.push(clock.elapsed().as_millis());
    (Arc::new(Throttle::new(timer, 100 * MS, run)), runs)
}

#[test]
fn a_refused_call_does_not_affect_later_ones() {
    let (clock, timer) = manual_with(|builder| builder.max_pending(2));
    let (throttle, runs) = throttled(&timer, &clock);
    let fill = [0, 1].map(|_| timer.schedule(60 * SECOND, || ()).unwrap());
    let refused = throttle.call().unwrap_err();
    assert!(fill.iter().all(delaywheel::TimeoutHandle::cancel));
    throttle.call().unwrap();
    drop(refused);
    throttle.call().unwrap();
    assert_eq!(timer.stats().pending, 1, "both calls are for one run");
    clock.advance(100 * MS);
    assert_eq!(runs.take(), [0]);
}

#[test]
fn a_refused_run_can_run_and_starts_a_period() {
    let (clock, timer) = manual_with(|builder| builder.max_pending(1));
    let (throttle, runs) = throttled(&timer, &clock);
    let filling = timer.schedule(60 * SECOND, || ()).unwrap();
    let refused = throttle.call().unwrap_err();
    assert!(filling.cancel());
    refused.into_value().run();
    assert_eq!(runs.take(), [0]);
    throttle.call().unwrap();
    clock.advance(SECOND);
    assert_eq!(runs.take(), [100]);
}

#[test]
fn a_period_counts_from_the_start_of_a_run_that_was_held_up() {
    let (clock, timer) = manual();
    let (throttle, runs) = throttled(&timer, &clock);
    throttle.call().unwrap();
    clock.advance(50 * MS);
    // One of these runs before the throttled callback, and delays it.
    for _ in 0..2 {
        let moved = clock.clone();
        timer.schedule(50 * MS, move || moved.advance(75 * MS)).unwrap();
        throttle.call().unwrap();
    }
    for _ in 0..20 {
        clock.advance(25 * MS);
        throttle.call().unwrap();
    }
    let runs = runs.take();
    assert!(runs.contains(&175) || runs.contains(&250), "the callback was not delayed: {runs:?}");
    assert!(runs.windows(2).all(|pair| pair[1] - pair[0] >= 100), "{runs:?}");
}

#[test]
fn a_cancel_that_comes_too_late_does_not_forget_the_run() {
    let (clock, timer) = manual();
    let events = Log::new();
    let (log, shown) = (events.clone(), clock.clone());
    let run = move || log.push(("run", shown.elapsed().as_millis()));
    let throttle = Arc::new(Throttle::new(&timer, 100 * MS, run));
    throttle.call().unwrap();
    clock.advance(50 * MS);
    // One is inserted before the throttled callback, one after it: in either order of equal
    // deadlines, the first one runs before that callback, which has left the wheel by then.
    let first = Arc::new(OnceLock::new());
    for _ in 0..2 {
        let (called, log, shown) = (Arc::clone(&throttle), events.clone(), clock.clone());
        let first = Arc::clone(&first);
        let cancel_and_call = move || {
            if first.set(()).is_ok() {
                assert!(!called.cancel());
                log.push(("cancel", shown.elapsed().as_millis()));
                called.call().unwrap();
            }
        };
        timer.schedule(50 * MS, cancel_and_call).unwrap();
        throttle.call().unwrap();
    }
    clock.advance(100 * MS);
    throttle.call().unwrap();
    clock.advance(100 * MS);
    assert_eq!(events.take(), [("run", 0), ("cancel", 100), ("run", 100), ("run", 200)]);
    assert_eq!(timer.stats().panicked, 0);
}

#[test]
fn a_clock_may_call_the_throttle_that_reads_it() {
    let runs = must_return(|| {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
        let (throttle, runs) = throttled(&timer, &clock.clock);
        let called = Arc::downgrade(&throttle);
        clock.set(move || {
            let Some(throttle) = called.upgrade() else { return };
            throttle.cancel();
            throttle.call().unwrap();
        });
        throttle.call().unwrap();
        assert_eq!(timer.stats().pending, 1, "all calls are for one run");
        clock.clock.advance(250 * MS);
        runs.take()
    });
    assert_eq!(runs.first(), Some(&0));
    assert!(runs.windows(2).all(|pair| pair[1] - pair[0] >= 100), "{runs:?}");
}

#[test]
fn a_clock_that_steps_back_does_not_shorten_the_period() {
    let (clock, timer) = timer_on(Set::new(), |builder| builder);
    let runs = Log::new();
    let log = runs.clone();
    let throttle = Throttle::new(&timer, 10 * SECOND, move || log.push("ran"));
    clock.show(20 * SECOND);
    // The timer has seen 20 s. Then the clock steps back, the callback runs, and the clock
    // recovers.
    clock.step_back(15 * SECOND);
    throttle.call().unwrap();
    clock.show(6 * SECOND);
    assert_eq!(runs.take(), ["ran"]);
    clock.show(20 * SECOND);
    throttle.call().unwrap();
    clock.show(29_999 * MS);
    assert_eq!(runs.take(), [""; 0], "10 s have not passed since the latest time seen");
    clock.show(30 * SECOND);
    assert_eq!(runs.take(), ["ran"]);
}
