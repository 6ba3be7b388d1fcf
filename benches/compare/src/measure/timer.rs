//! Measurements of this crate's timer alone, in real time.
//!
//! Every timeout carries the instant that was asked for, and the handler notes when it runs; none
//! may be early. So lateness includes the way to the next tick: half a tick in the median.

use crate::prelude::*;

/// Timeouts that are due uniformly within a second, which begins after `lead`: their lateness, and
/// processor time of the process from the last `schedule` on.
fn burst_of<const INLINE: bool>(bench: &mut Bench, number: u32, lead: Duration) {
    const SPAN: Duration = Duration::from_secs(1);
    let due = instants(&mut Rng::with_seed(1), number, lead, SPAN);
    let (timer, arrivals) = (Typed::<INLINE>::start(), Arrivals::new(due.len()));
    timer.schedule_at(&arrivals, &due);
    let before = process_cpu();
    sleep_until(arrivals.instant(nanos(lead + SPAN)) + 20 * MILLI);
    let late = arrivals.settle_strictly(due).lateness(0..u64::MAX);
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.pending), (u64::from(number), 0));
    let name = Typed::<INLINE>::NAME;
    bench.add_all(Figure::percentiles("timer/burst", name, &late, "p50 p99", MILLI));
    if let Some(cpu) = cpu {
        bench.add("timer/burst/cpu", name, nanos_per(cpu, u64::from(number)));
    }
}

/// Very many timeouts within a second.
pub(crate) fn burst(bench: &mut Bench) -> Done {
    let number = bench.full(100_000, 1_000_000);
    let lead = bench.millis(500, 2_000);
    for _ in 0..bench.rounds() {
        burst_of::<false>(bench, number, lead);
        burst_of::<true>(bench, number, lead);
    }
    Ok(())
}

/// A hundred thousand timeouts a second are scheduled, and as many expire.
pub(crate) fn steady(bench: &mut Bench) -> Done {
    let millis = bench.full(500, 3_000);
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
    let settings = Timer::builder().tick(tick).name(THREADS);
    let timer = Typed::<false>::new(settings);
    let arrivals = Arrivals::new((end * PER_MILLI) as usize);
    let mut before = None;
    for (step, dues) in (0..).zip(&steps) {
        sleep_until(arrivals.instant(nanos(step * MILLI)));
        timer.schedule_at(&arrivals, dues);
        if step == start {
            before = cpu(THREADS);
        }
    }
    let after = cpu(THREADS);
    let outcome = arrivals.settle_strictly(steps.into_iter().flatten().collect());
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.pending), (u64::from(end * PER_MILLI), 0));
    let late = outcome.lateness(nanos(start * MILLI)..nanos(end * MILLI));
    let row = format!("timer/steady/{name}");
    bench.add_all(Figure::percentiles(&row, Typed::<false>::NAME, &late, "p50 p99 p99.9", MILLI));
    if let Some((before, after)) = before.zip(after) {
        let [process, threads] = spent(before, after, window * MILLI);
        for (row, spent) in [("threads", threads), ("process", process)] {
            bench.add(&format!("timer/steady/cpu/{name}/{row}"), Typed::<false>::NAME, spent);
        }
    }
}

/// Single calls to `schedule` while timeouts of one coarse bucket come due, in a timer with one
/// shard.
pub(crate) fn crowd(bench: &mut Bench) -> Done {
    let crowd = bench.full(100_000, 1_000_000);
    for _ in 0..bench.rounds() {
        let calls = histogram(crowd_turn(crowd));
        let figures =
            Figure::percentiles("timer/crowd", Typed::<false>::NAME, &calls, "p50 p99.9", MICRO);
        bench.add_all(figures);
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
    let timer = Typed::<false>::new(Timer::builder().tick(TICK).shards(1));
    let arrivals = Arrivals::new(due.len());
    timer.schedule_at(&arrivals, &due);
    let at = |millis: u64| arrivals.instant(nanos(INDEX * BUCKET) - millis * 1_000_000);
    assert!(Instant::now() < at(0), "the bucket was due before it was full");
    sleep_until(at(20));
    let mut calls = Vec::new();
    while timer.stats().expired < u64::from(crowd) {
        for _ in 0..64 {
            calls.push(nanos(timed(|| timer.schedule(Duration::from_mins(1))).0));
        }
    }
    calls
}
