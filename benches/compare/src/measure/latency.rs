//! The longest of many calls that should be short.
//!
//! The n-th call does the same work in every round. So the figure of a call is the least of the
//! rounds, which excludes preemption.

use crate::prelude::*;

/// Steps of the wheel in one limited call.
const LIMIT: u64 = 4_096;

/// Appends the nanoseconds of each call; always as many calls.
type Turn<'a> = (&'static str, Box<dyn Fn(&mut Vec<u32>) + 'a>);

/// Single calls of `advance`, `cancel` and `insert`.
pub(crate) fn run(bench: &mut Bench) -> Done {
    let mut rng = Rng::with_seed(bench.options.seed);
    let pending = bench.full(10_000, 1_000_000);
    let deadlines = Spread::Minute.delays(&mut rng, pending);
    let mut victims: Vec<_> = (0..deadlines.len()).collect();
    rng.shuffle(&mut victims);
    let many = Spread::Minute.delays(&mut rng, bench.full(10_000, 10_000_000));
    let (deadlines, victims, many) = (&deadlines, &victims, &many);
    let advances: Vec<Turn<'_>> = vec![
        ("delaywheel, limit 4096", Box::new(|calls| advance_limited(deadlines, calls))),
        (Wheel::NAME, Box::new(|calls| advance::<Wheel>(deadlines, calls))),
        (LazyHeap::NAME, Box::new(|calls| advance::<LazyHeap>(deadlines, calls))),
    ];
    longest(bench, "wheel/advance", "p50 p99.9 max", &advances);
    let cancels: Vec<Turn<'_>> = vec![
        (Wheel::NAME, Box::new(|calls| cancel_all::<Wheel>(deadlines, victims, calls))),
        (LazyHeap::NAME, Box::new(|calls| cancel_all::<LazyHeap>(deadlines, victims, calls))),
    ];
    longest(bench, "wheel/cancel", "p50 p99.99 max", &cancels);
    let inserts: Vec<Turn<'_>> = vec![
        (Wheel::NAME, Box::new(|calls| insert_each::<Wheel>(many, calls))),
        (LazyHeap::NAME, Box::new(|calls| insert_each::<LazyHeap>(many, calls))),
    ];
    longest(bench, "wheel/grow", "p50 p99.99 max", &inserts);
    bench.add("wheel/century", Wheel::NAME, count(steps_of_a_century()));
    Ok(())
}

fn longest(bench: &mut Bench, row: &str, percentiles: &str, turns: &[Turn<'_>]) {
    bench.tell(row);
    let mut least = vec![Vec::new(); turns.len()];
    for _ in 0..bench.rounds().clamp(2, 5) {
        for ((_, turn), least) in turns.iter().zip(&mut least) {
            let mut calls = Vec::with_capacity(least.len());
            turn(&mut calls);
            if least.is_empty() {
                least.clone_from(&calls);
            }
            assert_eq!(least.len(), calls.len(), "the rounds differ");
            least.iter_mut().zip(&calls).for_each(|(least, call)| *least = *call.min(least));
        }
    }
    for ((name, _), least) in turns.iter().zip(&least) {
        let histogram = histogram(least.iter().map(|&nanos| u64::from(nanos)));
        bench.add_all(Figure::percentiles(row, name, &histogram, percentiles, MICRO));
    }
}

/// Nanoseconds of one call; four seconds if it took longer.
fn note(calls: &mut Vec<u32>, duration: Duration) {
    calls.push(u32::try_from(nanos(duration)).unwrap_or(u32::MAX));
}

/// Ticks at which time stands still for a call.
fn stops() -> impl Iterator<Item = u64> {
    (0..=60 * SECOND).step_by(10)
}

fn advance<T: Timers + Default>(deadlines: &[u64], calls: &mut Vec<u32>) {
    let (mut timers, mut sum) = (T::default(), 0);
    insert_all(&mut timers, deadlines);
    for now in stops() {
        note(calls, timed(|| timers.advance(now, |deadline| sum += deadline)).0);
    }
    assert_eq!(sum, deadlines.iter().sum::<u64>());
}

fn advance_limited(deadlines: &[u64], calls: &mut Vec<u32>) {
    let (mut timers, mut sum) = (Wheel::default(), 0);
    insert_all(&mut timers, deadlines);
    for now in stops() {
        let mut is_drained = false;
        while !is_drained {
            let wheel = &mut timers.0;
            let (duration, drained) = timed(|| advance_once(wheel, now, &mut sum));
            note(calls, duration);
            is_drained = drained;
        }
    }
    assert_eq!(sum, deadlines.iter().sum::<u64>());
}

/// One call of `advance`, as during one hold of a lock. Returns whether nothing more is due.
fn advance_once(wheel: &mut TimingWheel<u64>, now: u64, sum: &mut u64) -> bool {
    let mut due = wheel.advance(Tick::new(now)).limit(LIMIT);
    *sum += due.by_ref().map(|expired| expired.value).sum::<u64>();
    due.is_drained()
}

fn cancel_all<T: Timers + Default>(deadlines: &[u64], victims: &[usize], calls: &mut Vec<u32>) {
    let mut timers = T::default();
    let keys = insert_all(&mut timers, deadlines);
    for &victim in victims {
        let key = black_box(keys[victim]);
        let (duration, is_cancelled) = timed(|| timers.cancel(key));
        note(calls, duration);
        assert!(is_cancelled.is_some(), "a victim was not pending");
    }
    assert!(timers.is_empty());
}

fn insert_each<T: Timers + Default>(deadlines: &[u64], calls: &mut Vec<u32>) {
    let mut timers = T::default();
    for &deadline in deadlines {
        note(calls, timed(|| timers.insert(deadline, deadline)).0);
    }
    assert_eq!(timers.len(), deadlines.len());
}

/// Steps until a timeout a century ahead expires.
fn steps_of_a_century() -> u64 {
    let (mut wheel, century) = (TimingWheel::default(), Tick::new(36_525 * DAY));
    wheel.insert(century, "a century").expect("the wheel is empty");
    let mut steps = 1;
    while wheel.advance(century).limit(1).next().is_none() {
        steps += 1;
    }
    assert!(wheel.is_empty());
    steps
}
