//! A simulated follower: it acknowledges an append some time later, unless it has been stopped.

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
    pub(super) fn new(timer: Timer, waiters: Waiters, delay: Duration) -> Self {
        Self { timer, waiters, delay, is_running: Arc::new(AtomicBool::new(true)) }
    }

    /// Has the follower take over what has been appended to some partitions so far.
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
        // It is refused by a timer that has been shut down, and then nobody waits any more.
        drop(self.timer.schedule(self.delay, acknowledge));
    }

    pub(super) fn stop(&self) {
        self.is_running.store(false, Ordering::Release);
    }

    /// Goes on, and takes over what has been missed.
    pub(super) fn resume(&self, partitions: &[Arc<Partition>]) {
        self.is_running.store(true, Ordering::Release);
        self.replicate(partitions);
    }
}
