//! Compares the counts of the library with each other and with those of the load.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{PurgatoryStats, TimerStats};

use crate::{books::Books, breaches::Breaches, operation::State, values::Values, waits::Waits};

/// Limit of a wait for a condition that becomes true soon, unless the library is wrong.
pub(crate) const GENEROUS: Duration = Duration::from_secs(300);

pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + GENEROUS;
    while Instant::now() < end {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    condition()
}

pub(crate) fn settle(name: &str, books: &Books) {
    let is_settled = wait_until(|| books.open_count() == 0);
    books.breaches().unless(is_settled, || format!("{name}: {} are lost", books.open_count()));
}

/// Checks the equation of a timer that holds at any moment.
pub(crate) fn check_timer(name: &str, stats: &TimerStats, breaches: &Breaches) {
    let sum = stats.pending + stats.expired + stats.cancelled + stats.returned;
    breaches.unless(stats.scheduled == sum, || format!("{name}: {stats:?}"));
}

pub(crate) fn check_values(values: &Values) {
    let (counts, breaches) = (&values.books.counts, values.books.breaches());
    let of = |count: &AtomicU64| count.load(Relaxed);
    let is_counted = wait_until(|| values.stats().panicked == of(&counts.panicked));
    let stats = values.stats();
    breaches.unless(is_counted, || format!("panics of handlers: {stats:?}, {counts:?}"));
    check_timer("values", &stats, breaches);
    let seen = [
        ("pending", stats.pending, 0),
        ("scheduled", stats.scheduled, of(&counts.taken)),
        ("cancelled", stats.cancelled, of(&counts.cancelled)),
        ("rejected", stats.refused, of(&counts.refused)),
        ("ended", stats.expired + stats.returned, of(&counts.ran) + of(&counts.returned)),
    ];
    compare("values", &seen, &stats, breaches);
}

pub(crate) fn check_waits(waits: &Waits) {
    let (counts, breaches) = (&waits.books().counts, waits.books().breaches());
    let State { satisfied, displaced, shut_down, .. } = &*waits.state;
    let of = |count: &AtomicU64| count.load(Relaxed);
    let is_counted = wait_until(|| {
        let stats = waits.stats();
        stats.panicked == of(&counts.panicked) && stats.timer.pending == 0
    });
    let stats = waits.stats();
    breaches.unless(is_counted, || format!("panics of operations: {stats:?}, {counts:?}"));
    check_timer("purgatory", &stats.timer, breaches);
    let seen = [
        ("delayed", stats.delayed, 0),
        ("watched", stats.watched, 0),
        ("keys", stats.keys, 0),
        ("timeouts", stats.timer.pending, 0),
        ("taken in", sum(&stats), of(&counts.taken)),
        ("satisfied", stats.at_once + stats.satisfied, of(satisfied)),
        ("expired", stats.expired, of(&counts.ran)),
        ("cancelled", stats.cancelled, of(&counts.cancelled)),
        ("displaced", stats.displaced, of(displaced)),
        ("shut down", stats.shut_down, of(shut_down) + of(&counts.returned)),
        ("refused", stats.refused, of(&counts.refused)),
    ];
    compare("purgatory", &seen, &stats, breaches);
}

/// Number of accepted operations: the sum of all ends and the waiting ones.
pub(crate) fn sum(stats: &PurgatoryStats) -> u64 {
    let ended = stats.satisfied + stats.expired + stats.cancelled + stats.displaced;
    stats.at_once + stats.delayed + ended + stats.shut_down
}

fn compare(name: &str, seen: &[(&str, u64, u64)], stats: &dyn Debug, breaches: &Breaches) {
    for (what, told, counted) in seen {
        breaches.unless(told == counted, || {
            format!("{name}: {told} {what}, where the load counts {counted}; {stats:?}")
        });
    }
}
