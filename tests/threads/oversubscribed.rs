//! More runnable threads than processors: the reapers still expire due timeouts, while the threads
//! continue.
//!
//! The load ends only when everything has expired, so a starved reaper fails the part. The limit is
//! minutes, as the system decides when a thread runs; the printed times show the order of
//! magnitude.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Completion, DelayedOperation, Purgatory, ValueTimer};

use crate::{breaches::Breaches, ledger};

/// Threads that never pause: half use the timer, half the purgatory.
const THREADS: u64 = 16;

/// Timeouts, and as many operations, that expire beside them.
const EXPIRING: u64 = 1_000;

/// Longest delay of these, in microseconds.
const LONGEST: u64 = 100_000;

/// The delay of the timeouts that the threads add and remove.
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn run() -> bool {
    let (breaches, is_over) = (Breaches::default(), AtomicBool::new(false));
    let expired = [Arc::<AtomicU64>::default(), Arc::default()];
    let ran = Arc::clone(&expired[0]);
    let timer = ValueTimer::builder().build_with(move |_: u64| {
        ran.fetch_add(1, Relaxed);
    });
    let (timer, purgatory) = (timer.expect("the settings are valid"), Purgatory::new());
    let start = Instant::now();
    thread::scope(|scope| {
        let (timer, purgatory, is_over) = (&timer, &purgatory, &is_over);
        for thread in 0..THREADS {
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    if thread % 2 == 0 { pair(timer) } else { request(purgatory, thread) }
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..EXPIRING {
            let mut delay = || Duration::from_micros(random.u64(..LONGEST));
            timer.schedule(delay(), number).expect("the timer has room");
            let waiter = Waiter(Some(Arc::clone(&expired[1])));
            let watched = purgatory.try_complete_else_watch(waiter, [number % 100], delay());
            watched.expect("the purgatory has room");
        }
        for (name, expired) in ["timeouts", "operations"].iter().zip(&expired) {
            let is_complete = ledger::wait_until(|| expired.load(Relaxed) == EXPIRING);
            let count = expired.load(Relaxed);
            println!("{count} {name} expired within {:?} of the start", start.elapsed());
            breaches.unless(is_complete, || format!("{count} of {EXPIRING} {name} expired"));
        }
        is_over.store(true, Relaxed);
    });
    ledger::check_timer("oversubscribed", &timer.stats(), &breaches);
    let stats = purgatory.stats();
    breaches.unless(stats.expired == EXPIRING && stats.panicked == 0, || format!("{stats:?}"));
    breaches.report()
}

fn pair(timer: &ValueTimer<u64>) {
    let key = timer.schedule(HOUR, 0).expect("the timer has room");
    assert!(timer.cancel(key).is_some(), "a timeout of an hour has expired");
}

/// Watches three keys, which events of other threads check too, and completes by its handle.
fn request(purgatory: &Purgatory<u64, Waiter>, thread: u64) {
    let keys = [thread, thread + 1, thread + 2];
    let watched = purgatory.try_complete_else_watch(Waiter(None), keys, HOUR);
    let key = watched.expect("the purgatory has room").key().expect("it waits");
    purgatory.check_and_complete(&thread);
    assert!(purgatory.complete(key), "an operation of an hour has ended");
}

/// An operation whose condition never holds. It counts its expiration, or must not expire.
struct Waiter(Option<Arc<AtomicU64>>);

impl DelayedOperation<u64> for Waiter {
    fn complete(self, completion: Completion) {
        match (self.0, completion) {
            (Some(expired), Completion::Expired) => {
                expired.fetch_add(1, Relaxed);
            }
            (None, Completion::Satisfied) => {}
            (_, completion) => panic!("an operation ended by {completion:?}"),
        }
    }
}
