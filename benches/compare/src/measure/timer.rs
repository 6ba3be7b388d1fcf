//! Measurements of this crate's timer alone, in real time.
//!
//! Every timeout carries the instant that was asked for, and the handler notes when it runs; none
//! may be early. So lateness includes the way to the next tick: half a tick in the median.

use std::{
    hint::black_box,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Timer, TimerBuilder, ValueTimer};
use fastrand::Rng;

use super::wheel::{nanos_per, timed};
use crate::{
    arrivals::{Arrivals, histogram, millis},
    bench::{Bench, Done},
    os::{Usage, process_cpu, sleep_until, threads, wait_until},
    shared::{Closures, SharedTimer, Typed},
    workload::{count, instants, nanos},
};

const MILLI: Duration = Duration::from_millis(1);

/// One read of the clock.
pub(crate) fn clock(bench: &mut Bench) -> Done {
    const READS: u64 = 1_000_000;
    for _ in 0..bench.rounds() {
        let (time, ()) = timed(|| {
            for _ in 0..READS {
                black_box(Instant::now());
            }
        });
        bench.add("timer/clock", "Instant::now", nanos_per(time, READS));
    }
    Ok(())
}

/// Wake-ups of a timer with nothing to do.
pub(crate) fn idle(bench: &mut Bench) -> Done {
    let timer = Timer::builder().name("idle").build().expect("the settings are valid");
    timer.schedule(Duration::from_hours(720), || ()).expect("the timer is empty");
    // The threads start and fall asleep.
    thread::sleep(Duration::from_millis(500));
    let before = timer.stats().wakeups;
    thread::sleep(bench.millis(500, 5_000));
    let stats = timer.stats();
    assert_eq!(stats.pending, 1);
    bench.add("timer/idle/wakeups", Closures::NAME, count(stats.wakeups - before));
    let pairs = bench.pick(10_000, 1_000_000, 1_000_000);
    let timer = Timer::new();
    let start = Instant::now();
    for _ in 0..pairs {
        let timeout = timer.schedule(Duration::from_secs(1), || panic!("it was cancelled"));
        assert!(timeout.expect("the timer is empty").cancel());
    }
    sleep_until(start + Duration::from_secs(2));
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.cancelled, stats.pending), (pairs, pairs, 0));
    bench.add("timer/idle/cancelled", Closures::NAME, count(stats.wakeups));
    Ok(())
}

/// Lateness in milliseconds by percentile, and processor time of the process from the last
/// `schedule` on.
struct Burst {
    p50: f64,
    p99: f64,
    max: f64,
    cpu: Option<Duration>,
}

/// Timeouts that are due uniformly within a second, which begins after `lead`.
fn burst_of(settings: TimerBuilder, number: u32, lead: Duration) -> Burst {
    const SPAN: Duration = Duration::from_secs(1);
    let due = instants(&mut Rng::with_seed(1), number, lead, SPAN);
    let arrivals = Arrivals::new(due.len());
    let handler = Arc::clone(&arrivals);
    let timer = settings.build_with(move |due| handler.note(due)).expect("the settings are valid");
    for &due in &due {
        timer.schedule_at(arrivals.instant(due), due).expect("the timer takes 2^32 timeouts");
    }
    let before = process_cpu();
    sleep_until(arrivals.instant(nanos(lead + SPAN)) + 20 * MILLI);
    let outcome = arrivals.settle_strictly(due);
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.pending), (u64::from(number), 0));
    let late = outcome.lateness(0..u64::MAX);
    let [p50, p99, max] = [50.0, 99.0, 100.0].map(|percentile| millis(&late, percentile));
    Burst { p50, p99, max, cpu }
}

/// Very many timeouts within a second, and few with short ticks.
pub(crate) fn burst(bench: &mut Bench) -> Done {
    let number = bench.pick(100_000, 1_000_000, 1_000_000);
    let lead = bench.millis(500, 2_000);
    for _ in 0..bench.rounds() {
        for (name, settings) in
            [(Typed::NAME, Timer::builder()), ("delaywheel inline", Timer::builder().inline())]
        {
            let Burst { p50, p99, max, cpu } = burst_of(settings, number, lead);
            for (row, value) in [("p50", p50), ("p99", p99), ("max", max)] {
                bench.add(&format!("timer/burst/{row}"), name, value);
            }
            if let Some(cpu) = cpu {
                bench.add("timer/burst/cpu", name, nanos_per(cpu, u64::from(number)));
            }
        }
        let settings = Timer::builder().tick(Duration::from_micros(50));
        let fine = burst_of(settings, 2_000, 50 * MILLI);
        bench.add("timer/fine/p50", Typed::NAME, fine.p50 * 1e3);
        bench.add("timer/fine/p99", Typed::NAME, fine.p99 * 1e3);
    }
    Ok(())
}

/// A hundred thousand timeouts a second are scheduled, and as many expire.
pub(crate) fn steady(bench: &mut Bench) -> Done {
    let millis = bench.pick(500, 3_000, 3_000);
    for _ in 0..bench.rounds() {
        steady_turn(bench, "1ms", MILLI, millis);
        steady_turn(bench, "100us", MILLI / 10, millis);
    }
    Ok(())
}

/// How the names of the timer's threads start.
const THREADS: &str = "steady";

