//! Repeated callbacks, in virtual time.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use delaywheel::{Clock, ManualClock, MissedTicks, Repeating, Timer, clock::Driven};

use crate::timer::support::{MS, manual};

/// When a callback runs, in milliseconds, if its second occurrence, planned for 20 ms, takes until
/// 47 ms.
fn runs_when_held_up(missed: MissedTicks) -> Vec<u128> {
    runs_when_held_up_by(27, missed)
}

fn runs_when_held_up_by(millis: u32, missed: MissedTicks) -> Vec<u128> {
    let (clock, timer) = manual();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (log, held_up) = (Arc::clone(&runs), clock.clone());
    let callback = move |_: &Repeating| {
        let mut log = log.lock().unwrap();
        log.push(held_up.elapsed().as_millis());
        let count = log.len();
        drop(log);
        if count == 2 {
            held_up.advance(millis * MS);
        }
    };
    timer.schedule_at_fixed_rate(10 * MS, missed, callback).unwrap();
    clock.advance(20 * MS);
    clock.advance((60 - millis) * MS);
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
    let (clock, timer) = manual();
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
    let (clock, timer) = manual();
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
    let (clock, timer) = manual();
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
    let (clock, timer) = manual();
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
    let (clock, timer) = manual();
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
    let (clock, timer) = manual();
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
fn an_occurrence_that_is_due_when_the_last_one_ends_has_not_been_missed() {
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let runs = runs_when_held_up_by(10, missed);
        assert_eq!(runs, [10, 20, 30, 40, 50, 60, 70, 80], "{missed:?}");
    }
}

#[test]
fn periods_of_any_length_are_taken_as_far_as_they_go() {
    let policies = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];
    for missed in policies {
        let (clock, timer) = manual();
        let never = |_: &Repeating| panic!("it is too far ahead");
        timer.schedule_at_fixed_rate(Duration::MAX, missed, never).unwrap();
        timer.schedule_with_fixed_delay(Duration::MAX, never).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let count_up = move |_: &Repeating| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        timer.schedule_at_fixed_rate(century, missed, count_up).unwrap();
        clock.advance(4 * century);
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }
    for missed in [MissedTicks::Delay, MissedTicks::Skip] {
        let (clock, timer) = manual();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let count_up = move |_: &Repeating| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        timer.schedule_at_fixed_rate(Duration::ZERO, missed, count_up).unwrap();
        clock.advance(5 * MS);
        assert_eq!(count.load(Ordering::Relaxed), 5, "once a tick, with {missed:?}");
    }
}

#[test]
fn a_repetition_whose_occurrence_was_returned_and_dropped_has_ended_and_dropped_its_callback() {
    let (_clock, timer) = manual();
    let value = Arc::new(());
    let kept = Arc::clone(&value);
    let hold = move |_: &Repeating| drop(Arc::clone(&kept));
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Skip, hold).unwrap();
    let returned = timer.shutdown();
    assert!(repeating.is_running(), "it can still be run");
    drop(returned);
    assert!(!repeating.is_running() && !repeating.stop());
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn an_occurrence_that_was_returned_can_be_run_and_is_the_last() {
    let (_clock, timer) = manual();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let count_up = move |_: &Repeating| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Skip, count_up).unwrap();
    timer.shutdown().into_iter().for_each(delaywheel::Task::run);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(!repeating.is_running());
}

/// A manual clock that stops a repetition when it is asked for the time, at some time of asking.
#[derive(Debug, Clone)]
struct Stopping {
    clock: ManualClock,
    repeating: Arc<Mutex<Option<Repeating>>>,
    /// How often it is asked until then.
    countdown: Arc<AtomicUsize>,
}

impl Clock for Stopping {
    fn now(&self) -> Instant {
        let before = self.countdown.load(Ordering::Relaxed);
        self.countdown.store(before.saturating_sub(1), Ordering::Relaxed);
        if before == 1 {
            let repeating = self.repeating.lock().unwrap().take();
            assert!(repeating.expect("it is there").stop());
        }
        self.clock.now()
    }

    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        self.clock.adopt(timer)
    }
}

#[test]
fn a_repetition_that_is_stopped_between_two_occurrences_leaves_nothing_behind() {
    for asked in 1.. {
        let clock = Stopping {
            clock: ManualClock::new(),
            repeating: Arc::default(),
            countdown: Arc::default(),
        };
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let value = Arc::new(());
        let kept = Arc::clone(&value);
        let hold = move |_: &Repeating| drop(Arc::clone(&kept));
        let repeating = timer.schedule_at_fixed_rate(MS, MissedTicks::Burst, hold).unwrap();
        *clock.repeating.lock().unwrap() = Some(repeating);
        clock.countdown.store(asked, Ordering::Relaxed);
        // Only up to the first occurrence: the second would take away what is left behind.
        clock.clock.advance(MS);
        if clock.countdown.load(Ordering::Relaxed) > 0 {
            assert!(asked > 4, "the timer asked only {asked} times");
            break;
        }
        assert_eq!(timer.stats().pending, 0, "stopped at question {asked}");
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
