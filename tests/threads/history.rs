//! A random history of a purgatory: each operation ends once, in a way that its history allows, and
//! no event is missed.

use std::{
    panic::resume_unwind,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel::{
    Completion, DelayedOperation, ManualClock, Purgatory, PurgatoryBuilder, Timer, TimerBuilder,
    Watch,
    purgatory::{OperationKey, Overload},
};

use crate::{ledger::GENEROUS, variable::variable};

const THREADS: usize = 4;

/// Operations of one round. All checks follow at its end.
const ROUND: usize = if cfg!(debug_assertions) { 20_000 } else { 50_000 };

const KEYS: usize = 64;

/// Number of latest operations that threads satisfy and cancel.
const BACK: usize = 400;

const HOUR: Duration = Duration::from_secs(3600);

fn operations() -> usize {
    let default = if cfg!(debug_assertions) { 80_000 } else { 1_500_000 };
    variable("THREADS_OPERATIONS").unwrap_or(default)
}

const SATISFIED: u8 = 1;
const EXPIRED: u8 = 2;
const CANCELLED: u8 = 3;
const DISPLACED: u8 = 4;
const SHUT_DOWN: u8 = 5;
const REFUSED: u8 = 6;

/// Condition of an operation.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Its flag.
    Flag,
    /// One of two values, or its flag.
    Any,
    /// Two values.
    All,
}

/// The history of an operation.
#[derive(Default)]
struct Record {
    /// The flag that its check reads.
    is_ready: AtomicBool,
    /// Whether a thread may have completed it by its handle.
    is_completed: AtomicBool,
    /// Whether a thread may have cancelled it by its handle.
    is_cancelled: AtomicBool,
    end: AtomicU8,
    wait: OnceLock<Wait>,
    key: OnceLock<OperationKey>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    kind: Kind,
    keys: [usize; 2],
    at: u64,
    is_long: bool,
}

/// A round: its purgatory, and the history of its operations.
struct World {
    purgatory: OnceLock<Purgatory<usize, Op, usize>>,
    numbers: AtomicUsize,
    records: Vec<Record>,
    values: Vec<AtomicU64>,
    /// Keys whose operations were cancelled at least once.
    cancelled: Vec<AtomicBool>,
    time: Time,
    early: AtomicUsize,
}

/// Source of time.
enum Time {
    Real(Instant),
    Manual(ManualClock),
}

impl Time {
    fn now(&self) -> Duration {
        match self {
            Self::Real(begun) => begun.elapsed(),
            Self::Manual(clock) => clock.elapsed(),
        }
    }
}

struct Op {
    world: Arc<World>,
    number: usize,
    /// It must not expire before this time.
    due: Duration,
}

impl Op {
    fn record(&self) -> &Record {
        &self.world.records[self.number]
    }
}

impl DelayedOperation<usize, usize> for Op {
    fn try_complete(&mut self) -> bool {
        self.record().is_ready.load(Relaxed)
    }

    fn has_reached(&mut self, key: &usize, threshold: u64) -> bool {
        self.world.values[*key].load(Relaxed) >= threshold
    }

    fn complete(self, completion: Completion<usize>) {
        let record = self.record();
        let wait = record.wait.get().expect("it was set first");
        let end = match completion {
            Completion::Satisfied => {
                assert!(self.world.may_be_satisfied(record), "no condition holds: {wait:?}");
                SATISFIED
            }
            Completion::Expired => {
                let is_early = self.world.time.now() < self.due;
                self.world.early.fetch_add(usize::from(is_early), Relaxed);
                EXPIRED
            }
            Completion::Cancelled(reason) => {
                let by_handle = reason == usize::MAX && record.is_cancelled.load(Relaxed);
                let by_key =
                    wait.keys.contains(&reason) && self.world.cancelled[reason].load(Relaxed);
                assert!(by_handle || by_key, "no thread cancelled it");
                CANCELLED
            }
            Completion::Displaced => DISPLACED,
            _ => SHUT_DOWN,
        };
        assert_eq!(record.end.swap(end, Relaxed), 0, "{} has ended twice", self.number);
    }
}

impl World {
    fn new(time: Time, timer: TimerBuilder, is_limited: bool) -> Arc<Self> {
        let atomics = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let world = Self {
            purgatory: OnceLock::new(),
            numbers: AtomicUsize::new(0),
            records: (0..ROUND).map(|_| Record::default()).collect(),
            values: atomics(KEYS),
            cancelled: (0..KEYS).map(|_| AtomicBool::new(false)).collect(),
            time,
            early: AtomicUsize::new(0),
        };
        let mut builder = PurgatoryBuilder::new().timer(timer.shards(3).name("history"));
        if is_limited {
            let displace = Overload::DisplaceOldest;
            builder = builder.max_delayed(500, displace).max_delayed_per_key(60, displace);
        }
        let purgatory = builder.build().expect("the settings are in range");
        assert!(world.purgatory.set(purgatory).is_ok());
        Arc::new(world)
    }

