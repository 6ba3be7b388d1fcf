//! The operations of the wheel beside its peers.
//!
//! ```text
//! cargo bench -p delaywheel-compare --bench wheel
//! BENCH_PENDING=1000 cargo bench -p delaywheel-compare --bench wheel -- --quick
//! ```
//!
//! `BENCH_PENDING` lists the numbers of pending timeouts, 1000, 100000 and 1000000 unless told
//! otherwise. A benchmark's path is `wheel/OPERATION/PENDING/CONTESTANT/SPREAD`; its time is that
//! of the operation done once for each pending timeout.

#![forbid(unsafe_code)]

use std::{env, time::Duration};

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, measurement::WallTime,
};
use delaywheel_compare::{
    Timers,
    drive::{Ledger, cancel_insert, expire_all, insert_all, reset_all, timed},
    timers::{BTree, DelayQueue, LazyHeap, Wheel},
    workload::{Pair, Spread, Workload},
};

fn main() {
    let mut criterion = config().configure_from_args();
    bench_all::<Insert>(&mut criterion);
    bench_all::<CancelInsert>(&mut criterion);
    bench_all::<ExpireAll>(&mut criterion);
    bench_all::<ResetLater>(&mut criterion);
    criterion.final_summary();
}

/// Seed of all workloads.
const SEED: u64 = 7;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Adds a benchmark of one contestant to a group.
trait Operation {
    const NAME: &'static str;

    fn bench<T: Timers + Default>(group: &mut Group<'_>, spread: Spread, count: u32);
}

/// Inserts into an empty contestant.
struct Insert;

/// Cancels a random timeout and inserts another, in a steady state.
struct CancelInsert;

/// Expires all, sleeping until the next expiration each time.
struct ExpireAll;

/// Puts all timeouts off, in random order.
struct ResetLater;

impl Operation for Insert {
    const NAME: &'static str = "insert";

    fn bench<T: Timers + Default>(group: &mut Group<'_>, spread: Spread, count: u32) {
        let deadlines = Workload::new(spread, SEED).deadlines(count);
        measure::<T>(group, spread, || {
            let (mut timers, mut keys) = (T::default(), Vec::with_capacity(deadlines.len()));
            let (duration, ()) = timed(|| insert_all(&mut timers, &deadlines, &mut keys));
            assert_eq!(expire_all(&mut timers).0, Ledger::of(&deadlines));
            duration
        });
    }
}

impl Operation for CancelInsert {
    const NAME: &'static str = "cancel_insert";

    fn bench<T: Timers + Default>(group: &mut Group<'_>, spread: Spread, count: u32) {
        let mut workload = Workload::new(spread, SEED);
        let mut deadlines = workload.deadlines(count);
        let (mut timers, mut keys) = (T::default(), Vec::new());
        insert_all(&mut timers, &deadlines, &mut keys);
        let mut churn = |pairs: &[Pair]| {
            let (duration, ()) = timed(|| cancel_insert(&mut timers, &mut keys, pairs));
            for pair in pairs {
                deadlines[pair.victim as usize] = pair.deadline;
            }
            duration
        };
        churn(&workload.pairs(count, 4 * count));
        measure::<T>(group, spread, || churn(&workload.pairs(count, count)));
        assert_eq!(expire_all(&mut timers).0, Ledger::of(&deadlines));
    }
}

impl Operation for ExpireAll {
    const NAME: &'static str = "expire_all";

    fn bench<T: Timers + Default>(group: &mut Group<'_>, spread: Spread, count: u32) {
        let deadlines = Workload::new(spread, SEED).deadlines(count);
        measure::<T>(group, spread, || {
            let (mut timers, mut keys) = (T::default(), Vec::new());
            insert_all(&mut timers, &deadlines, &mut keys);
            let (duration, (expired, _)) = timed(|| expire_all(&mut timers));
            assert_eq!(expired, Ledger::of(&deadlines));
            duration
        });
    }
}

impl Operation for ResetLater {
    const NAME: &'static str = "reset_later";

    fn bench<T: Timers + Default>(group: &mut Group<'_>, spread: Spread, count: u32) {
        let mut workload = Workload::new(spread, SEED);
        let (deadlines, order) = (workload.deadlines(count), workload.order(count));
        let later: Vec<_> =
            workload.deadlines(count).iter().zip(&deadlines).map(|(a, b)| a + b).collect();
        let pair = |&victim| Pair { victim, deadline: later[victim as usize] };
        let pairs: Vec<_> = order.iter().map(pair).collect();
        measure::<T>(group, spread, || {
            let mut timers = T::default();
            let timeouts = deadlines.iter().zip(&later);
            let insert = |(&deadline, &later)| timers.insert(deadline, later);
            let mut keys: Vec<_> = timeouts.map(insert).collect();
            let (duration, ()) = timed(|| reset_all(&mut timers, &mut keys, &pairs));
            assert_eq!(expire_all(&mut timers).0, Ledger::of(&later));
            duration
        });
    }
}

/// Has criterion repeat an operation, which tells how long the timed part of it took.
fn measure<T: Timers>(
    group: &mut Group<'_>,
    spread: Spread,
    mut operation: impl FnMut() -> Duration,
) {
    let id = BenchmarkId::new(T::NAME, spread.name());
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| operation()).sum());
    });
}

fn bench_all<O: Operation>(criterion: &mut Criterion) {
    for count in counts() {
        let mut group = criterion.benchmark_group(format!("wheel/{}/{count}", O::NAME));
        group.throughput(Throughput::Elements(u64::from(count)));
        group.sampling_mode(SamplingMode::Flat);
        for spread in [Spread::Minute, Spread::Month] {
            O::bench::<Wheel>(&mut group, spread, count);
            O::bench::<LazyHeap>(&mut group, spread, count);
            O::bench::<BTree>(&mut group, spread, count);
            O::bench::<DelayQueue>(&mut group, spread, count);
        }
        group.finish();
    }
}

/// Numbers of pending timeouts.
fn counts() -> Vec<u32> {
    let list = env::var("BENCH_PENDING").unwrap_or_else(|_| "1000,100000,1000000".into());
    let count = |count: &str| count.parse().expect("BENCH_PENDING lists numbers");
    list.split(',').map(count).collect()
}

/// Few samples, since what is not timed takes longer than what is.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
}
