//! The timing wheel of this repository.

use delaywheel::wheel::Key;

use crate::prelude::*;

/// [`TimingWheel`] with its default settings.
#[derive(Default)]
pub struct Wheel(TimingWheel<u64>);

impl Timers for Wheel {
    type Key = Key;

    const NAME: &'static str = "delaywheel";

    fn insert(&mut self, deadline: u64, payload: u64) -> Key {
        self.0.insert(Tick::new(deadline), payload).expect("the wheel takes 2^32 timeouts")
    }

    fn cancel(&mut self, key: Key) -> Option<u64> {
        self.0.cancel(key)
    }

    fn reset(&mut self, key: Key, deadline: u64) -> Option<Key> {
        self.0.reset(key, Tick::new(deadline)).map(|_| key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_expiration().map(Tick::get)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        self.0.advance(Tick::new(now)).for_each(|timeout| expired(timeout.value));
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
