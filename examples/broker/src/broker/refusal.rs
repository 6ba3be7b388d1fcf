//! Refusals: why a connection was closed. Each is counted, and told in a line, if that is not too
//! often.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use kafka_protocol::messages::ApiKey;

/// Of the lines about one kind of refusal, at most one is printed in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// A length is out of bounds, or a frame is cut off.
    Frame,
    /// The broker does not know this kind of request.
    Unknown(i16),
    /// The broker knows the request, but not in this version.
    Version(ApiKey, i16),
    /// The request is not what the protocol says.
    Malformed(ApiKey, i16),
    /// The request holds more topics or partitions than the limit.
    TooMany(ApiKey),
    /// The client wants no answer, so that it cannot be told of an error.
    Unanswerable(ApiKey),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame => write!(f, "a frame is cut off, or its length is out of bounds"),
            Self::Unknown(key) => write!(f, "request {key} is not supported"),
            Self::Version(key, version) => write!(f, "{key:?} version {version} is not supported"),
            Self::Malformed(key, version) => write!(f, "{key:?} version {version} is malformed"),
            Self::TooMany(key) => write!(f, "{key:?} holds too many topics or partitions"),
            Self::Unanswerable(key) => write!(f, "{key:?} failed, and its client wants no answer"),
        }
    }
}

/// Prints refusals, each kind at most once a second.
#[derive(Debug)]
pub(super) struct Refusals {
    print: fn(&str),
    told: Mutex<HashMap<Refusal, Told>>,
}

/// When a kind of refusal was told, and how many have come since.
#[derive(Debug)]
struct Told {
    at: Instant,
    more: u64,
}

/// Kinds of refusals that are told apart; garbage has no end of versions.
const MAX_KINDS: usize = 1_000;

impl Refusals {
    pub(super) fn new(print: fn(&str)) -> Self {
        Self { print, told: Mutex::default() }
    }

    /// Tells of a refusal, unless one of its kind was told less than a second ago.
    pub(super) fn tell(&self, refusal: Refusal, peer: impl fmt::Display) {
        if let Some(more) = self.count(refusal, Instant::now()) {
            let unsaid =
                if more == 0 { String::new() } else { format!(" ({more} more like this)") };
            (self.print)(&format!("closed {peer}: {refusal}{unsaid}"));
        }
    }

    /// Counts a refusal. Returns how many of its kind were not told, if this one is to be.
    fn count(&self, refusal: Refusal, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = told.get_mut(&refusal) {
            if now.saturating_duration_since(told.at) < INTERVAL {
                told.more += 1;
                return None;
            }
            told.at = now;
            return Some(std::mem::take(&mut told.more));
        }
        if told.len() >= MAX_KINDS {
            return None;
        }
        told.insert(refusal, Told { at: now, more: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_refusal_is_told_once_a_second_with_the_count_of_the_others() {
        let refusals = Refusals::new(|_| ());
        let begin = Instant::now();
        let count =
            |refusal, millis| refusals.count(refusal, begin + Duration::from_millis(millis));
        assert_eq!(count(Refusal::Frame, 0), Some(0));
        assert_eq!(count(Refusal::Frame, 1), None);
        assert_eq!(count(Refusal::Frame, 999), None);
        assert_eq!(count(Refusal::Unknown(99), 999), Some(0), "another kind");
        assert_eq!(count(Refusal::Frame, 1_000), Some(2));
        assert_eq!(count(Refusal::Frame, 2_000), Some(0));
    }

    #[test]
    fn garbage_does_not_fill_the_memory() {
        let refusals = Refusals::new(|_| ());
        let told = (0..2_000)
            .filter(|&key| refusals.count(Refusal::Unknown(key), Instant::now()).is_some());
        assert_eq!(told.count(), MAX_KINDS);
    }
}
