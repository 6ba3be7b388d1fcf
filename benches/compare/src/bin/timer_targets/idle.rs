//! A timer with nothing to do does nothing.

use std::{
    thread,
    time::{Duration, Instant},
};

use delaywheel::Timer;
use delaywheel_compare::{
    real::{sleep_until, threads},
    report::{
        settings::Settings,
        table::{Row, count},
    },
};

/// Wake-ups of the reaper, and context switches of the timer's threads.
pub(crate) fn rows(settings: &Settings) -> Vec<Row> {
    let (idle, after) = if settings.is_quick { (3, 2) } else { (20, 3) };
    let mut rows = asleep(idle);
    rows.push(cancelled(Duration::from_secs(after)));
    rows
}

/// With a timeout that is a month ahead.
fn asleep(seconds: u64) -> Vec<Row> {
    const MONTH: Duration = Duration::from_hours(720);
    let timer = Timer::builder().name("idle").build().expect("the settings are valid");
    timer.schedule(MONTH, || ()).expect("the timer is empty");
    // The threads start, and fall asleep.
    thread::sleep(Duration::from_secs(1));
    let look = || (timer.stats().wakeups, threads("idle"));
    let (wakeups, usage) = look();
    thread::sleep(Duration::from_secs(seconds));
    let (wakeups_after, usage_after) = look();
    assert_eq!(timer.stats().pending, 1);
    let row = |what, number| {
        let name = format!("{what} in {seconds} s, a timeout a month ahead");
        Row::new(name, "", [("timer", count(number))]).at_most(0.0)
    };
    let mut rows = vec![row("wake-ups", wakeups_after - wakeups)];
    if let Some((before, after)) = usage.zip(usage_after) {
        assert_eq!((before.threads, after.threads), (2, 2), "a reaper and an executor");
        rows.push(row("context switches", after.waits - before.waits));
    }
    rows
}

/// With timeouts that are cancelled at once.
fn cancelled(after: Duration) -> Row {
    const PAIRS: u64 = 1_000_000;
    let timer = Timer::new();
    let start = Instant::now();
    for _ in 0..PAIRS {
        let timeout = timer.schedule(Duration::from_secs(1), || panic!("it was cancelled"));
        assert!(timeout.expect("the timer is empty").cancel());
    }
    sleep_until(start + after);
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.cancelled, stats.pending), (PAIRS, PAIRS, 0));
    let name = format!("wake-ups, {PAIRS} of 1 s scheduled and cancelled");
    Row::new(name, "", [("timer", count(stats.wakeups))]).at_most(2.0)
}
