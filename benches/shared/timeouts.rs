//! Operations of the wheel and of timers.

#[path = "subject.rs"]
pub(crate) mod subject;

use std::time::Instant;

use criterion::{Bencher, Criterion};
use delaywheel::{ManualClock, Timer};
use fastrand::Rng;

use self::subject::Subject;
use crate::shared::{SEED, SIZES, per_operation};

const MINUTE: u64 = 60_000;

/// Benchmarks a kind of timeouts with every size, at the paths `LAYER/OPERATION/SIZE/KIND`.
pub(crate) fn run<S: Subject>(criterion: &mut Criterion, layer: &str, pair: &str, kind: &str) {
    for (name, run) in [
        ("insert", insert::<S> as fn(&mut Bencher<'_>, u32)),
        (pair, replace::<S>),
        ("expire", expire::<S>),
        ("reset_later", reset_later::<S>),
    ] {
        for (pending, size) in SIZES {
            let path = format!("{layer}/{name}/{size}{kind}");
            criterion.bench_function(&path, |bencher| run(bencher, pending));
        }
    }
}

/// Draws delays of 1 ms to 60 s.
fn draw(rng: &mut Rng, count: u32) -> Vec<u64> {
    (0..count).map(|_| rng.u64(1..=MINUTE)).collect()
}

/// Inserts into an empty subject.
fn insert<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    let delays = draw(&mut Rng::with_seed(SEED), pending);
    per_operation(bencher, pending, || {
        let start = Instant::now();
        let mut subject = S::new(Timer::builder().clock(ManualClock::new()));
        let _keys: Vec<_> = delays.iter().map(|&delay| subject.insert(delay)).collect();
        let time = start.elapsed();
        assert_eq!(subject.pending(), u64::from(pending));
        time
    });
}

/// Cancels a random timeout and inserts another, on the system clock; a wheel lets a millisecond
/// pass after 100 pairs.
fn replace<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    const PAIRS: u32 = 10_000;
    let (mut rng, clock) = (Rng::with_seed(SEED), ManualClock::new());
    let mut subject = S::new(Timer::builder());
    let delays = draw(&mut rng, pending);
    let mut keys: Vec<_> = delays.iter().map(|delay| subject.insert(MINUTE + delay)).collect();
    per_operation(bencher, PAIRS, || {
        let pairs = draw(&mut rng, PAIRS).into_iter().map(|delay| (rng.usize(..keys.len()), delay));
        let pairs: Vec<_> = pairs.collect();
        let start = Instant::now();
        for pairs in pairs.chunks(100) {
            for &(victim, delay) in pairs {
                subject.cancel(&keys[victim]);
                keys[victim] = subject.insert(MINUTE + delay);
            }
            subject.pass(&clock, 1);
        }
        start.elapsed()
    });
}

/// Expires everything.
fn expire<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    let delays = draw(&mut Rng::with_seed(SEED), pending);
    per_operation(bencher, pending, || {
        let clock = ManualClock::new();
        let mut subject = S::new(Timer::builder().clock(clock.clone()));
        let _keys: Vec<_> = delays.iter().map(|&delay| subject.insert(delay)).collect();
        let start = Instant::now();
        subject.pass(&clock, MINUTE);
        let time = start.elapsed();
        assert_eq!(subject.pending(), 0);
        time
    });
}

/// Moves every deadline a minute ahead, in random order.
fn reset_later<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    let mut rng = Rng::with_seed(SEED);
    let delays = draw(&mut rng, pending);
    let mut order: Vec<_> = (0..delays.len()).collect();
    rng.shuffle(&mut order);
    per_operation(bencher, pending, || {
        let clock = ManualClock::new();
        let mut subject = S::new(Timer::builder().clock(clock.clone()));
        let keys: Vec<_> = delays.iter().map(|&delay| subject.insert(delay)).collect();
        let start = Instant::now();
        for &index in &order {
            subject.reset(&keys[index], MINUTE + delays[index]);
        }
        let time = start.elapsed();
        subject.pass(&clock, MINUTE);
        assert_eq!(subject.pending(), u64::from(pending), "a timeout expired too early");
        subject.pass(&clock, MINUTE);
        assert_eq!(subject.pending(), 0);
        time
    });
}
