//! Instructions of single operations, counted under valgrind by gungraun. `.ci/instructions`
//! compares them with a baseline.
//!
//! Everything is drawn from a seed, time is virtual, and nothing runs beside, so counts hardly
//! differ between runs. A thousand other timeouts are pending, a minute ahead at most; none where
//! all expire. Each operation is counted 200 and 400 times; the difference excludes work that is
//! done once.

#![expect(missing_docs, reason = "the macros make public modules")]

#[path = "shared/requests.rs"]
mod requests;
#[path = "shared/subject.rs"]
mod subject;

use delaywheel::{ManualClock, Purgatory, Timer, TimerBuilder};
use gungraun::prelude::*;

use crate::{
    requests::{
        KEY, NEVER, Requests, crowd, crowd_on_key, crowd_on_value, draw, watch, watch_and_complete,
    },
    subject::{
        Operation::{self, Cancel, Expire, Insert, ResetLater},
        Setting, Subject, Values, Wheel,
    },
};

/// Seed of all random numbers.
const SEED: u64 = 1;

const ONCE: usize = 200;
const TWICE: usize = 2 * ONCE;

/// Milliseconds of the longest delay.
const MINUTE: u64 = 60_000;

/// Milliseconds within which all timeouts of a crowd expire.
const SHORT: u64 = 100;

/// Other timeouts or operations.
const OTHERS: u32 = 1_000;

/// Brings a subject into its steady state, before this many operations.
fn steady<S: Subject>(operation: Operation, count: usize) -> Setting<S> {
    let clock = ManualClock::new();
    let (others, longest) = if operation == Expire { (0, SHORT) } else { (OTHERS, MINUTE) };
    let mut setting = Setting::<S>::new((settings(&clock), clock), others, longest, SEED);
    assert_eq!(setting.subject.pending(), u64::from(others));
    for _ in 0..3 {
        // More than is counted, so that the counted operations allocate no segment.
        setting.prepare(operation, 2 * TWICE);
        setting.perform(operation);
    }
    setting.prepare(operation, count);
    setting
}

macro_rules! operations {
    ($($name:ident: $subject:ident $operation:ident;)*) => {$(
        #[library_benchmark]
        #[bench::once(steady($operation, ONCE))]
        #[bench::twice(steady($operation, TWICE))]
        fn $name(mut setting: Setting<$subject>) -> Setting<$subject> {
            setting.perform($operation);
            setting
        }
    )*};
}

operations! {
    wheel_insert: Wheel Insert;
    wheel_cancel: Wheel Cancel;
    wheel_reset_later: Wheel ResetLater;
    wheel_expire: Wheel Expire;
    timer_schedule: Values Insert;
    timer_cancel: Values Cancel;
    timer_reset_later: Values ResetLater;
    timer_expire: Values Expire;
}

/// Settings of a timer with two shards, whatever the machine has: the reaper checks each.
fn settings(clock: &ManualClock) -> TimerBuilder {
    Timer::builder().clock(clock.clone()).shards(2)
}

/// A purgatory that hashes alike in each run.
fn purgatory() -> Requests {
    Purgatory::builder()
        .timer(settings(&ManualClock::new()))
        .hash_seed(SEED)
        .build()
        .expect("the settings are valid")
}

fn demands(count: usize) -> (Requests, Vec<[u32; 3]>) {
    let purgatory = purgatory();
    crowd(&purgatory, OTHERS);
    watch_and_complete(&purgatory, &draw::<3>(3 * TWICE));
    (purgatory, draw(count))
}

// An operation waits on three keys and completes through one.
#[library_benchmark]
#[bench::once(demands(ONCE))]
#[bench::twice(demands(TWICE))]
fn purgatory_watch_complete((purgatory, demands): (Requests, Vec<[u32; 3]>)) -> Requests {
    watch_and_complete(&purgatory, &demands);
    purgatory
}

// An operation waits on three keys, and a caller completes it by its key.
#[library_benchmark]
#[bench::once(demands(ONCE))]
#[bench::twice(demands(TWICE))]
fn purgatory_watch_complete_by_key((purgatory, demands): (Requests, Vec<[u32; 3]>)) -> Requests {
    for keys in demands {
        let key = watch(&purgatory, &NEVER, keys);
        assert!(purgatory.complete(key), "it has ended");
    }
    purgatory
}

fn unwatched(count: u32) -> (Requests, u32) {
    let purgatory = purgatory();
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    (purgatory, count)
}

// Events on keys that no operation watches.
#[library_benchmark]
#[bench::once(unwatched(200))]
#[bench::twice(unwatched(400))]
fn purgatory_check_none((purgatory, count): (Requests, u32)) -> Requests {
    (0..count).for_each(|key| assert_eq!(purgatory.check_and_complete(&key), 0));
    purgatory
}

fn crowded(count: u32) -> Requests {
    let purgatory = purgatory();
    crowd_on_key(&purgatory, count);
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    purgatory
}

// An event on a key whose operations cannot complete; counted is each operation.
#[library_benchmark]
#[bench::once(crowded(200))]
#[bench::twice(crowded(400))]
fn purgatory_check_waiting(purgatory: Requests) -> Requests {
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    purgatory
}

fn thresholds(count: u64) -> (Requests, u64) {
    let purgatory = purgatory();
    crowd_on_value(&purgatory, OTHERS);
    assert_eq!(purgatory.advance(&KEY, 1), 0);
    (purgatory, count)
}

// Values below the thresholds of the operations that wait for them.
#[library_benchmark]
#[bench::once(thresholds(200))]
#[bench::twice(thresholds(400))]
fn purgatory_advance_none((purgatory, count): (Requests, u64)) -> Requests {
    (0..count).for_each(|value| assert_eq!(purgatory.advance(&KEY, 2 + value), 0));
    purgatory
}

library_benchmark_group!(
    name = operations,
    benchmarks = [
        wheel_insert,
        wheel_cancel,
        wheel_reset_later,
        wheel_expire,
        timer_schedule,
        timer_cancel,
        timer_reset_later,
        timer_expire,
        purgatory_watch_complete,
        purgatory_watch_complete_by_key,
        purgatory_check_none,
        purgatory_check_waiting,
        purgatory_advance_none
    ]
);

main!(library_benchmark_groups = operations);
