//! Threads that run blocking handlers, and threads that call stores. Catches panics of handlers and
//! stores.

use std::{
    error::Error,
    future::poll_fn,
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use pollster::block_on;

use super::delivery::Delivery;
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult, causes},
    store::Calls,
};

/// Passes deliveries on. Must not block.
pub(super) type Handler = Arc<dyn Fn(Delivery) + Send + Sync>;

/// Starts threads that run deliveries, and returns a handler that passes these on. The threads end
/// when it is dropped. The driver begins no delivery that would wait for long.
pub(super) fn start_threads(
    count: usize,
    run: &Handler,
) -> io::Result<(Handler, Vec<JoinHandle<()>>)> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    let start = |_| {
        let (receiver, run) = (Arc::clone(&receiver), Arc::clone(run));
        thread::Builder::new().name("delaywheel-handler".to_owned()).spawn(move || {
            // The lock is released before the handler runs.
            let next = || receiver.lock().recv();
            while let Ok(delivery) = next() {
                run_contained(|| run(delivery));
            }
        })
    };
    let handles = (0..count).map(start).collect::<io::Result<_>>()?;
    // The threads last as long as the sender.
    Ok((Arc::new(move |delivery| drop(sender.send(delivery))), handles))
}

/// A thread that makes calls of stores one after the other. It starts with the first ones.
#[derive(Debug, Default)]
pub(crate) struct CallThread(Mutex<Option<mpsc::Sender<Calls>>>);

impl CallThread {
    /// Adds calls. Returns the thread if it was started.
    pub(crate) fn push(&self, calls: Calls) -> Option<JoinHandle<()>> {
        let mut sender = self.0.lock();
        let mut started = None;
        if sender.is_none() {
            let (first, waiting) = mpsc::channel::<Calls>();
            // The waker of a caller may panic.
            let run = |calls| run_contained(|| block_on(calls));
            let run = move || waiting.into_iter().for_each(run);
            let thread = thread::Builder::new().name("delaywheel-calls".to_owned());
            started = thread.spawn(run).ok();
            *sender = started.is_some().then_some(first);
        }
        if let Some(sender) = &*sender {
            // The thread lasts as long as the sender.
            let _ = sender.send(calls);
        } else {
            drop(sender);
            // Without a thread, the caller waits.
            block_on(calls);
        }
        started
    }

    /// Makes the thread end after the calls that wait. Later calls start another one.
    pub(super) fn close(&self) {
        self.0.lock().take();
    }
}

/// Runs a blocking handler and ends the delivery by its result. A panic counts as a failure.
pub(super) fn run_blocking(
    handler: &impl Fn(&Delivery) -> Result<(), Box<dyn Error + Send + Sync>>,
    delivery: Delivery,
) {
    let Some(delivery) = delivery.start() else { return };
    match catch(|| handler(&delivery)) {
        Ok(Ok(())) => delivery.acknowledge(),
        Ok(Err(error)) => delivery.fail(&error, &causes(&*error)),
        Err(panic) => delivery.retry(format!("the handler panicked: {panic}")),
    }
}

/// Runs the code of a user, so that its panic ends no thread of the timer. The delivery that the
/// panic drops counts as failed if its handler had started.
pub(crate) fn run_contained(run: impl FnOnce()) {
    let _ = catch(run);
}

/// Calls a store, and waits. Turns a panic into a failure of unknown outcome.
pub(super) fn contain<R, F: Future<Output = StoreResult<R>>>(
    call: impl FnOnce() -> F,
) -> StoreResult<R> {
    block_on(contained(async { call().await }))
}

/// Polls calls of a store. Turns a panic into a failure of unknown outcome. An `async` block drops
/// what it awaits within its poll.
pub(crate) async fn contained<R, E: From<StoreError>>(
    calls: impl Future<Output = Result<R, E>>,
) -> Result<R, E> {
    let mut calls = pin!(calls);
    let poll = |context: &mut Context<'_>| {
        catch(|| calls.as_mut().poll(context)).unwrap_or_else(|panic| {
            let text = format!("the store panicked: {panic}");
            let error = StoreError::with_source(StoreErrorReason::OutcomeUnknown, text);
            Poll::Ready(Err(error.into()))
        })
    };
    poll_fn(poll).await
}

/// Runs code of a user or of a store. Returns the message of a panic, whose payload may panic as
/// well when it is dropped.
fn catch<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref().cloned());
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(second);
        }
        text.unwrap_or_else(|| "no message".to_owned())
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::{panic::resume_unwind, pin::Pin};

    use super::*;

    pub(in crate::timer) struct PanicsAtDrop;

    impl Future for PanicsAtDrop {
        type Output = StoreResult<()>;

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<StoreResult<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Drop for PanicsAtDrop {
        fn drop(&mut self) {
            // Without a message on standard error.
            resume_unwind(Box::new("the drop fails"));
        }
    }

    #[test]
    fn a_panic_in_the_drop_of_a_future_or_of_another_panic_is_caught() {
        let error = contain(|| PanicsAtDrop).expect_err("it panics");
        assert_eq!(error.reason(), StoreErrorReason::OutcomeUnknown);
        run_contained(|| resume_unwind(Box::new(PanicsAtDrop)));
    }
}
