//! Operations of [`Purgatory`].
//!
//! ```text
//! cargo bench --bench purgatory                             # all
//! cargo bench --bench purgatory -- purgatory/check_waiting  # one
//! ```
//!
//! A path is `purgatory/OPERATION/SIZE`, where a size is a number of waiting operations, or of keys
//! of one.

#![forbid(unsafe_code)]

#[path = "shared/requests.rs"]
mod requests;
mod shared;

use std::time::Instant;

use criterion::Bencher;

use crate::{
    requests::{KEY, Requests, crowd, crowd_on_key, crowd_on_value, draw, watch_and_complete},
    shared::{SEED, SIZES, criterion, per_operation},
};

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

/// One operation at a time waits on some keys and is completed through one of them.
fn watch_complete<const KEYS: usize>(bencher: &mut Bencher<'_>) {
    let (purgatory, demands) = (Requests::new(), draw::<KEYS>(10_000));
    per_operation(bencher, 10_000, || {
        let start = Instant::now();
        watch_and_complete(&purgatory, &demands);
        start.elapsed()
    });
}

/// Announces events on keys that no operation watches, while others wait on other keys.
fn check_none(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = Requests::new();
    crowd(&purgatory, waiting);
    let mut key = 1_000_000;
    bencher.iter(|| {
        key += 1;
        assert_eq!(purgatory.check_and_complete(&key), 0);
    });
}

/// Announces an event on a key whose operations cannot complete yet. Reports the time of one
/// operation.
fn check_waiting(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = Requests::new();
    crowd_on_key(&purgatory, waiting);
    per_operation(bencher, waiting, || {
        let start = Instant::now();
        assert_eq!(purgatory.check_and_complete(&KEY), 0);
        start.elapsed()
    });
}

/// Advances a value that stays below all thresholds.
fn advance_none(bencher: &mut Bencher<'_>, waiting: u32) {
    let purgatory = Requests::new();
    crowd_on_value(&purgatory, waiting);
    bencher.iter(|| assert_eq!(purgatory.advance(&KEY, 999), 0));
}
