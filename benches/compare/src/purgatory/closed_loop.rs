//! A fixed number of requests in flight: the oldest is completed, and another takes its place.

use super::{Answer, Demand, Request, Requests};

/// On which of its keys an event is announced that completes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    /// On one of them.
    One,
    /// On one after the other.
    Each,
    /// On all in one call.
    Together,
}

/// A thread's requests in flight.
#[derive(Debug)]
pub struct ClosedLoop<'a, const KEYS: usize> {
    purgatory: &'a Requests,
    announce: Announce,
    in_flight: Vec<InFlight<KEYS>>,
    /// Where the one is that has waited longest.
    oldest: usize,
    share: Share,
}

#[derive(Debug)]
struct InFlight<const KEYS: usize> {
    answer: &'static Answer,
    keys: [u32; KEYS],
}

/// What one loop has done.
///
/// A request may be completed by the announcement of another thread, so the two are equal only over
/// all threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    /// Requests that it brought, all of which have been satisfied.
    pub watched: u64,
    /// Requests that its announcements completed.
    pub completed: u64,
}

impl<'a, const KEYS: usize> ClosedLoop<'a, KEYS> {
    /// Brings the first requests.
    #[must_use]
    pub fn new(purgatory: &'a Requests, announce: Announce, demands: &[Demand<KEYS>]) -> Self {
        let answers = Answer::leak(demands.len());
        let mut share = Share::default();
        let mut bring = |(demand, answer): (&Demand<KEYS>, _)| {
            watch(purgatory, answer, demand);
            share.watched += 1;
            InFlight { answer, keys: demand.keys }
        };
        let in_flight = demands.iter().zip(answers).map(&mut bring).collect();
        Self { purgatory, announce, in_flight, oldest: 0, share }
    }

    /// Completes the oldest request and brings another, for each demand.
    #[inline]
    pub fn run(&mut self, demands: &[Demand<KEYS>]) {
        for demand in demands {
            self.complete_oldest();
            let in_flight = &mut self.in_flight[self.oldest];
            in_flight.keys = demand.keys;
            watch(self.purgatory, in_flight.answer, demand);
            self.share.watched += 1;
            self.oldest += 1;
            if self.oldest == self.in_flight.len() {
                self.oldest = 0;
            }
        }
    }

    /// Completes those that are in flight. Returns what has been done from first to last.
    #[must_use]
    pub fn finish(mut self) -> Share {
        for _ in 0..self.in_flight.len() {
            self.complete_oldest();
            self.oldest = (self.oldest + 1) % self.in_flight.len();
        }
        self.share
    }

    #[inline]
    fn complete_oldest(&mut self) {
        let InFlight { answer, keys } = &self.in_flight[self.oldest];
        answer.make_ready();
        let completed = match self.announce {
            Announce::One => self.purgatory.check_and_complete(&keys[0]),
            Announce::Each => keys.iter().map(|key| self.purgatory.check_and_complete(key)).sum(),
            Announce::Together => self.purgatory.check_and_complete_all(keys),
        };
        self.share.completed += completed as u64;
        answer.reuse();
    }
}

#[inline]
fn watch<const KEYS: usize>(purgatory: &Requests, answer: &'static Answer, demand: &Demand<KEYS>) {
    let watched = purgatory.try_complete_else_watch(Request(answer), demand.keys, demand.delay());
    assert!(!watched.expect("there is room").is_completed(), "a request was not made to wait");
}
