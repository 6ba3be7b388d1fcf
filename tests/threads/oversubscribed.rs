//! More runnable threads than processors: a late reaper expires many timeouts in each of its time
//! slices, while the other threads continue.
//!
//! The clock jumps, so many timeouts are due at once. From then on, threads that only compute count
//! their rounds, and must not have done [`ROUNDS`] before all timeouts have expired. That limit is
//! no time, so no slow or busy machine comes near it. A reaper that keeps its time slices needs a
//! tenth of it, or less; one that yields between short holds needs a multiple.

use std::{
    hint,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Clock, Completion, DelayedOperation, Purgatory, Timer};

use crate::{breaches::Breaches, ledger};

const COMPUTING: usize = 14;

/// Threads that use the timer or the purgatory, and contend for its locks.
const USING: usize = 2;

/// Rounds of the computing threads, at most: some seconds on two processors.
const ROUNDS: u64 = 60_000;

const DUE: u64 = 6_400;

const HOUR: Duration = Duration::from_secs(3600);

const YEAR: Duration = Duration::from_secs(31_536_000);

pub(crate) fn run() -> bool {
    let breaches = Breaches::default();
    timeouts(&breaches);
    operations(&breaches);
    breaches.report()
}

fn timeouts(breaches: &Breaches) {
    let (expired, clock) = (Arc::<AtomicU64>::default(), JumpingClock::new());
    let (ran, builder) = (Arc::clone(&expired), Timer::builder().clock(clock.clone()));
    let timer = builder.build_with(move |_: u64| _ = ran.fetch_add(1, Relaxed));
    let timer = timer.expect("the settings are valid");
    let schedule = |delay| timer.schedule(delay, 0).expect("the timer has room");
    (0..DUE).for_each(|_| _ = schedule(HOUR));
    let pair = |_| {
        let timeout = schedule(YEAR);
        assert!(timer.cancel(timeout).is_some(), "a timeout of a year has expired");
    };
    let jump = || {
        clock.jump();
        timer.wake();
    };
    check("timeouts", breaches, &expired, jump, pair);
    ledger::check_timer("oversubscribed", &timer.stats(), breaches);
}

fn operations(breaches: &Breaches) {
    let (expired, clock) = (Arc::<AtomicU64>::default(), JumpingClock::new());
    let builder = Purgatory::builder().timer(Timer::builder().clock(clock.clone()));
    let purgatory: Purgatory<u64, Waiter> = builder.build().expect("the settings are valid");
    let watch = |waiter, first, delay| {
        let watched = purgatory.watch(waiter, [first, first + 1, 100], delay);
        watched.expect("the purgatory has room").key()
    };
    (0..DUE).for_each(|number| _ = watch(Waiter(Some(Arc::clone(&expired))), number % 99, HOUR));
    // It also watches keys of other threads, and completes by its handle.
    let pair = |thread| {
        let key = watch(Waiter(None), thread, YEAR).expect("it waits");
        purgatory.check_and_complete(&(thread + 1_000));
        assert!(purgatory.complete(key), "an operation of a year has ended");
    };
    let jump = || {
        clock.jump();
        purgatory.wake();
    };
    check("operations", breaches, &expired, jump, pair);
    let stats = purgatory.stats();
    breaches.unless(stats.panicked == 0, || format!("{stats:?}"));
}

/// Lets the clock jump beside all threads, and checks the number of rounds until all have expired.
fn check(
    name: &str,
    breaches: &Breaches,
    expired: &AtomicU64,
    jump: impl FnOnce(),
    pair: impl Fn(u64) + Sync,
) {
    let (rounds, all_run) = (AtomicU64::new(0), Barrier::new(COMPUTING + USING + 1));
    let continues = || expired.load(Relaxed) < DUE && rounds.load(Relaxed) < ROUNDS;
    let compute = || {
        all_run.wait();
        while continues() {
            (0..10_000).for_each(|_| hint::spin_loop());
            rounds.fetch_add(1, Relaxed);
        }
    };
    let using = |thread| {
        all_run.wait();
        while continues() {
            pair(thread);
        }
    };
    thread::scope(|scope| {
        let (compute, using) = (&compute, &using);
        (0..COMPUTING).for_each(|_| _ = scope.spawn(compute));
        (0..USING as u64).for_each(|thread| _ = scope.spawn(move || using(thread)));
        all_run.wait();
        jump();
    });
    let (expired, rounds) = (expired.load(Relaxed), rounds.into_inner());
    println!("{expired} {name} expired within {rounds} rounds");
    breaches.unless(rounds < ROUNDS, || format!("{expired} of {DUE} {name} expired"));
}

/// A clock that stands still but for one jump.
#[derive(Debug, Clone)]
struct JumpingClock {
    start: Instant,
    hours: Arc<AtomicU64>,
}

impl JumpingClock {
    fn new() -> Self {
        Self { start: Instant::now(), hours: Arc::default() }
    }

    fn jump(&self) {
        self.hours.store(2, Relaxed);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Instant {
        self.start + HOUR * u32::try_from(self.hours.load(Relaxed)).expect("it is 0 or 2")
    }
}

/// An operation whose condition never holds. It counts its expiration, or must not expire.
struct Waiter(Option<Arc<AtomicU64>>);

impl DelayedOperation<u64> for Waiter {
    fn complete(self, completion: Completion) {
        match (self.0, completion) {
            (Some(expired), Completion::Expired) => {
                expired.fetch_add(1, Relaxed);
            }
            (Some(_), Completion::ShutDown) | (None, Completion::Satisfied) => {}
            (_, completion) => panic!("an operation ended by {completion:?}"),
        }
    }
}
