//! `tokio_util::time::DelayQueue` on a paused clock.
//!
//! Its caller cannot provide the time, so it runs in a current-thread runtime with a paused clock.
//! Insert and cancel are plain calls with an absolute deadline, which read no clock. An advance
//! moves the clock, which turns the runtime's timer driver once, and then polls until nothing is
//! ready. Polls are made outside of a task, hence without tokio's cooperative budget. No other way
//! to drive the queue takes less work.
//!
//! All queues share the clock. So only one may let time pass at a time, which is asserted. The
//! wheel of a queue panics at delays beyond two years.

use std::{
    cell::Cell,
    mem,
    task::{Context, Poll, Waker},
};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tokio_util::time::delay_queue::{self, Expired};

use crate::prelude::*;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime without I/O can be built")
});

thread_local! {
    /// Whether this thread is in the runtime's context, which it never leaves.
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Makes the paused clock that of this thread.
pub fn enter() {
    if !IS_ENTERED.replace(true) {
        mem::forget(RUNTIME.enter());
    }
}

pub fn advance_clock(ticks: u64) {
    RUNTIME.block_on(tokio::time::advance(Duration::from_millis(ticks)));
}

/// [`tokio_util::time::DelayQueue`].
pub struct DelayQueue {
    queue: tokio_util::time::DelayQueue<u64>,
    /// The instant of tick 0.
    start: Instant,
    now: u64,
    /// The least deadline that was inserted since the queue was last polled at or after it. The
    /// queue is woken then, even if that timeout is gone.
    soonest: Option<u64>,
}

impl DelayQueue {
    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_millis(tick)
    }

    fn advance_clock(&mut self, ticks: u64) {
        advance_clock(ticks);
        self.now += ticks;
    }
}

impl Default for DelayQueue {
    fn default() -> Self {
        enter();
        Self {
            queue: tokio_util::time::DelayQueue::new(),
            start: Instant::now(),
            now: 0,
            soonest: None,
        }
    }
}

impl Timers for DelayQueue {
    type Key = delay_queue::Key;

    const NAME: &'static str = "delay_queue";

    const HAS_SAFE_KEYS: bool = false;

    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key {
        self.soonest = Some(self.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        self.queue.insert_at(payload, self.instant(deadline))
    }

    fn cancel(&mut self, key: Self::Key) -> Option<u64> {
        self.queue.try_remove(&key).map(Expired::into_inner)
    }

    /// Moves a timeout; the queue panics if it is not pending.
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
        self.queue.reset_at(&key, self.instant(deadline));
        Some(key)
    }

    /// The end of the queue's own `Sleep`, which is private.
    ///
    /// That is the begin of the slot of the entry that it looks at next, or the least deadline that
    /// was inserted since, whichever is first.
    fn next_expiration(&mut self) -> Option<u64> {
        let deadline = self.queue.deadline(&self.queue.peek()?) - self.start;
        let deadline =
            u64::try_from(deadline.as_millis()).expect("deadlines were ticks of 64 bits");
        let begin = slot_begin(self.now, deadline);
        let next = self.soonest.map_or(begin, |soonest| soonest.min(begin));
        Some(next.max(self.now))
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        assert_eq!(Instant::now(), self.instant(self.now), "another queue has moved the clock");
        self.advance_clock(now - self.now);
        self.soonest = self.soonest.filter(|&soonest| soonest > now);
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(timeout)) = self.queue.poll_expired(&mut context) {
            expired(timeout.into_inner());
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

/// The begin of the slot in which the queue's wheel of six levels of 64 slots keeps a deadline.
fn slot_begin(now: u64, deadline: u64) -> u64 {
    let level = ((now ^ deadline) | 1).ilog2() / 6;
    deadline >> (6 * level) << (6 * level)
}
