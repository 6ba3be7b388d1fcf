//! `futures_timer::Delay`: a heap that a helper thread owns, to which others send updates.
//!
//! Expected timeouts are awaited by tasks of an executor with a thread of its own.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use futures_lite::future;
use futures_timer::Delay;

use super::{Expectation, SharedTimer, executor::Executor};
use crate::Promises;

/// [`Delay`], polled once, so that it would wake somebody.
#[derive(Debug, Clone)]
pub struct FuturesTimer(Executor);

impl FuturesTimer {
    /// Starts the executor. All share one helper thread, which never ends.
    #[must_use]
    pub fn new() -> Self {
        Self(Executor::start("futures-tasks", |run| future::block_on(run)))
    }
}

impl Default for FuturesTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedTimer for FuturesTimer {
    type Timeout = Delay;

    const NAME: &'static str = "futures_timer";

    const PROMISES: Promises = Promises {
        scheme: "scheme 3: heap of a helper thread, futures-timer",
        describes: "every operation wakes its thread",
        ..Promises::STRICT
    };

    #[inline]
    fn schedule(&self, delay: Duration) -> Delay {
        let mut timeout = Delay::new(delay);
        is_pending(&mut timeout);
        timeout
    }

    #[inline]
    fn replace(&self, timeout: &mut Delay, delay: Duration) -> bool {
        let was_pending = is_pending(timeout);
        *timeout = self.schedule(delay);
        was_pending
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let timeout = Delay::new(delay);
        self.0.spawn(async move {
            timeout.await;
            expectation.meet();
        });
    }

    /// Waits for a timeout that is due at once: the helper thread takes in all updates that were sent
    /// before it looks for what is due.
    fn catch_up(&self) {
        future::block_on(Delay::new(Duration::ZERO));
    }
}

#[inline]
fn is_pending(timeout: &mut Delay) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    Future::poll(Pin::new(timeout), &mut context).is_pending()
}
