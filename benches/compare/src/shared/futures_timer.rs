//! `futures_timer::Delay`: a heap that a helper thread owns; other threads send it updates.
//!
//! Tasks of an executor with its own thread await noted timeouts.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use futures_lite::future;
use futures_timer::Delay;

use super::{Note, SharedTimer, executor::Executor};
use crate::Promises;

/// [`Delay`], polled once, so that it is registered.
#[derive(Debug, Clone)]
pub struct FuturesTimer(Executor);

impl SharedTimer for FuturesTimer {
    type Timeout = Delay;

    const NAME: &'static str = "futures_timer";

    const PROMISES: Promises = Promises {
        scheme: "scheme 3: heap of a helper thread, futures-timer",
        describes: "every operation wakes its thread",
        ..Promises::STRICT
    };

    /// Starts the executor. All share one helper thread, which never ends.
    fn start() -> Self {
        Self(Executor::start("futures-tasks", |run| future::block_on(run)))
    }

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

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let timeout = Delay::new(delay);
        self.0.spawn(async move {
            timeout.await;
            note.run();
        });
    }

    /// Waits for a timeout that is due at once: the helper thread processes all earlier updates first.
    fn catch_up(&self) {
        future::block_on(Delay::new(Duration::ZERO));
    }
}

#[inline]
fn is_pending(timeout: &mut Delay) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    Future::poll(Pin::new(timeout), &mut context).is_pending()
}
