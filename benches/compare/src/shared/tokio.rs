//! `tokio::time::Sleep`, polled once, so that it is registered with its runtime.
//!
//! A timeout is a slot on the heap that is reused, as a `Sleep` within a future is; so a pair
//! allocates nothing. The runtime has one worker thread, which also turns the timer driver; other
//! threads enter the runtime.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use tokio::{
    runtime::{Builder, Runtime},
    time::{Sleep, sleep},
};

use crate::prelude::*;

/// Sleeps of a runtime of their own.
#[derive(Clone)]
pub struct Tokio(Arc<Runtime>);

impl Tokio {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(task));
    }
}

impl SharedTimer for Tokio {
    type Timeout = Pin<Box<Option<Sleep>>>;

    const PROMISES: Promises = Promises { name: "tokio", lateness: 1, ..Promises::STRICT };

    fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build();
        Self(Arc::new(runtime.expect("a thread can be started")))
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
