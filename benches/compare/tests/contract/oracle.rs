//! A contestant beside an ordered map; each call is checked as far as the contestant promises.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use delaywheel_compare::{Promises, Timers, Wakes};

/// A contestant and what should be in it. A payload is the number of its timeout.
pub(crate) struct Checked<T: Timers> {
    timers: T,
    now: u64,
    inserted: u64,
    pending: BTreeMap<u64, Pending>,
    /// The same, in the order in which they are due.
    by_due: BTreeSet<(u64, u64)>,
    /// Timeouts that can be cancelled.
    keys: HashMap<u64, T::Key>,
    numbers: Vec<u64>,
    dead: Vec<T::Key>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    deadline: u64,
    /// The deadline, or the time of the insert or move if that was later: no timer can be earlier.
    due: u64,
}

impl<T: Timers + Default> Checked<T> {
    const PROMISES: Promises = T::PROMISES;

    pub(crate) fn new() -> Self {
        Self {
            timers: T::default(),
            now: 0,
            inserted: 0,
            pending: BTreeMap::new(),
            by_due: BTreeSet::new(),
            keys: HashMap::new(),
            numbers: Vec::new(),
            dead: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn insert(&mut self, deadline: u64) {
        let number = self.inserted;
        self.inserted += 1;
        let key = self.timers.insert(deadline, number);
        self.expect(number, deadline);
        self.keys.insert(number, key);
        self.numbers.push(number);
        self.check_len();
    }

    /// Cancels the timeout with this index, modulo the number of timeouts.
    pub(crate) fn cancel(&mut self, nth: usize) {
        let Some((number, key)) = self.take_nth(nth) else { return };
        let is_late = self.pending[&number].deadline <= self.now;
        let is_cancelled = self.timers.cancel(key);
        // A late timeout may have begun to expire.
        assert!(is_cancelled || is_late && Self::PROMISES.lateness > 0, "{number} was pending");
        if is_cancelled {
            self.forget(number);
            self.dead.push(key);
        }
        self.check_len();
    }

    pub(crate) fn reset(&mut self, nth: usize, deadline: u64) {
        let Some((number, key)) = self.take_nth(nth) else { return };
        let is_late = self.pending[&number].deadline <= self.now;
        if let Some(moved) = self.timers.reset(key, deadline) {
            self.forget(number);
            self.expect(number, deadline);
            self.keys.insert(number, moved);
            self.numbers.push(number);
        } else {
            assert!(is_late && Self::PROMISES.lateness > 0, "{number} was pending");
        }
        self.check_len();
    }

    /// Cancels and moves a timeout that has ended.
    pub(crate) fn disturb_dead(&mut self, nth: usize) {
        if !Self::PROMISES.safe_keys || self.dead.is_empty() {
            return;
        }
        let key = self.dead[nth % self.dead.len()];
        assert!(!self.timers.cancel(key), "a timeout that had ended was cancelled");
        assert!(self.timers.reset(key, self.now + 1).is_none(), "a timeout that had ended was moved");
        self.check_len();
    }

    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        let mut expired = Vec::new();
        let count = self.timers.advance(now, |number| expired.push(number));
        assert_eq!(count, expired.len(), "an advance counts what it hands out");
        self.check_expired(&expired);
        if let Some(&(due, number)) = self.by_due.first() {
            let latest = due + Self::PROMISES.lateness;
            assert!(latest > now, "{number}, due at {due}, was held at {now}");
        }
        self.check_len();
    }

    /// Advances to the next expiration. Returns whether there was one.
    pub(crate) fn wake(&mut self) -> bool {
        let next = self.timers.next_expiration();
        let Some(&(due, number)) = self.by_due.first() else {
            assert!(next.is_none() || Self::PROMISES.wakes == Wakes::ForCancelled, "a wake-up without work");
            return next.inspect(|&next| self.advance(next.max(self.now))).is_some();
        };
        let next = next.expect("something is pending").max(self.now);
        let latest = due + Self::PROMISES.lateness;
        assert!(next <= latest.max(self.now), "woken at {next} for {number}, due at {due}");
        self.advance(next);
        true
    }

    fn check_expired(&mut self, expired: &[u64]) {
        let mut last = 0;
        for &number in expired {
            let timeout = self.forget(number);
            let earliest = timeout.deadline.saturating_sub(Self::PROMISES.earliness);
            assert!(earliest <= self.now, "{number}, {timeout:?}, came at {}", self.now);
            assert!(!Self::PROMISES.ordered || last <= timeout.due, "{number} came after {last}");
            last = timeout.due;
            self.dead.extend(self.keys.remove(&number));
        }
    }

    fn check_len(&self) {
        assert_eq!(self.timers.len(), self.pending.len(), "pending");
        assert_eq!(self.timers.is_empty(), self.pending.is_empty());
    }

    fn expect(&mut self, number: u64, deadline: u64) {
        let timeout = Pending { deadline, due: deadline.max(self.now) };
        self.by_due.insert((timeout.due, number));
        self.pending.insert(number, timeout);
    }

    fn forget(&mut self, number: u64) -> Pending {
        let Some(timeout) = self.pending.remove(&number) else {
            panic!("{number} expired, but was not pending");
        };
        self.by_due.remove(&(timeout.due, number));
        timeout
    }

    fn take_nth(&mut self, nth: usize) -> Option<(u64, T::Key)> {
        while !self.numbers.is_empty() {
            let number = self.numbers.swap_remove(nth % self.numbers.len());
            if let Some(key) = self.keys.remove(&number) {
                return Some((number, key));
            }
        }
        None
    }
}
