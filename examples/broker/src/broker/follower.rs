//! A simulated follower, which acknowledges each append after a delay, unless it is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use delaywheel::Timer;

use super::{Waiters, log::Partition};

/// The one follower of all partitions.
pub(super) struct Follower {
    timer: Timer,
    waiters: Waiters,
    delay: Duration,
    is_running: Arc<AtomicBool>,
}

impl Follower {
    pub(super) fn new(timer: Timer, waiters: Waiters, delay: Duration, is_running: bool) -> Self {
        Self { timer, waiters, delay, is_running: Arc::new(AtomicBool::new(is_running)) }
    }

    /// Makes the follower copy the records that have been appended to some partitions.
    pub(super) fn replicate(&self, partitions: &[Arc<Partition>]) {
        if partitions.is_empty() {
            return;
        }
        let ends: Vec<_> = partitions.iter().map(|partition| partition.lock().end).collect();
        let partitions = partitions.to_vec();
        let (waiters, is_running) = (self.waiters.clone(), Arc::clone(&self.is_running));
        let acknowledge = move || {
            if !is_running.load(Ordering::Acquire) {
                return;
            }
            for (partition, &end) in partitions.iter().zip(&ends) {
                partition.lock().replicated(end);
            }
            waiters.announce(&partitions);
        };
        // A timer that is shut down refuses this. Then no request waits any more.
        drop(self.timer.schedule(self.delay, acknowledge));
    }

    /// Continues, and copies the records that it has missed.
    pub(super) fn resume(&self, partitions: &[Arc<Partition>]) {
        self.is_running.store(true, Ordering::Release);
        self.replicate(partitions);
    }
}
