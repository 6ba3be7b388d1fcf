//! Panics of user code: caught and counted.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::sync::{AtomicU64, Ordering};

/// The number of caught panics. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Panics(Arc<AtomicU64>);

impl Panics {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs user code. Counts a panic in it, and returns the default then. The drop of the payload
    /// is user code too, and may panic.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        catch_unwind(AssertUnwindSafe(user_code)).unwrap_or_else(|payload| {
            self.0.fetch_add(1, Ordering::Relaxed);
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(second);
            }
            V::default()
        })
    }
}
