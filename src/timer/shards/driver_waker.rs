//! The waker of the task that expires sleeps in place of the reaper.
//!
//! [`driver`](crate::timer::sleep::driver) describes the protocol.

use std::task::Waker;

use crate::{sync::Mutex, timer::executor::receivers::wake_all};

/// The waker of the task, unless a thread has taken it to wake the task.
#[derive(Debug)]
pub(super) struct DriverWaker(Mutex<Option<Waker>>);

impl DriverWaker {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Stores the waker of a poll. Cloning and dropping wakers is user code, so both happen without
    /// the lock.
    pub(super) fn store(&self, waker: &Waker) {
        let is_held = self.0.lock().as_ref().is_some_and(|held| held.will_wake(waker));
        if !is_held {
            let waker = waker.clone();
            let before = self.0.lock().replace(waker);
            drop(before);
        }
    }

    /// Wakes the task.
    pub(super) fn wake(&self) {
        let waker = self.0.lock().take();
        wake_all(waker);
    }
}
