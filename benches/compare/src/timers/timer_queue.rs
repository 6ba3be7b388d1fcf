//! The crate `timer-queue`: eleven wheels of 64 slots over a slab, stepped from slot to slot.

use timer_queue::Timer;

use crate::prelude::*;

/// [`timer_queue::TimerQueue`].
#[derive(Default)]
pub struct TimerQueue(timer_queue::TimerQueue<u64>);

impl Timers for TimerQueue {
    type Key = Timer;

    const NAME: &'static str = "timer_queue";

    const HAS_SAFE_KEYS: bool = false;

    fn insert(&mut self, deadline: u64, payload: u64) -> Timer {
        self.0.insert(deadline, payload)
    }

    fn cancel(&mut self, key: Timer) -> Option<u64> {
        Some(self.0.remove(key))
    }

    fn reset(&mut self, key: Timer, deadline: u64) -> Option<Timer> {
        self.0.reset(key, deadline);
        Some(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_timeout()
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        while let Some(payload) = self.0.poll(now) {
            expired(payload);
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
