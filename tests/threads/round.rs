//! A round of the soak: a timer and a purgatory, the threads that load them, and their end.

use std::{
    panic,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use delaywheel::{Overload, Timer, TimerBuilder};

use crate::{
    books::Books,
    breaches::Breaches,
    clock::FaultyClock,
    ledger, memory,
    values::{self, Values},
    variable::variable,
    waits::{self, Waits},
};

const ROUND: Duration = Duration::from_secs(5);

/// Pause of a load thread between two bursts of calls.
const REST: Duration = Duration::from_micros(500);

/// Bytes that may stay live after a round: ending threads, tables of the standard library.
const LEFT: usize = 1 << 20;

const CHECK: Duration = Duration::from_millis(200);

/// Runs rounds until the time is over or a promise is broken.
pub(crate) fn soak() -> bool {
    let seconds = if cfg!(debug_assertions) { 1 } else { 10 };
    let length = Duration::from_secs(variable("THREADS_SECONDS").unwrap_or(seconds));
    let seed = variable("THREADS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let breaches = Breaches::default();
    breaches.watch_panics();
    println!("THREADS_SEED={seed}");
    let end = Instant::now() + length;
    for number in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || breaches.count() > 0 {
            break;
        }
        Round::new(number, seed, &breaches).run(left.min(ROUND));
    }
    let _ = panic::take_hook();
    breaches.report()
}

struct Round {
    number: u64,
    seed: u64,
    breaches: Breaches,
    clock: Arc<FaultyClock>,
    values: Arc<Values>,
    waits: Arc<Waits>,
    live: usize,
}

impl Round {
    fn new(number: u64, seed: u64, breaches: &Breaches) -> Self {
        let (live, clock) = (memory::live(), FaultyClock::new());
        let books = |name, places| Books::new(name, places, &clock, breaches);
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
        let values = Values::new(books("values", values::SEATS), settings(number), seed);
        let overload = if number % 2 == 0 { Overload::Refuse } else { Overload::DisplaceOldest };
        let waits = Waits::new(books("purgatory", waits::SEATS), settings(number + 1), overload);
        let (weak_values, weak_waits) = (Arc::downgrade(&values), Arc::downgrade(&waits));
        let _ = values.poke.set(Box::new(move |random| {
            weak_waits.upgrade().into_iter().for_each(|waits| waits.announce(random));
        }));
        let _ = waits.poke.set(Box::new(move |random| {
            if let Some(values) = weak_values.upgrade() {
                values.leave(random);
            }
        }));
        let breaches = breaches.clone();
        Self { number, seed, breaches, clock, values, waits, live }
    }

    /// Runs the load for a time, ends it, and compares all counts.
    fn run(self, length: Duration) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            self.load(scope, length / 2, &is_over);
            self.watch(length);
            is_over.store(true, Relaxed);
        });
        self.clock.go_on();
        self.end();
    }

    /// Starts the threads of the load. Clock faults and sleeping callbacks begin after `unharmed`.
    fn load<'s>(&'s self, scope: &'s Scope<'s, '_>, unharmed: Duration, is_over: &'s AtomicBool) {
        let random = |thread: u64| fastrand::Rng::with_seed(self.seed ^ (thread << 32));
        for thread in 0..2 {
            scope.spawn(move || self.load_values(&mut random(thread), is_over));
        }
        scope.spawn(move || {
            let (mut random, mut held) = (random(2), Vec::new());
            repeat(is_over, || (0..64).for_each(|_| self.waits.churn(&mut random, &mut held)));
        });
        scope.spawn(move || {
            let mut random = random(3);
            repeat(is_over, || (0..8).for_each(|_| self.waits.announce(&mut random)));
        });
        scope.spawn(move || {
            let (mut random, begun) = (random(5), Instant::now());
            repeat(is_over, || {
                if begun.elapsed() > unharmed && random.u32(..256) == 0 {
                    self.clock.fail(&mut random);
                }
            });
        });
    }

    fn load_values(&self, random: &mut fastrand::Rng, is_over: &AtomicBool) {
        let mut held = Vec::new();
        repeat(is_over, || {
            (0..128).for_each(|_| self.values.churn(random, &mut held));
            match random.u32(..512) {
                0 => held.extend(self.values.burst(random)),
                1 => {
                    let burst = self.values.burst(random);
                    self.values.storm(random, &burst);
                    self.values.cancel_all(burst);
                }
                2 => self.values.storm(random, &held),
                3 => self.values.cancel_all(std::mem::take(&mut held)),
                _ => {}
            }
        });
    }

    /// Checks the counts again and again, for a time.
    fn watch(&self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end && self.breaches.count() == 0 {
            thread::sleep(CHECK.min(end.saturating_duration_since(Instant::now())));
            let timers = [self.values.stats(), self.waits.stats().timer];
            for (name, stats) in ["values", "purgatory"].iter().zip(timers) {
                ledger::check_timer(name, &stats, &self.breaches);
            }
        }
        println!(
            "round {}: {} timeouts, {} operations, {} clock faults",
            self.number,
            self.values.stats().scheduled,
            ledger::sum(&self.waits.stats()),
            self.clock.faults()
        );
    }

    /// Ends timers and purgatory, and checks that nothing is left of them.
    fn end(self) {
        let Self { number, breaches, clock, values, waits, live, .. } = self;
        // No call of the load can wake a reaper from here on.
        for (name, books) in [("values", &*values.books), ("purgatory", waits.books())] {
            books.finish();
            let now = clock.look();
            let has_expired = ledger::wait_until(|| books.due_count(now) == 0);
            breaches.unless(has_expired, || format!("{name}: {} stay due", books.due_count(now)));
        }
        values.end(number % 2 == 1);
        waits.end(number % 2 == 0);
        ledger::settle("values", &values.books);
        ledger::settle("purgatory", waits.books());
        ledger::check_values(&values);
        ledger::check_waits(&waits);
        drop((values, waits));
        let is_given_back = ledger::wait_until(|| memory::live() <= live + LEFT);
        breaches.unless(is_given_back, || format!("{} bytes are left of {live}", memory::live()));
    }
}

/// Repeats a burst of calls with pauses until the round is over.
fn repeat(is_over: &AtomicBool, mut go: impl FnMut()) {
    while !is_over.load(Relaxed) {
        go();
        thread::sleep(REST);
    }
}

fn settings(number: u64) -> TimerBuilder {
    let builder = Timer::builder().shards(3);
    match number % 4 {
        0 => builder.executor_threads(2),
        1 => builder.inline(),
        2 => builder.executor(pool()),
        _ => builder.executor_threads(1).tick(Duration::from_micros(100)),
    }
}

/// An executor of the user: one thread.
fn pool() -> impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync {
    let (sender, tasks) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
    thread::spawn(move || tasks.into_iter().for_each(|task| task()));
    move |task| drop(sender.send(task))
}
