//! Repeated callbacks, in virtual time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use delaywheel::{Clock, ManualClock, MissedTicks, Repeating, Timer};

use crate::timer::support::{HookedClock, Log, MS, SECOND, manual, timer_on};

/// When a callback runs, in milliseconds, if its second occurrence takes this long.
fn runs_of<R>(missed: MissedTicks, millis: u32, pass: impl Fn(&ManualClock) -> R) -> Vec<u128> {
    let (clock, timer) = manual();
    let (runs, held_up) = (Log::new(), clock.clone());
    let (log, mut count) = (runs.clone(), 0);
    let callback = move |_: &Repeating| {
        log.push(held_up.elapsed().as_millis());
        count += 1;
        if count == 2 {
            held_up.advance(millis * MS);
        }
    };
    timer.repeat(10 * MS).at_fixed_rate(missed, callback).unwrap();
    pass(&clock);
    runs.take()
}

/// The same if the second occurrence, planned for 20 ms, takes this long.
fn runs_when_held_up_by(millis: u32, missed: MissedTicks) -> Vec<u128> {
    runs_of(missed, millis, |clock| [20, 60 - millis].map(|span| clock.advance(span * MS)))
}

/// The simulation tests more cases. [`MissedTicks`] documents these.
#[test]
fn missed_occurrences_run_as_the_table_of_the_policies_says() {
    let after = |missed| runs_when_held_up_by(27, missed);
    assert_eq!(after(MissedTicks::Burst), [10, 20, 47, 47, 50, 60, 70, 80]);
    assert_eq!(after(MissedTicks::Delay), [10, 20, 57, 67, 77]);
    assert_eq!(after(MissedTicks::Skip), [10, 20, 50, 60, 70, 80]);
    // What is due now is not missed, whether or not another occurrence is.
    let skipped = runs_when_held_up_by(20, MissedTicks::Skip);
    assert_eq!(skipped, [10, 20, 40, 50, 60, 70, 80]);
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let on_time = [10, 20, 30, 40, 50, 60, 70, 80];
        assert_eq!(runs_when_held_up_by(10, missed), on_time, "{missed:?}");
    }
    let after = |missed| runs_of(missed, 0, |clock| [85, 10].map(|span| clock.jump(span * MS)));
    assert_eq!(after(MissedTicks::Burst), [85, 85, 85, 85, 85, 85, 85, 85, 95]);
    assert_eq!([after(MissedTicks::Delay), after(MissedTicks::Skip)], [[85, 95]; 2]);
}

/// Returns a value, and a callback that owns it too.
fn held() -> (Arc<()>, impl FnMut(&Repeating) + Send + 'static) {
    let value = Arc::new(());
    (Arc::clone(&value), move |_: &Repeating| drop(Arc::clone(&value)))
}

#[test]
fn a_panic_of_its_callback_ends_a_repetition() {
    let (clock, timer) = manual();
    let (value, mut hold) = held();
    let panics = move |own: &Repeating| {
        hold(own);
        panic!("by a callback");
    };
    let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Burst, panics).unwrap();
    clock.advance(10 * MS);
    assert!(!repeating.is_running() && !repeating.stop());
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.pending, Arc::strong_count(&value)), (1, 0, 1));
}

#[test]
fn a_repetition_whose_clock_panics_after_the_callback_has_ended_and_says_so() {
    let clock = HookedClock::new();
    clock.clock.advance(SECOND);
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let broken = clock.clone();
    let next_read = move |_: &Repeating| broken.set(|| panic!("a clock that panics"));
    let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Skip, next_read).unwrap();
    clock.clock.advance(MS);
    assert_eq!(timer.stats().panicked, 1);
    assert!(!repeating.is_running(), "no run is planned");
}

#[test]
fn jitter_is_spread_up_to_its_maximum_and_a_seed_repeats_it() {
    let (clock, timer) = manual();
    let first_run = |seed| {
        let repeat = timer.repeat(10 * SECOND).first(10 * SECOND).jitter(4 * SECOND).seed(seed);
        let repeating = repeat.at_fixed_rate(MissedTicks::Skip, |_| ()).unwrap();
        let run = repeating.next_run().expect("it is planned") - clock.now();
        assert!(repeating.stop());
        run.as_millis()
    };
    let mut runs: Vec<_> = (0..1_000).map(first_run).collect();
    assert_eq!(runs[1], first_run(1), "the same seed");
    runs.sort_unstable();
    assert!((10_000..10_100).contains(&runs[0]), "{runs:?}");
    assert!((11_800..12_200).contains(&runs[500]), "{runs:?}");
    assert!((13_900..=14_000).contains(&runs[999]), "{runs:?}");
}

#[test]
fn next_run_returns_none_while_the_callback_runs_and_after_the_end() {
    let (clock, timer) = manual();
    let within = Log::new();
    let log = within.clone();
    let note = move |itself: &Repeating| log.push(itself.next_run());
    let repeating = timer.repeat(10 * MS).at_fixed_rate(MissedTicks::Burst, note).unwrap();
    let begin = clock.now();
    clock.advance(25 * MS);
    assert_eq!(within.take(), [None, None]);
    assert_eq!(repeating.next_run(), Some(begin + 30 * MS));
    drop(timer);
    assert_eq!(repeating.next_run(), None);
}

#[test]
fn a_returned_occurrence_is_the_last_whether_it_is_run_or_dropped() {
    for (end, count) in [(delaywheel::Task::run as fn(_), 1), (drop, 0)] {
        let (_clock, timer) = manual();
        let ((value, mut hold), runs) = (held(), Log::new());
        let log = runs.clone();
        let note = move |own: &Repeating| {
            hold(own);
            log.push("ran");
        };
        let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Skip, note).unwrap();
        let returned = timer.shutdown();
        assert!(repeating.is_running(), "the occurrence can still be run");
        assert_eq!(repeating.next_run(), None, "the timer plans no run");
        returned.into_iter().for_each(end);
        assert!(!repeating.is_running() && !repeating.stop());
        assert_eq!(Arc::strong_count(&value), 1);
        assert_eq!(runs.take().len(), count);
    }
}

#[test]
fn a_stop_between_two_occurrences_drops_the_callback_and_its_timeout() {
    for asked in 1.. {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
        let (value, hold) = held();
        let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Burst, hold).unwrap();
        let (reads, mut repeating) = (Arc::new(AtomicUsize::new(0)), Some(repeating));
        let count = Arc::clone(&reads);
        clock.set(move || {
            if count.fetch_add(1, Ordering::Relaxed) + 1 == asked {
                assert!(repeating.take().expect("it is there").stop());
            }
        });
        // Only up to the first occurrence: the second one would remove a timeout that was left.
        clock.clock.advance(MS);
        let reads = reads.load(Ordering::Relaxed);
        clock.set(|| ());
        if reads < asked {
            assert!(asked > 4, "the timer read the clock only {reads} times");
            break;
        }
        assert_eq!(timer.stats().pending, 0, "stopped at read {asked}");
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
