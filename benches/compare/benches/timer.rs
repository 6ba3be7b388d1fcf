//! The operations of the timer, beside tokio's sleeps.
//!
//! ```text
//! cargo bench -p delaywheel-compare --bench timer
//! BENCH_PENDING=1000 cargo bench -p delaywheel-compare --bench timer -- --quick
//! ```
//!
//! `BENCH_PENDING` lists the numbers of pending timeouts, 1000, 100000 and 1000000 unless told
//! otherwise. A benchmark's path is `timer/OPERATION/PENDING/CONTESTANT`; its time is that of the
//! operation done once for each pending timeout.

#![forbid(unsafe_code)]

use std::{env, time::Duration};

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, measurement::WallTime,
};
use delaywheel::{ManualClock, Timer, TimerBuilder};
use delaywheel_compare::{
    drive::timed,
    shared::{
        Accountable, Closures, Load, SharedTimer, Sleeps, Typed, replace_all, schedule_all, settle,
    },
    workload::{Spread, Workload},
};
use tokio::runtime;

fn main() {
    let mut criterion = config().configure_from_args();
    bench(&mut criterion, "schedule_cancel", |group, count| {
        churn_accounted(group, Typed::new(Timer::builder()), count);
        churn_accounted(group, Closures::new(Timer::builder()), count);
        churn_sleeps(group, count);
    });
    bench(&mut criterion, "reset_later", |group, count| {
        reset_later(group, Typed::new, count);
        reset_later(group, Closures::new, count);
    });
    bench(&mut criterion, "expire", |group, count| {
        expire(group, Typed::new, count);
        expire(group, Closures::new, count);
    });
    criterion.final_summary();
}

/// Seed of all workloads.
const SEED: u64 = 7;

/// The longest delay.
const MINUTE: Duration = Duration::from_mins(1);

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Cancels a random timeout and schedules another, in real time, of which a little passes.
///
/// Returns how many were scheduled, and how many of them cancelled.
fn churn<S: SharedTimer>(group: &mut Group<'_>, timer: &S, count: u32) -> (u64, u64) {
    let mut load = Load::new(SEED);
    let mut timeouts = schedule_all(timer, &load.delays(count));
    let mut scheduled = u64::from(count);
    let mut cancelled = 0;
    measure::<S>(group, || {
        let victims = load.victims(count, count);
        let (duration, pending) = timed(|| replace_all(timer, &mut timeouts, &victims));
        scheduled += u64::from(count);
        cancelled += pending;
        duration
    });
    (scheduled, cancelled)
}

#[expect(clippy::needless_pass_by_value, reason = "dropping the timer ends its threads")]
fn churn_accounted<S: Accountable>(group: &mut Group<'_>, timer: S, count: u32) {
    let (scheduled, cancelled) = churn(group, &timer, count);
    settle(&timer, scheduled, cancelled);
}

fn churn_sleeps(group: &mut Group<'_>, count: u32) {
    let runtime = runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without I/O can be built");
    let _entered = runtime.enter();
    churn(group, &Sleeps, count);
}

/// Puts all timeouts off, in random order, while no time passes.
fn reset_later<S: Accountable>(group: &mut Group<'_>, make: fn(TimerBuilder) -> S, count: u32) {
    let delays = Load::new(SEED).delays(count);
    let order = Workload::new(Spread::Minute, SEED).order(count);
    measure::<S>(group, || {
        let clock = ManualClock::new();
        let timer = make(Timer::builder().clock(clock.clone()));
        let timeouts = schedule_all(&timer, &delays);
        let (duration, ()) = timed(|| {
            for &index in &order {
                let delay = MINUTE + delays[index as usize];
                assert!(timer.reset(&timeouts[index as usize], delay), "a timeout was not pending");
            }
        });
        clock.advance(MINUTE);
        assert_eq!(timer.ran(), 0, "a timeout that was put off came early");
        clock.advance(MINUTE);
        assert_eq!(timer.ran(), u64::from(count));
        settle(&timer, u64::from(count), 0);
        duration
    });
}

/// Expires all, in virtual time.
fn expire<S: Accountable>(group: &mut Group<'_>, make: fn(TimerBuilder) -> S, count: u32) {
    let delays = Load::new(SEED).delays(count);
    measure::<S>(group, || {
        let clock = ManualClock::new();
        let timer = make(Timer::builder().clock(clock.clone()));
        schedule_all(&timer, &delays);
        let (duration, ()) = timed(|| clock.advance(MINUTE));
        assert_eq!(timer.ran(), u64::from(count));
        settle(&timer, u64::from(count), 0);
        duration
    });
}

/// Has criterion repeat an operation, which tells how long the timed part of it took.
fn measure<S: SharedTimer>(group: &mut Group<'_>, mut operation: impl FnMut() -> Duration) {
    group.bench_function(BenchmarkId::from_parameter(S::NAME), |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| operation()).sum());
    });
}

/// Benchmarks an operation at each number of pending timeouts.
fn bench(criterion: &mut Criterion, operation: &str, contestants: impl Fn(&mut Group<'_>, u32)) {
    for count in counts() {
        let mut group = criterion.benchmark_group(format!("timer/{operation}/{count}"));
        group.throughput(Throughput::Elements(u64::from(count)));
        group.sampling_mode(SamplingMode::Flat);
        contestants(&mut group, count);
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
