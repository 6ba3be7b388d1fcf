//! Repeated callbacks, in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use delaywheel::{Clock, MissedTicks, Repeating, Timer};

use crate::timer::support::{HookedClock, Log, MS, SECOND, manual};

const NANO: Duration = Duration::from_nanos(1);

/// When a callback runs, in milliseconds, if its second occurrence, planned for 20 ms, takes this
/// long.
fn runs_when_held_up_by(millis: u32, missed: MissedTicks) -> Vec<u128> {
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
    clock.advance(20 * MS);
    clock.advance((60 - millis) * MS);
    runs.take()
}

/// The simulation tests more cases. [`MissedTicks`] documents these.
#[test]
fn missed_occurrences_run_as_the_table_of_the_policies_says() {
    let after = |missed| runs_when_held_up_by(27, missed);
    assert_eq!(after(MissedTicks::Burst), [10, 20, 47, 47, 50, 60, 70, 80]);
    assert_eq!(after(MissedTicks::Delay), [10, 20, 57, 67, 77]);
    assert_eq!(after(MissedTicks::Skip), [10, 20, 50, 60, 70, 80]);
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let on_time = [10, 20, 30, 40, 50, 60, 70, 80];
        assert_eq!(runs_when_held_up_by(10, missed), on_time, "{missed:?}");
    }
}

/// Returns a value, and a callback that owns it too.
fn held() -> (Arc<()>, impl FnMut(&Repeating) + Send + 'static) {
    let value = Arc::new(());
    (Arc::clone(&value), move |_: &Repeating| drop(Arc::clone(&value)))
}

#[test]
fn a_panic_of_its_callback_ends_a_repetition() {
    let (clock, timer) = manual();
    let (value, hold) = held();
    let mut hold = hold;
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
fn the_longest_and_the_shortest_periods_work() {
    let policies = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];
    for missed in policies {
        let (clock, timer) = manual();
        let never = |_: &Repeating| panic!("it is too far ahead");
        timer.repeat(Duration::MAX).at_fixed_rate(missed, never).unwrap();
        timer.repeat(Duration::MAX).with_fixed_delay(never).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let count_up = move |_: &Repeating| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        timer.repeat(century).at_fixed_rate(missed, count_up).unwrap();
        clock.advance(4 * century);
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }
    let shortest = policies.map(Some).into_iter().chain([None]);
    for (period, missed) in shortest.flat_map(|some| [(Duration::ZERO, some), (NANO, some)]) {
        let (clock, timer) = manual();
        let runs = Log::new();
        let (log, shown) = (runs.clone(), clock.clone());
        let note = move |_: &Repeating| log.push(shown.elapsed());
        match missed {
            Some(missed) => timer.repeat(period).at_fixed_rate(missed, note).unwrap(),
            None => timer.repeat(period).with_fixed_delay(note).unwrap(),
        };
        clock.advance(4 * MS);
        assert_eq!(runs.take(), [MS, 2 * MS, 3 * MS, 4 * MS], "{period:?}, {missed:?}");
    }
}

#[test]
fn a_repetition_whose_clock_panics_after_the_callback_has_ended_and_says_so() {
    let clock = HookedClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let broken = clock.clone();
    let next_read = move |_: &Repeating| broken.set(|| panic!("a clock that panics"));
    let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Skip, next_read).unwrap();
    clock.clock.advance(MS);
    assert_eq!(timer.stats().panicked, 1);
    assert!(!repeating.is_running(), "no run is planned");
}

/// When a repetition of 10 s with a jitter of 4 s runs in 200 s, in milliseconds.
fn jittered(seed: u64, missed: MissedTicks) -> Vec<u128> {
    let (clock, timer) = manual();
    let runs = Log::new();
    let (log, shown) = (runs.clone(), clock.clone());
    timer
        .repeat(10 * SECOND)
        .first(10 * SECOND)
        .jitter(4 * SECOND)
        .seed(seed)
        .at_fixed_rate(missed, move |_| log.push(shown.elapsed().as_millis()))
        .unwrap();
    clock.advance(205 * SECOND);
    runs.take()
}

#[test]
fn jitter_delays_each_occurrence_by_at_most_its_maximum_and_does_not_move_the_grid() {
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let runs = jittered(1, missed);
        assert!(runs.len() == 20 || runs.len() == 19, "{runs:?}");
        for (index, run) in (1..).zip(&runs) {
            assert!((index * 10_000..=index * 10_000 + 4_000).contains(run), "{runs:?}");
        }
        let offsets: Vec<_> = runs.iter().map(|run| run % 10_000).collect();
        assert!(offsets.iter().any(|&offset| offset < 1_000), "{offsets:?}");
        assert!(offsets.iter().any(|&offset| offset > 3_000), "{offsets:?}");
        assert_eq!(jittered(1, missed), runs, "the same seed");
        assert_ne!(jittered(2, missed), runs, "another seed");
    }
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
fn the_drop_of_a_returned_occurrence_ends_the_repetition() {
    let (_clock, timer) = manual();
    let value = Arc::new(());
    let kept = Arc::clone(&value);
    let hold = move |_: &Repeating| drop(Arc::clone(&kept));
    let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Skip, hold).unwrap();
    let returned = timer.shutdown();
    assert!(repeating.is_running(), "the occurrence can still be run");
    drop(returned);
    assert!(!repeating.is_running() && !repeating.stop());
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_returned_occurrence_can_be_run_and_is_the_last() {
    let (_clock, timer) = manual();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let count_up = move |_: &Repeating| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let repeating = timer.repeat(MS).at_fixed_rate(MissedTicks::Skip, count_up).unwrap();
    timer.shutdown().into_iter().for_each(delaywheel::Task::run);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(!repeating.is_running());
}

#[test]
fn a_stop_between_two_occurrences_drops_the_callback_and_its_timeout() {
    for asked in 1.. {
        let clock = HookedClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
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