    fn purgatory(&self) -> &Purgatory<usize, Op, usize> {
        self.purgatory.get().expect("it was set first")
    }

    fn reaches(&self, key: usize, at: u64) -> bool {
        self.values[key].load(Relaxed) >= at
    }

    /// Whether the condition of an operation holds.
    fn is_satisfied(&self, record: &Record) -> bool {
        let wait = record.wait.get().expect("it was set first");
        let Wait { kind, keys: [first, second], at, .. } = *wait;
        let is_ready = record.is_ready.load(Relaxed);
        match kind {
            Kind::Flag => is_ready,
            Kind::Any => is_ready || self.reaches(first, at) || self.reaches(second, at),
            Kind::All => self.reaches(first, at) && self.reaches(second, at),
        }
    }

    fn may_be_satisfied(&self, record: &Record) -> bool {
        record.is_completed.load(Relaxed) || self.is_satisfied(record)
    }
}

/// A thread of a round.
struct Actor {
    world: Arc<World>,
    random: fastrand::Rng,
}

impl Actor {
    fn run(&mut self) {
        while self.watch() {
            for _ in 0..self.random.u32(..4) {
                self.act();
            }
        }
    }

    fn some_key(&mut self) -> usize {
        self.random.usize(..KEYS)
    }

    /// Starts an operation, unless the round is over.
    fn watch(&mut self) -> bool {
        let world = Arc::clone(&self.world);
        let number = world.numbers.fetch_add(1, Relaxed);
        let Some(record) = world.records.get(number) else { return false };
        let kind = [Kind::Flag, Kind::Any, Kind::All][self.random.usize(..3)];
        let keys = [self.some_key(), self.some_key()];
        let at = world.values[keys[0]].load(Relaxed) + self.random.u64(..20);
        let is_long = self.random.u8(..4) > 0;
        record.wait.set(Wait { kind, keys, at, is_long }).expect("its number is its own");
        if self.random.u8(..16) == 0 {
            record.is_ready.store(true, Relaxed);
        }
        let delay = if is_long { 1000 * HOUR } else { self.random.u32(..3000) * MICROSECOND };
        let op = Op { world: Arc::clone(&world), number, due: world.time.now() + delay };
        let [first, second] = keys;
        let values = [Watch::Threshold(first, at), Watch::Threshold(second, at)];
        let watched = match kind {
            Kind::Flag => world.purgatory().try_complete_else_watch(op, keys, delay),
            Kind::Any => {
                let watches = values.into_iter().chain([Watch::Events(first)]);
                world.purgatory().watch_any(op, watches, delay)
            }
            Kind::All => world.purgatory().watch_all(op, values, delay),
        };
        match watched {
            Ok(watched) => {
                if let Some(key) = watched.key() {
                    record.key.set(key).expect("its number is its own");
                }
            }
            Err(refused) => {
                assert_eq!(refused.into_value().number, number);
                assert_eq!(record.end.swap(REFUSED, Relaxed), 0);
            }
        }
        true
    }

    /// Picks one of the latest operations, if it has started.
    fn some_operation(&mut self) -> Option<usize> {
        let numbers = self.world.numbers.load(Relaxed).min(ROUND);
        let number = numbers.checked_sub(1 + self.random.usize(..BACK))?;
        self.world.records[number].wait.get().map(|_| number)
    }

    fn act(&mut self) {
        let world = Arc::clone(&self.world);
        let purgatory = world.purgatory();
        match self.random.u32(..1000) {
            0..450 => self.satisfy(),
            450..750 => {
                let key = self.some_key();
                let value = 1 + world.values[key].fetch_add(1, Relaxed);
                purgatory.advance(&key, value);
            }
            750..850 => {
                let keys = [self.some_key(), self.some_key()];
                let mut checks = purgatory.checks(&keys);
                checks.run(self.random.usize(..8));
            }
            850..950 => self.by_handle(),
            950..953 => {
                let key = self.some_key();
                world.cancelled[key].store(true, Relaxed);
                purgatory.cancel_for_key_with(&key, &key);
            }
            953..955 => purgatory.shrink(),
            _ => {
                if let Time::Manual(clock) = &world.time {
                    clock.advance(self.random.u32(..2000) * MICROSECOND);
                }
            }
        }
    }

