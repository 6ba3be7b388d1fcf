//! The ways in which a timer ends: shutdown, finish, the drop of the last handle, a dead reaper.
//!
//! A *shutdown* returns the pending timeouts at once. A *finish* first waits until no timeout is
//! pending and no callback runs, or until its deadline.
//!
//! A finish has to know when no callback runs any more. A count of running callbacks would slow each
//! of them down. Instead, threads end: the reaper once no timeout is left, and then each executor
//! once its backlog is empty.
//!
//! *Callback threads* are the threads that run callbacks: the executors, or the reaper if there are
//! none. A callback that finishes its own timer is on such a thread, which cannot end meanwhile. So a
//! finish is over when all remaining callback threads wait in a finish themselves.
//!
//! # Protocol
//!
//! - A finish (1) closes every shard; (2) stores `is_finishing`; (3) wakes the reaper; (4) waits until
//!   it is over or its deadline has come; (5) shuts the timer down.
//! - Before it sleeps, the reaper loads `is_finishing`. If it is set and every shard is empty, the
//!   reaper closes the backlog, and ends.
//! - A thread that cancels the last timeout of a closed shard wakes the reaper.
//! - A reaper that panics performs (1) to (3) itself, and closes the backlog.
//! - A callback thread that ends or begins to wait, and a shutdown, change their state under the lock
//!   of [`CallbackThreads`], and then notify every finish.
//!
//! # Why no finish waits for too long
//!
//! After (1) the number of pending timeouts never grows. Three threads can remove the last timeout of
//! a shard: the reaper, which checks again before it sleeps; a thread that cancels it before (1), and
//! the reaper checks after (3); or a thread that cancels it after (1), and wakes the reaper. The
//! parker keeps a wake-up that comes between the check and the sleep. A finish checks and begins to
//! wait under one lock, so it misses no change.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    annex::Annex, backlog::Backlog, executor::Delivery, shared::Shared, tick_clock::after,
};
use crate::{
    clock::Driven,
    sync::{Condvar, Mutex, Ordering, ThreadId, this_thread},
};

impl<T: Send + 'static> Shared<T> {
    /// Finishes with a deadline `within` from now.
    pub(super) fn finish(&self, within: Duration) -> Vec<T> {
        self.finish_by(after(self.shards.clock().source().now(), within))
    }

    /// Refuses new timeouts, runs those that become due until `deadline` or until none is left, then
    /// shuts down. Returns the others.
    pub(super) fn finish_by(&self, deadline: Instant) -> Vec<T> {
        let clock = self.shards.clock().source();
        self.shards.begin_finish();
        if self.is_driven() {
            if clock.now() <= deadline {
                self.turn();
            }
        } else if self.is_started() {
            let remaining = || deadline.saturating_duration_since(clock.now());
            self.callback_threads.wait_for_end(remaining);
        }
        // Without threads no timeout is pending: the first insert starts them.
        //
        // The due values of a queue can still be received.
        let backlog = self.delivery.backlog();
        self.end_all(backlog.filter(|_| !matches!(self.delivery, Delivery::Queue(_))))
    }

    /// Refuses new timeouts, ends the threads, and returns all timeouts that did not run.
    pub(super) fn shut_down(&self) -> Vec<T> {
        self.end_all(self.delivery.backlog())
    }

    fn end_all(&self, backlog: Option<&Backlog<T>>) -> Vec<T> {
        let Ended { mut pending, expired } = self.end(backlog);
        pending.extend(expired);
        pending
    }
}

/// The timeouts that a timer had when it ended. `D` is the type of expired ones.
pub(super) struct Ended<T, D> {
    pub(super) pending: Vec<T>,
    /// Timeouts that had expired, and whose callbacks did not run.
    pub(super) expired: Vec<D>,
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X> {
    /// Ends the timer, and returns the timeouts that are pending or in `backlog`.
    pub(super) fn end(&self, backlog: Option<&Backlog<X::Due>>) -> Ended<T, X::Due> {
        let is_started = self.is_started();
        let is_first = !self.is_stopped.swap(true, Ordering::AcqRel);
        let pending = self.delivery.close(|| self.shards.shut_down());
        debug_assert!(self.shards.is_closed(), "a shard accepts timeouts after the end");
        let expired = backlog.map(Backlog::take_all).into_iter().flatten();
        let expired: Vec<_> = expired.map(|expired| expired.value).collect();
        self.callback_threads.shut_down();
        // A timer that was never used emits no event.
        if is_first && is_started {
            self.handler.events().shut_down(pending.len() + expired.len());
        }
        Ended { pending, expired }
    }

    /// Refuses new timeouts and ends the executors after a panic of the reaper. Pending timeouts stay
    /// until a shutdown returns them.
    fn end_after_panic(&self) {
        self.is_reaper_dead.store(true, Ordering::Release);
        self.shards.begin_finish();
        self.delivery.close(|| ());
        #[cfg(feature = "future")]
        self.on_panic.get().inspect(|on_panic| on_panic(self));
    }
}

/// The user's handles of a timer. When the last one is dropped, the timer shuts down.
pub(super) struct Owner<T: Send + 'static>(pub(super) Arc<Shared<T>>);

impl<T: Send + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        drop(self.0.shut_down());
    }
}

/// Ends the timer if the reaper panics.
pub(super) struct EndOnPanic<'a, T: Send + 'static, X: Annex<T>>(pub(super) &'a Shared<T, X>);

impl<T: Send + 'static, X: Annex<T>> Drop for EndOnPanic<'_, T, X> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end_after_panic();
        }
    }
}

/// The callback threads of a timer, and the threads that wait for their end.
pub(super) struct CallbackThreads {
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
    is_shut_down: bool,
}

impl CallbackThreads {
    pub(super) fn new() -> Arc<Self> {
        let state = State { count: 0, ids: Vec::new(), waiting: 0, is_shut_down: false };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Registers a callback thread, before it begins, until the result is dropped.
    pub(super) fn register(self: &Arc<Self>) -> CallbackThread {
        self.state.lock().count += 1;
        CallbackThread { threads: Arc::clone(self) }
    }

    /// Ends the wait of every finish.
    fn shut_down(&self) {
        self.state.lock().is_shut_down = true;
        self.changed.notify_all();
    }

    /// Waits until all callback threads have ended or wait themselves, the timer is shut down, or no
    /// time remains.
    pub(super) fn wait_for_end(&self, remaining: impl Fn() -> Duration) {
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

    pub(super) fn check_invariants(&self) {
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
pub(super) struct CallbackThread {
    threads: Arc<CallbackThreads>,
}

impl CallbackThread {
    /// Stores the id of this thread, which is the registered one.
    pub(super) fn begin(&self) {
        let mut state = self.threads.state.lock();
        state.ids.push(this_thread());
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
