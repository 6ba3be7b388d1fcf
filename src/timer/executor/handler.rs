//! The user's handler of expired timeouts, and its panics.

use std::{
    boxed::Box,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    sync::{AtomicU64, Ordering},
    timer::tracing::Events,
    wheel::Expired,
};

/// Runs the user's handler, and catches and counts its panics.
pub(crate) struct Handler<T> {
    handle: Box<dyn Fn(Expired<T>) + Send + Sync>,
    panicked: AtomicU64,
    events: Events,
}

impl<T> Handler<T> {
    pub(in crate::timer) fn new(
        events: Events,
        handle: impl Fn(Expired<T>) + Send + Sync + 'static,
    ) -> Self {
        Self { handle: Box::new(handle), panicked: AtomicU64::new(0), events }
    }

    pub(in crate::timer) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn call(&self, expired: Expired<T>) {
        self.catch(|| (self.handle)(expired));
    }

    pub(crate) fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Runs user code, and catches and counts its panic.
    pub(super) fn catch(&self, user_code: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            self.events.panicked(&*payload);
            contain(|| drop(payload));
        }
    }
}

/// Runs user code, and catches its panic without counting it. The drop of the payload is user code
/// too, and may panic.
pub(crate) fn contain(user_code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) {
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(second);
        }
    }
}
