//! Operations of the wheel and of timers.

#[path = "subject.rs"]
pub(crate) mod subject;

use std::time::Instant;

use criterion::{Bencher, Criterion};
use delaywheel::{ManualClock, Timer};
use fastrand::Rng;

use self::subject::{Operation, Setting, Subject};
use crate::shared::{SEED, SIZES, per_operation};

const MINUTE: u64 = 60_000;

/// Benchmarks a kind of timeouts with every size, at the paths `LAYER/OPERATION/SIZE/KIND`.
pub(crate) fn run<S: Subject>(criterion: &mut Criterion, layer: &str, pair: &str, kind: &str) {
    for (name, operation) in [
        ("insert", Operation::Insert),
        ("expire", Operation::Expire),
        ("reset_later", Operation::ResetLater),
    ] {
        for (pending, size) in SIZES {
            let path = format!("{layer}/{name}/{size}{kind}");
            criterion.bench_function(&path, |bencher| alone::<S>(bencher, operation, pending));
        }
    }
    for (pending, size) in SIZES {
        let path = format!("{layer}/{pair}/{size}{kind}");
        criterion.bench_function(&path, |bencher| replace::<S>(bencher, pending));
    }
}

/// Performs operations on a subject that has no other timeouts, on a manual clock.
fn alone<S: Subject>(bencher: &mut Bencher<'_>, operation: Operation, count: u32) {
    per_operation(bencher, count, || {
        let clock = ManualClock::new();
        let settings = Timer::builder().clock(clock.clone());
        let mut setting = Setting::<S>::new((settings, clock), 0, MINUTE, SEED);
        setting.prepare(operation, count as usize);
        let start = Instant::now();
        setting.perform(operation);
        let time = start.elapsed();
        let pending = if operation == Operation::Expire { 0 } else { u64::from(count) };
        assert_eq!(setting.subject.pending(), pending);
        time
    });
}

/// Draws delays of 1 ms to 60 s.
fn draw(rng: &mut Rng, count: u32) -> Vec<u64> {
    (0..count).map(|_| rng.u64(1..=MINUTE)).collect()
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
