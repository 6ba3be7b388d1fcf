//! Refusals: the reasons for which the broker closes or does not accept a connection. It prints a
//! line for each, but not too often.

use std::{
    collections::HashMap,
    fmt,
    mem::{self, Discriminant},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use kafka_protocol::messages::ApiKey;

/// At most one line about a kind of refusal is printed in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The reason for which the broker closes or does not accept a connection, as its line tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Frame,
    Slow,
    Full(usize),
    Unknown(i16),
    Version(ApiKey, i16),
    Malformed(ApiKey, i16),
    TooMany(ApiKey),
    Unanswerable(ApiKey),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame => write!(f, "a frame is cut off, or its length is out of bounds"),
            Self::Slow => write!(f, "a request took too long to come in"),
            Self::Full(count) => write!(f, "{count} connections are open"),
            Self::Unknown(key) => write!(f, "request {key} is not supported"),
            Self::Version(key, version) => write!(f, "{key:?} version {version} is not supported"),
            Self::Malformed(key, version) => write!(f, "{key:?} version {version} is malformed"),
            Self::TooMany(key) => write!(f, "{key:?} has too many topics or partitions"),
            Self::Unanswerable(key) => write!(f, "{key:?} failed, and its client wants no answer"),
        }
    }
}

/// Refusals that are counted together. There are few, although garbage may name any request.
type Kind = Discriminant<Refusal>;

/// Prints refusals, each kind at most once a second.
#[derive(Debug)]
pub(super) struct Refusals {
    print: fn(&str),
    /// For each kind, the time of its latest line, and the number of refusals since.
    kinds: Mutex<HashMap<Kind, (Instant, u64)>>,
}

impl Refusals {
    pub(super) fn new(print: fn(&str)) -> Self {
        Self { print, kinds: Mutex::default() }
    }

    /// Prints what the broker does and why, unless another refusal of its kind was printed less
    /// than a second ago.
    pub(super) fn print(&self, refusal: Refusal, does: impl fmt::Display) {
        let Some(more) = self.count(refusal, Instant::now()) else { return };
        let others = if more == 0 { String::new() } else { format!(" ({more} more like this)") };
        (self.print)(&format!("{does}: {refusal}{others}"));
    }

    /// Counts a refusal. Returns `None` if the caller must not print it, and otherwise the number
    /// of refusals that were not printed since the last line.
    fn count(&self, refusal: Refusal, now: Instant) -> Option<u64> {
        let kind = mem::discriminant(&refusal);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((printed, more)) = kinds.get_mut(&kind) else {
            kinds.insert(kind, (now, 0));
            return Some(0);
        };
        if now.saturating_duration_since(*printed) < INTERVAL {
            *more += 1;
            return None;
        }
        *printed = now;
        Some(mem::take(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_refusal_is_printed_once_a_second_with_the_count_of_the_others() {
        let refusals = Refusals::new(|_| ());
        let begin = Instant::now();
        let count =
            |refusal, millis| refusals.count(refusal, begin + Duration::from_millis(millis));
        assert_eq!([0, 1, 999].map(|at| count(Refusal::Frame, at)), [Some(0), None, None]);
        assert_eq!(count(Refusal::Unknown(99), 999), Some(0), "another kind");
        assert_eq!([1_000, 2_000].map(|at| count(Refusal::Frame, at)), [Some(2), Some(0)]);
        // Garbage neither fills the memory nor hides other refusals.
        let printed = (0..2_000).filter(|&key| count(Refusal::Unknown(key), 999).is_some());
        assert_eq!(printed.count(), 0);
        assert_eq!(count(Refusal::Slow, 999), Some(0));
    }
}
