//! Scheme 2 of Varghese and Lauck: a list in the order of deadlines.
//!
//! Starting a timeout takes *O*(n) time, as its place is searched for from the rear; stopping and
//! expiring one take *O*(1).

use slotmap::DefaultKey;

use super::lists::{Lists, Timeout};
use crate::{Promises, Timers};

/// One list, sorted by deadline.
#[derive(Debug)]
pub struct OrderedList(Lists<Timeout>);

impl Default for OrderedList {
    fn default() -> Self {
        Self(Lists::new(1))
    }
}

impl OrderedList {
    fn first(&self) -> Option<(DefaultKey, Timeout)> {
        let key = self.0.first(0)?;
        self.0.get(key).map(|&timeout| (key, timeout))
    }
}

impl Timers for OrderedList {
    type Key = DefaultKey;

    const NAME: &'static str = "ordered_list";

    const PROMISES: Promises = Promises {
        scheme: "scheme 2: ordered list",
        describes: "searches for the place of each timeout",
        largest: 10_000,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let timeout = Timeout { deadline, payload };
        self.0.push_behind(0, timeout, |other| other.deadline <= deadline)
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.0.remove(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let timeout = self.0.remove(key)?;
        Some(self.insert(deadline, timeout.payload))
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        self.first().map(|(_, timeout)| timeout.deadline)
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.0.len();
        while let Some((key, timeout)) = self.first().filter(|(_, first)| first.deadline <= now) {
            self.0.remove(key);
            expired(timeout.payload);
        }
        before - self.0.len()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
