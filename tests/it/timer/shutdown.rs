//! Shutdown: each callback that never ran is returned once, and new timeouts are refused.

use std::time::Duration;

use delaywheel::{Clock, ManualClock, ScheduleErrorKind, ValueTimer};

use super::support::{Log, MS, SECOND, YEAR, manual, manual_with};

#[test]
fn a_shutdown_returns_callbacks_that_never_ran_and_a_second_one_returns_none() {
    let clock = ManualClock::new();
    let log = Log::new();
    let ran = log.clone();
    let handler = move |value: u32| ran.push(value);
    let builder = ValueTimer::builder().clock(clock.clone()).shards(3);
    let timer = builder.build_with(handler).unwrap();
    let keys: Vec<_> = (0..1000).map(|value| timer.schedule(value * MS, value).unwrap()).collect();
    clock.advance(499 * MS);
    assert_eq!(timer.cancel(keys[700]), Some(700));
    let mut returned = timer.shutdown();
    returned.sort_unstable();
    assert!(returned.into_iter().eq((500..1000).filter(|value| *value != 700)));
    assert_eq!(timer.shutdown(), []);
    assert_eq!(timer.clone().shutdown(), []);
    clock.advance(YEAR);
    assert!(log.take().into_iter().eq(0..500));
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.pending), (1000, 0));
    assert_eq!((stats.expired, stats.cancelled, stats.returned), (500, 1, 499));
}

#[test]
fn scheduling_after_a_shutdown_is_refused_with_the_task() {
    let (clock, timer) = manual();
    let log = Log::new();
    timer.shutdown();
    let refused = timer.schedule(Duration::ZERO, log.note(1)).unwrap_err();
    assert_eq!(refused.to_string(), "timer is shut down");
    assert_eq!(refused.kind(), ScheduleErrorKind::ShutDown);
    refused.into_value().run();
    assert!(timer.schedule_at(clock.now(), log.note(2)).is_err());
    clock.advance(YEAR);
    assert_eq!(log.take(), [1]);
    assert_eq!(timer.stats().rejected, 2);
}

#[test]
fn a_shutdown_returns_due_callbacks_that_have_not_expired() {
    let (clock, timer) = manual();
    timer.schedule(Duration::ZERO, || panic!("it was returned")).unwrap();
    assert_eq!(timer.shutdown().len(), 1);
    clock.advance(SECOND);
}

#[test]
fn the_counts_outlive_the_shutdown() {
    let (clock, timer) = manual();
    for delay in 1..=1000 {
        timer.schedule(delay * 10 * MS, || ()).unwrap();
    }
    clock.advance(5 * SECOND);
    let before = timer.stats();
    assert!(before.cascades > 0, "crowded buckets are sorted ahead of their timeouts");
    timer.shutdown();
    let after = timer.stats();
    assert_eq!((after.cascades, after.expired), (before.cascades, before.expired));
    assert_eq!((after.returned, after.pending), (before.pending, 0));
}

#[test]
fn a_timer_without_any_timeouts_shuts_down_and_drops() {
    drop(manual());
    let (clock, timer) = manual_with(|builder| builder.max_pending(1));
    assert_eq!(timer.shutdown().len(), 0);
    assert_eq!(clock.advance_to_next(), None);
}

#[test]
fn the_drop_of_the_last_clone_drops_pending_callbacks_without_running_them() {
    let (clock, timer) = manual();
    let held = std::sync::Arc::new(());
    let captured = held.clone();
    timer.schedule(SECOND, move || panic!("{captured:?} has run")).unwrap();
    let clone = timer.clone();
    drop(timer);
    assert_eq!(std::sync::Arc::strong_count(&held), 2, "a clone still exists");
    drop(clone);
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
    clock.advance(YEAR);
}
