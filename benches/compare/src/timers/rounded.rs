//! A contestant with whole ticks, for a caller with a finer clock.

use crate::prelude::*;

/// Units of the caller in a tick.
pub(crate) const TENTHS: u64 = 10;

/// Rounds deadlines up and the present down, as our timer does.
pub(crate) struct Rounded<T> {
    timers: T,
    /// Units of the caller in a tick; 1 for a contestant without ticks.
    parts: u64,
}

impl<T: Default> Rounded<T> {
    pub(crate) fn new(has_ticks: bool) -> Self {
        Self { timers: T::default(), parts: if has_ticks { TENTHS } else { 1 } }
    }
}

impl<T: Timers> Timers for Rounded<T> {
    type Key = T::Key;

    const PROMISES: Promises = T::PROMISES;

    fn insert(&mut self, deadline: u64, payload: u64) -> T::Key {
        self.timers.insert(deadline.div_ceil(self.parts), payload)
    }

    fn cancel(&mut self, key: T::Key) -> Option<u64> {
        self.timers.cancel(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.timers.next_expiration().map(|tick| tick * self.parts)
    }

    fn advance(&mut self, now: u64, expired: impl FnMut(u64)) {
        self.timers.advance(now / self.parts, expired);
    }

    fn len(&self) -> usize {
        self.timers.len()
    }
}
