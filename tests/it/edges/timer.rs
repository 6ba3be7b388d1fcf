//! Timers of closures and of values, their handles, their settings and their counts.

use std::{thread, time::Duration};

use delaywheel::{
    Histogram, ManualClock, Reaper, ScheduleError, ScheduleErrorKind, TimeoutKey, Timer,
    TimerStats, ValueTimer,
};

use super::{DELAYS, PERCENTS, instants};
use crate::timer::support::{MS, SECOND, must_return};

fn of_values(shards: usize) -> (ManualClock, ValueTimer<u32>) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).shards(shards);
    (clock, builder.build_with(|_: u32| ()).unwrap())
}

fn check(stats: &TimerStats) {
    let ended = stats.expired + stats.cancelled + stats.returned;
    assert_eq!((stats.scheduled, stats.panicked), (stats.pending + ended, 0));
    for percent in PERCENTS {
        assert!(stats.lateness.percentile(percent) <= stats.lateness.max());
    }
    assert_eq!(stats.lateness.count(), stats.expired);
    let of_all = stats.lateness.since(&Histogram::default()).map(|(_, count)| count).sum::<u64>();
    assert_eq!(of_all, stats.expired);
}

#[test]
fn timers_with_settings_at_their_bounds_work() {
    let clock = ManualClock::new();
    let builders = [
        Timer::builder().tick(Duration::from_micros(1)).wheel_size(2).shards(65_536),
        Timer::builder().tick(86_400 * SECOND).wheel_size(65_536).max_pending(1).inline(),
        Timer::builder()
            .name("\0")
            .max_pending(u64::MAX)
            .executor(|task: Box<dyn FnOnce() + Send>| task()),
        Timer::builder().name("x".repeat(10_000)).executor_threads(1).reaper(&Reaper::new("\0")),
    ];
    for builder in builders {
        let timer = builder.clock(clock.clone()).build().unwrap();
        for delay in DELAYS {
            let _ = timer
                .schedule(delay, || ())
                .map(|timeout| timeout.reset(delay) && timeout.postpone(delay));
        }
        clock.advance(MS);
        check(&timer.stats());
        timer.shutdown();
    }
}

/// Calls every function that takes a key. Returns whether the timeout was pending.
fn use_key(values: &ValueTimer<u32>, key: TimeoutKey) -> bool {
    let is_pending = values.is_pending(key);
    assert!(is_pending || values.deadline(key).is_none());
    assert_eq!(values.remaining(key).is_some(), is_pending);
    assert!(instants().into_iter().all(|at| values.reset_at(key, at) == is_pending));
    for delay in DELAYS.into_iter().rev() {
        assert_eq!(values.reset(key, delay), is_pending);
    }
    values.reset(key, Duration::MAX);
    assert_eq!(values.cancel(key).is_some(), is_pending);
    assert_eq!(values.cancel(key), None);
    is_pending
}

#[test]
fn a_value_timer_accepts_every_delay_instant_and_key() {
    let (clock, values) = of_values(3);
    let mut keys: Vec<_> = DELAYS.iter().map(|&delay| values.schedule(delay, 1).unwrap()).collect();
    keys.extend(instants().into_iter().map(|instant| values.schedule_at(instant, 2).unwrap()));
    clock.advance(MS);
    values.shrink();
    values.wake();
    values.check_invariants();
    assert!(!values.is_reaper_dead());
    let pending = keys.iter().filter(|&&key| use_key(&values, key)).count();
    assert!(pending > 0 && pending < keys.len(), "some are due, and some are not");
    check(&values.stats());
    assert_eq!(values.stats().pending, 0);
    let left = values.schedule(Duration::MAX, 9).unwrap();
    assert_eq!((values.shutdown(), values.shutdown()), (vec![9], vec![]));
    assert!(!use_key(&values, left));
    refuse_all(&values);
}

fn refuse_all(values: &ValueTimer<u32>) {
    for delay in DELAYS {
        let ended: ScheduleError<u32> = values.schedule(delay, 5).unwrap_err();
        assert_eq!((ended.kind(), ended.into_value()), (ScheduleErrorKind::ShutDown, 5));
    }
    for instant in instants() {
        let ended = values.schedule_at(instant, 7).unwrap_err();
        assert_eq!(ended.into_value(), 7);
        assert!(values.finish(Duration::ZERO).is_empty());
    }
    values.shrink();
    check(&values.stats());
}

#[test]
fn keys_of_other_timers_find_nothing() {
    for shards in [1, 65_536] {
        let (_clock, large) = of_values(shards);
        let (_clock, small) = of_values(1);
        let schedule = || (0..200).map(|_| large.schedule(SECOND, 1).unwrap()).collect::<Vec<_>>();
        let keys: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(schedule)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for &key in &keys {
            assert!(!use_key(&small, key));
        }
        assert!(keys.into_iter().all(|key| small.cancel(key).is_none()));
    }
}

#[test]
fn a_callback_can_call_every_function() {
    for is_manual in [false, true] {
        let (sender, results) = std::sync::mpsc::channel();
        let clock = ManualClock::new();
        let builder = Timer::builder().executor_threads(2);
        let builder = if is_manual { builder.clock(clock.clone()) } else { builder };
        let timer = builder.build().unwrap();
        let own = timer.clone();
        timer
            .schedule(Duration::ZERO, move || {
                let timeouts: Vec<_> =
                    DELAYS.iter().map(|&delay| own.schedule(delay, || ())).collect();
                for timeout in timeouts.into_iter().flatten() {
                    timeout.reset(Duration::MAX);
                    timeout.cancel();
                }
                own.shrink();
                let _ = own.stats();
                let left = own.finish(Duration::ZERO).len() + own.shutdown().len();
                drop(own);
                sender.send(left).unwrap();
            })
            .unwrap();
        clock.advance(MS);
        let left = must_return(move || results.recv().unwrap());
        // A timeout may expire before its cancel, and then wait for an executor until the shutdown.
        assert!(left <= 2 * DELAYS.len(), "{left} callbacks were returned");
        assert_eq!(timer.stats().panicked, 0);
    }
}
