//! Shutdown: each callback that never ran is returned once, and new timeouts are refused.

use delaywheel::{ManualClock, ValueTimer};

use super::support::{Log, MS, SECOND, YEAR, manual};

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
