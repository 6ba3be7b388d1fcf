//! Operations of [`TimingWheel`](delaywheel::wheel::TimingWheel) and
//! [`ValueTimer`](delaywheel::ValueTimer), with values of 8 bytes.
//!
//! ```text
//! cargo bench --bench timeouts                                # all
//! cargo bench --bench timeouts -- timer/schedule_cancel/1e6   # one operation and size
//! ```
//!
//! A path is `wheel/OPERATION/PENDING` or `timer/OPERATION/PENDING`. Delays are 1 ms to 60 s, and a
//! minute more for pairs of cancel and insert. In these, timers run on the system clock; in the
//! others, on a manual one.

#![forbid(unsafe_code)]

#[path = "shared/subject.rs"]
mod subject;

use std::time::{Duration, Instant};

use criterion::{Bencher, Criterion};
use delaywheel::{ManualClock, Timer};
use fastrand::Rng;

use self::subject::{Operation, Setting, Subject};

fn main() {
    // Few samples, since the untimed part of a batch takes longer than the timed one.
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    run::<subject::Wheel>(&mut criterion, "wheel", "cancel_insert");
    run::<subject::Values>(&mut criterion, "timer", "schedule_cancel");
    criterion.final_summary();
}

/// Seed of all random numbers.
const SEED: u64 = 7;

/// Numbers of pending timeouts or waiting operations, with their names.
const SIZES: [(u32, &str); 3] = [(1_000, "1e3"), (100_000, "1e5"), (1_000_000, "1e6")];

const MINUTE: u64 = 60_000;

/// Benchmarks a layer with every size, at the paths `LAYER/OPERATION/SIZE`.
fn run<S: Subject>(criterion: &mut Criterion, layer: &str, pair: &str) {
    for (name, operation) in [
        ("insert", Operation::Insert),
        ("expire", Operation::Expire),
        ("reset_later", Operation::ResetLater),
    ] {
        for (pending, size) in SIZES {
            let path = format!("{layer}/{name}/{size}");
            criterion.bench_function(&path, |bencher| alone::<S>(bencher, operation, pending));
        }
    }
    for (pending, size) in SIZES {
        let path = format!("{layer}/{pair}/{size}");
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

/// Reports the time of one operation. A batch performs `count` operations and returns the time they
/// took.
fn per_operation(bencher: &mut Bencher<'_>, count: u32, mut batch: impl FnMut() -> Duration) {
    bencher.iter_custom(|iterations| {
        let batches = iterations.div_ceil(u64::from(count));
        let total: Duration = (0..batches).map(|_| batch()).sum();
        total.mul_f64(ratio(iterations, batches * u64::from(count)))
    });
}

#[expect(clippy::cast_precision_loss, reason = "criterion asks for far fewer than 2^53 iterations")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
