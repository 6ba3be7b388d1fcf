//! Expired timeouts that wait for an executor thread or a receiver.
//!
//! The reaper puts in a batch at a time, and wakes no more threads than sleep and are needed. A
//! thread takes out one timeout, so a slow callback delays none that another thread can take.

use std::{collections::VecDeque, mem, time::Instant, vec::Vec};

use crate::{
    Expired,
    sync::{Condvar, Mutex},
};

/// A queue from the reaper to the executor threads or receivers.
pub(super) struct Backlog<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    waiting: VecDeque<Expired<T>>,
    /// Threads that wait for a timeout. Some of them may have been woken already.
    sleepers: usize,
    /// Whether the reaper puts in no more.
    is_closed: bool,
}

/// Why there is no timeout to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// None waits now.
    Empty,
    /// None waits, and none will.
    Closed,
}

impl<T> State<T> {
    fn take(&mut self) -> Result<Expired<T>, Missing> {
        let Some(expired) = self.waiting.pop_front() else {
            return Err(if self.is_closed { Missing::Closed } else { Missing::Empty });
        };
        self.shrink();
        Ok(expired)
    }

    /// Gives back the room of a burst that is over.
    #[inline]
    fn shrink(&mut self) {
        const KEPT: usize = 4096;
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
            self.waiting = VecDeque::new();
        }
    }
}

impl<T> Backlog<T> {
    pub(super) fn new() -> Self {
        let state = State { waiting: VecDeque::new(), sleepers: 0, is_closed: false };
        Self { state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Puts in a batch, and leaves the room that it took.
    pub(super) fn put(&self, batch: &mut Vec<Expired<T>>) {
        if batch.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        debug_assert!(!state.is_closed, "a closed timer expired something");
        let wanted = state.sleepers.min(batch.len());
        state.waiting.extend(batch.drain(..));
        drop(state);
        (0..wanted).for_each(|_| self.arrived.notify_one());
    }

    /// Takes out the timeout that has waited longest, if any waits.
    pub(super) fn try_take(&self) -> Result<Expired<T>, Missing> {
        self.state.lock().take()
    }

    /// Takes out the timeout that has waited longest, or waits for one; `None` once there will be no
    /// more.
    pub(super) fn take(&self) -> Option<Expired<T>> {
        let mut state = self.state.lock();
        loop {
            match state.take() {
                Ok(expired) => return Some(expired),
                Err(Missing::Closed) => return None,
                Err(Missing::Empty) => {}
            }
            state.sleepers += 1;
            state = self.arrived.wait(state);
            state.sleepers -= 1;
        }
    }

    /// Takes out the timeout that has waited longest, or waits for one until `deadline`.
    pub(super) fn take_by(&self, deadline: Instant) -> Result<Expired<T>, Missing> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            let remaining = deadline.saturating_duration_since(Instant::now());
            if !matches!(taken, Err(Missing::Empty)) || remaining.is_zero() {
                return taken;
            }
            state.sleepers += 1;
            state = self.arrived.wait_for(state, remaining);
            state.sleepers -= 1;
        }
    }

    /// Ends the threads that find nothing to take. The reaper puts in no more.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.arrived.notify_all();
    }

    /// Takes out all timeouts that wait.
    pub(super) fn take_all(&self) -> VecDeque<Expired<T>> {
        mem::take(&mut self.state.lock().waiting)
    }

    /// Returns how many timeouts wait.
    pub(super) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }
}
