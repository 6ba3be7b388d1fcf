//! The purgatories, requests that wait in them, and events for these.
//!
//! The timed loops are one source for all measurements. A request is eight bytes: a reference to
//! its answer.

mod kafka;

use std::{
    hint::spin_loop,
    ops::{Range, RangeInclusive},
    ptr,
    sync::atomic::AtomicU8,
};

use delaywheel::Watch;

use crate::prelude::*;

pub use self::kafka::KafkaPurgatory;

/// A purgatory of requests that threads share, whose keys are numbers.
pub trait SharedPurgatory: Sync {
    type Handle: Send;

    const NAME: &'static str;

    fn start() -> Self;

    /// Makes a request wait on keys. Returns `None` if it has completed.
    fn try_watch<const KEYS: usize>(
        &self,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) -> Option<Self::Handle>;

    /// Makes a request wait that cannot complete yet.
    fn watch<const KEYS: usize>(
        &self,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) -> Self::Handle {
        self.try_watch(answer, keys, delay).expect("the request waits")
    }

    /// Completes a request whatever its condition. Returns whether it waited.
    fn complete(&self, request: Self::Handle) -> bool;

    /// Completes requests that are due at once. Returns how many of them waited.
    fn complete_all(&self, requests: Vec<Self::Handle>) -> usize {
        requests.into_iter().map(|request| usize::from(self.complete(request))).sum()
    }

    /// Checks the requests on a key. Returns how many completed.
    fn check(&self, key: u32) -> usize;

    /// Checks the requests on some keys. Returns how many completed.
    fn check_all(&self, keys: &[u32]) -> usize;

    /// Ends all, and checks that these numbers were satisfied, had expired and still waited.
    fn settle(&self, satisfied: u64, expired: u64, waiting: u64);
}

/// Our purgatory.
pub type Requests = Purgatory<u32, Request>;

impl SharedPurgatory for Requests {
    type Handle = OperationKey;

    const NAME: &'static str = Wheel::NAME;

    fn start() -> Self {
        Self::new()
    }

    fn try_watch<const KEYS: usize>(
        &self,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) -> Option<OperationKey> {
        let watched = self.try_complete_else_watch(Request(answer), keys, delay);
        watched.ok().and_then(Watched::key)
    }

    fn complete(&self, request: OperationKey) -> bool {
        self.complete(request)
    }

    fn complete_all(&self, requests: Vec<OperationKey>) -> usize {
        self.complete_all(requests)
    }

    fn check(&self, key: u32) -> usize {
        self.check_and_complete(&key)
    }

    fn check_all(&self, keys: &[u32]) -> usize {
        self.check_and_complete_all(keys)
    }

    fn settle(&self, satisfied: u64, expired: u64, waiting: u64) {
        settle_own(self, satisfied, expired, waiting);
    }
}

/// Shuts our purgatory down, and checks that these numbers were satisfied, had expired and still
/// waited.
#[track_caller]
pub fn settle_own<O: DelayedOperation<u32> + Send + 'static>(
    purgatory: &Purgatory<u32, O>,
    satisfied: u64,
    expired: u64,
    waiting: u64,
) {
    assert_eq!(purgatory.delayed(), waiting, "requests that wait");
    let requests = purgatory.shutdown();
    assert_eq!(requests.len() as u64, waiting, "requests that were handed back");
    requests.into_iter().for_each(|request| request.complete(Completion::ShutDown));
    assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0), "requests that still wait");
    let stats = purgatory.stats();
    assert_eq!((stats.satisfied, stats.expired), (satisfied, expired));
    assert_eq!((stats.at_once, stats.cancelled, stats.displaced), (0, 0, 0));
    assert_eq!((stats.refused, stats.panicked, stats.keys), (0, 0, 0));
    assert_eq!(purgatory.timer_stats().pending, 0, "pending timeouts");
}

/// State of a request. A change costs a load and a store; an assertion checks that a request ends
/// once.
#[derive(Default)]
pub struct Answer(AtomicU8);

/// Not ended; cannot complete.
const WAITING: u8 = 0;
/// Not ended; completes when it is checked next.
const READY: u8 = 1;
const SATISFIED: u8 = 2;
const OVERDUE: u8 = 3;
/// Ended in another way.
const RETURNED: u8 = 4;

