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

/// How long timeouts were left to others, and until when, by id and due time.
#[derive(Debug, Default)]
pub(crate) struct Left(Mutex<Delays>);

#[derive(Debug, Default)]
struct Delays {
    kept: FxHashMap<(TimeoutId, WallTime), (Duration, WallTime)>,
    swept: WallTime,
}

impl Left {
    /// Returns until when a timeout is left that is left now.
    pub(super) fn next(&self, record: &Record, now: WallTime) -> WallTime {
        let Delays { kept, swept } = &mut *self.0.lock();
        let key = (record.id.clone(), record.due);
        if kept.len() == MOST_LEFT && !kept.contains_key(&key) {
            if now.since(*swept) >= LEFT {
                *swept = now;
                // A timeout that has come back may have been delivered.
                kept.retain(|_, (_, until)| *until > now);
            }
            if kept.len() == MOST_LEFT {
                // The time since its due time doubles as well, though it may be long.
                return now.saturating_add(record.next.since(record.due).clamp(LEFT, MAX_LEFT));
            }
        }
        // Another worker may have been too busy the first time: the second delay is as short.
        let (delay, until) = kept.entry(key).or_insert((LEFT / 4, now));
        *delay = (*delay * 2).min(MAX_LEFT);
        *until = now.saturating_add(LEFT.max(*delay));
        *until
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

    fn record(id: usize, due: WallTime) -> Record {
        let new = crate::NewTimeout::new(id.to_string(), due, b"").expect("valid");
        crate::transition::pending_record(&new, 1)
    }

    #[test]
    fn the_delay_of_a_left_timeout_doubles_from_the_third_time_on_and_starts_anew() {
        let (left, second) =
            (Left::default(), WallTime::MIN.saturating_add(Duration::from_secs(1)));
        for due in [WallTime::MIN, second] {
            let next = || left.next(&record(1, due), second).since(second).as_secs();
            let delays: Vec<_> = (0..10).map(|_| next()).collect();
            assert_eq!(delays, [5, 5, 10, 20, 40, 80, 160, 320, 600, 600]);
        }
    }

    /// No worker knows their payloads: a version was withdrawn.
    #[test]
    fn the_delays_of_many_timeouts_that_are_left_double() {
        for count in [MOST_LEFT - 1, MOST_LEFT, 2 * MOST_LEFT] {
            let left = Left::default();
            let mut records: Vec<_> = (0..count).map(|id| record(id, WallTime::MIN)).collect();
            let mut now = WallTime::MIN;
            for _ in 0..9 {
                for record in &mut records {
                    record.next = left.next(record, now);
                }
                now = records.iter().map(|record| record.next).max().expect("records");
            }
            let few = |record: &&_| left.next(record, now).since(now) < MAX_LEFT / 2;
            assert_eq!(records.iter().filter(few).count(), 0, "of {count}");
        }
    }

    /// Timeouts that were delivered long ago need no place.
    #[test]
    fn a_timeout_that_is_left_after_many_others_is_left_for_a_moment() {
        let (left, now) = (Left::default(), WallTime::MIN.saturating_add(MAX_LEFT));
        (0..MOST_LEFT).for_each(|id| _ = left.next(&record(id, WallTime::MIN), WallTime::MIN));
        let mut overdue = record(MOST_LEFT, WallTime::MIN);
        overdue.next = now;
        assert_eq!(left.next(&overdue, now).since(now), LEFT);
    }
}
