//! Threads that run a blocking handler. Catches panics of handlers and stores.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::delivery::Delivery;
use crate::error::{StoreError, StoreErrorReason, StoreResult};

/// Passes deliveries on. Must not block.
pub(super) type Handler = Arc<dyn Fn(Delivery) + Send + Sync>;

/// Hands deliveries to threads. The driver begins none for which no thread is free.
pub(super) struct Threads(Mutex<Option<Sender<Delivery>>>);

impl Threads {
    /// Starts threads that run deliveries until the queue is closed or dropped.
    pub(super) fn start(
        threads: usize,
        run: impl Fn(Delivery) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let (sender, deliveries) = mpsc::channel();
        let shared = Arc::new((Mutex::new(deliveries), run));
        let start = |_| {
            let shared: Arc<(Mutex<Receiver<Delivery>>, _)> = Arc::clone(&shared);
            thread::Builder::new().name("delaywheel-handler".to_owned()).spawn(move || {
                let (deliveries, run) = &*shared;
                // The lock is released before the handler runs.
                let next = || deliveries.lock().recv().ok();
                while let Some(delivery) = next() {
                    run_contained(|| run(delivery));
                }
            })
        };
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        Ok((Arc::new(Self(Mutex::new(Some(sender)))), threads))
    }

    pub(super) fn push(&self, delivery: Delivery) {
        if let Some(sender) = &*self.0.lock() {
            // A thread waits for it, as none ends before the queue is closed.
            let _ = sender.send(delivery);
        }
    }

    /// Makes the threads end.
    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}

/// Runs a blocking handler and ends the delivery by its result. A panic counts as a failure.
pub(super) fn run_blocking<E: std::fmt::Display + 'static>(
    handler: &(dyn Fn(&Delivery) -> Result<(), E> + Send + Sync),
    delivery: Delivery,
) {
    let Some(delivery) = delivery.start() else { return };
    match catch_unwind(AssertUnwindSafe(|| handler(&delivery))) {
        Ok(Ok(())) => delivery.acknowledge(),
        Ok(Err(error)) => delivery.fail(&error),
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
