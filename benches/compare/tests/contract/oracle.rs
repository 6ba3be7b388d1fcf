//! A contestant beside an ordered map; each call is checked as far as the contestant promises.

use std::collections::BTreeMap;

use delaywheel_compare::{Promises, Timers, Wakes};

/// A contestant and its expected timeouts. A payload is the number of its timeout.
pub(crate) struct Checked<T: Timers> {
    timers: T,
    now: u64,
    inserted: u64,
    pending: BTreeMap<u64, Pending<T::Key>>,
    /// Keys of timeouts that have ended.
    dead: Vec<T::Key>,
}

struct Pending<K> {
    key: K,
    deadline: u64,
    /// The deadline, or the time of its insert or move if that was later: no contestant can be
    /// sooner.
    due: u64,
}

impl<T: Timers + Default> Checked<T> {
    const PROMISES: Promises = T::PROMISES;

    pub(crate) fn new() -> Self {
        let (timers, pending, dead) = (T::default(), BTreeMap::new(), Vec::new());
        Self { timers, now: 0, inserted: 0, pending, dead }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn insert(&mut self, deadline: u64) {
        let key = self.timers.insert(deadline, self.inserted);
        self.expect(self.inserted, key, deadline);
        self.inserted += 1;
        self.check_len();
    }

    pub(crate) fn cancel(&mut self, nth: usize) {
        let Some((number, key)) = self.nth(nth) else { return };
        if let Some(payload) = self.timers.cancel(key) {
            assert_eq!(payload, number);
            self.forget(number);
            self.dead.push(key);
        } else {
            self.check_late(number);
        }
        self.check_len();
    }

    pub(crate) fn reset(&mut self, nth: usize, deadline: u64) {
        let Some((number, key)) = self.nth(nth) else { return };
        if let Some(moved) = self.timers.reset(key, deadline) {
            self.expect(number, moved, deadline);
        } else {
            self.check_late(number);
        }
        self.check_len();
    }

    /// Cancels and moves a timeout that has ended.
    pub(crate) fn disturb_dead(&mut self, nth: usize) {
        if !Self::PROMISES.safe_keys || self.dead.is_empty() {
            return;
        }
        let key = self.dead[nth % self.dead.len()];
        assert!(self.timers.cancel(key).is_none(), "a timeout that had ended was cancelled");
        assert!(self.timers.reset(key, self.now + 1).is_none(), "one that had ended was moved");
        self.check_len();
    }

    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        let mut expired = Vec::new();
        self.timers.advance(now, |number| expired.push(number));
        self.check_expired(&expired);
        if let Some((due, number)) = self.first() {
            let latest = due + Self::PROMISES.lateness;
            assert!(latest > now, "{number}, due at {due}, was held at {now}");
        }
        self.check_len();
    }

    /// Advances to the next expiration. Returns whether there was one.
    pub(crate) fn wake(&mut self) -> bool {
        let next = self.timers.next_expiration();
        let Some((due, number)) = self.first() else {
            assert!(next.is_none() || Self::PROMISES.wakes == Wakes::ForCancelled, "woken in vain");
            return next.inspect(|&next| self.advance(next.max(self.now))).is_some();
        };
        let next = next.expect("a timeout is pending").max(self.now);
        let latest = due + Self::PROMISES.lateness;
        assert!(next <= latest.max(self.now), "woken at {next} for {number}, due at {due}");
        self.advance(next);
        true
    }

    fn check_expired(&mut self, expired: &[u64]) {
        let mut last = 0;
        for &number in expired {
            let Pending { key, deadline, due } = self.forget(number);
            let earliest = deadline.saturating_sub(Self::PROMISES.earliness);
            assert!(earliest <= self.now, "{number}, due at {deadline}, expired at {}", self.now);
            assert!(!Self::PROMISES.ordered || last <= due, "{number} expired after {last}");
            last = due;
            self.dead.push(key);
        }
    }

    /// Only a timeout that is late by design may be neither pending nor expired.
    fn check_late(&self, number: u64) {
        let is_late = self.pending[&number].deadline <= self.now && Self::PROMISES.lateness > 0;
        assert!(is_late, "{number} was pending");
    }

    fn check_len(&self) {
        assert_eq!(self.timers.len(), self.pending.len(), "pending");
        assert_eq!(self.timers.is_empty(), self.pending.is_empty());
    }

    fn expect(&mut self, number: u64, key: T::Key, deadline: u64) {
        let due = deadline.max(self.now);
        self.pending.insert(number, Pending { key, deadline, due });
    }

    fn forget(&mut self, number: u64) -> Pending<T::Key> {
        let timeout = self.pending.remove(&number);
        timeout.unwrap_or_else(|| panic!("{number} expired, but was not pending"))
    }

    /// The pending timeout that is due first.
    fn first(&self) -> Option<(u64, u64)> {
        self.pending.iter().map(|(&number, timeout)| (timeout.due, number)).min()
    }

    fn nth(&self, nth: usize) -> Option<(u64, T::Key)> {
        let (number, timeout) = self.pending.iter().nth(nth.checked_rem(self.pending.len())?)?;
        Some((*number, timeout.key))
    }
}
