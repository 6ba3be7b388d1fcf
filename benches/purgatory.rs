//! Operations of [`Purgatory`].
//!
//! ```text
//! cargo bench --bench purgatory                             # all
//! cargo bench --bench purgatory -- purgatory/check_waiting  # one
//! ```
//!
//! A path is `purgatory/OPERATION/SIZE`, where a size is a number of waiting operations, or of keys of one.

#![forbid(unsafe_code)]

mod shared;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use criterion::Bencher;
use delaywheel::{Completion, DelayedOperation, Purgatory, Watch};
use fastrand::Rng;

use crate::shared::{SEED, SIZES, criterion, per_operation};

fn main() {
    let mut criterion = criterion();
    criterion.bench_function("purgatory/watch_complete/1_key", watch_complete::<1>);
    criterion.bench_function("purgatory/watch_complete/3_keys", watch_complete::<3>);
    for (name, run) in [
        ("check_none", check_none as fn(&mut Bencher<'_>, u32)),
        ("check_waiting", check_waiting),
        ("advance_none", advance_none),
    ] {
        for (waiting, size) in &SIZES[..2] {
            let path = format!("purgatory/{name}/{size}");
            criterion.bench_function(&path, |bencher| run(bencher, *waiting));
        }
    }
    criterion.final_summary();
}

/// Longer than any benchmark takes.
const DELAY: Duration = Duration::from_secs(3_600);

/// The key of which an event is announced.
const KEY: u32 = 0;

/// An operation that completes once its flag is set.
struct Request(&'static AtomicBool);

impl DelayedOperation<u32> for Request {
    fn try_complete(&mut self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn complete(self, completion: Completion) {
        let is_expected = matches!(completion, Completion::Satisfied | Completion::ShutDown);
        assert!(is_expected, "an operation ended by {completion:?}");
    }
}

static NEVER: AtomicBool = AtomicBool::new(false);

fn watch<const KEYS: usize>(
    purgatory: &Purgatory<u32, Request>,
    flag: &'static AtomicBool,
    keys: [u32; KEYS],
) {
    let watched = purgatory.try_complete_else_watch(Request(flag), keys, DELAY);
    assert!(!watched.expect("the purgatory has room").is_completed());
}

/// Makes a purgatory in which operations wait on three keys out of a range of 100.
fn crowded(waiting: u32) -> Purgatory<u32, Request> {
    let (purgatory, mut rng) = (Purgatory::new(), Rng::with_seed(SEED));
    for _ in 0..waiting {
        let first = rng.u32(1_000..1_098);
        watch(&purgatory, &NEVER, [first, first + 1, first + 2]);
    }
    purgatory
}

/// One operation at a time waits on some keys and is completed through one of them.
fn watch_complete<const KEYS: usize>(bencher: &mut Bencher<'_>) {
    static FLAG: AtomicBool = AtomicBool::new(false);
    let (purgatory, mut rng) = (Purgatory::new(), Rng::with_seed(SEED));
    let demands: Vec<[u32; KEYS]> = (0..10_000)
        .map(|_| {
            let first = rng.u32(0..100);
            std::array::from_fn(|index| first + 100 * u32::try_from(index).expect("few keys"))
        })
        .collect();
    per_operation(bencher, 10_000, || {
        let start = Instant::now();
        for keys in &demands {
            FLAG.store(false, Ordering::Release);
            watch(&purgatory, &FLAG, *keys);
            FLAG.store(true, Ordering::Release);
            assert_eq!(purgatory.check_and_complete(&keys[0]), 1);
        }
        start.elapsed()
    });
}

/// Announces events on keys that no operation watches, while others wait on other keys.
fn check_none(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = crowded(waiting);
    let mut key = 1_000_000;
    bencher.iter(|| {
        key += 1;
        assert_eq!(purgatory.check_and_complete(&key), 0);
    });
}

/// Announces an event on a key whose operations cannot complete yet. Reports the time of one operation.
fn check_waiting(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = Purgatory::new();
    (0..waiting).for_each(|_| watch(&purgatory, &NEVER, [KEY]));
    per_operation(bencher, waiting, || {
        let start = Instant::now();
        assert_eq!(purgatory.check_and_complete(&KEY), 0);
        start.elapsed()
    });
}

/// Advances a value that stays below all thresholds.
fn advance_none(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = Purgatory::new();
    for threshold in 0..u64::from(waiting) {
        let condition = Watch::Threshold(KEY, 1_000 + threshold);
        let watched = purgatory.watch_all(Request(&NEVER), [condition], DELAY);
        assert!(!watched.expect("the purgatory has room").is_completed());
    }
    bencher.iter(|| assert_eq!(purgatory.advance(&KEY, 999), 0));
}
