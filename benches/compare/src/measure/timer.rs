//! Measurements of this crate's timer alone, in real time.
//!
//! Every timeout carries the instant that was asked for, and the handler notes when it runs; none
//! may be early. So lateness includes the way to the next tick: half a tick in the median.

use crate::prelude::*;

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
    let pairs = bench.full(10_000, 1_000_000);
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

/// Makes a timer that notes when each of so many timeouts runs.
fn noting(settings: TimerBuilder, number: usize) -> (ValueTimer<u64>, Arc<Arrivals>) {
    let arrivals = Arrivals::new(number);
    let handler = Arc::clone(&arrivals);
    let timer = settings.build_with(move |due| handler.note(due)).expect("the settings are valid");
    (timer, arrivals)
}

fn schedule(timer: &ValueTimer<u64>, arrivals: &Arrivals, dues: &[u64]) {
    for &due in dues {
        timer.schedule_at(arrivals.instant(due), due).expect("the timer takes 2^32 timeouts");
    }
}

/// Timeouts that are due uniformly within a second, which begins after `lead`. Returns their
/// lateness, and processor time of the process from the last `schedule` on.
fn burst_of(
    settings: TimerBuilder,
    number: u32,
    lead: Duration,
) -> (Histogram<u64>, Option<Duration>) {
    const SPAN: Duration = Duration::from_secs(1);
    let due = instants(&mut Rng::with_seed(1), number, lead, SPAN);
    let (timer, arrivals) = noting(settings, due.len());
    schedule(&timer, &arrivals, &due);
    let before = process_cpu();
    sleep_until(arrivals.instant(nanos(lead + SPAN)) + 20 * MILLI);
    let outcome = arrivals.settle_strictly(due);
    let cpu = process_cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
    let stats = timer.stats();
    assert_eq!((stats.expired, stats.pending), (u64::from(number), 0));
    (outcome.lateness(0..u64::MAX), cpu)
}

/// Very many timeouts within a second, and few with short ticks.
pub(crate) fn burst(bench: &mut Bench) -> Done {
    let number = bench.full(100_000, 1_000_000);
    let lead = bench.millis(500, 2_000);
    for _ in 0..bench.rounds() {
        for (name, settings) in
            [(Typed::NAME, Timer::builder()), ("delaywheel inline", Timer::builder().inline())]
        {
            let (late, cpu) = burst_of(settings, number, lead);
            let figures = Figure::percentiles("timer/burst", name, &late, "p50 p99 max", MILLI);
            bench.add_all(figures);
            if let Some(cpu) = cpu {
                bench.add("timer/burst/cpu", name, nanos_per(cpu, u64::from(number)));
            }
        }
        let settings = Timer::builder().tick(50 * MICRO);
        let (late, _) = burst_of(settings, 2_000, 50 * MILLI);
        let figures = Figure::percentiles("timer/fine", Typed::NAME, &late, "p50 p99", MICRO);
        bench.add_all(figures);
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
    let (timer, arrivals) = noting(settings, (end * PER_MILLI) as usize);
    let mut before = None;
    for (step, dues) in (0..).zip(&steps) {
        sleep_until(arrivals.instant(nanos(step * MILLI)));
        schedule(&timer, &arrivals, dues);
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
    bench.add_all(Figure::percentiles(&row, Typed::NAME, &late, "p50 p99 p99.9", MILLI));
    if let Some((before, after)) = before.zip(after) {
        let [process, threads] = spent(before, after, window * MILLI);
        for (row, spent) in [("threads", threads), ("process", process)] {
            bench.add(&format!("timer/steady/cpu/{name}/{row}"), Typed::NAME, spent);
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
            Figure::percentiles("timer/crowd", Typed::NAME, &calls, "p50 p99.9 max", MICRO);
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
        schedule(&timer, &arrivals, &due);
        schedule(&timer, &arrivals, &[slow]);
        let late = arrivals.settle_strictly(due).lateness(0..u64::MAX);
        let figures = Figure::percentiles("timer/slow", Typed::NAME, &late, "p50 p99", MILLI);
        bench.add_all(figures);
    }
    Ok(())
}
