//! The purgatory, and its operations in every state.

use std::time::Duration;

use delaywheel::{
    Condition, ManualClock, OperationGuard, OperationKey, Purgatory, Timer, Watch, Watched,
};

use super::{DELAYS, NUMBERS, PERCENTS};
use crate::{purgatory::support::Idle, timer::support::MS};

fn purgatory() -> (ManualClock, Purgatory<u64, Idle>) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).shards(3);
    (clock, Purgatory::builder().timer(timer).build().unwrap())
}

/// Registers operations of every kind: on no key, on a duplicate key, on many keys.
fn watch_all_ways(purgatory: &Purgatory<u64, Idle>, delay: Duration) -> Vec<OperationKey> {
    let thresholds = || NUMBERS.map(|number| Condition::Threshold(number, number));
    let watched = [
        purgatory.watch(Idle, [], delay),
        purgatory.watch(Idle, [7, 7], delay),
        purgatory.watch(Idle, NUMBERS, delay),
        purgatory.watch(Idle, Watch::any([]), delay),
        purgatory.watch(Idle, Watch::any(NUMBERS.map(Condition::Events)), delay),
        purgatory.watch(Idle, Watch::any(thresholds()), delay),
        purgatory.watch(Idle, Watch::all([]), delay),
        purgatory.watch(
            Idle,
            Watch::all(thresholds().into_iter().chain([Condition::Events(1)])),
            delay,
        ),
    ];
    let watched = watched.map(Result::unwrap);
    watched.map(|watched: Watched| watched.key().expect("it never completes")).into()
}

/// Calls every function that takes a key. Returns whether the operation was waiting.
fn use_key(purgatory: &Purgatory<u64, Idle>, key: OperationKey) -> bool {
    let is_waiting = purgatory.is_waiting(key);
    let guard: OperationGuard<_, _> = purgatory.guard(key);
    guard.disarm();
    assert_eq!(purgatory.is_waiting(key), is_waiting);
    assert_eq!(purgatory.complete(key), is_waiting);
    assert_eq!(purgatory.complete_all([key, key]), 0);
    assert!(!purgatory.complete(key) && purgatory.cancel(key).is_none());
    drop(purgatory.guard(key));
    is_waiting
}

/// Calls every function that announces an event. Only reached thresholds end operations here.
fn announce(purgatory: &Purgatory<u64, Idle>) {
    for number in NUMBERS {
        assert_eq!(purgatory.check_and_complete(&number), 0);
        purgatory.advance(&number, 0);
    }
}

#[test]
fn a_purgatory_accepts_every_delay_and_key() {
    let (clock, purgatory) = purgatory();
    announce(&purgatory);
    let keys: Vec<_> =
        DELAYS.into_iter().flat_map(|delay| watch_all_ways(&purgatory, delay)).collect();
    clock.advance(MS);
    announce(&purgatory);
    purgatory.shrink();
    purgatory.wake();
    let waiting = keys.iter().filter(|&&key| use_key(&purgatory, key)).count();
    assert!(waiting > 0 && waiting < keys.len(), "some have expired, and some have not");
    let stats = purgatory.stats();
    assert_eq!((purgatory.stats().delayed, purgatory.stats().watched, stats.panicked), (0, 0, 0));
    assert_eq!((purgatory.stats().timer.pending, stats.keys), (0, 0));
    for percent in PERCENTS {
        assert!(stats.waits.percentile(percent) <= stats.waits.max());
    }
}
