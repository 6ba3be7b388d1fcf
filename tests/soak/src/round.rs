//! One round: timers and a purgatory of some settings, the threads that load them, and their end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use crossbeam_channel::unbounded;
use delaywheel::{Overload, Timer, TimerBuilder};

use crate::{
    books::Books,
    breaches::Breaches,
    clock::{self, FaultyClock},
    closures::{self, Closures},
    ledger, memory,
    operation::KEYS,
    report::Sample,
    values::{self, MAX_PENDING, Values},
    waits::{self, MAX_DELAYED, Waits},
};

/// What a thread of the load sleeps between two goes.
const REST: Duration = Duration::from_micros(500);

/// What may be left of a round: threads that end, tables of the standard library.
const LEFT: usize = 1 << 20;

/// What the process may take when the load is gone.
const MOST_RESIDENT: usize = 256 << 20;

/// How long a round goes without clocks that go wrong and callbacks that sleep. It covers two looks,
/// even where these come late.
const UNHARMED: Duration = Duration::from_millis(2_500);

/// What one in a hundred may be late by while nothing is wrong, besides what the machine is late by:
/// less than by a reaper that sleeps a second too long. Some hundredths are usual.
const LATE: Duration = Duration::from_millis(500);

/// Seconds in which nothing expires, after which a timer is said to stand still.
const PATIENCE: u32 = 3;

pub(crate) struct Round {
    number: u64,
    seed: u64,
    breaches: Breaches,
    clock: FaultyClock,
    values: Arc<Values>,
    closures: Closures,
    waits: Arc<Waits>,
    /// The longest rest of any thread since the last look, in nanoseconds: how late the machine is.
    rest: AtomicU64,
    /// Live bytes before it was made.
    live: usize,
}

impl Round {
    pub(crate) fn new(number: u64, seed: u64, breaches: &Breaches) -> Self {
        let live = memory::live();
        let clock = FaultyClock::new();
        let books = |name, places| Books::new(name, places, &clock, breaches);
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
        let values = Values::new(books("values", values::PLACES), settings(number), seed);
        let closures = Closures::new(books("closures", closures::PLACES), settings(number + 1));
        let overload =
            if number.is_multiple_of(2) { Overload::Refuse } else { Overload::DisplaceOldest };
        let waits = Waits::new(books("purgatory", waits::PLACES), settings(number + 2), overload);
        let (weak_values, weak_waits) = (Arc::downgrade(&values), Arc::downgrade(&waits));
        let _ = values.poke.set(Box::new(move |random| {
            weak_waits.upgrade().into_iter().for_each(|waits| waits.announce(random));
        }));
        let _ = waits.poke.set(Box::new(move |random| {
            if let Some(values) = weak_values.upgrade() {
                values.leave(random);
            }
        }));
        let (breaches, rest) = (breaches.clone(), AtomicU64::new(0));
        Self { number, seed, breaches, clock, values, closures, waits, rest, live }
    }

