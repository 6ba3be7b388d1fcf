//! Instructions of single operations. `.ci/instructions` runs this program under callgrind, which
//! counts within the function `measured`, and compares the counts with a baseline.
//!
//! Everything is drawn from a seed, time is virtual, and nothing runs beside, so counts hardly
//! differ between runs. A thousand other timeouts are pending, a minute ahead at most; none where
//! all expire. Each operation is counted 200 and 400 times; the difference excludes work that is
//! done once.

#[path = "shared/requests.rs"]
mod requests;
#[path = "shared/subject.rs"]
mod subject;

use std::{env, hint::black_box};

use delaywheel::{ManualClock, Purgatory, Timer, TimerBuilder};

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

/// The greatest number of operations that are counted.
const MOST: usize = 400;

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
        setting.prepare(operation, 2 * MOST);
        setting.perform(operation);
    }
    setting.prepare(operation, count);
    setting
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

/// Performs a number of operations.
type Run = fn(usize);

const ALL: [(&str, Run); 13] = [
    ("wheel_insert", |count| perform::<Wheel>(Insert, count)),
    ("wheel_cancel", |count| perform::<Wheel>(Cancel, count)),
    ("wheel_reset_later", |count| perform::<Wheel>(ResetLater, count)),
    ("wheel_expire", |count| perform::<Wheel>(Expire, count)),
    ("timer_schedule", |count| perform::<Values>(Insert, count)),
    ("timer_cancel", |count| perform::<Values>(Cancel, count)),
    ("timer_reset_later", |count| perform::<Values>(ResetLater, count)),
    ("timer_expire", |count| perform::<Values>(Expire, count)),
    ("purgatory_watch_complete", watch_complete),
    ("purgatory_watch_complete_by_key", watch_complete_by_key),
    ("purgatory_check_none", check_none),
    ("purgatory_check_waiting", check_waiting),
    ("purgatory_advance_none", advance_none),
];

/// Runs the operations of a name and a number, or prints its path and the names.
fn main() {
    let mut arguments = env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let Some(name) = arguments.next() else {
        let program = env::current_exe().expect("a program has a path");
        return println!("{} {}", program.display(), ALL.map(|(name, _)| name).join(" "));
    };
    let count = arguments.next().expect("a number follows").parse().expect("it is a number");
    assert!(count <= MOST, "{count} are too many");
    let (_, run) = ALL.iter().find(|(known, _)| *known == name).expect("the name is known");
    run(count);
}

/// Callgrind counts the instructions of this function.
#[inline(never)]
fn measured(act: impl FnOnce()) {
    act();
    black_box(());
}

fn perform<S: Subject>(operation: Operation, count: usize) {
    let mut setting = steady::<S>(operation, count);
    measured(|| setting.perform(operation));
}

fn steady_requests(count: usize) -> (Requests, Vec<[u32; 3]>) {
    let purgatory = purgatory();
    crowd(&purgatory, OTHERS);
    watch_and_complete(&purgatory, &draw::<3>(3 * MOST));
    (purgatory, draw(count))
}

/// An operation waits on three keys and completes through one.
fn watch_complete(count: usize) {
    let (purgatory, requests) = steady_requests(count);
    measured(|| watch_and_complete(&purgatory, &requests));
}

/// An operation waits on three keys, and a caller completes it by its key.
fn watch_complete_by_key(count: usize) {
    let (purgatory, requests) = steady_requests(count);
    measured(|| {
        for keys in requests {
            let key = watch(&purgatory, &NEVER, keys);
            assert!(purgatory.complete(key), "it has ended");
        }
    });
}

/// Events on keys that no operation watches.
fn check_none(count: usize) {
    let purgatory = purgatory();
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    measured(|| keys(count).for_each(|key| assert_eq!(purgatory.check_and_complete(&key), 0)));
}

/// An event on a key whose operations cannot complete; counted is each operation.
fn check_waiting(count: usize) {
    let purgatory = purgatory();
    crowd_on_key(&purgatory, keys(count).end);
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    measured(|| assert_eq!(purgatory.check_and_complete(&KEY), 0));
}

/// Values below the thresholds of the operations that wait for them.
fn advance_none(count: usize) {
    let purgatory = purgatory();
    crowd_on_value(&purgatory, OTHERS);
    assert_eq!(purgatory.advance(&KEY, 1), 0);
    measured(|| {
        (0..count as u64).for_each(|value| assert_eq!(purgatory.advance(&KEY, 2 + value), 0));
    });
}

fn keys(count: usize) -> std::ops::Range<u32> {
    0..u32::try_from(count).expect("it is small")
}
