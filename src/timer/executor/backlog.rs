//! Expired timeouts that wait for an executor thread or a receiver.
//!
//! The reaper adds a batch at a time, and wakes no more threads than sleep and are needed. A thread
//! takes one timeout at a time, so a slow callback delays no timeout that another thread can take.
//!
//! # Transfers
//!
//! A thread that moves timeouts from the wheels to the backlog holds the *transfer lock*. So a
//! thread that takes this lock finds each timeout in a wheel or in the backlog, and none in
//! between. It comes before the locks of the shards and that of the backlog itself.

#[cfg(feature = "future")]
use std::task::{Poll, Waker};
use std::{collections::VecDeque, mem, time::Instant, vec::Vec};

#[cfg(feature = "future")]
use super::receivers::{Receivers, Ticket, wake_all};
use crate::{
    sync::{Condvar, Mutex, MutexGuard},
    wheel::Expired,
};

/// A queue from the reaper to the executor threads or receivers.
pub(crate) struct Backlog<T> {
    transfer: Mutex<()>,
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    waiting: VecDeque<Expired<T>>,
    /// Threads that wait for a timeout. Some of them may have been woken already.
    sleepers: usize,
    /// Whether the backlog is closed: no timeout follows.
    is_closed: bool,
    /// Tasks that wait for a timeout.
    #[cfg(feature = "future")]
    receivers: Receivers,
}

/// Why there is no timeout to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// The backlog is empty.
    Empty,
    /// The backlog is empty, and no more timeouts come.
    Closed,
}

impl<T> State<T> {
    fn take(&mut self) -> Result<Expired<T>, TakeError> {
        let Some(expired) = self.waiting.pop_front() else {
            return Err(if self.is_closed { TakeError::Closed } else { TakeError::Empty });
        };
        self.shrink();
        Ok(expired)
    }

    /// Frees the memory of a burst once the backlog is empty.
    #[inline]
    fn shrink(&mut self) {
        const KEPT: usize = 4096;
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
            self.waiting = VecDeque::new();
        }
    }
}

impl<T> Backlog<T> {
    pub(crate) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            sleepers: 0,
            is_closed: false,
            #[cfg(feature = "future")]
            receivers: Receivers::new(),
        };
        Self { transfer: Mutex::new(()), state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Waits until no timeout is between a wheel and the backlog, and keeps it so until the guard
    /// is dropped.
    pub(crate) fn lock_transfer(&self) -> MutexGuard<'_, ()> {
        self.transfer.lock()
    }

    /// Adds a batch, which it leaves empty with its memory. The caller holds the transfer lock.
    pub(crate) fn put(&self, batch: &mut Vec<Expired<T>>) {
        if batch.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        debug_assert!(!state.is_closed, "a timeout expired after the end");
        let wanted = state.sleepers.min(batch.len());
        state.waiting.extend(batch.drain(..));
        drop(state);
        (0..wanted).for_each(|_| self.arrived.notify_one());
    }

    /// Takes the timeout that has waited longest.
    pub(crate) fn try_take(&self) -> Result<Expired<T>, TakeError> {
        self.state.lock().take()
    }

    /// Takes the timeout that has waited longest, or waits for one; `None` once the backlog is
    /// closed and empty.
    pub(crate) fn take(&self) -> Option<Expired<T>> {
        let mut state = self.state.lock();
        loop {
            match state.take() {
                Ok(expired) => return Some(expired),
                Err(TakeError::Closed) => return None,
                Err(TakeError::Empty) => {}
            }
            state.sleepers += 1;
            state = self.arrived.wait(state);
            state.sleepers -= 1;
        }
    }

    /// Takes the timeout that has waited longest, or waits for one until `deadline`.
    pub(crate) fn take_by(&self, deadline: Instant) -> Result<Expired<T>, TakeError> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            let remaining = deadline.saturating_duration_since(Instant::now());
            if !matches!(taken, Err(TakeError::Empty)) || remaining.is_zero() {
                return taken;
            }
            state.sleepers += 1;
            state = self.arrived.wait_for(state, remaining);
            state.sleepers -= 1;
        }
    }

    /// Makes the threads that take timeouts end once the backlog is empty. No more timeouts come.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.arrived.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Takes the timeout that has waited longest. If there is none, stores the waker, which the
    /// reaper wakes when timeouts come. A caller that keeps its ticket keeps its turn.
    #[cfg(feature = "future")]
    pub(super) fn poll_take(
        &self,
        ticket: &mut Ticket,
        waker: &Waker,
    ) -> Poll<Result<Expired<T>, TakeError>> {
        let mut clone = None;
        loop {
            let mut state = self.state.lock();
            let taken = state.take();
            if !matches!(taken, Err(TakeError::Empty)) {
                let removed = state.receivers.remove(ticket);
                drop(state);
                debug_assert!(ticket.is_none(), "a task that is ready keeps its turn");
                drop(removed);
                return Poll::Ready(taken);
            }
            if state.receivers.will_wake(*ticket, waker) {
                return Poll::Pending;
            }
            // A clone and a drop of a waker is user code, so the lock is released for both.
            if let Some(waker) = clone.take() {
                let replaced = state.receivers.insert(ticket, waker);
                drop(state);
                debug_assert!(ticket.is_some(), "a task waits without a turn");
                drop(replaced);
                return Poll::Pending;
            }
            drop(state);
            clone = Some(waker.clone());
        }
    }

    /// Ends the wait of a task. If the task has been woken, the wake-up goes to the next one.
    #[cfg(feature = "future")]
    pub(super) fn stop_waiting(&self, ticket: &mut Ticket) {
        if ticket.is_none() {
            return;
        }
        let mut state = self.state.lock();
        let removed = state.receivers.remove(ticket);
        let is_woken = removed.is_none() && !state.waiting.is_empty();
        let next = is_woken.then(|| state.receivers.pop_first()).flatten();
        drop(state);
        drop(removed);
        // A receiver calls this in its drop.
        wake_all(next);
    }

    /// Adds a waker with a fault: a value may have come since the caller looked.
    #[cfg(all(test, loom, feature = "future"))]
    pub(crate) fn register(&self, ticket: &mut Ticket, waker: Waker) {
        drop(self.state.lock().receivers.insert(ticket, waker));
    }

    /// Ends the wait of a task with a fault: a wake-up of the task is lost.
    #[cfg(all(test, loom, feature = "future"))]
    pub(super) fn remove_receiver(&self, ticket: &mut Ticket) -> Option<Waker> {
        self.state.lock().receivers.remove(ticket)
    }

    /// Removes the wakers of at most `count` tasks. The caller wakes these without a lock: one for
    /// each timeout after a put, and all after a close.
    #[cfg(feature = "future")]
    pub(crate) fn take_wakers(&self, count: usize) -> Vec<Waker> {
        if count == 0 { Vec::new() } else { self.state.lock().receivers.pop_up_to(count) }
    }

    /// Takes all timeouts.
    pub(crate) fn take_all(&self) -> VecDeque<Expired<T>> {
        let mut state = self.state.lock();
        debug_assert!(state.is_closed, "a timeout may come after all were taken");
        mem::take(&mut state.waiting)
    }

    /// Returns the number of timeouts.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }
}
