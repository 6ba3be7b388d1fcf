//! `tokio::time::Sleep` on a runtime of its own, whose one thread also turns its timer driver.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    time::Sleep,
};

use super::{Expectation, SharedTimer, Sleeps};
use crate::Promises;

/// [`Sleeps`] of a runtime that is there while this is. Each thread that uses it enters it.
#[derive(Debug, Clone)]
pub struct Tokio(Arc<Runtime>);

impl Tokio {
    /// Starts a runtime.
    ///
    /// # Panics
    ///
    /// If its thread cannot be started.
    #[must_use]
    pub fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build();
        Self(Arc::new(runtime.expect("a thread can be started")))
    }

    /// Runs a task to its end.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(task));
    }
}

impl Default for Tokio {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedTimer for Tokio {
    type Timeout = Pin<Box<Option<Sleep>>>;

    const NAME: &'static str = Sleeps::NAME;

    const PROMISES: Promises = Sleeps::PROMISES;

    fn enter(&self) -> impl Sized {
        self.0.enter()
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> Self::Timeout {
        Sleeps.schedule(delay)
    }

    #[inline]
    fn replace(&self, timeout: &mut Self::Timeout, delay: Duration) -> bool {
        Sleeps.replace(timeout, delay)
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        let _entered = self.enter();
        Sleeps.schedule_expected(delay, expectation);
    }
}
