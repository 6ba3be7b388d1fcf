//! Repetition, debounce and throttle, in virtual time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use delaywheel::{Debounce, ManualClock, MissedTicks, Repeating, Throttle, Timer};

const MS: Duration = Duration::from_millis(1);

fn timer() -> (ManualClock, Timer) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    (clock, timer)
}

/// When a callback runs, in milliseconds, if its second occurrence, planned for 20 ms, takes until
/// 47 ms.
fn runs_when_held_up(missed: MissedTicks) -> Vec<u128> {
    let (clock, timer) = timer();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (log, held_up) = (Arc::clone(&runs), clock.clone());
    let callback = move |_: &Repeating| {
        let mut log = log.lock().unwrap();
        log.push(held_up.elapsed().as_millis());
        let count = log.len();
        drop(log);
        if count == 2 {
            held_up.advance(27 * MS);
        }
    };
    timer.schedule_at_fixed_rate(10 * MS, missed, callback).unwrap();
    clock.advance(20 * MS);
    clock.advance(33 * MS);
    let runs = runs.lock().unwrap();
    runs.clone()
}

#[test]
fn bursts_make_up_for_what_was_missed() {
    assert_eq!(runs_when_held_up(MissedTicks::Burst), [10, 20, 47, 47, 50, 60, 70, 80]);
}

#[test]
fn delay_lets_a_full_period_pass_after_one_that_was_held_up() {
    assert_eq!(runs_when_held_up(MissedTicks::Delay), [10, 20, 57, 67, 77]);
}

#[test]
fn skip_leaves_out_what_was_missed_and_stays_on_the_grid() {
    assert_eq!(runs_when_held_up(MissedTicks::Skip), [10, 20, 50, 60, 70, 80]);
}

#[test]
fn a_fixed_rate_does_not_drift_in_a_million_periods() {
    let (clock, timer) = timer();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let count_up = move |_: &Repeating| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    // Not a multiple of a tick: each occurrence is rounded up, from a grid that is not.
    let period = Duration::from_micros(1_700);
    timer.schedule_at_fixed_rate(period, MissedTicks::Burst, count_up).unwrap();
    clock.advance(period * 1_000_000);
    assert_eq!(count.load(Ordering::Relaxed), 1_000_000);
}

#[test]
fn a_fixed_delay_is_counted_from_the_end() {
    let (clock, timer) = timer();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (log, busy) = (Arc::clone(&runs), clock.clone());
    let callback = move |_: &Repeating| {
        log.lock().unwrap().push(busy.elapsed().as_millis());
        busy.advance(5 * MS);
    };
    timer.schedule_with_fixed_delay(10 * MS, callback).unwrap();
    clock.advance(10 * MS);
    clock.advance(30 * MS);
    assert_eq!(*runs.lock().unwrap(), [10, 25, 40]);
}

#[test]
fn a_repetition_stops_itself_and_runs_no_more() {
    let (clock, timer) = timer();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Burst, move |itself| {
        if counted.fetch_add(1, Ordering::Relaxed) == 2 {
            assert!(itself.stop());
        }
    });
    let repeating = repeating.unwrap();
    clock.advance(100 * MS);
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert!(!repeating.is_running() && !repeating.stop());
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn a_stopped_repetition_leaves_nothing_behind() {
    let (clock, timer) = timer();
    let value = Arc::new(());
    let kept = Arc::clone(&value);
    let hold = move |_: &Repeating| {
        let _ = &kept;
    };
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Burst, hold).unwrap();
    clock.advance(3 * MS);
    assert!(repeating.stop());
    assert_eq!(Arc::strong_count(&value), 1);
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn a_callback_that_panics_has_run_for_the_last_time() {
    let (clock, timer) = timer();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Burst, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    clock.advance(10 * MS);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(!repeating.unwrap().is_running());
    assert_eq!(timer.stats().panicked, 1);
}

#[test]
fn a_repetition_ends_with_its_timer() {
    let (clock, timer) = timer();
    let value = Arc::new(());
    let kept = Arc::clone(&value);
    let hold = move |_: &Repeating| {
        let _ = &kept;
    };
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Skip, hold).unwrap();
    drop(timer);
    clock.advance(10 * MS);
    repeating.stop();
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_debounced_callback_can_be_given_up_and_called_again() {
    let (clock, timer) = timer();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let debounce = Debounce::new(&timer, 10 * MS, move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    debounce.call().unwrap();
    assert!(debounce.cancel() && !debounce.cancel());
    clock.advance(20 * MS);
    assert_eq!(count.load(Ordering::Relaxed), 0);
    debounce.call().unwrap();
    clock.advance(10 * MS);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    timer.shutdown();
    assert!(debounce.call().is_err());
}

#[test]
fn a_throttled_callback_survives_a_shutdown_that_takes_its_run() {
    let (clock, timer) = timer();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let throttle = Throttle::new(&timer, 10 * MS, move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    throttle.call().unwrap();
    clock.advance(MS);
    throttle.call().unwrap();
    throttle.call().unwrap();
    drop(timer.shutdown());
    assert!(throttle.call().is_err());
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
