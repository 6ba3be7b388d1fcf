//! Our purgatory, requests that wait in it, and events for these.
//!
//! The timed loops are one source for all measurements. A request is eight bytes: a reference to
//! its answer.

use std::{
    hint::spin_loop,
    ops::{Range, RangeInclusive},
    ptr,
    sync::atomic::AtomicU8,
};

use delaywheel::{Completion, DelayedOperation, OperationKey, Purgatory, Watched};

use crate::prelude::*;

/// A purgatory of requests, whose keys are numbers. All calls to the library are here.
pub struct Requests(Purgatory<u32, Request>);

/// Names a request that waits.
pub type Handle = OperationKey;

impl Requests {
    /// Makes one on the default timer.
    pub fn start() -> Self {
        Self::new(Timer::builder())
    }

    pub fn new(timer: TimerBuilder) -> Self {
        Self(Purgatory::builder().timer(timer).build().expect("the settings are valid"))
    }

    /// Makes a request wait on keys that cannot complete yet.
    pub fn watch<const KEYS: usize>(
        &self,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) -> Handle {
        let watched = self.0.watch(Request(answer), keys, delay);
        watched.ok().and_then(Watched::key).expect("the request waits")
    }

    /// Completes a request whatever its condition. Returns whether it waited.
    pub fn complete(&self, request: Handle) -> bool {
        self.0.complete(request)
    }

    /// Completes requests that are due at once. Returns how many of them waited.
    pub fn complete_all(&self, requests: Vec<Handle>) -> usize {
        self.0.complete_all(requests)
    }

    /// Checks the requests on a key. Returns how many completed.
    pub fn check(&self, key: u32) -> usize {
        self.0.check_and_complete(&key)
    }

    /// Checks the requests on some keys. Returns how many completed.
    pub fn check_all(&self, keys: &[u32]) -> usize {
        keys.iter().map(|key| self.0.check_and_complete(key)).sum()
    }

    pub fn shrink(&self) {
        self.0.shrink();
    }

    pub fn watched(&self) -> u64 {
        self.0.stats().watched
    }

    /// Shuts down, and checks that these numbers were satisfied, had expired and still waited.
    #[track_caller]
    pub fn settle(&self, satisfied: u64, expired: u64, waiting: u64) {
        assert_eq!(self.0.stats().delayed, waiting, "requests that wait");
        let requests = self.0.shutdown();
        assert_eq!(requests.len() as u64, waiting, "requests that were handed back");
        requests.into_iter().for_each(|request| request.complete(Completion::ShutDown));
        let stats = self.0.stats();
        assert_eq!((stats.delayed, stats.watched), (0, 0), "requests that still wait");
        assert_eq!((stats.satisfied, stats.expired), (satisfied, expired));
        assert_eq!((stats.at_once, stats.cancelled, stats.displaced), (0, 0, 0));
        assert_eq!((stats.refused, stats.panicked, stats.keys), (0, 0, 0));
        assert_eq!(self.0.stats().timer.pending, 0, "pending timeouts");
    }
}

/// An operation that completes when its answer is ready.
struct Request(&'static Answer);

impl DelayedOperation<u32> for Request {
    fn try_complete(&mut self) -> bool {
        self.0.0.load(Ordering::Acquire) == READY
    }

    fn complete(self, completion: Completion) {
        self.0.end(match completion {
            Completion::Satisfied => SATISFIED,
            Completion::Expired => OVERDUE,
            _ => RETURNED,
        });
    }
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

    /// Ends the request without a purgatory.
    pub fn satisfy(&self) {
        self.end(SATISFIED);
    }

    fn end(&self, state: u8) {
        assert!(self.0.load(Ordering::Acquire) <= READY, "a request was answered twice");
        if state == OVERDUE && IS_NOTING.load(Ordering::Relaxed) {
            EXPIRED.lock().push((ptr::from_ref(self).addr(), Instant::now()));
        }
        self.0.store(state, Ordering::Release);
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
static IS_NOTING: AtomicBool = AtomicBool::new(false);

/// Addresses of the answers of expired requests, and when these expired.
static EXPIRED: Mutex<Vec<(usize, Instant)>> = Mutex::new(Vec::new());

/// Requests that only expire, and when they are due. All others complete.
pub struct Expiring(Vec<(&'static Answer, Instant)>);

impl Expiring {
    pub fn new(capacity: usize) -> Self {
        IS_NOTING.store(true, Ordering::Relaxed);
        *EXPIRED.lock() = Vec::with_capacity(capacity);
        Self(Vec::with_capacity(capacity))
    }

    /// Makes a request wait that expires after the delay.
    pub fn watch<const KEYS: usize>(
        &mut self,
        purgatory: &Requests,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) {
        self.0.push((answer, Instant::now() + delay));
        purgatory.watch(answer, keys, delay);
    }

    /// Waits until all have expired.
    pub fn settle(&self) {
        wait_until("all have expired", || self.0.iter().all(|(answer, _)| answer.has_ended()));
    }

    /// Nanoseconds by which requests were late that were due at an instant or later. None is early.
    pub fn lateness(self, from: Instant) -> Histogram<u64> {
        let key = |(answer, due): (&Answer, _)| (ptr::from_ref(answer).addr(), due);
        let due: BTreeMap<usize, Instant> = self.0.into_iter().map(key).collect();
        let expired = EXPIRED.lock();
        assert_eq!(expired.len(), due.len(), "requests that expired");
        let late = expired.iter().map(|(answer, at)| (due[answer], *at));
        histogram(late.filter(|(due, _)| *due >= from).map(|(due, at)| {
            assert!(due <= at, "a request expired early");
            nanos(at - due)
        }))
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
    Each,
}

/// A fixed number of requests in flight, of one thread: the oldest is completed, another takes its
/// place.
pub struct ClosedLoop<'a, const KEYS: usize> {
    purgatory: &'a Requests,
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

impl<'a, const KEYS: usize> ClosedLoop<'a, KEYS> {
    /// Registers the first requests.
    pub fn new(purgatory: &'a Requests, announce: Announce, demands: &[Demand<KEYS>]) -> Self {
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
    pub fn new<const KEYS: usize>(purgatory: &Requests, demands: &[Demand<KEYS>]) -> Self {
        let answers = Answer::leak(demands.len());
        for (answer, demand) in answers.iter().zip(demands) {
            purgatory.watch(answer, demand.keys, demand.delay());
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
