//! The threads that run callbacks, and the wait for their end.
//!
//! *Callback threads* are the executors, or the reaper if there are none. A callback that finishes
//! its own timer is on such a thread, which cannot end meanwhile. So a finish is over when all
//! remaining callback threads wait in a finish themselves. The protocol is that of
//! [`shutdown`](crate::timer::shutdown).

use std::{sync::Arc, time::Duration, vec::Vec};

use crate::sync::{Condvar, Mutex, ThreadId, this_thread};

/// The callback threads of a timer, and the threads that wait for their end.
pub(crate) struct CallbackThreads {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Callback threads that are registered and have not ended.
    count: usize,
    /// The ids of those that have begun.
    ids: Vec<ThreadId>,
    /// How many of them wait in a finish.
    waiting: usize,
    /// The thread of the reaper. It may run callbacks of other timers, which may finish this one.
    reaper: Option<ThreadId>,
    is_shut_down: bool,
}

impl CallbackThreads {
    pub(crate) fn new() -> Arc<Self> {
        let state =
            State { count: 0, ids: Vec::new(), waiting: 0, reaper: None, is_shut_down: false };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Registers a callback thread, before it begins, until the result is dropped.
    pub(crate) fn register(self: &Arc<Self>) -> CallbackThread {
        self.state.lock().count += 1;
        CallbackThread { threads: Arc::clone(self) }
    }

    /// Registers a thread as the reaper.
    pub(crate) fn set_reaper(&self, thread: ThreadId) {
        self.state.lock().reaper = Some(thread);
    }

    /// Ends the wait of every finish.
    pub(crate) fn shut_down(&self) {
        self.state.lock().is_shut_down = true;
        self.changed.notify_all();
    }

    /// Waits until all callback threads have ended or wait themselves, the timer is shut down, or
    /// no time remains. Does not wait if this thread is the reaper: without it, no executor ends.
    pub(crate) fn wait_for_end(&self, remaining: impl Fn() -> Duration) {
        if self.state.lock().reaper == Some(this_thread()) {
            return;
        }
        let _waiting = self.begin_to_wait();
        loop {
            // This may call a clock of the user, which may panic, so no lock is held.
            let remaining = remaining();
            let state = self.state.lock();
            if remaining.is_zero() || state.is_over() {
                break;
            }
            drop(self.changed.wait_for(state, remaining));
        }
    }

    pub(crate) fn check_invariants(&self) {
        self.state.lock().check_invariants();
    }

    /// Counts this thread as waiting, if it is a callback thread, until the result is dropped.
    fn begin_to_wait(&self) -> Waiting<'_> {
        let mut state = self.state.lock();
        let is_counted = state.ids.contains(&this_thread());
        state.waiting += usize::from(is_counted);
        debug_assert!(state.waiting <= state.count, "more threads wait than exist");
        drop(state);
        self.changed.notify_all();
        Waiting { threads: self, is_counted }
    }
}

impl State {
    fn check_invariants(&self) {
        assert!(self.ids.len() <= self.count, "a thread began without registration");
        assert!(self.waiting <= self.ids.len(), "a thread waits that has not begun");
    }

    fn is_over(&self) -> bool {
        self.is_shut_down || self.count == self.waiting
    }
}

/// A thread that waits in a finish.
struct Waiting<'a> {
    threads: &'a CallbackThreads,
    is_counted: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.threads.state.lock();
        debug_assert!(state.waiting >= usize::from(self.is_counted), "a thread waits no more");
        state.waiting -= usize::from(self.is_counted);
    }
}

/// The registration of a callback thread.
pub(crate) struct CallbackThread {
    threads: Arc<CallbackThreads>,
}

impl CallbackThread {
    /// Stores the id of the registered thread.
    pub(crate) fn begin(&self, thread: ThreadId) {
        let mut state = self.threads.state.lock();
        state.ids.push(thread);
        debug_assert!(state.ids.len() <= state.count, "a thread began without registration");
    }
}

impl Drop for CallbackThread {
    fn drop(&mut self) {
        let mut state = self.threads.state.lock();
        debug_assert!(state.count > 0, "a thread ended twice");
        state.count -= 1;
        state.ids.retain(|thread| *thread != this_thread());
        drop(state);
        self.threads.changed.notify_all();
    }
}
