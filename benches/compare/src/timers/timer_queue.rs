//! The crate `timer-queue`: eleven wheels of 64 slots over a slab, stepped from slot to slot.

use timer_queue::Timer;

use crate::{Promises, Timers};

/// [`timer_queue::TimerQueue`].
#[derive(Debug, Default)]
pub struct TimerQueue(timer_queue::TimerQueue<u64>);

impl Timers for TimerQueue {
    type Key = Timer;

    const NAME: &'static str = "timer_queue";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel over a slab, timer-queue",
        describes: "the key of a timeout that is gone panics or is another's",
        safe_keys: false,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Timer {
        self.0.insert(deadline, payload)
    }

    #[inline]
    fn cancel(&mut self, key: Timer) -> bool {
        self.0.remove(key);
        true
    }

    #[inline]
    fn reset(&mut self, key: Timer, deadline: u64) -> Option<Timer> {
        self.0.reset(key, deadline);
        Some(key)
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_timeout()
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.0.len();
        while let Some(payload) = self.0.poll(now) {
            expired(payload);
        }
        before - self.0.len()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
