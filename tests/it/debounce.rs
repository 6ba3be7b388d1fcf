//! Debounced calls, in virtual time.

use std::sync::Arc;

use delaywheel::{Debounce, ManualClock, Timer};

use crate::timer::support::{HookedClock, Log, MS, SECOND, manual, must_return, timer_on};

/// A debounce of 10 ms, and a log of its runs in milliseconds.
fn debounced(timer: &Timer, clock: &ManualClock) -> (Arc<Debounce>, Log<u128>) {
    let (runs, clock) = (Log::new(), clock.clone());
    let log = runs.clone();
    (Arc::new(Debounce::new(timer, 10 * MS, move || log.push(clock.elapsed().as_millis()))), runs)
}

#[test]
fn a_clock_may_call_the_debounce_that_reads_it() {
    let runs = must_return(|| {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
        let (debounce, runs) = debounced(&timer, &clock.clock);
        let called = Arc::downgrade(&debounce);
        clock.set(move || {
            let Some(debounce) = called.upgrade() else { return };
            debounce.cancel();
            debounce.call().unwrap();
        });
        debounce.call().unwrap();
        assert_eq!(timer.stats().pending, 1, "both calls are for one run");
        debounce.call().unwrap();
        assert_eq!(timer.stats().pending, 1, "all calls are for one run");
        clock.set(|| ());
        clock.clock.advance(SECOND);
        runs.take()
    });
    assert_eq!(runs, [10]);
}

#[test]
fn a_call_beside_another_that_has_taken_the_last_permit_shares_its_run() {
    let runs = must_return(|| {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder.max_pending(1));
        let (debounce, runs) = debounced(&timer, &clock.clock);
        let mut other = Some(Arc::clone(&debounce));
        clock.set(move || other.take().into_iter().for_each(|other| other.call().unwrap()));
        debounce.call().expect("a run is scheduled");
        clock.clock.advance(SECOND);
        runs.take()
    });
    assert_eq!(runs, [10]);
}

#[test]
fn a_call_that_read_the_clock_first_does_not_shorten_the_quiet_period_of_a_later_one() {
    let runs = must_return(|| {
        let clock = HookedClock::new();
        // Both calls are within one tick. The timer stores the time only at the start of a tick. In
        // another tick, the earlier call would use that time and hide a fault.
        let timer = Timer::builder().clock(clock.clone()).tick(10 * MS).build().unwrap();
        let (debounce, runs) = debounced(&timer, &clock.clock);
        debounce.call().unwrap();
        // The clock answers 0 ms to the outer call. Before the answer arrives, 6 ms pass, and
        // another call is made.
        let (mut late, moved) = (Some(Arc::clone(&debounce)), clock.clock.clone());
        clock.set(move || {
            if let Some(debounce) = late.take() {
                moved.advance(6 * MS);
                debounce.call().unwrap();
            }
        });
        debounce.call().unwrap();
        assert_eq!(timer.stats().scheduled, 1, "a call postpones the run");
        clock.clock.advance(SECOND);
        runs.take()
    });
    assert_eq!(runs, [20], "16 ms, rounded up to a tick");
}

#[test]
fn a_cancel_that_comes_too_late_says_so() {
    let (clock, timer) = manual();
    let (debounce, runs) = debounced(&timer, &clock);
    // One of these runs before the debounced callback, once that has left the wheel.
    for _ in 0..2 {
        let cancelled = Arc::clone(&debounce);
        timer.schedule(10 * MS, move || assert!(!cancelled.cancel())).unwrap();
        debounce.call().unwrap();
    }
    clock.advance(SECOND);
    assert_eq!(runs.take(), [10]);
    assert_eq!(timer.stats().panicked, 0);
}