fn steady_turn(bench: &mut Bench, name: &str, tick: Duration, window: u32) {
    const PER_MILLI: u32 = 100;
    let (least, spread) = (100 * MILLI, 900 * MILLI);
    // Once the longest delay is over, as many expire as are scheduled.
    let (start, end) = (1_050, 1_050 + window);
    let mut rng = Rng::with_seed(1);
    let draw = |step: u32| instants(&mut rng, PER_MILLI, step * MILLI + least, spread);
    let steps: Vec<_> = (0..end).map(draw).collect();
    let arrivals = Arrivals::new((end * PER_MILLI) as usize);
    let handler = Arc::clone(&arrivals);
    let settings = Timer::builder().tick(tick).name(THREADS);
    let timer = settings.build_with(move |due| handler.note(due)).expect("the settings are valid");
    let mut before = None;
    for (step, dues) in (0..).zip(&steps) {
        sleep_until(arrivals.instant(nanos(step * MILLI)));
        for &due in dues {
            timer.schedule_at(arrivals.instant(due), due).expect("the timer takes 2^32 timeouts");
        }
        if step == start {
            before = cpu();
        }
    }
    let after = cpu();
    let outcome = arrivals.settle_strictly(steps.into_iter().flatten().collect());
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.pending), (u64::from(end * PER_MILLI), 0));
    let late = outcome.lateness(nanos(start * MILLI)..nanos(end * MILLI));
    for (row, percentile) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        bench.add(&format!("timer/steady/{name}/{row}"), Typed::NAME, millis(&late, percentile));
    }
    if let Some((before, after)) = before.zip(after) {
        let seconds = (window * MILLI).as_secs_f64();
        for (index, row) in ["threads", "process"].iter().enumerate() {
            let spent = after[index].saturating_sub(before[index]).as_secs_f64() * 1e3 / seconds;
            bench.add(&format!("timer/steady/cpu/{name}/{row}"), Typed::NAME, spent);
        }
    }
}

/// Processor time of the timer's threads and of the process; `None` if the system does not tell.
/// Waits until the threads of an earlier timer of this name have ended.
fn cpu() -> Option<[Duration; 2]> {
    let mut usage = Usage::default();
    wait_until("there are a reaper and an executor", || {
        usage = threads(THREADS).unwrap_or(Usage { threads: 2, ..Usage::default() });
        usage.threads == 2
    });
    Some([usage.cpu, process_cpu()?])
}

/// Single calls to `schedule` while timeouts of one coarse bucket come due, in a timer with one
/// shard.
pub(crate) fn crowd(bench: &mut Bench) -> Done {
    let crowd = bench.pick(100_000, 1_000_000, 1_000_000);
    for _ in 0..bench.rounds() {
        let calls = histogram(crowd_turn(crowd));
        for (row, percentile) in [("p50", 50.0), ("p99.9", 99.9), ("max", 100.0)] {
            bench.add(&format!("timer/crowd/{row}"), Typed::NAME, millis(&calls, percentile) * 1e3);
        }
    }
    Ok(())
}

/// Returns the nanoseconds of each call, from before the bucket is due until all its timeouts have
/// expired.
fn crowd_turn(crowd: u32) -> Vec<u64> {
    const TICK: Duration = Duration::from_micros(100);
    // The span of a bucket of the third level, if levels have 64 buckets.
    const BUCKET: Duration = Duration::from_micros(100 * 64 * 64);
    // Two seconds after the timer was made.
    const INDEX: u32 = 5;
    let due = instants(&mut Rng::with_seed(1), crowd, INDEX * BUCKET, BUCKET);
    let origin = Instant::now();
    let timer = Timer::builder().tick(TICK).shards(1).build_with(|_: u64| ());
    let timer = timer.expect("the settings are valid");
    for due in due {
        let instant = origin + Duration::from_nanos(due);
        timer.schedule_at(instant, due).expect("the timer takes 2^32 timeouts");
    }
    let start = origin + INDEX * BUCKET;
    assert!(Instant::now() < start, "the bucket was due before it was full");
    sleep_until(origin + (INDEX * BUCKET).saturating_sub(20 * MILLI));
    calls_until(&timer, u64::from(crowd))
}

fn calls_until(timer: &ValueTimer<u64>, expired: u64) -> Vec<u64> {
    let mut calls = Vec::new();
    while timer.stats().expired < expired {
        for _ in 0..64 {
            let (duration, timeout) = timed(|| timer.schedule(Duration::from_mins(1), 0));
            timeout.expect("the timer takes 2^32 timeouts");
            calls.push(nanos(duration));
        }
    }
    calls
}

/// Lateness beside a callback that takes a second, on one of two executor threads.
pub(crate) fn slow(bench: &mut Bench) -> Done {
    const SLOW: Duration = Duration::from_secs(1);
    const LEAD: Duration = Duration::from_millis(100);
    for _ in 0..bench.rounds() {
        let slow = nanos(LEAD);
        let due = instants(&mut Rng::with_seed(1), 20_000, LEAD + MILLI, SLOW);
        let arrivals = Arrivals::new(due.len());
        let handler = Arc::clone(&arrivals);
        let timer = Timer::builder().executor_threads(2).build_with(move |due| {
            if due == slow { thread::sleep(SLOW) } else { handler.note(due) }
        });
        let timer = timer.expect("the settings are valid");
        for &due in due.iter().chain([&slow]) {
            timer.schedule_at(arrivals.instant(due), due).expect("the timer takes 2^32 timeouts");
        }
        let late = arrivals.settle_strictly(due).lateness(0..u64::MAX);
        for (row, percentile) in [("p50", 50.0), ("p99", 99.0)] {
            bench.add(&format!("timer/slow/{row}"), Typed::NAME, millis(&late, percentile));
        }
    }
    Ok(())
}
