//! The oracle: the contract of a wheel as a `BTreeMap` and a scan.

use std::collections::BTreeMap;

use delaywheel::{Expired, Key, Tick};

/// All pending timeouts, by key: deadline and value.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) pending: BTreeMap<Key, (Tick, u64)>,
    pub(crate) now: Tick,
    /// What the wheel's clock has been seen to have reached; it is not past `now`.
    reached: Tick,
}

impl Oracle {
    pub(crate) fn new(start: Tick) -> Self {
        Self { pending: BTreeMap::new(), now: start, reached: start }
    }

    /// Takes in a timeout of which the wheel reports `deadline` when asked for `wanted`.
    ///
    /// `is_idle` tells that nothing was due, so that the wheel's clock must have stood at now.
    pub(crate) fn put(
        &mut self,
        key: Key,
        wanted: Tick,
        deadline: Tick,
        value: u64,
        is_idle: bool,
    ) {
        self.reached = if is_idle { self.now } else { self.reached };
        assert!(deadline >= wanted.max(self.reached), "a deadline was moved ahead");
        assert!(deadline == wanted || deadline <= self.now, "a deadline was put off");
        if deadline > wanted {
            self.reached = deadline;
        }
        self.pending.insert(key, (deadline, value));
    }

    pub(crate) fn expire(&mut self, expired: &Expired<u64>) {
        let least = self.least();
        let known = self.pending.remove(&expired.key);
        assert_eq!(known, Some((expired.deadline, expired.value)), "not what was pending");
        assert!(expired.deadline <= self.now, "early");
        assert!(expired.deadline >= self.reached, "out of order: the clock had come further");
        assert_eq!(Some(expired.deadline), least, "out of order: passed over a timeout");
        self.reached = expired.deadline;
    }

    pub(crate) fn assert_nothing_is_held(&self) {
        assert!(self.least().is_none_or(|least| least > self.now), "held");
    }

    pub(crate) fn least(&self) -> Option<Tick> {
        self.pending.values().map(|&(deadline, _)| deadline).min()
    }
}
