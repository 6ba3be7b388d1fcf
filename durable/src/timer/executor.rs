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

use super::{delivery::Delivery, driver::Lane};
use crate::error::{StoreError, StoreErrorReason};

/// Passes deliveries on. Must not block; a panic fails the delivery.
pub(super) type Handler = Arc<dyn Fn(Lane, Delivery) + Send + Sync>;

/// Deliveries that wait for a thread. Those of the window go first.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    window: VecDeque<Delivery>,
    backlog: VecDeque<Delivery>,
    is_closed: bool,
}

impl Queue {
    pub(super) fn push(&self, lane: Lane, delivery: Delivery) {
        let mut state = self.state.lock();
        match lane {
            Lane::Window => state.window.push_back(delivery),
            Lane::Backlog => state.backlog.push_back(delivery),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Makes the threads end after they have run the waiting deliveries.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Delivery> {
        let mut state = self.state.lock();
        loop {
            let waiting = &mut *state;
            let next = waiting.window.pop_front().or_else(|| waiting.backlog.pop_front());
            if next.is_some() || waiting.is_closed {
                return next;
            }
            self.changed.wait(&mut state);
        }
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
    match catch_unwind(AssertUnwindSafe(|| handler(&delivery))) {
        Ok(Ok(())) => delivery.acknowledge(),
        Ok(Err(error)) => delivery.retry(error),
        Err(panic) => delivery.retry(format!("the handler panicked: {}", message(&*panic))),
    }
}

/// Runs the code of a user, so that its panic ends no thread of the timer. The delivery that the
/// panic drops counts as failed.
pub(super) fn run_contained(run: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(run)));
}

/// Calls a store. Turns a panic into a failure of unknown outcome.
pub(super) fn contain<R>(call: impl FnOnce() -> Result<R, StoreError>) -> Result<R, StoreError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = format!("the store panicked: {}", message(&*panic));
        Err(StoreError::with_source(StoreErrorReason::OutcomeUnknown, text))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
