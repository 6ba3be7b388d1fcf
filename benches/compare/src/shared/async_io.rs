//! `async_io::Timer`: a tree behind one lock, which the reactor thread checks.
//!
//! Tasks of an executor with its own thread await noted timeouts, as smol does, which uses this reactor.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use async_io::Timer;

use super::{Note, SharedTimer, executor::Executor};
use crate::Promises;

/// [`Timer`], polled once, so that it is in the tree.
#[derive(Debug, Clone)]
pub struct AsyncIo(Executor);

impl SharedTimer for AsyncIo {
    type Timeout = Timer;

    const NAME: &'static str = "async_io";

    const PROMISES: Promises =
        Promises { scheme: "scheme 3: tree behind one lock, async-io's Timer", ..Promises::STRICT };

    /// Starts the executor. All share one reactor, which never ends.
    fn start() -> Self {
        Self(Executor::start("async-io-tasks", |run| async_io::block_on(run)))
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> Timer {
        let mut timer = Timer::after(delay);
        is_pending(&mut timer);
        timer
    }

    #[inline]
    fn replace(&self, timer: &mut Timer, delay: Duration) -> bool {
        let was_pending = is_pending(timer);
        *timer = self.schedule(delay);
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let timer = Timer::after(delay);
        self.0.spawn(async move {
            timer.await;
            note.run();
        });
    }
}

#[inline]
fn is_pending(timer: &mut Timer) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    Future::poll(Pin::new(timer), &mut context).is_pending()
}
