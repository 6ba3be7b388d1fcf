//! Real threads, the system's clock, and many millions of operations: nothing is early, lost, or
//! ends twice.
//!
//! Operations are drawn from seeds; how the threads interleave is not. `STRESS_OPERATIONS` sets
//! their number.

#[path = "shared/variable.rs"]
mod variable;

use std::{
    panic::resume_unwind,
    sync::{
        Arc, Barrier, OnceLock,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Timeout, TimeoutKey, Timer, TimerStats, ValueTimer};

use crate::variable::variable;

const THREADS: usize = 4;
const CHECKPOINTS: usize = 8;

/// Keys that a thread holds on to; those of all threads are more than the timer takes.
const KEYS: usize = 12_000;
const MAX_PENDING: u64 = 30_000;

/// Timeouts that callbacks of other timeouts cancel and reset.
const SHARED: usize = 64;

fn operations() -> usize {
    let default = if cfg!(debug_assertions) { 1_000_000 } else { 20_000_000 };
    variable("STRESS_OPERATIONS").unwrap_or(default)
}

/// Waits for a condition that becomes true soon unless something is wrong.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::yield_now();
    }
}

fn assert_balanced(stats: &TimerStats) {
    let ended = stats.expired + stats.cancelled + stats.returned;
    assert_eq!(stats.scheduled, stats.pending + ended, "{stats:?}");
}

/// A timeout is its number. What is known of it lies in here.
struct World {
    timer: OnceLock<ValueTimer<u32>>,
    begun: Instant,
    numbers: AtomicU32,
    /// By number: not to be run before this, in nanoseconds from the beginning.
    due: Vec<AtomicU64>,
    /// By number: how often it has ended.
    ends: Vec<AtomicU8>,
    shared: Vec<OnceLock<(TimeoutKey, u32)>>,
    early: AtomicU64,
    ran: AtomicU64,
    panicked: AtomicU64,
    refused: AtomicU64,
    cancelled: AtomicU64,
}

impl World {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            timer: OnceLock::new(),
            begun: Instant::now(),
            numbers: AtomicU32::new(0),
            due: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            ends: (0..capacity).map(|_| AtomicU8::new(0)).collect(),
            shared: (0..SHARED).map(|_| OnceLock::new()).collect(),
            early: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        })
    }

    fn timer(&self) -> &ValueTimer<u32> {
        self.timer.get().expect("it was set first")
    }

    fn after(&self, delay: Duration) -> u64 {
        let due = self.begun.elapsed().saturating_add(delay);
        u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)
    }

    fn end(&self, number: u32) {
        assert_eq!(self.ends[number as usize].fetch_add(1, Relaxed), 0, "{number} has ended twice");
    }

    /// Schedules a timeout, unless all numbers have been given out.
    fn schedule(&self, delay: Duration) -> Option<(TimeoutKey, u32)> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let due = self.after(delay);
        self.due.get(number as usize)?.store(due, Relaxed);
        let scheduled = match Instant::now().checked_add(delay) {
            Some(instant) if number % 4 == 0 => self.timer().schedule_at(instant, number),
            _ => self.timer().schedule(delay, number),
        };
        let refuse = |value| {
            assert_eq!(value, number);
            self.refused.fetch_add(1, Relaxed);
            self.end(number);
        };
        scheduled.map(|key| (key, number)).map_err(|refused| refuse(refused.into_value())).ok()
    }

    fn cancel(&self, (key, number): (TimeoutKey, u32)) {
        if let Some(value) = self.timer().cancel(key) {
            assert_eq!(value, number, "a key has answered for another");
            self.cancelled.fetch_add(1, Relaxed);
            self.end(number);
        }
    }

    /// Resets a timeout; it is then not to run before the new deadline, or the old one if several
    /// reset it.
    fn reset(&self, (key, number): (TimeoutKey, u32), delay: Duration, is_alone: bool) {
        let due = self.after(delay);
        self.due[number as usize].fetch_min(due, Relaxed);
        if self.timer().reset(key, delay) && is_alone {
            self.due[number as usize].store(due, Relaxed);
        }
    }

    /// What is done with a timeout that has expired.
    fn handle(&self, number: u32) {
        // The present is read last, so that it is not older than the deadline.
        let due = self.due[number as usize].load(Relaxed);
        self.early.fetch_add(u64::from(self.after(Duration::ZERO) < due), Relaxed);
        self.end(number);
        let shared = self.shared[number as usize % SHARED].get().copied();
        match number % 16 {
            0 => drop(self.schedule(Duration::from_micros(u64::from(number % 5000)))),
            1 => shared.into_iter().for_each(|shared| self.cancel(shared)),
            2 => shared.into_iter().for_each(|shared| {
                self.reset(shared, Duration::from_millis(u64::from(number % 50)), false);
            }),
            3 => {
                self.panicked.fetch_add(1, Relaxed);
                self.ran.fetch_add(1, Relaxed);
                resume_unwind(Box::new("a callback panics"));
            }
            _ => {}
        }
        self.ran.fetch_add(1, Relaxed);
    }

    /// What one thread does between two checkpoints.
    fn churn(&self, random: &mut fastrand::Rng, held: &mut Vec<(TimeoutKey, u32)>, count: usize) {
        for _ in 0..count {
            let is_full = held.len() >= KEYS;
            let index = random.usize(..held.len().max(1));
            match random.u32(..16) {
                0..7 if !is_full => held.extend(self.schedule(delay(random))),
                _ if held.is_empty() => {}
                7..10 => self.reset(held[index], delay(random), true),
                10..12 => self.look(held, index),
                _ => self.cancel(held.swap_remove(index)),
            }
        }
    }

    /// Looks at a timeout, and forgets it if it has ended.
    fn look(&self, held: &mut Vec<(TimeoutKey, u32)>, index: usize) {
        let (key, number) = held[index];
        let earliest = self.begun + Duration::from_nanos(self.due[number as usize].load(Relaxed));
        if let Some(deadline) = self.timer().deadline(key) {
            assert!(deadline >= earliest, "{number} is to be early");
        }
        if !self.timer().is_pending(key) {
            held.swap_remove(index);
        }
    }
}

