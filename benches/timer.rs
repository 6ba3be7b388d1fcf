//! Operations of [`Timer`] and [`ValueTimer`].
//!
//! ```text
//! cargo bench --bench timer                                # all
//! cargo bench --bench timer -- timer/schedule_cancel/1e6   # one operation and size
//! ```
//!
//! A path is `timer/OPERATION/PENDING/KIND`; a kind is `value` for values of 8 bytes, or `closure`.
//! Delays are 1 ms to 60 s. Pairs of schedule and cancel run on the system clock, the others on a
//! manual one.

#![forbid(unsafe_code)]

mod shared;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use criterion::Bencher;
use delaywheel::{ManualClock, Timeout, TimeoutKey, Timer, TimerBuilder, ValueTimer};
use fastrand::Rng;

use crate::shared::{SEED, SIZES, criterion, per_operation};

const MINUTE: Duration = Duration::from_secs(60);

fn main() {
    let mut criterion = criterion();
    for (name, value, closure) in [
        ("schedule_cancel", schedule_cancel::<Values> as Run, schedule_cancel::<Closures> as Run),
        ("expire", expire::<Values>, expire::<Closures>),
        ("reset_later", reset_later::<Values>, reset_later::<Closures>),
    ] {
        for (pending, size) in SIZES {
            for (kind, run) in [("value", value), ("closure", closure)] {
                let path = format!("timer/{name}/{size}/{kind}");
                criterion.bench_function(&path, |bencher| run(bencher, pending));
            }
        }
    }
    criterion.final_summary();
}

type Run = fn(&mut Bencher<'_>, u32);

/// One of the two kinds of timer, whose timeouts count.
trait Subject {
    type Timeout;

    fn new(settings: TimerBuilder, ran: Arc<AtomicU32>) -> Self;

    fn schedule(&self, delay: Duration) -> Self::Timeout;

    fn cancel(&self, timeout: &Self::Timeout) -> bool;

    fn reset(&self, timeout: &Self::Timeout, delay: Duration) -> bool;
}

struct Values(ValueTimer<u64>);

impl Subject for Values {
    type Timeout = TimeoutKey;

    fn new(settings: TimerBuilder, ran: Arc<AtomicU32>) -> Self {
        let count = move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        Self(settings.build_with(count).expect("the settings are valid"))
    }

    fn schedule(&self, delay: Duration) -> TimeoutKey {
        self.0.schedule(delay, 0).expect("the timer has room")
    }

    fn cancel(&self, timeout: &TimeoutKey) -> bool {
        self.0.cancel(*timeout).is_some()
    }

    fn reset(&self, timeout: &TimeoutKey, delay: Duration) -> bool {
        self.0.reset(*timeout, delay)
    }
}

struct Closures(Timer, Arc<AtomicU32>);

impl Subject for Closures {
    type Timeout = Timeout;

    fn new(settings: TimerBuilder, ran: Arc<AtomicU32>) -> Self {
        Self(settings.build().expect("the settings are valid"), ran)
    }

    fn schedule(&self, delay: Duration) -> Timeout {
        let ran = Arc::clone(&self.1);
        let callback = move || {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        self.0.schedule(delay, callback).expect("the timer has room")
    }

    fn cancel(&self, timeout: &Timeout) -> bool {
        timeout.cancel()
    }

    fn reset(&self, timeout: &Timeout, delay: Duration) -> bool {
        timeout.reset(delay)
    }
}

fn draw(rng: &mut Rng, count: u32) -> Vec<Duration> {
    (0..count).map(|_| Duration::from_millis(rng.u64(1..=60_000))).collect()
}

/// Cancels a random timeout and schedules another.
fn schedule_cancel<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    const PAIRS: u32 = 10_000;
    let mut rng = Rng::with_seed(SEED);
    let timer = S::new(Timer::builder(), Arc::default());
    let schedule = |&delay: &Duration| timer.schedule(MINUTE + delay);
    let mut timeouts: Vec<_> = draw(&mut rng, pending).iter().map(schedule).collect();
    per_operation(bencher, PAIRS, || {
        let pairs: Vec<_> =
            draw(&mut rng, PAIRS).into_iter().map(|d| (rng.usize(..timeouts.len()), d)).collect();
        let start = Instant::now();
        for &(victim, delay) in &pairs {
            let timeout = &mut timeouts[victim];
            assert!(timer.cancel(timeout), "the timeout was not pending");
            *timeout = timer.schedule(MINUTE + delay);
        }
        start.elapsed()
    });
}

/// Expires everything by one step of the clock.
fn expire<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    let delays = draw(&mut Rng::with_seed(SEED), pending);
    per_operation(bencher, pending, || {
        let (clock, ran) = (ManualClock::new(), Arc::new(AtomicU32::new(0)));
        let timer = S::new(Timer::builder().clock(clock.clone()), Arc::clone(&ran));
        let _timeouts: Vec<_> = delays.iter().map(|&delay| timer.schedule(delay)).collect();
        let start = Instant::now();
        clock.advance(MINUTE);
        let time = start.elapsed();
        assert_eq!(ran.load(Ordering::Relaxed), pending);
        time
    });
}

/// Moves every deadline a minute ahead, in random order.
fn reset_later<S: Subject>(bencher: &mut Bencher<'_>, pending: u32) {
    let mut rng = Rng::with_seed(SEED);
    let delays = draw(&mut rng, pending);
    let mut order: Vec<_> = (0..delays.len()).collect();
    rng.shuffle(&mut order);
    per_operation(bencher, pending, || {
        let (clock, ran) = (ManualClock::new(), Arc::new(AtomicU32::new(0)));
        let timer = S::new(Timer::builder().clock(clock.clone()), Arc::clone(&ran));
        let timeouts: Vec<_> = delays.iter().map(|&delay| timer.schedule(delay)).collect();
        let start = Instant::now();
        for &index in &order {
            timer.reset(&timeouts[index], MINUTE + delays[index]);
        }
        let time = start.elapsed();
        clock.advance(MINUTE);
        assert_eq!(ran.load(Ordering::Relaxed), 0, "a timeout expired too early");
        clock.advance(MINUTE);
        assert_eq!(ran.load(Ordering::Relaxed), pending);
        time
    });
}
