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

use delaywheel::{ManualClock, PurgatoryBuilder, Timer, TimerBuilder};
use fastrand::Rng;
use gungraun::prelude::*;

use crate::{
    requests::{
        KEY, NEVER, Requests, crowd, crowd_on_key, crowd_on_value, draw, watch, watch_and_complete,
    },
    subject::{Subject, Values, Wheel},
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Insert,
    Cancel,
    ResetLater,
    Expire,
}

use Operation::{Cancel, Expire, Insert, ResetLater};

/// A subject with timeouts, and the next operations.
struct Setting<S: Subject> {
    subject: S,
    clock: ManualClock,
    rng: Rng,
    keys: Vec<S::Key>,
    delays: Vec<u64>,
}

impl<S: Subject> Setting<S> {
    /// Brings a subject into its steady state, before this many operations.
    fn new(operation: Operation, count: usize) -> Self {
        let (clock, mut rng) = (ManualClock::new(), Rng::with_seed(SEED));
        let mut subject = S::new(settings(&clock));
        let others = if operation == Expire { 0 } else { OTHERS };
        for _ in 0..others {
            subject.insert(rng.u64(1..=MINUTE));
        }
        let (keys, delays) = (Vec::with_capacity(TWICE), Vec::with_capacity(TWICE));
        let mut setting = Self { subject, clock, rng, keys, delays };
        for _ in 0..3 {
            // More than is counted, so that the counted operations allocate no segment.
            setting.prepare(operation, 2 * TWICE);
            setting.perform(operation);
        }
        setting.prepare(operation, count);
        setting
    }

    fn prepare(&mut self, operation: Operation, count: usize) {
        self.perform(Cancel);
        let longest = if operation == Expire { SHORT } else { MINUTE };
        self.delays.clear();
        self.delays.extend((0..count).map(|_| self.rng.u64(1..=longest)));
        if operation == Insert {
            return;
        }
        self.perform(Insert);
        match operation {
            Cancel => self.rng.shuffle(&mut self.keys),
            Expire => self.keys.clear(),
            _ => {
                let mut timeouts: Vec<_> = self.keys.drain(..).zip(self.delays.drain(..)).collect();
                self.rng.shuffle(&mut timeouts);
                let later = timeouts.into_iter().map(|(key, delay)| (key, delay + MINUTE));
                (self.keys, self.delays) = later.unzip();
            }
        }
    }

    #[inline]
    fn perform(&mut self, operation: Operation) {
        match operation {
            Insert => self.keys.extend(self.delays.iter().map(|&delay| self.subject.insert(delay))),
            Cancel => {
                self.keys
                    .drain(..)
                    .for_each(|key| assert!(self.subject.cancel(&key), "not pending"));
            }
            ResetLater => {
                for (key, &delay) in self.keys.iter().zip(&self.delays) {
                    assert!(self.subject.reset(key, delay), "not pending");
                }
            }
            Expire => self.subject.pass(&self.clock, SHORT),
        }
    }
}

macro_rules! operations {
    ($($name:ident: $subject:ident $operation:ident;)*) => {$(
        #[library_benchmark]
        #[bench::once(Setting::new($operation, ONCE))]
        #[bench::twice(Setting::new($operation, TWICE))]
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
    PurgatoryBuilder::new()
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
