//! Operations of [`TimingWheel`], in virtual time: a tick is a millisecond.
//!
//! ```text
//! cargo bench --bench wheel                       # all
//! cargo bench --bench wheel -- wheel/insert/1e6   # one
//! ```
//!
//! A path is `wheel/OPERATION/PENDING`. Deadlines lie 1 ms to 60 s ahead.

#![forbid(unsafe_code)]

mod shared;

use std::time::{Duration, Instant};

use criterion::Bencher;
use delaywheel::{Key, Tick, TimingWheel};
use fastrand::Rng;

use crate::shared::{SEED, SIZES, criterion, per_operation};

fn main() {
    let mut criterion = criterion();
    for (name, run) in [
        ("insert", insert as fn(&mut Bencher<'_>, u32)),
        ("cancel_insert", cancel_insert),
        ("expire", expire),
        ("reset_later", reset_later),
    ] {
        for (pending, size) in SIZES {
            let path = format!("wheel/{name}/{size}");
            criterion.bench_function(&path, |bencher| run(bencher, pending));
        }
    }
    criterion.final_summary();
}

/// Draws delays of 1 ms to 60 s, in milliseconds.
fn delays(rng: &mut Rng, count: u32) -> Vec<u64> {
    (0..count).map(|_| rng.u64(1..=60_000)).collect()
}

fn fill(deadlines: &[u64]) -> (TimingWheel<u64>, Vec<Key>) {
    let mut wheel = TimingWheel::default();
    let insert =
        |&deadline| wheel.insert(Tick::new(deadline), deadline).expect("the wheel has room");
    let keys = deadlines.iter().map(insert).collect();
    (wheel, keys)
}

/// Expires everything. Returns the sum of the values.
fn drain(wheel: &mut TimingWheel<u64>) -> u64 {
    let mut sum = 0;
    while let Some(next) = wheel.next_expiration() {
        sum += wheel.advance(next).map(|expired| expired.value).sum::<u64>();
    }
    sum
}

/// Inserts into an empty wheel.
fn insert(bencher: &mut Bencher<'_>, pending: u32) {
    let deadlines = delays(&mut Rng::with_seed(SEED), pending);
    per_operation(bencher, pending, || {
        let start = Instant::now();
        let (mut wheel, _keys) = fill(&deadlines);
        let time = start.elapsed();
        assert_eq!(drain(&mut wheel), deadlines.iter().sum::<u64>());
        time
    });
}

/// Cancels a random timeout and inserts another, 100 pairs a tick, while time passes.
fn cancel_insert(bencher: &mut Bencher<'_>, pending: u32) {
    const PAIRS: u32 = 10_000;
    let mut rng = Rng::with_seed(SEED);
    let (mut wheel, mut keys) = fill(&delays(&mut rng, pending));
    let mut now = 0;
    per_operation(bencher, PAIRS, || {
        let delays = delays(&mut rng, PAIRS);
        let victims: Vec<_> = delays.iter().map(|_| rng.usize(..keys.len())).collect();
        let start = Instant::now();
        for (index, (&victim, &delay)) in victims.iter().zip(&delays).enumerate() {
            wheel.cancel(keys[victim]);
            let deadline = Tick::new(now + delay);
            keys[victim] = wheel.insert(deadline, delay).expect("the wheel has room");
            if index % 100 == 99 {
                now += 1;
                wheel.advance(Tick::new(now)).for_each(drop);
            }
        }
        start.elapsed()
    });
}

/// Expires everything, from one expiration to the next.
fn expire(bencher: &mut Bencher<'_>, pending: u32) {
    let deadlines = delays(&mut Rng::with_seed(SEED), pending);
    per_operation(bencher, pending, || {
        let (mut wheel, _keys) = fill(&deadlines);
        let start = Instant::now();
        assert_eq!(drain(&mut wheel), deadlines.iter().sum::<u64>());
        start.elapsed()
    });
}

/// Moves every deadline a minute ahead, in random order.
fn reset_later(bencher: &mut Bencher<'_>, pending: u32) {
    let mut rng = Rng::with_seed(SEED);
    let deadlines = delays(&mut rng, pending);
    let mut order: Vec<_> = deadlines.iter().copied().enumerate().collect();
    rng.shuffle(&mut order);
    per_operation(bencher, pending, || -> Duration {
        let (mut wheel, keys) = fill(&deadlines);
        let start = Instant::now();
        for &(index, deadline) in &order {
            wheel.reset(keys[index], Tick::new(deadline + 60_000));
        }
        let time = start.elapsed();
        assert_eq!(wheel.advance(Tick::new(60_000)).count(), 0, "a timeout expired too early");
        assert_eq!(drain(&mut wheel), deadlines.iter().sum::<u64>());
        time
    });
}
