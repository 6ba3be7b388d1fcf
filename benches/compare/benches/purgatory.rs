//! The operations of the purgatory.
//!
//! ```text
//! cargo bench -p delaywheel-compare --bench purgatory
//! BENCH_PENDING=1000 cargo bench -p delaywheel-compare --bench purgatory -- --quick
//! ```
//!
//! `BENCH_PENDING` lists the numbers of requests that wait, 1000 and 100000 unless told otherwise.
//! A benchmark's path is `purgatory/OPERATION/WHAT`, where WHAT is that number, or the number of
//! keys of a request. Its time is that of one request, or of one call.

#![forbid(unsafe_code)]

use std::{env, time::Duration};

use criterion::{BatchSize, BenchmarkGroup, BenchmarkId, Criterion, measurement::WallTime};
use delaywheel_compare::purgatory::{Announce, ClosedLoop, Crowd, Requests, demands, settle};

fn main() {
    let mut criterion = config().configure_from_args();
    let mut group = criterion.benchmark_group("purgatory/watch+complete");
    watch_complete::<1>(&mut group, "1 key");
    watch_complete::<3>(&mut group, "3 keys");
    group.finish();
    bench(&mut criterion, "check_none", check_none);
    bench(&mut criterion, "check_waiting", check_waiting);
    bench(&mut criterion, "advance", advance);
    criterion.final_summary();
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Requests, or calls, that are drawn beforehand and gone through again and again.
const DRAWN: usize = 1 << 14;

/// The key of which something is announced.
const KEY: u32 = 0;

/// One request at a time that waits on some keys out of 100, and is completed through one.
fn watch_complete<const KEYS: usize>(group: &mut Group<'_>, name: &str) {
    let demands = demands::<KEYS>(1, 0..100, DRAWN);
    let purgatory = Requests::new();
    let mut requests = ClosedLoop::new(&purgatory, Announce::One, &demands[..1]);
    let mut next = demands.chunks_exact(1).cycle();
    group.bench_function(name, |bencher| {
        let demand = || next.next().expect("a cycle does not end");
        bencher.iter_batched(demand, |demand| requests.run(demand), BatchSize::SmallInput);
    });
    let share = requests.finish();
    assert_eq!(share.completed, share.watched);
    settle(&purgatory, share.watched, 0);
}

/// An event on a key that nobody watches, while others wait on others.
fn check_none(group: &mut Group<'_>, waiting: usize) {
    let purgatory = Requests::new();
    let crowd = Crowd::new(&purgatory, &demands::<3>(1, 0..100, waiting));
    let keys = demands::<1>(2, 1_000..100_000, DRAWN);
    let mut next = keys.iter().map(|demand| demand.keys[0]).cycle();
    group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
        let key = || next.next().expect("a cycle does not end");
        let check = |key| assert_eq!(purgatory.check_and_complete(&key), 0);
        bencher.iter_batched(key, check, BatchSize::SmallInput);
    });
    settle(&purgatory, 0, crowd.count());
}

/// An event on a key that all watch, and upon which none can complete: time for one of them.
fn check_waiting(group: &mut Group<'_>, waiting: usize) {
    let purgatory = Requests::new();
    let crowd = Crowd::new(&purgatory, &demands::<1>(1, KEY..KEY + 1, waiting));
    group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
        bencher.iter_custom(|iterations| {
            let calls = iterations.div_ceil(waiting as u64);
            let (duration, completed) = delaywheel_compare::drive::timed(|| {
                (0..calls).map(|_| purgatory.check_and_complete(&KEY)).sum::<usize>()
            });
            assert_eq!(completed, 0);
            duration.mul_f64(per_call(iterations, calls, waiting))
        });
    });
    settle(&purgatory, 0, crowd.count());
}

/// What part of the checks in some calls was asked for.
#[expect(clippy::cast_precision_loss, reason = "nobody waits for 2^53 checks")]
fn per_call(iterations: u64, calls: u64, waiting: usize) -> f64 {
    iterations as f64 / (calls * waiting as u64) as f64
}

/// An advance below the thresholds of all that wait for the value.
fn advance(group: &mut Group<'_>, waiting: usize) {
    let purgatory = Requests::new();
    let crowd = Crowd::on_value(&purgatory, KEY, 1_000, waiting);
    group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
        bencher.iter(|| assert_eq!(purgatory.advance(&KEY, 999), 0));
    });
    settle(&purgatory, 0, crowd.count());
}

/// Benchmarks an operation at each number of requests that wait.
fn bench(criterion: &mut Criterion, operation: &str, run: fn(&mut Group<'_>, usize)) {
    let mut group = criterion.benchmark_group(format!("purgatory/{operation}"));
    let list = env::var("BENCH_PENDING").unwrap_or_else(|_| "1000,100000".into());
    for count in list.split(',') {
        run(&mut group, count.parse().expect("BENCH_PENDING lists numbers"));
    }
    group.finish();
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
}
