//! `tokio_util::time::DelayQueue` on a paused clock.
//!
//! It has no function that sets the time. So it runs on a current-thread runtime with a paused
//! clock. Inserting and cancelling are plain calls with an absolute deadline, which read no clock.
//! An advance moves the clock, which runs the runtime's timer driver once, and then polls until
//! nothing is ready. The polls are outside of a task, so tokio's cooperative budget does not apply.
//! No other way to drive it takes less work.
//!
//! All queues share the clock. So only one may let time pass at a time, which is asserted.

use std::{
    cell::Cell,
    mem,
    sync::LazyLock,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tokio_util::time::delay_queue;

use super::rounded::TENTHS;
use crate::{Promises, Timers, workload::DAY};

/// A leap year. The queue's wheel has six levels of 64 slots, which count 2^36 ticks, and panics
/// beyond. It counts from its last work, which may be a leap year ago.
const MAX_DELAY: u64 = 366 * DAY;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime without I/O can be built")
});

thread_local! {
    /// Whether this thread is inside of the runtime's context, which it never leaves.
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// [`tokio_util::time::DelayQueue`].
#[derive(Debug)]
pub struct DelayQueue {
    queue: tokio_util::time::DelayQueue<u64>,
    /// The instant of tick 0.
    start: Instant,
    /// Ticks of the caller in one tick of the queue, which is a millisecond.
    parts: u64,
    micros: u64,
    now: u64,
    /// The least deadline that was inserted since the queue was last polled at or after it. It is
    /// woken then, even if that timeout is gone.
    soonest: Option<u64>,
}

impl DelayQueue {
    #[inline]
    fn instant(&self, tick: u64) -> Instant {
        self.start + Duration::from_micros(tick * self.micros)
    }

    fn with_parts(parts: u64) -> Self {
        if !IS_ENTERED.replace(true) {
            mem::forget(RUNTIME.enter());
        }
        Self {
            queue: tokio_util::time::DelayQueue::new(),
            start: Instant::now(),
            parts,
            micros: 1_000 / parts,
            now: 0,
            soonest: None,
        }
    }

    fn advance_clock(&mut self, ticks: u64) {
        RUNTIME.block_on(tokio::time::advance(Duration::from_micros(ticks * self.micros)));
        self.now += ticks;
    }
}

impl Default for DelayQueue {
    fn default() -> Self {
        Self::with_parts(1)
    }
}

impl Drop for DelayQueue {
    /// Leaves the clock at a whole millisecond, where others expect it.
    fn drop(&mut self) {
        let rest = self.now.next_multiple_of(self.parts) - self.now;
        if rest > 0 {
            self.advance_clock(rest);
        }
    }
}

impl Timers for DelayQueue {
    type Key = delay_queue::Key;

    const NAME: &'static str = "delay_queue";

    const PROMISES: Promises = Promises {
        scheme: "hierarchical wheel over a slab, tokio-util's DelayQueue",
        describes: "a key is used again once its timeout is gone; panics beyond two years, counted \
                    from when it last had something to do",
        max_delay: Some(MAX_DELAY),
        safe_keys: false,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Self::Key {
        self.soonest = Some(self.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        self.queue.insert_at(payload, self.instant(deadline))
    }

    #[inline]
    fn cancel(&mut self, key: Self::Key) -> bool {
        self.queue.try_remove(&key).is_some()
    }

    /// Moves a timeout; the queue panics if it is not pending.
    #[inline]
    fn reset(&mut self, key: Self::Key, deadline: u64) -> Option<Self::Key> {
        self.queue.reset_at(&key, self.instant(deadline));
        Some(key)
    }

    /// The time at which the queue's own `Sleep` ends. The queue has no function that returns it.
    ///
    /// It is the start of the slot of its next entry, or the least deadline inserted since,
    /// whichever is first.
    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        let deadline = self.queue.deadline(&self.queue.peek()?) - self.start;
        let deadline =
            u64::try_from(deadline.as_millis()).expect("deadlines were ticks of 64 bits");
        let begin = slot_begin(self.now / self.parts, deadline);
        let soonest = self.soonest.map(|soonest| soonest.div_ceil(self.parts));
        let next = soonest.map_or(begin, |soonest| soonest.min(begin)) * self.parts;
        Some(next.max(self.now))
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        assert_eq!(Instant::now(), self.instant(self.now), "another queue has moved the clock");
        self.advance_clock(now - self.now);
        self.soonest = self.soonest.filter(|&soonest| soonest > now);
        let before = self.queue.len();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(timeout)) = self.queue.poll_expired(&mut context) {
            expired(timeout.into_inner());
        }
        before - self.queue.len()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn in_tenths() -> impl Timers {
        Self::with_parts(TENTHS)
    }
}

/// When the slot begins in which the queue's wheel of six levels of 64 slots has a deadline.
#[inline]
fn slot_begin(now: u64, deadline: u64) -> u64 {
    let level = ((now ^ deadline) | 1).ilog2() / 6;
    deadline >> (6 * level) << (6 * level)
}