impl Answer {
    /// Makes some that are never freed, so a request is a plain reference.
    pub fn leak(count: usize) -> &'static [Self] {
        Vec::leak((0..count).map(|_| Self::default()).collect())
    }

    /// Lets the request complete when it is checked next.
    pub fn make_ready(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// Lets the request complete when it is checked next, unless it has ended.
    pub fn make_ready_if_waiting(&self) {
        let _ = self.0.compare_exchange(WAITING, READY, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits until the request is satisfied, perhaps by another thread, and makes the answer
    /// available again.
    pub fn reuse(&self) {
        let mut looks = 0_u32;
        while !self.has_ended() {
            looks += 1;
            if looks.is_multiple_of(64) { thread::yield_now() } else { spin_loop() }
        }
        assert!(self.is_satisfied(), "a request was not satisfied");
        self.0.store(WAITING, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) >= SATISFIED
    }

    /// Whether the request has completed before its delay was over.
    pub fn is_satisfied(&self) -> bool {
        self.0.load(Ordering::Acquire) == SATISFIED
    }

    pub fn is_expired(&self) -> bool {
        self.0.load(Ordering::Acquire) == OVERDUE
    }
}

/// Whether the instants are noted at which requests expire.
pub static IS_NOTING: AtomicBool = AtomicBool::new(false);

/// Addresses of the answers of expired requests, and when these expired.
pub static EXPIRED: Mutex<Vec<(usize, Instant)>> = Mutex::new(Vec::new());

/// An operation that completes when its answer is ready.
pub struct Request(pub &'static Answer);

impl DelayedOperation<u32> for Request {
    fn try_complete(&mut self) -> bool {
        self.0.0.load(Ordering::Acquire) == READY
    }

    fn complete(self, completion: Completion) {
        let Self(Answer(state)) = self;
        assert!(state.load(Ordering::Acquire) <= READY, "a request was answered twice");
        let end = match completion {
            Completion::Satisfied => SATISFIED,
            Completion::Expired => OVERDUE,
            _ => RETURNED,
        };
        if end == OVERDUE && IS_NOTING.load(Ordering::Relaxed) {
            EXPIRED.lock().push((ptr::from_ref(self.0).addr(), Instant::now()));
        }
        state.store(end, Ordering::Release);
    }
}

/// Delays in milliseconds: longer than anything here takes.
const DELAYS_MS: RangeInclusive<u32> = 30_000..=90_000;

/// Keys and delay of a request.
#[derive(Clone, Copy)]
pub struct Demand<const KEYS: usize> {
    /// Different ones.
    pub keys: [u32; KEYS],
    delay_ms: u32,
}

impl<const KEYS: usize> Demand<KEYS> {
    pub fn delay(&self) -> Duration {
        Duration::from_millis(u64::from(self.delay_ms))
    }
}

/// Draws requests on different keys of a range, with delays of 30 to 90 s.
pub fn demands<const KEYS: usize>(seed: u64, keys: Range<u32>, count: usize) -> Vec<Demand<KEYS>> {
    let mut rng = Rng::with_seed(seed);
    let demand = |_| Demand { keys: distinct(&mut rng, &keys), delay_ms: rng.u32(DELAYS_MS) };
    (0..count).map(demand).collect()
}

/// Draws requests, each on keys of its own.
pub fn demands_apart<const KEYS: usize>(seed: u64, count: usize) -> Vec<Demand<KEYS>> {
    let mut rng = Rng::with_seed(seed);
    let mut numbers = 0..u32::MAX;
    let demand = |_| {
        let keys = [(); KEYS].map(|()| numbers.next().expect("fewer than 2^32 keys are needed"));
        Demand { keys, delay_ms: rng.u32(DELAYS_MS) }
    };
    (0..count).map(demand).collect()
}

fn distinct<const KEYS: usize>(rng: &mut Rng, range: &Range<u32>) -> [u32; KEYS] {
    assert!(range.len() >= KEYS, "there are not {KEYS} different keys in {range:?}");
    let mut keys = [0; KEYS];
    for index in 0..KEYS {
        keys[index] = rng.u32(range.clone());
        while keys[..index].contains(&keys[index]) {
            keys[index] = rng.u32(range.clone());
        }
    }
    keys
}

/// The keys on which an event is announced that completes a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    One,
    /// On one after the other.
    Each,
    /// On all in one call.
    Together,
}

/// A fixed number of requests in flight, of one thread: the oldest is completed, another takes its
/// place.
pub struct ClosedLoop<'a, P, const KEYS: usize> {
    purgatory: &'a P,
    announce: Announce,
    in_flight: Vec<InFlight<KEYS>>,
    /// Index of the oldest request.
    oldest: usize,
    share: Share,
}

struct InFlight<const KEYS: usize> {
    answer: &'static Answer,
    keys: [u32; KEYS],
}

/// Requests of one loop. Another thread may complete them, so the counts are equal over all threads
/// only.
#[derive(Clone, Copy, Default)]
pub struct Share {
    /// Requests that it registered, all of which were satisfied.
    pub watched: u64,
    /// Requests that its announcements completed.
    pub completed: u64,
}

impl<'a, P: SharedPurgatory, const KEYS: usize> ClosedLoop<'a, P, KEYS> {
    /// Registers the first requests.
    pub fn new(purgatory: &'a P, announce: Announce, demands: &[Demand<KEYS>]) -> Self {
        let answers = Answer::leak(demands.len());
        let mut share = Share::default();
        let mut bring = |(demand, answer): (&Demand<KEYS>, _)| {
            purgatory.watch(answer, demand.keys, demand.delay());
            share.watched += 1;
            InFlight { answer, keys: demand.keys }
        };
        let in_flight = demands.iter().zip(answers).map(&mut bring).collect();
        Self { purgatory, announce, in_flight, oldest: 0, share }
    }

    /// Completes the oldest request and registers another, for each demand.
    pub fn run(&mut self, demands: &[Demand<KEYS>]) {
        for demand in demands {
            self.complete_oldest();
            let in_flight = &mut self.in_flight[self.oldest];
            in_flight.keys = demand.keys;
            self.purgatory.watch(in_flight.answer, demand.keys, demand.delay());
            self.share.watched += 1;
            self.oldest += 1;
            if self.oldest == self.in_flight.len() {
                self.oldest = 0;
            }
        }
    }

    /// Completes the requests in flight. Returns the counts of the whole life.
    pub fn finish(mut self) -> Share {
        for _ in 0..self.in_flight.len() {
            self.complete_oldest();
            self.oldest = (self.oldest + 1) % self.in_flight.len();
        }
        self.share
    }

    fn complete_oldest(&mut self) {
        let InFlight { answer, keys } = &self.in_flight[self.oldest];
        answer.make_ready();
        let completed = match self.announce {
            Announce::One => self.purgatory.check(keys[0]),
            Announce::Each => keys.iter().map(|&key| self.purgatory.check(key)).sum(),
            Announce::Together => self.purgatory.check_all(keys),
        };
        self.share.completed += completed as u64;
        answer.reuse();
    }
}

/// Requests that wait and cannot complete until they are let.
pub struct Crowd {
    answers: &'static [Answer],
}

impl Crowd {
    /// Registers requests that wait for events.
    pub fn new<const KEYS: usize>(
        purgatory: &impl SharedPurgatory,
        demands: &[Demand<KEYS>],
    ) -> Self {
        let answers = Answer::leak(demands.len());
        for (answer, demand) in answers.iter().zip(demands) {
            purgatory.watch(answer, demand.keys, demand.delay());
        }
        Self { answers }
    }

    /// Registers requests that wait until the value of a key reaches different numbers, from
    /// `least` on.
    pub fn on_value(purgatory: &Requests, key: u32, least: u64, count: usize) -> Self {
        const DELAY: Duration = Duration::from_mins(1);
        let answers = Answer::leak(count);
        for (answer, at) in answers.iter().zip(least..) {
            let watched = purgatory.watch_all(Request(answer), [Watch::Threshold(key, at)], DELAY);
            assert!(!watched.expect("there is room").is_completed());
        }
        Self { answers }
    }

    /// Lets all complete when they are checked next.
    pub fn make_ready(&self) {
        self.answers.iter().for_each(Answer::make_ready);
    }

    pub fn satisfied(&self) -> u64 {
        self.answers.iter().filter(|answer| answer.is_satisfied()).count() as u64
    }

    pub fn count(&self) -> u64 {
        self.answers.len() as u64
    }
}
