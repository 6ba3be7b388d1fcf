//! The purgatory, its operations in every state, and its settings.

use std::time::Duration;

use delaywheel::{
    Completion, Condition, DelayedOperation, ManualClock, OperationGuard, OperationKey, Overload,
    Purgatory, PurgatoryBuilder, Timer, Watch, Watched,
};

use super::{DELAYS, NUMBERS, PERCENTS};
use crate::timer::support::{MS, SECOND};

/// An operation that never completes by itself.
struct Never;

impl DelayedOperation<u64> for Never {
    fn complete(self, _: Completion) {}
}

type Builder = PurgatoryBuilder<u64, Never>;

fn purgatory(change: impl FnOnce(Builder) -> Builder) -> (ManualClock, Purgatory<u64, Never>) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).shards(3);
    (clock, change(Purgatory::builder().timer(timer)).build().unwrap())
}

/// Registers operations of every kind: on no key, on a duplicate key, on many keys.
fn watch_all_ways(purgatory: &Purgatory<u64, Never>, delay: Duration) -> Vec<OperationKey> {
    let thresholds = || NUMBERS.map(|number| Condition::Threshold(number, number));
    let watched = [
        purgatory.watch(Never, [], delay),
        purgatory.watch(Never, [7, 7], delay),
        purgatory.watch(Never, NUMBERS, delay),
        purgatory.watch(Never, Watch::any([]), delay),
        purgatory.watch(Never, Watch::any(NUMBERS.map(Condition::Events)), delay),
        purgatory.watch(Never, Watch::any(thresholds()), delay),
        purgatory.watch(Never, Watch::all([]), delay),
        purgatory.watch(
            Never,
            Watch::all(thresholds().into_iter().chain([Condition::Events(1)])),
            delay,
        ),
    ];
    let watched = watched.map(Result::unwrap);
    watched.map(|watched: Watched| watched.key().expect("it never completes")).into()
}

/// Calls every function that takes a key. Returns whether the operation was waiting.
fn use_key(purgatory: &Purgatory<u64, Never>, key: OperationKey) -> bool {
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
fn announce(purgatory: &Purgatory<u64, Never>) {
    for number in NUMBERS {
        assert_eq!(purgatory.check_and_complete(&number), 0);
        purgatory.advance(&number, 0);
    }
}

#[test]
fn a_purgatory_accepts_every_delay_and_key() {
    let (clock, purgatory) = purgatory(|builder| builder);
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
    assert_eq!((purgatory.delayed(), purgatory.stats().watched, stats.panicked), (0, 0, 0));
    assert_eq!((purgatory.stats().timer.pending, stats.keys), (0, 0));
    for percent in PERCENTS {
        assert!(stats.waits.percentile(percent) <= stats.waits.max());
    }
}

#[test]
fn limits_accept_every_number_but_0() {
    for limit in NUMBERS {
        for overload in [Overload::Refuse, Overload::DisplaceOldest] {
            let total = Purgatory::<u64, Never>::builder().max_delayed(limit, overload);
            assert_eq!(total.build().is_err(), limit == 0);
            let each = Purgatory::<u64, Never>::builder().max_delayed_per_key(limit, overload);
            assert_eq!(each.build().is_err(), limit == 0);
        }
        let keys = usize::try_from(limit).unwrap_or(usize::MAX);
        let seeded = Purgatory::<u64, Never>::builder().hash_seed(limit).build();
        assert!(seeded.is_ok(), "every seed serves");
        let many = Purgatory::<u64, Never>::builder().max_keys(keys).build();
        assert_eq!(many.is_err(), limit == 0);
        if let Ok(purgatory) = many {
            let is_refused = |count: usize| {
                purgatory
                    .watch(Never, Watch::any((0..count as u64).map(Condition::Events)), SECOND)
                    .is_err()
            };
            assert_eq!((is_refused(keys.min(50)), is_refused(51)), (false, keys < 51));
            purgatory.check_invariants();
        }
    }
    let (_clock, one) = purgatory(|settings| {
        settings.max_delayed(1, Overload::DisplaceOldest).max_delayed_per_key(1, Overload::Refuse)
    });
    for delay in DELAYS {
        let _ = one.watch(Never, NUMBERS, delay);
        let _ = one.watch(Never, [], delay);
        assert!(one.delayed() <= 1);
    }
}
