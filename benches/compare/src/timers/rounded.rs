//! What is told whole ticks, used by somebody whose clock is finer.

use crate::{Promises, Timers};

/// Units of its user in a tick.
pub(super) const TENTHS: u64 = 10;

/// Contestants that are told whole ticks: deadlines are rounded up and the present down, as our timer
/// does, and anybody who must not be early.
#[derive(Debug, Default)]
pub(super) struct Rounded<T>(T);

impl<T: Timers> Timers for Rounded<T> {
    type Key = T::Key;

    const NAME: &'static str = T::NAME;

    const PROMISES: Promises = T::PROMISES;

    fn insert(&mut self, deadline: u64, payload: u64) -> T::Key {
        self.0.insert(deadline.div_ceil(TENTHS), payload)
    }

    fn cancel(&mut self, key: T::Key) -> bool {
        self.0.cancel(key)
    }

    fn reset(&mut self, key: T::Key, deadline: u64) -> Option<T::Key> {
        self.0.reset(key, deadline.div_ceil(TENTHS))
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_expiration().map(|tick| tick * TENTHS)
    }

    fn advance(&mut self, now: u64, expired: impl FnMut(u64)) -> usize {
        self.0.advance(now / TENTHS, expired)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
