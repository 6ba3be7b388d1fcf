//! Timers that end while several threads use them: no timeout is lost, whichever way they end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use delaywheel::{Timer, ValueTimer};

use crate::{breaches::Breaches, ledger, variable::variable};

const THREADS: u64 = 4;

/// Timeouts that each thread schedules one by one, and then in a batch.
const SINGLE: u64 = 25;

fn rounds() -> u64 {
    let default = if cfg!(debug_assertions) { 50 } else { 1_000 };
    variable("THREADS_ENDS").unwrap_or(default)
}

pub(crate) fn run() -> bool {
    let breaches = Breaches::default();
    (0..rounds()).for_each(|seed| round(seed, &breaches));
    breaches.report()
}

/// Every timeout runs, is refused, or is returned to one of the threads.
fn round(seed: u64, breaches: &Breaches) {
    let ended = Arc::new(AtomicU64::new(0));
    let ran = Arc::clone(&ended);
    let builder = Timer::builder().shards(2);
    let builder = if seed % 2 == 0 { builder.inline() } else { builder };
    let timer = builder.build_with(move |_: u64| _ = ran.fetch_add(1, Relaxed));
    let timer = timer.expect("the settings are in range");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (timer, ended) = (&timer, &ended);
            scope.spawn(move || {
                let random = fastrand::Rng::with_seed(seed * THREADS + thread);
                ended.fetch_add(load(timer, thread, seed, random), Relaxed);
            });
        }
    });
    let is_complete = ledger::wait_until(|| ended.load(Relaxed) == THREADS * SINGLE);
    breaches.unless(is_complete, || format!("seed {seed}: {} timeouts ended", ended.load(Relaxed)));
    let is_refusing = timer.shutdown().is_empty() && timer.schedule(Duration::ZERO, 0).is_err();
    breaches.unless(is_refusing, || format!("seed {seed}: the timer is not shut down"));
    ledger::check_timer("ends", &timer.stats(), breaches);
}

/// Schedules, and on some threads ends the timer. Returns the number of refused and returned
/// timeouts.
fn load(timer: &ValueTimer<u64>, thread: u64, seed: u64, mut random: fastrand::Rng) -> u64 {
    let mut delay = || Duration::from_micros(random.u64(..300));
    let mut ended = 0;
    for value in 0..SINGLE {
        ended += u64::from(timer.schedule(delay(), value).is_err());
    }
    let returned = match (thread, seed % 3) {
        (0, 0) => timer.shutdown().len(),
        (0 | 1, 1) => timer.finish(delay()).len(),
        (0 | 1, 2) => timer.finish(100 * delay()).len(),
        _ => 0,
    };
    ended + returned as u64
}
