//! The oracle: the contract of a wheel as a `BTreeMap` and a scan.

use std::collections::BTreeMap;

use delaywheel::{
    Tick,
    wheel::{Expired, Key},
};

/// All pending timeouts, by key: deadline and value.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) pending: BTreeMap<Key, (Tick, u64)>,
    pub(crate) now: Tick,
    /// The latest tick that expiry is known to have reached; at most `now`.
    reached: Tick,
}

impl Oracle {
    pub(crate) fn new(start: Tick) -> Self {
        Self { pending: BTreeMap::new(), now: start, reached: start }
    }

    /// Adds a timeout. The caller asked for `wanted`, and the wheel reports `deadline`.
    ///
    /// If `is_idle`, no timeout was due, so expiry had reached `now`.
    pub(crate) fn put(
        &mut self,
        key: Key,
        wanted: Tick,
        deadline: Tick,
        value: u64,
        is_idle: bool,
    ) {
        self.reached = if is_idle { self.now } else { self.reached };
        assert!(deadline >= wanted.max(self.reached), "the deadline is before the latest expiry");
        assert!(deadline == wanted || deadline <= self.now, "the deadline is later than asked");
        if deadline > wanted {
            self.reached = deadline;
        }
        self.pending.insert(key, (deadline, value));
    }

    pub(crate) fn expire(&mut self, expired: &Expired<u64>) {
        let least = self.least();
        let known = self.pending.remove(&expired.key);
        assert_eq!(known, Some((expired.deadline, expired.value)), "it was not pending");
        assert!(expired.deadline <= self.now, "early");
        assert!(expired.deadline >= self.reached, "out of order: before the clock");
        assert_eq!(Some(expired.deadline), least, "out of order: an earlier timeout is pending");
        self.reached = expired.deadline;
    }

    pub(crate) fn least(&self) -> Option<Tick> {
        self.pending.values().map(|&(deadline, _)| deadline).min()
    }
}
