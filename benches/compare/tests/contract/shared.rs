//! Contestants with threads: no timeout is lost or doubled, and none is earlier than promised.
//!
//! Only lateness by design is tested, since the machine may be busy.

use std::{thread, time::Duration};

use delaywheel_compare::{
    os::wait_until,
    shared::{
        AsyncIo, Closures, FuturesTimer, HashWheelThread, KafkaTimer, NettyTimer, Pingora,
        SharedTimer, Tokio, Typed, replace_all, schedule_all, schedule_all_noted,
    },
    workload::{self, Victim},
};
use fastrand::Rng;

const PATIENCE: Duration = Duration::from_mins(1);

const MILLISECOND: u64 = 1_000_000;

/// Delays of up to a tenth of a second, from a seed.
fn delays(seed: u64, count: u32) -> Vec<Duration> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| Duration::from_nanos(rng.u64(2 * MILLISECOND..100 * MILLISECOND))).collect()
}

/// Runs a check with each of some contestants.
macro_rules! each {
    ($check:ident: $($contestant:ident)*) => {$( $check::<$contestant>(); )*};
}

#[test]
fn every_shared_timer_expires_each_timeout_once() {
    each!(check_expired: Typed Closures Tokio AsyncIo FuturesTimer Pingora HashWheelThread NettyTimer KafkaTimer);
}

#[test]
fn every_shared_timer_cancels_pending_timeouts() {
    // The thread of `HashWheelThread` does not report cancels.
    each!(check_cancelled: Typed Closures Tokio AsyncIo FuturesTimer Pingora NettyTimer KafkaTimer);
}

/// Checks that no timeout is lost or doubled, and none is earlier than promised.
fn check_expired<S: SharedTimer>() {
    let timer = S::start();
    let _entered = timer.enter();
    let earliest = S::PROMISES.earliness * MILLISECOND;
    let (arrivals, due) = schedule_all_noted(&timer, &delays(1, 500));
    let outcome = arrivals.settle(due, PATIENCE);
    assert_eq!(outcome.faults, 0, "{}", S::NAME);
    let is_fine = |&(due, at): &(u64, u64)| due <= at + earliest;
    assert!(outcome.arrived.iter().all(is_fine), "{}: {:?}", S::NAME, outcome.arrived);
}

fn check_cancelled<S: SharedTimer>() {
    let timer = S::start();
    let _entered = timer.enter();
    let mut rng = Rng::with_seed(2);
    let far: Vec<_> = workload::delays(&mut rng, 1_000).iter().map(|&delay| 60 * delay).collect();
    let mut timeouts = schedule_all(&timer, &far);
    let mut victims = workload::victims(&mut rng, 1_000, 5_000);
    victims.iter_mut().for_each(|victim| victim.delay *= 60);
    assert_eq!(replace_all(&timer, &mut timeouts, &victims), 5_000, "{}", S::NAME);
    timer.settle(6_000, 5_000);
}

#[test]
fn a_timeout_that_races_with_its_cancel_runs_or_is_cancelled() {
    check_races(&NettyTimer::start(), |timer| timer.ran.get());
    check_races(&KafkaTimer::start(), |timer| timer.ran.get());
}

/// Two threads replace timeouts just as these are due; each runs, is cancelled, or is pending at
/// the end.
fn check_races<S: SharedTimer>(timer: &S, ran: impl Fn(&S) -> u64) {
    let (count, rounds) = (200, 200);
    let soon = |seed| {
        let mut rng = Rng::with_seed(seed);
        move || Duration::from_micros(rng.u64(0..4_000))
    };
    let work = |timer: S, seed| {
        let mut soon = soon(seed);
        let mut timeouts = schedule_all(&timer, &vec![Duration::ZERO; count as usize]);
        let mut cancelled = 0;
        for _ in 0..rounds {
            let victims = (0..count).map(|index| Victim { index, delay: soon() });
            cancelled += replace_all(&timer, &mut timeouts, &victims.collect::<Vec<_>>());
        }
        cancelled
    };
    let cancelled: u64 = thread::scope(|scope| {
        let spawn = |seed| {
            let timer = timer.clone();
            scope.spawn(move || work(timer, seed))
        };
        let workers = [spawn(1), spawn(2)];
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let scheduled = 2 * u64::from(count) * (rounds + 1);
    wait_until("the last have run", || ran(timer) + cancelled >= scheduled);
    assert_eq!(ran(timer) + cancelled, scheduled, "{}", S::NAME);
}

#[test]
fn catching_up_waits_until_the_thread_has_run_all_timeouts() {
    let timer = HashWheelThread::start();
    schedule_all(&timer, &vec![Duration::ZERO; 10_000]);
    timer.catch_up();
    assert_eq!(timer.ran.get(), 10_000);
}