/// Mostly far ahead, as timeouts are; some so near that they race with whatever is done to them.
fn delay(random: &mut fastrand::Rng) -> Duration {
    match random.u32(..64) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2..24 => Duration::from_micros(random.u64(..5_000)),
        24..32 => Duration::from_millis(random.u64(..200)),
        _ => Duration::from_millis(random.u64(1_000..60_000)),
    }
}

#[test]
fn no_value_is_early_lost_or_ended_twice() {
    let operations = operations();
    // More than are ever asked for: less than half of the operations schedule.
    let world = World::new(operations / 2);
    // The world keeps the timer, and not the other way round as well.
    let handler = Arc::downgrade(&world);
    let builder = ValueTimer::builder().shards(3).executor_threads(2).max_pending(MAX_PENDING);
    let handle = move |number| {
        handler.upgrade().expect("the world waits for its timer").handle(number);
    };
    let timer = builder.build_with(handle).unwrap();
    assert!(world.timer.set(timer).is_ok());
    for shared in &world.shared {
        shared.set(world.schedule(Duration::from_millis(500)).unwrap()).unwrap();
    }

    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (world, barrier) = (&world, &barrier);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64);
                let mut held = Vec::new();
                for _ in 0..CHECKPOINTS {
                    world.churn(&mut random, &mut held, operations / THREADS / CHECKPOINTS);
                    if barrier.wait().is_leader() {
                        assert_balanced(&world.timer().stats());
                    }
                }
            });
        }
    });
    settle(&world);
}

/// Shuts the timer down, and makes sure that the books agree.
fn settle(world: &World) {
    let timer = world.timer();
    let returned = timer.shutdown();
    for number in &returned {
        world.end(*number);
    }
    assert!(timer.shutdown().is_empty() && timer.schedule(Duration::ZERO, 0).is_err());
    let stats = timer.stats();
    assert_balanced(&stats);
    assert_eq!((stats.pending, stats.cancelled), (0, world.cancelled.load(Relaxed)));
    // What expired was run, or was returned while it waited for an executor.
    let ran = stats.expired + stats.returned - returned.len() as u64;
    wait_until("all callbacks have run", || world.ran.load(Relaxed) == ran);
    wait_until("all panics were counted", || {
        timer.stats().panicked == world.panicked.load(Relaxed)
    });
    let numbers = world.numbers.load(Relaxed) as usize;
    let ended = world.ends.iter().take(numbers).filter(|ends| ends.load(Relaxed) == 1).count();
    assert_eq!(ended, numbers.min(world.ends.len()), "some never ended");
    assert_eq!(world.early.load(Relaxed), 0, "some were early");
    assert_eq!(stats.scheduled, ended as u64 - world.refused.load(Relaxed));
    println!("{stats:?}");
    assert!(ran > 1000 && stats.cancelled > 1000 && world.refused.load(Relaxed) > 0);
}

