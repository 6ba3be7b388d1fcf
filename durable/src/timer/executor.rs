//! Threads that run a blocking handler. Catches panics of handlers and stores.

use std::{
    any::Any,
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};

use super::delivery::Delivery;
use crate::error::{StoreError, StoreErrorReason, StoreResult};

/// Passes deliveries on. Must not block.
pub(super) type Handler = Arc<dyn Fn(Delivery) + Send + Sync>;

/// Hands deliveries to threads. The driver begins none for which no thread is free.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    deliveries: VecDeque<Delivery>,
    is_closed: bool,
}

impl Queue {
    pub(super) fn push(&self, delivery: Delivery) {
        self.state.lock().deliveries.push_back(delivery);
        self.changed.notify_one();
    }

    /// Makes the threads end.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Delivery> {
        let mut state = self.state.lock();
        while state.deliveries.is_empty() && !state.is_closed {
            self.changed.wait(&mut state);
        }
        state.deliveries.pop_front()
    }

    /// Starts a thread that runs deliveries.
    pub(super) fn start(
        self: &Arc<Self>,
        name: String,
        run: Arc<dyn Fn(Delivery) + Send + Sync>,
    ) -> io::Result<JoinHandle<()>> {
        let queue = Arc::clone(self);
        thread::Builder::new().name(name).spawn(move || {
            while let Some(delivery) = queue.pop() {
                run_contained(|| run(delivery));
            }
        })
    }
}

/// Runs a blocking handler and ends the delivery by its result. A panic counts as a failure.
pub(super) fn run_blocking<E: std::fmt::Display>(
    handler: &(dyn Fn(&Delivery) -> Result<(), E> + Send + Sync),
    delivery: Delivery,
) {
    let Some(delivery) = delivery.start() else { return };
    match catch_unwind(AssertUnwindSafe(|| handler(&delivery))) {
        Ok(Ok(())) => delivery.acknowledge(),
        Ok(Err(error)) => delivery.retry(error),
        Err(panic) => delivery.retry(format!("the handler panicked: {}", message(&*panic))),
    }
}

/// Runs the code of a user, so that its panic ends no thread of the timer. The delivery that the
/// panic drops counts as failed if its handler had started.
pub(super) fn run_contained(run: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(run)));
}

/// Calls a store. Turns a panic into a failure of unknown outcome.
pub(super) fn contain<R>(call: impl FnOnce() -> StoreResult<R>) -> StoreResult<R> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = format!("the store panicked: {}", message(&*panic));
        Err(StoreError::with_source(StoreErrorReason::OutcomeUnknown, text))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