    /// Loads everything for so long, ends it, and looks at what is left.
    pub(crate) fn run(self, length: Duration) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            self.load(scope, &is_over);
            self.watch(length);
            is_over.store(true, Relaxed);
        });
        self.clock.go_on();
        self.end();
    }

    fn load<'s>(&'s self, scope: &'s Scope<'s, '_>, is_over: &'s AtomicBool) {
        let random = |thread: u64| fastrand::Rng::with_seed(self.seed ^ (thread << 32));
        for thread in 0..2 {
            scope.spawn(move || self.load_values(&mut random(thread), is_over));
        }
        scope.spawn(move || {
            let (mut random, mut held) = (random(2), Vec::new());
            self.repeat(is_over, || self.waits.churn(&mut random, &mut held, 64));
        });
        scope.spawn(move || {
            let mut random = random(3);
            self.repeat(is_over, || (0..8).for_each(|_| self.waits.announce(&mut random)));
        });
        scope.spawn(move || {
            let mut random = random(4);
            self.repeat(is_over, || self.closures.churn(&mut random));
        });
        scope.spawn(move || {
            let (mut random, begun) = (random(5), Instant::now());
            self.repeat(is_over, || {
                if begun.elapsed() > UNHARMED && random.u32(..256) == 0 {
                    self.clock.fail(&mut random);
                }
            });
        });
    }

    fn load_values(&self, random: &mut fastrand::Rng, is_over: &AtomicBool) {
        let mut held = Vec::new();
        self.repeat(is_over, || {
            self.values.churn(random, &mut held, 128);
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

    /// Has a thread do something again and again, and rest in between.
    fn repeat(&self, is_over: &AtomicBool, mut go: impl FnMut()) {
        while !is_over.load(Relaxed) {
            go();
            let rested = Instant::now();
            thread::sleep(REST);
            self.rest.fetch_max(clock::nanos(rested.elapsed()), Relaxed);
        }
    }

    /// Looks each second, until the time is over.
    fn watch(&self, length: Duration) {
        let end = Instant::now() + length;
        let (mut before, mut recent) = ([0, 0], vec![0; KEYS as usize]);
        let (mut expired, mut still) = (0, 0);
        for second in 1.. {
            let left = end.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_secs(1)));
            self.waits.state.grow_old(&mut recent);
            let sample = self.sample();
            sample.print(
                (self.number, second),
                [&self.values.books, self.waits.books()],
                &mut before,
            );
            still = if sample.values.expired == expired { still + 1 } else { 0 };
            expired = sample.values.expired;
            self.breaches.unless(still < PATIENCE, || {
                format!("the timer stands still: {:?}", sample.values)
            });
            if Instant::now() >= end || self.breaches.count() > 0 {
                return;
            }
        }
    }

    fn sample(&self) -> Sample {
        let sample = Sample {
            values: self.values.stats(),
            closures: self.closures.timer().stats(),
            purgatory: self.waits.stats().0,
            late: [self.values.books.lateness(), self.waits.books().lateness()],
            late_closures: self.closures.books.lateness(),
            faults: self.clock.faults(),
        };
        self.check_lateness(&sample);
        ledger::check_timer("values", &sample.values, &self.breaches);
        ledger::check_timer("closures", &sample.closures, &self.breaches);
        ledger::check_timer("purgatory", &self.waits.stats().1, &self.breaches);
        // Shards are counted one after the other, and what moves between them meanwhile may count
        // twice.
        for (what, count, limit) in [
            ("pending", sample.values.pending, MAX_PENDING),
            ("waiting", sample.purgatory.delayed, MAX_DELAYED),
        ] {
            self.breaches.unless(count <= limit + limit / 4, || {
                format!("{count} are {what}, where {limit} may be")
            });
        }
        sample
    }

    /// As long as nothing is wrong, what is due runs soon. A few times as late as a thread that sleeps
    /// is no fault of the library; and where such threads are very late, nothing can be said.
    fn check_lateness(&self, sample: &Sample) {
        let rest = Duration::from_nanos(self.rest.swap(0, Relaxed));
        let is_judged = sample.faults == 0 && rest < LATE / 4;
        let most = LATE + 4 * rest;
        let late = [sample.late[0], sample.late[1], sample.late_closures];
        for (name, [_, late, _]) in ["values", "purgatory", "closures"].into_iter().zip(late) {
            self.breaches.unless(!is_judged || late <= most, || {
                format!("{name}: one in a hundred was {late:?} late or more, where {most:?} may be")
            });
        }
    }

    /// Ends everything, and makes sure that nothing is left of it.
    fn end(self) {
        let Self { number, breaches, values, closures, waits, live, .. } = self;
        values.end(number % 2 == 1);
        waits.end(number % 2 == 0);
        let books = Arc::clone(&closures.books);
        closures.end(number);
        ledger::settle("values", &values.books);
        ledger::settle("purgatory", waits.books());
        ledger::settle("closures", &books);
        ledger::check_values(&values);
        ledger::check_waits(&waits);
        drop((values, waits, books));
        let is_given_back = ledger::wait_until(|| memory::live() <= live + LEFT);
        breaches.unless(is_given_back, || format!("{} bytes are left of {live}", memory::live()));
        let resident = memory::resident().unwrap_or(0);
        breaches.unless(resident <= MOST_RESIDENT, || format!("{resident} bytes are resident"));
    }
}

/// Where what is due runs; different from round to round.
fn settings(number: u64) -> TimerBuilder {
    let builder = Timer::builder().shards(3);
    match number % 4 {
        0 => builder.executor_threads(2),
        1 => builder.inline(),
        2 => builder.executor(pool()),
        _ => builder.executor_threads(1).tick(Duration::from_micros(100)),
    }
}

/// A pool of the user's, of one thread.
fn pool() -> impl Fn(Box<dyn FnOnce() + Send>) + Send + Sync {
    let (sender, tasks) = unbounded::<Box<dyn FnOnce() + Send>>();
    thread::spawn(move || tasks.into_iter().for_each(|task| task()));
    move |task| drop(sender.send(task))
}