/// Schedules, from a callback or not, and ends by any of the ways there are; counts what was taken
/// in and what ran.
fn spawn(
    timer: &Timer,
    random: &mut fastrand::Rng,
    counts: &Arc<[AtomicU64; 2]>,
) -> Option<Timeout> {
    let delay = delay(random).min(Duration::from_secs(3600));
    let due = Instant::now() + delay;
    let (ran, again, own) = (Arc::clone(counts), random.u32(..4), timer.clone());
    let mut nested = random.fork();
    let timeout = timer.schedule(delay, move || {
        assert!(Instant::now() >= due, "early");
        match again {
            0 => drop(spawn(&own, &mut nested, &ran).map(Timeout::cancel_on_drop)),
            1 => drop(spawn(&own, &mut nested, &ran)),
            _ => {}
        }
        ran[1].fetch_add(1, Relaxed);
    });
    let timeout = timeout.ok()?;
    counts[0].fetch_add(1, Relaxed);
    Some(timeout)
}

#[test]
fn closures_that_schedule_and_cancel_are_all_accounted_for() {
    let timer = Timer::builder().executor_threads(2).build().unwrap();
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (timer, counts) = (timer.clone(), &counts);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64);
                let mut held: Vec<Timeout> = Vec::new();
                for _ in 0..operations() / 50 {
                    held.extend(spawn(&timer, &mut random, counts));
                    let index = random.usize(..held.len());
                    match random.u32(..4) {
                        0 => drop(held.swap_remove(index).cancel_on_drop()),
                        1 => drop(held.swap_remove(index)),
                        2 => assert!(!held[index].cancel() || !held[index].is_pending()),
                        _ => {}
                    }
                }
            });
        }
    });
    let returned = timer.shutdown().len() as u64;
    let stats = timer.stats();
    assert_balanced(&stats);
    let ran = stats.expired + stats.returned - returned;
    wait_until("all callbacks have run", || counts[1].load(Relaxed) == ran);
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.panicked), (counts[0].load(Relaxed), 0));
}

#[test]
fn timers_that_end_while_they_are_used_lose_nothing() {
    for seed in 0..operations() / 20_000 {
        let ended = Arc::new(AtomicU64::new(0));
        let ran = Arc::clone(&ended);
        let builder = ValueTimer::builder().shards(2);
        let builder = if seed % 2 == 0 { builder.inline() } else { builder };
        let timer = builder
            .build_with(move |_: u64| {
                ran.fetch_add(1, Relaxed);
            })
            .unwrap();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (timer, ended) = (&timer, &ended);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed((seed * THREADS + thread) as u64);
                    let mut delay = || Duration::from_micros(random.u64(..300));
                    for value in 0..25 {
                        let is_refused = timer.schedule(delay(), value).is_err();
                        ended.fetch_add(u64::from(is_refused), Relaxed);
                    }
                    if let Err(error) = timer.schedule_batch((25..50).map(|value| (delay(), value)))
                    {
                        ended.fetch_add(error.into_value().refused.len() as u64, Relaxed);
                    }
                    let returned = match (thread, seed % 3) {
                        (0, 0) => timer.shutdown().len(),
                        (0 | 1, 1) => timer.finish(delay()).len(),
                        (0 | 1, 2) => timer.finish(100 * delay()).len(),
                        _ => 0,
                    };
                    ended.fetch_add(returned as u64, Relaxed);
                });
            }
        });
        let all = 50 * THREADS as u64;
        wait_until("all have ended", || ended.load(Relaxed) == all);
        assert_balanced(&timer.stats());
    }
}
