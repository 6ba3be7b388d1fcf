//! Completions that are caused within completions: deferred, so that the stack is bounded.
//!
//! A completion may announce the event that completes the next operation, and so on. If each ran
//! inside the one before, a long chain would overflow the stack. So a completion that is caused
//! within another one, on the same thread, is put into a queue of that thread. The outermost one
//! runs the queue when it has returned. This holds across purgatories.

use std::{
    boxed::Box,
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::Arc,
};

use super::{
    core::catch,
    operation::{Completion, DelayedOperation},
};
use crate::sync::AtomicU64;

/// The completions of a thread.
#[derive(Default)]
struct Deferral {
    /// Whether one runs.
    is_running: Cell<bool>,
    deferred: RefCell<VecDeque<Box<dyn FnOnce()>>>,
}

#[cfg(loom)]
loom::thread_local! {
    static DEFERRAL: Deferral = Deferral::default();
}
#[cfg(not(loom))]
std::thread_local! {
    static DEFERRAL: Deferral = const {
        Deferral { is_running: Cell::new(false), deferred: RefCell::new(VecDeque::new()) }
    };
}

/// Completes an operation: at once, or when the completion has returned in which this is called.
/// Panics are counted.
#[inline]
pub(super) fn complete<K, O, R>(panicked: &Arc<AtomicU64>, operation: O, completion: Completion<R>)
where
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    let is_nested = DEFERRAL.try_with(|deferral| deferral.is_running.replace(true));
    match is_nested {
        Ok(true) => defer::<K, O, R>(Arc::clone(panicked), operation, completion),
        Ok(false) => {
            catch(panicked, || operation.complete(completion));
            DEFERRAL.with(Deferral::run);
        }
        // The thread is being torn down.
        Err(_) => catch(panicked, || operation.complete(completion)),
    }
}

#[cold]
fn defer<K, O, R>(panicked: Arc<AtomicU64>, operation: O, completion: Completion<R>)
where
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    let deferred: Box<dyn FnOnce()> =
        Box::new(move || catch(&panicked, || operation.complete(completion)));
    DEFERRAL.with(|deferral| deferral.deferred.borrow_mut().push_back(deferred));
}

impl Deferral {
    /// Runs what has been deferred, and what is deferred by that.
    #[inline]
    fn run(&self) {
        while let Some(deferred) = self.next() {
            deferred();
        }
        self.is_running.set(false);
    }

    #[inline]
    fn next(&self) -> Option<Box<dyn FnOnce()>> {
        self.deferred.borrow_mut().pop_front()
    }
}
