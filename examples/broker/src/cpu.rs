//! CPU time of groups of threads.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
    time::Duration,
};

use cpu_time::ThreadTime;

/// CPU time of the threads of a runtime, each as of when it last went to sleep.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cpu(Arc<Mutex<HashMap<ThreadId, Duration>>>);

impl Cpu {
    /// Records the time of the calling thread.
    pub(crate) fn record(&self) {
        let Ok(time) = ThreadTime::try_now() else { return };
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.insert(thread::current().id(), time.as_duration());
    }

    /// Returns the time of all threads together.
    pub(crate) fn total(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}
