//! Operations of the contestants in virtual time.

use super::traffic::{Steady, Traffic};
use crate::prelude::*;

/// Runs something. Returns its time and its result.
pub fn timed<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let begin = Instant::now();
    let result = black_box(work());
    (begin.elapsed(), result)
}

/// Nanoseconds of each of `number`.
pub fn nanos_per(duration: Duration, number: u64) -> f64 {
    duration.as_secs_f64() * 1e9 / count(number)
}

/// Limit of the time in which a contestant reaches its steady state, besides the inserts.
const WARM_UP: Duration = Duration::from_secs(8);

/// Measures a contestant at work over so many operations, but no longer than a limit. Returns the
/// nanoseconds of one, and a caveat.
pub type AtWork<'a> = Box<dyn FnMut(u64, Duration) -> (f64, Option<String>) + 'a>;

/// Starts a contestant and brings it into its steady state.
pub fn at_work<T: Timers + Default + 'static>(traffic: &Traffic, limit: Duration) -> AtWork<'_> {
    let mut steady = Steady::new(T::default(), traffic);
    steady.ramp_up();
    let is_steady = steady.warm_up(limit);
    Box::new(move |operations, limit| {
        let value = steady.measure(operations, limit);
        let not_steady = || (!is_steady).then(|| "not steady: too slow".to_owned());
        (value, steady.fault().or_else(not_steady))
    })
}

fn steady(bench: &mut Bench, row: &str, traffic: &Traffic) {
    if !bench.is_asked(row) {
        return;
    }
    let limit = bench.full(Duration::from_millis(50), WARM_UP);
    bench.tell(row);
    let ready = |one: &timers::Entrant| (one.name, (one.at_work)(traffic, limit));
    let mut turns: Vec<_> = bench.of(&timers::ALL, |one| one.name).map(ready).collect();
    for _ in 0..bench.rounds() {
        for (name, at_work) in &mut turns {
            let (value, note) = at_work(bench.full(20_000, 500_000), bench.millis(50, 500));
            bench.add_noted(row, name, value, note);
        }
    }
}

/// Cancel and insert, or reset, in the steady state.
pub(crate) fn churn(bench: &mut Bench) -> Done {
    let seed = bench.options.seed;
    for (spread, usual) in [
        (Spread::Minute, &[100, 1_000, 100_000, 1_000_000][..]),
        (Spread::Month, &[1_000, 100_000]),
    ] {
        for &pending in bench.full(&[1_000][..], usual) {
            let row = format!("wheel/churn/{}/{}", spread.name(), size(pending));
            steady(bench, &row, &Traffic::churn(spread, pending, seed));
        }
    }
    for &pending in bench.full(&[1_000][..], &[1_000, 100_000]) {
        let row = format!("wheel/reset/{}", size(pending));
        steady(bench, &row, &Traffic::resets(Spread::Minute, pending, seed));
    }
    Ok(())
}

/// A request server, answered in two orders, and connections that are kept alive.
pub(crate) fn server(bench: &mut Bench) -> Done {
    let (pending, seed) = (bench.full(1_000, 100_000), bench.options.seed);
    steady(bench, "wheel/server/random", &Traffic::requests(pending, seed));
    steady(bench, "wheel/server/oldest", &Traffic::requests_in_order(pending, seed));
    steady(bench, "wheel/keep_alive", &Traffic::connections(pending, seed));
    Ok(())
}

/// Expired timeouts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    expired: u64,
    sum: u64,
    /// How often the contestant was woken.
    wakeups: u64,
}

/// Inserts timeouts whose payload is their deadline. Then sleeps until the next expiration in
/// virtual time and expires due timeouts, until none is pending. Returns the time of the latter.
pub fn drain_once<T: Timers + Default>(deadlines: &[u64]) -> (Duration, Drained) {
    let mut timers = T::default();
    for &deadline in deadlines {
        timers.insert(deadline, deadline);
    }
    let (time, drained) = timed(|| drain(&mut timers));
    let sum = deadlines.iter().fold(0, |sum: u64, deadline| sum.wrapping_add(*deadline));
    let expected = (deadlines.len() as u64, sum);
    assert_eq!((drained.expired, drained.sum), expected, "{} lost timeouts", T::NAME);
    (time, drained)
}

fn drain<T: Timers>(timers: &mut T) -> Drained {
    let mut drained = Drained::default();
    while let Some(now) = timers.next_expiration() {
        drained.wakeups += 1;
        let mut last = 0;
        timers.advance(now, |deadline| {
            assert!(deadline <= now && last <= deadline, "{deadline} after {last} at {now}");
            last = deadline;
            drained.sum = drained.sum.wrapping_add(deadline);
            drained.expired += 1;
        });
    }
    drained
}

/// A thousand timeouts within a year.
pub(crate) fn sparse(bench: &mut Bench) -> Done {
    const COUNT: u32 = 1_000;
    let draw = |seed| Spread::Year.delays(&mut Rng::with_seed(seed), COUNT);
    let first = 20 * bench.options.seed;
    let workloads: Vec<_> = (first..first + 20).map(draw).collect();
    let entrants: Vec<_> = bench.of(&timers::ALL, |one| one.name).collect();
    for _ in 0..bench.rounds() {
        bench.tell("sparse year");
        for one in &entrants {
            let drained: Vec<_> =
                workloads.iter().map(|deadlines| (one.drain)(deadlines)).collect();
            let time: Duration = drained.iter().map(|(time, _)| *time).sum();
            let wakeups = |(_, drained): &(_, Drained)| count(drained.wakeups) / f64::from(COUNT);
            let wakeups: Vec<_> = drained.iter().map(wakeups).collect();
            let number = count(workloads.len() as u64);
            for (row, value) in [
                ("time", time.as_secs_f64() * 1e6 / number),
                ("wakeups", wakeups.iter().sum::<f64>() / number),
            ] {
                bench.add(&format!("wheel/sparse/{row}"), one.name, value);
            }
        }
    }
    Ok(())
}
