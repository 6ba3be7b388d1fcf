//! Contestants with threads: no timeout is lost or doubled, and none is earlier than promised.
//!
//! Only lateness by design is tested, since the machine may be busy.

use std::time::Duration;

use delaywheel_compare::{
    shared::{
        AsyncIo, Closures, FuturesTimer, OwnSleeps, SharedTimer, Tokio, Typed, schedule_all,
        schedule_all_noted,
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

#[test]
fn every_shared_timer_expires_each_timeout_once_and_not_early() {
    check_expired::<Typed>();
    check_expired::<Typed<true>>();
    check_expired::<Closures>();
    check_expired::<OwnSleeps>();
    check_expired::<Tokio>();
    #[cfg(tokio_unstable)]
    check_expired::<Tokio<true>>();
    check_expired::<AsyncIo>();
    check_expired::<FuturesTimer>();
}

#[test]
fn every_shared_timer_cancels_and_moves_pending_timeouts() {
    check_cancelled::<Typed>();
    check_cancelled::<Closures>();
    check_cancelled::<Tokio>();
    #[cfg(tokio_unstable)]
    check_cancelled::<Tokio<true>>();
    check_cancelled::<AsyncIo>();
    check_cancelled::<FuturesTimer>();
}

/// Checks that no timeout is lost or doubled, and none is early.
fn check_expired<S: SharedTimer>() {
    let timer = S::start();
    let _entered = timer.enter();
    let (arrivals, due) = schedule_all_noted(&timer, &delays(1, 500));
    let outcome = arrivals.settle(due, PATIENCE);
    assert_eq!(outcome.faults, 0, "{}", S::NAME);
    assert!(outcome.arrived.iter().all(|(due, at)| due <= at), "{}", S::NAME);
}

fn check_cancelled<S: SharedTimer>() {
    let timer = S::start();
    let _entered = timer.enter();
    let mut rng = Rng::with_seed(2);
    let far: Vec<_> = workload::delays(&mut rng, 1_000).iter().map(|&delay| 60 * delay).collect();
    let mut timeouts = schedule_all(&timer, &far);
    for _ in 0..5_000 {
        let Victim { index, delay } = Victim::draw(&mut rng, 1_000);
        let timeout = &mut timeouts[index as usize];
        assert!(timer.replace(timeout, 60 * delay), "{}", S::NAME);
        assert!(timer.reset(timeout, 50 * delay), "{}", S::NAME);
    }
}