    /// Sets the flag of an operation, and announces that on one or all of its keys.
    fn satisfy(&mut self) {
        let Some(number) = self.some_operation() else { return };
        let record = &self.world.records[number];
        let keys = record.wait.get().expect("it waits").keys;
        record.is_ready.store(true, Relaxed);
        let purgatory = self.world.purgatory();
        match self.random.u8(..3) {
            0 => purgatory.check_and_complete(&keys[0]),
            1 => purgatory.check_and_complete_all(&keys),
            _ => {
                let mut checks = purgatory.checks(&keys);
                let mut completed = 0;
                while !checks.is_done() {
                    completed += checks.run(5);
                }
                completed
            }
        };
    }

    fn by_handle(&mut self) {
        let Some(number) = self.some_operation() else { return };
        let record = &self.world.records[number];
        let Some(key) = record.key.get() else { return };
        let purgatory = self.world.purgatory();
        if self.random.bool() {
            record.is_completed.store(true, Relaxed);
            purgatory.complete(*key);
        } else {
            record.is_cancelled.store(true, Relaxed);
            purgatory.cancel_with(*key, usize::MAX);
        }
        assert!(!purgatory.is_waiting(*key));
    }
}

const MICROSECOND: Duration = Duration::from_micros(1);

/// Number of operations by the code of their end.
type Ends = [usize; 7];

fn round(seed: u64) -> Ends {
    let is_limited = seed % 4 == 3;
    let world = if seed % 2 == 0 {
        World::new(Time::Real(Instant::now()), Timer::builder(), is_limited)
    } else {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone());
        World::new(Time::Manual(clock), timer, is_limited)
    };
    let actors: Vec<_> = (0..THREADS)
        .map(|thread| {
            let random = fastrand::Rng::with_seed(seed * THREADS as u64 + thread as u64);
            let mut actor = Actor { world: Arc::clone(&world), random };
            thread::spawn(move || actor.run())
        })
        .collect();
    for actor in actors {
        actor.join().unwrap_or_else(|payload| resume_unwind(payload));
    }
    wait_for_short_delays(&world);
    check_that_no_event_was_missed(&world);
    end(&world)
}

/// Operations with short delays expire without further calls.
fn wait_for_short_delays(world: &World) {
    let has_short = || {
        let mut waiting = world.records.iter().filter(|record| record.end.load(Relaxed) == 0);
        waiting.any(|record| !record.wait.get().expect("all were given out").is_long)
    };
    let end = Instant::now() + GENEROUS;
    while has_short() {
        assert!(Instant::now() < end, "an operation has not expired");
        if let Time::Manual(clock) = &world.time {
            clock.advance(Duration::from_secs(1));
        }
        thread::yield_now();
    }
    assert_eq!(world.early.load(Relaxed), 0, "early");
}

/// Every change has been announced, and no thread checks operations. So the condition of a waiting
/// operation does not hold.
fn check_that_no_event_was_missed(world: &World) {
    let mut waiting = 0;
    for (number, record) in world.records.iter().enumerate() {
        if record.end.load(Relaxed) == 0 {
            assert!(!world.is_satisfied(record), "{number} missed its event");
            assert!(!record.is_completed.load(Relaxed) && !record.is_cancelled.load(Relaxed));
            waiting += 1;
        }
    }
    let purgatory = world.purgatory();
    assert_eq!((purgatory.delayed(), purgatory.timer_stats().pending), (waiting, waiting));
}

/// Shuts down, and compares all counts.
fn end(world: &World) -> Ends {
    let purgatory = world.purgatory();
    for op in purgatory.shutdown() {
        op.complete(Completion::ShutDown);
    }
    let mut ends = Ends::default();
    for record in &world.records {
        ends[usize::from(record.end.load(Relaxed))] += 1;
    }
    let stats = purgatory.stats();
    assert_eq!((stats.delayed, stats.watched, stats.keys, stats.panicked), (0, 0, 0, 0));
    let counts = [
        0,
        stats.at_once + stats.satisfied,
        stats.expired,
        stats.cancelled,
        stats.displaced,
        stats.shut_down,
        stats.refused,
    ];
    assert_eq!(ends.map(|count| count as u64), counts);
    ends
}

pub(crate) fn run() -> bool {
    let (sender, rounds) = mpsc::channel();
    let history = thread::spawn(move || {
        for seed in 0..operations().div_ceil(ROUND) as u64 {
            println!("seed {seed}");
            sender.send(round(seed)).expect("the other thread receives");
        }
    });
    let mut ends = Ends::default();
    loop {
        match rounds.recv_timeout(GENEROUS) {
            Ok(of_round) => of_round.iter().zip(&mut ends).for_each(|(count, sum)| *sum += count),
            Err(RecvTimeoutError::Timeout) => panic!("the threads of a round wait for each other"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    history.join().unwrap_or_else(|payload| resume_unwind(payload));
    println!("{ends:?}");
    // Every fourth round has limits. With one, each kind of end occurs.
    operations() <= 3 * ROUND || ends[1..6].iter().all(|count| *count > 0)
}
