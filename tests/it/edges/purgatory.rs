//! The purgatory, its operations in every state, and its settings.

use std::{collections::HashMap, thread, time::Duration};

use delaywheel::{
    Completion, Condition, DelayedOperation, ManualClock, OperationGuard, OperationKey, Overload,
    Purgatory, PurgatoryBuilder, Timer, Watch, WatchError, WatchErrorKind, Watched,
};

use super::{DELAYS, NUMBERS, PERCENTS};
use crate::purgatory::support::Cancel as _;
use crate::timer::support::{MS, SECOND, must_return};

/// An operation that never completes by itself.
struct Never;

impl DelayedOperation<u64> for Never {
    fn complete(self, _: Completion) {}
}

/// An operation that completes at every check and has reached every threshold.
struct Always;

impl DelayedOperation<u64> for Always {
    fn try_complete(&mut self) -> bool {
        true
    }

    fn has_reached(&mut self, _: &u64, _: u64) -> bool {
        true
    }

    fn complete(self, completion: Completion) {
        assert_eq!(completion, Completion::Satisfied);
    }
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
fn an_advance_to_the_greatest_value_reaches_every_threshold() {
    let (_clock, purgatory) = purgatory(|builder| builder);
    let keys = watch_all_ways(&purgatory, Duration::MAX);
    for number in NUMBERS {
        purgatory.advance(&number, u64::MAX);
        purgatory.advance(&number, 0);
    }
    assert!(!purgatory.is_waiting(keys[5]) && purgatory.is_waiting(keys[7]));
    for number in NUMBERS {
        purgatory.cancel_on(&number);
        assert_eq!(purgatory.cancel_on(&number), 0);
    }
    assert_eq!(purgatory.cancel_on(&7), 1);
    assert_eq!(purgatory.delayed(), 3, "the operations without keys");
    assert_eq!(purgatory.shutdown().len(), 3);
}

#[test]
fn an_operation_that_completes_at_once_accepts_every_delay() {
    let purgatory = Purgatory::<u64, Always>::new();
    for delay in DELAYS {
        let watched = [
            purgatory.watch(Always, NUMBERS, delay),
            purgatory.watch(Always, Watch::any([Condition::Threshold(0, u64::MAX)]), delay),
            purgatory.watch(Always, Watch::all([Condition::Threshold(0, 0)]), delay),
        ];
        assert!(watched.into_iter().all(|one| one.unwrap().key().is_none()));
    }
}

#[test]
fn a_purgatory_that_has_ended_refuses_everything() {
    let (clock, purgatory) = purgatory(|builder| builder);
    let keys = watch_all_ways(&purgatory, Duration::MAX);
    let guard = purgatory.guard(keys[0]);
    let (ended, again) = (purgatory.shutdown().len(), purgatory.shutdown().len());
    assert_eq!((ended, again), (keys.len(), 0));
    assert!(keys.into_iter().all(|key| !use_key(&purgatory, key)));
    announce(&purgatory);
    purgatory.shrink();
    clock.advance(SECOND);
    for delay in DELAYS {
        let refused = purgatory.watch(Never, NUMBERS, delay);
        let refused: WatchError<Never> = refused.unwrap_err();
        assert_eq!(refused.kind(), WatchErrorKind::ShutDown);
        let Never = refused.into_value();
        assert!(purgatory.watch(Never, Watch::any([Condition::Events(0)]), delay).is_err());
        assert!(purgatory.watch(Never, Watch::all([]), delay).is_err());
    }
    drop(purgatory);
    drop(guard);
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

#[test]
fn max_delay_accepts_every_delay() {
    for longest in DELAYS {
        let (clock, purgatory) = purgatory(|settings| settings.max_delay(longest));
        let keys = watch_all_ways(&purgatory, Duration::MAX);
        clock.advance(SECOND + MS);
        let is_over = longest <= SECOND;
        assert!(keys.into_iter().all(|key| purgatory.is_waiting(key) != is_over), "{longest:?}");
    }
}

#[test]
fn keys_of_other_purgatories_find_nothing() {
    let large = Purgatory::<u64, Never>::builder().timer(Timer::builder().shards(1000));
    let large = large.build().unwrap();
    let (_clock, small) = purgatory(|settings| settings.timer(Timer::builder().shards(1)));
    let watch = || (0..500).flat_map(|_| watch_all_ways(&large, SECOND * 3600)).collect::<Vec<_>>();
    let keys: Vec<OperationKey> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(watch)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(keys.into_iter().all(|key| !use_key(&small, key)));
    drop(large.shutdown());
}

/// An operation whose completion calls every function.
struct Caller(Purgatory<u64, Never>, HashMap<u64, OperationKey>);

impl DelayedOperation<u64> for Caller {
    fn complete(self, _: Completion) {
        announce(&self.0);
        for key in self.1.into_values() {
            use_key(&self.0, key);
        }
        for delay in DELAYS {
            watch_all_ways(&self.0, delay);
        }
        self.0.shrink();
        self.0.cancel_on(&7);
        drop(self.0.shutdown());
        assert_eq!(self.0.shutdown().len(), 0);
    }
}

#[test]
fn a_completion_can_call_every_function() {
    must_return(|| {
        let (clock, inner) = purgatory(|builder| builder);
        let keys = watch_all_ways(&inner, SECOND).into_iter().zip(0..);
        let caller = Caller(inner.clone(), keys.map(|(key, number)| (number, key)).collect());
        let outer = Purgatory::builder().timer(Timer::builder().clock(clock.clone()));
        let outer = outer.build().unwrap();
        let _ = outer.watch(caller, [1], MS).unwrap();
        clock.advance(MS);
        assert_eq!((outer.stats().expired, outer.stats().panicked), (1, 0));
        assert_eq!(inner.delayed(), 0);
    });
}
