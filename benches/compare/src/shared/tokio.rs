//! `tokio::time::Sleep`, polled once, so that it is registered with its runtime.
//!
//! A timeout is a slot on the heap that is reused, as a `Sleep` within a future is; so a pair
//! allocates nothing. The runtime has one worker thread, which also turns the timer driver; other
//! threads enter the runtime.

use std::{
    io,
    pin::Pin,
    task::{Context, Waker},
};

use tokio::{
    runtime::{Builder, Runtime},
    time::{self, Sleep, sleep},
};

use crate::prelude::*;

/// Sleeps of a runtime of their own, with tokio's first timer or its alternative one: a wheel for
/// each worker, which needs `--cfg tokio_unstable`.
#[derive(Clone)]
pub struct Tokio<const ALTERNATIVE: bool = false>(Arc<Runtime>);

/// Starts a runtime with the first timer or the alternative one.
pub fn runtime(workers: usize, is_alternative: bool) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all();
    if is_alternative {
        #[cfg(tokio_unstable)]
        builder.enable_alt_timer();
    }
    builder.build()
}

impl<const ALTERNATIVE: bool> Tokio<ALTERNATIVE> {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(task));
    }
}

impl<const ALTERNATIVE: bool> SharedTimer for Tokio<ALTERNATIVE> {
    type Timeout = Pin<Box<Option<Sleep>>>;

    const NAME: &'static str = if ALTERNATIVE { "tokio alternative" } else { "tokio" };

    fn start() -> Self {
        Self(Arc::new(runtime(1, ALTERNATIVE).expect("a thread can be started")))
    }

    fn enter(&self) -> impl Sized {
        self.0.enter()
    }

    fn schedule(&self, delay: Duration) -> Self::Timeout {
        let mut slot = Box::pin(None);
        register(slot.as_mut(), delay);
        slot
    }

    fn replace(&self, slot: &mut Self::Timeout, delay: Duration) -> bool {
        let was_pending = slot.as_ref().as_pin_ref().is_some_and(|sleep| !sleep.is_elapsed());
        slot.set(None);
        register(slot.as_mut(), delay);
        was_pending
    }

    fn reset(&self, slot: &mut Self::Timeout, delay: Duration) -> bool {
        let mut sleep = slot.as_mut().as_pin_mut().expect("a slot has a sleep");
        let was_pending = !sleep.is_elapsed();
        sleep.as_mut().reset(time::Instant::now() + delay);
        let _ = sleep.poll(&mut Context::from_waker(Waker::noop()));
        was_pending
    }

    /// Spawns a task that sleeps, as users do.
    fn schedule_noted(&self, delay: Duration, note: Note) {
        let _entered = self.enter();
        let sleep = sleep(delay);
        self.spawn(async move {
            sleep.await;
            note.run();
        });
    }
}

/// Polls outside of a task, hence without tokio's cooperative budget.
fn register(mut slot: Pin<&mut Option<Sleep>>, delay: Duration) {
    slot.set(Some(sleep(delay)));
    let sleep = slot.as_pin_mut().expect("it has just been set");
    // A short delay may be over at once on a busy machine.
    let _ = sleep.poll(&mut Context::from_waker(Waker::noop()));
}
