//! When a delivery that failed is tried again, and one that was left to other workers.

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    error::InputError,
    record::{Record, TimeoutId},
    store::Settlement,
    time::{WallTime, When},
};

/// Least delay of a timeout that this process leaves to others.
pub(super) const LEFT: Duration = Duration::from_secs(5);

/// The longest one. The delay doubles: it may be that no worker can deliver the timeout.
const MAX_LEFT: Duration = Duration::from_secs(600);

/// Number of timeouts whose delays are kept.
const MOST_LEFT: usize = 10_000;

/// How long timeouts were left to others, by id and due time.
#[derive(Debug, Default)]
pub(crate) struct Left(Mutex<FxHashMap<(TimeoutId, WallTime), Duration>>);

impl Left {
    /// Returns the delay of a timeout that is left now.
    pub(super) fn next(&self, record: &Record) -> Duration {
        let mut left = self.0.lock();
        if left.len() == MOST_LEFT {
            left.clear();
        }
        // Another worker may have been too busy the first time: the second delay is no longer.
        let delay = left.entry((record.id.clone(), record.due)).or_insert(LEFT / 4);
        *delay = (*delay * 2).min(MAX_LEFT);
        LEFT.max(*delay)
    }
}

/// Delays between the attempts of a delivery, and their number.
///
/// The delay after attempt `n` is `base * 2^(n - 1)`, at most `max`, less a random part of up to
/// `jitter` of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: f64,
    attempts: u32,
}

impl Backoff {
    /// Creates a policy with delays from `base` to an hour, a jitter of a fifth, and 20 attempts.
    #[must_use]
    pub fn new(base: Duration) -> Self {
        Self { base, max: Duration::from_secs(3_600), jitter: 0.2, attempts: 20 }
    }

    /// Sets the longest delay.
    #[must_use]
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Sets the part of a delay that is random, from 0 to 1.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.0 };
        self
    }

    /// Sets the number of attempts after which a timeout is dead. Zero counts as one.
    ///
    /// An attempt counts when its delivery begins. So the limit also holds for a handler that
    /// exceeds its time or ends its process, though the embedded store does not count the first
    /// such end. A kill, or the end of a connection to PostgreSQL, can count an attempt that no
    /// handler has seen. The first attempts of quick handlers begin ahead, in batches; with a limit
    /// of one, and from the second attempt on, no more begin than handlers are free, which are
    /// `max_deliveries` asynchronous ones. A timeout that has failed so often under a higher limit
    /// is dead once a worker with this limit comes to it.
    ///
    /// With a limit of two or more: if no attempt of a timeout has ended with an error, its last
    /// one waits for the end of another such attempt of the queue, or for a second. So a handler
    /// that soon ends its process, each time, ends alone, and not with the deliveries beside it.
    /// The error of an attempt before a requeue counts as well.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    pub(super) fn is_last(&self, attempt: u32) -> bool {
        attempt >= self.attempts
    }

    /// Returns the delay after a failed attempt; `None` if it was the last one.
    fn delay(&self, attempt: u32) -> Option<Duration> {
        if self.is_last(attempt) {
            return None;
        }
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let delay = self.base.checked_mul(factor).unwrap_or(self.max).min(self.max);
        let part = delay.as_secs_f64() * (1.0 - self.jitter * fastrand::f64());
        // The longest durations are no exact floats.
        Some(Duration::try_from_secs_f64(part).unwrap_or(delay))
    }

    /// Returns how to settle an attempt that failed, and is tried again at `when` if the handler
    /// says so.
    pub(super) fn settle(
        &self,
        attempt: u32,
        error: String,
        now: WallTime,
        when: Option<When>,
    ) -> Settlement {
        match self.delay(attempt) {
            None => Settlement::Dead { error },
            Some(delay) => {
                let at = match when.unwrap_or(When::In(delay)).resolve(now) {
                    Err(InputError::Before1970) => WallTime::MIN,
                    at => at.unwrap_or(WallTime::MAX),
                };
                Settlement::Retry { at, error }
            }
        }
    }
}

impl Default for Backoff {
    /// Returns delays from a second to an hour, and 20 attempts.
    fn default() -> Self {
        Self::new(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_makes_some_delays_shorter_and_none_longer() {
        let plain = |attempt| Backoff::default().jitter(0.0).delay(attempt).map(|at| at.as_secs());
        assert_eq!([1, 2, 12, 13, 19].map(plain), [1, 2, 2_048, 3_600, 3_600].map(Some));
        assert_eq!(plain(20), None);
        let none = Backoff::default().attempts(0);
        assert_eq!([0, 1].map(|attempt| none.is_last(attempt)), [false, true], "it counts as one");
        let delays: Vec<_> = (0..99).filter_map(|_| Backoff::default().delay(1)).collect();
        let range = Duration::from_millis(800)..=Duration::from_secs(1);
        assert!(delays.iter().all(|delay| range.contains(delay)), "{delays:?}");
        assert!(delays.iter().min() < Some(&Duration::from_millis(850)), "{delays:?}");
    }

    #[test]
    fn a_time_that_no_timeout_can_have_is_the_nearest_one() {
        let before = std::time::UNIX_EPOCH - Duration::from_nanos(1);
        let long = Backoff::new(Duration::MAX).max(Duration::MAX).jitter(0.0);
        let (after, before) = (Some(Duration::MAX.into()), Some(before.into()));
        for (when, at) in [(after, WallTime::MAX), (before, WallTime::MIN), (None, WallTime::MAX)] {
            let now = WallTime::from_micros(1).expect("valid");
            let settlement = long.settle(1, String::new(), now, when);
            assert_eq!(settlement, Settlement::Retry { at, error: String::new() });
        }
    }
}
