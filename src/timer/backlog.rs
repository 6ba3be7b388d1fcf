//! What has expired and waits for one of the timer's own threads.
//!
//! The reaper puts in a batch at a time, and wakes no more threads than sleep and are needed. A
//! thread takes out one, so that a slow callback holds up none that another thread can take.

use std::{collections::VecDeque, mem, vec::Vec};

use crate::{
    Expired,
    sync::{Condvar, Mutex},
};

/// A queue from the reaper to the executor threads.
pub(super) struct Backlog<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    waiting: VecDeque<Expired<T>>,
    /// Threads that sleep and have not been woken.
    sleepers: usize,
    /// Whether nothing will be put in any more.
    is_closed: bool,
}

impl<T> State<T> {
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
        state.sleepers -= wanted;
        state.waiting.extend(batch.drain(..));
        drop(state);
        (0..wanted).for_each(|_| self.arrived.notify_one());
    }

    /// Takes out the one that has waited longest, or waits until there is one; `None` once there
    /// will be no more.
    pub(super) fn take(&self) -> Option<Expired<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(expired) = state.waiting.pop_front() {
                state.shrink();
                return Some(expired);
            }
            if state.is_closed {
                return None;
            }
            state.sleepers += 1;
            state = self.arrived.wait(state);
        }
    }

    /// Nothing will be put in any more: threads that find nothing end.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.sleepers = 0;
        drop(state);
        self.arrived.notify_all();
    }

    /// Takes out all that wait.
    pub(super) fn take_all(&self) -> VecDeque<Expired<T>> {
        mem::take(&mut self.state.lock().waiting)
    }
}
