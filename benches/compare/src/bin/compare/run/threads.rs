//! Several threads that cancel and schedule at once, each among timeouts of its own.
//!
//! What a contestant leaves to a thread of its own is part of a pair: time is counted until that
//! has caught up.

use std::{
    sync::{Barrier, OnceLock},
    thread,
    time::{Duration, Instant},
};

use delaywheel_compare::{
    report::table::count,
    shared::{Load, SharedTimer, replace_all, schedule_all},
    side_by_side::{label, names::THREADS, results::Measurement},
    workload::SECOND,
};

use super::{
    Measured,
    child::{self, Act, Turn},
    record::{Demand, Record},
};

/// Timeouts that are pending, over all threads.
const PENDING: u32 = 100_000;

/// Pairs between two looks at the clock.
const CHUNK: usize = 256;

/// Pairs that are drawn beforehand, and gone through again and again.
const DRAWN: u32 = 1 << 16;

pub(crate) fn run(record: &mut Record) -> Measured {
    let demand =
        Demand { workload: THREADS, pending: PENDING, max_delay: 60 * SECOND, must_cancel: true };
    let millis = record.scope.pick(500, 50);
    for round in 1..=record.scope.rounds() {
        for threads in [1, 2] {
            record.tell(&format!("{threads} threads, round {round}"));
            let seed = record.scope.seed + round as u64;
            child::delegate_all(record, &demand, |name| Turn {
                workload: "threads".to_owned(),
                contestant: name.to_owned(),
                n: threads,
                millis,
                seed,
            })?;
        }
    }
    Ok(())
}

/// Millions of pairs a second.
pub(crate) fn take_turn(turn: &Turn) -> Vec<Measurement> {
    child::act(&turn.contestant, Pairs(turn))
}

/// Pairs of schedule and cancel.
struct Pairs<'a>(&'a Turn);

impl Act for Pairs<'_> {
    fn act<S: SharedTimer>(&self, make: impl Fn() -> S) -> Vec<Measurement> {
        let &Turn { n, millis, seed, .. } = self.0;
        let (timer, time) = (make(), Duration::from_millis(millis));
        let start = Start { barrier: Barrier::new(n as usize), begin: OnceLock::new(), time };
        let pairs: u64 = thread::scope(|scope| {
            let work = |thread| {
                let (timer, start, seed) = (timer.clone(), &start, seed + u64::from(thread));
                scope.spawn(move || work(&timer, Load::new(seed), PENDING / n, start))
            };
            let workers: Vec<_> = (0..n).map(work).collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
        });
        timer.catch_up();
        let begin = start.begin.get().expect("all workers have begun");
        let rate = count(pairs) / begin.elapsed().as_secs_f64() / 1e6;
        vec![Measurement::new(THREADS, &label(S::NAME), n.into(), "M pairs/s", vec![rate])]
    }
}

/// All threads begin together, and end when the time is up.
struct Start {
    barrier: Barrier,
    begin: OnceLock<Instant>,
    time: Duration,
}

impl Start {
    /// Waits for the others; returns when to end.
    fn wait(&self) -> Instant {
        self.barrier.wait();
        *self.begin.get_or_init(Instant::now) + self.time
    }
}

/// What one thread does. Returns the number of pairs.
fn work<S: SharedTimer>(timer: &S, mut load: Load, pending: u32, start: &Start) -> u64 {
    let _entered = timer.enter();
    let mut timeouts = schedule_all(timer, &load.delays(pending));
    let victims = load.victims(pending, DRAWN);
    timer.catch_up();
    let (end, mut pairs) = (start.wait(), 0);
    for victims in victims.chunks_exact(CHUNK).cycle() {
        if Instant::now() >= end {
            break;
        }
        replace_all(timer, &mut timeouts, victims);
        pairs += CHUNK as u64;
    }
    pairs
}
