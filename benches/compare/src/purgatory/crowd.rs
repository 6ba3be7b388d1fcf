//! Requests that wait, and cannot complete before they are let.

use std::time::Duration;

use delaywheel::Watch;

use super::{Answer, Demand, Request, Requests};

/// Requests that wait.
#[derive(Debug)]
pub struct Crowd {
    answers: &'static [Answer],
}

impl Crowd {
    /// Brings requests that wait for events.
    ///
    /// # Panics
    ///
    /// If one does not wait.
    #[must_use]
    pub fn new<const KEYS: usize>(purgatory: &Requests, demands: &[Demand<KEYS>]) -> Self {
        let answers = Answer::leak(demands.len());
        for (answer, demand) in answers.iter().zip(demands) {
            let watched =
                purgatory.try_complete_else_watch(Request(answer), demand.keys, demand.delay());
            assert!(!watched.expect("there is room").is_completed());
        }
        Self { answers }
    }

    /// Brings requests that wait until the value of a key has reached different numbers, from
    /// `least` on.
    ///
    /// # Panics
    ///
    /// If one does not wait.
    #[must_use]
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

    /// Number of those that have been satisfied.
    #[must_use]
    pub fn satisfied(&self) -> u64 {
        self.answers.iter().filter(|answer| answer.is_satisfied()).count() as u64
    }

    /// Number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.answers.len() as u64
    }
}
