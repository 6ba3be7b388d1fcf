//! The life of a timer: its phases, and the threads that a finish waits for.
//!
//! A *shutdown* returns the pending timeouts at once. A *finish* first waits until no timeout is
//! pending and no callback runs, or until its deadline. The drop of the last handle is a shutdown.
//!
//! A finish has to know when no callback runs any more. A count of running callbacks would slow
//! each callback down. Instead, threads end: the reaper stops serving the timer once no timeout is
//! left, and then each executor ends once its backlog is empty. A finish waits for the end of these
//! [`CallbackThreads`].
//!
//! # Phases
//!
//! | [`Phase`] | Begins | Then |
//! |-|-|-|
//! | `Running` | with the timer | |
//! | `Finishing` | before a finish closes the shards | polls of sleeps take the lock |
//! | `ShutDown` | before a shutdown closes the shards and empties them | the threads end |
//!
//! A timer may skip phases, and never returns to one. So a finish cannot undo a shutdown. A
//! purgatory closes its shards itself before it shuts down.
//!
//! # Protocol
//!
//! A finish
//!
//! 1. enters `Finishing`,
//! 2. closes every shard,
//! 3. wakes the reaper,
//! 4. waits until all callback threads have ended or wait in a finish, or until its deadline,
//! 5. shuts the timer down.
//!
//! The other threads follow these rules:
//!
//! - Before it sleeps, the reaper loads the phase. If the phase is `Finishing` and every shard is
//!   closed and empty, the reaper closes the backlog, and stops serving the timer.
//! - A thread that cancels the last timeout of a closed shard wakes the reaper.
//! - If the clock of the timer panics, the reaper performs steps 1 to 3 itself, and closes the
//!   backlog. Then the sleeps of a [`Timer`](crate::Timer) shut down, and its callbacks begin to
//!   finish.
//! - A callback thread that ends or begins to wait, and a shutdown, change their state under the
//!   lock of [`CallbackThreads`], and then notify every finish.
//!
//! # Why no finish waits for too long
//!
//! A closed shard never gets another timeout. One of three threads removes the last one of a shard:
//!
//! - the reaper, which checks for the end before it sleeps,
//! - a thread that cancels or helps before step 2: step 3 then makes the reaper check,
//! - a thread that cancels after step 2, and then wakes the reaper.
//!
//! The parker keeps a wake-up that comes between the check and the sleep. A finish checks and
//! begins to wait under one lock, so it misses no change. A jump of the clock does not end its
//! wait, or it would return callbacks that the jump has made due.
//!
//! *Callback threads* are the executors, or the reaper of a timer without executors. A callback
//! that finishes its own timer is on such a thread, which cannot end meanwhile. So a finish is over
//! when all remaining callback threads wait in a finish themselves.

use std::{io, time::Duration, vec::Vec};

use crate::{
    panics::catch,
    sync::{AtomicU64, Condvar, Mutex, Ordering, ThreadId, this_thread},
};

/// A phase of a timer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    Running,
    Finishing,
    ShutDown,
}

/// The phase that a timer has reached, at first `Running`.
#[derive(Default)]
pub(super) struct Lifecycle(AtomicU64);

impl Lifecycle {
    /// Enters a phase, unless a later one has begun. Returns whether this call entered it.
    pub(super) fn enter(&self, phase: Phase) -> bool {
        self.0.fetch_max(phase as u64, Ordering::AcqRel) < phase as u64
    }

    /// Returns whether the timer is in this phase.
    pub(super) fn is(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Acquire) == phase as u64
    }

    /// Returns whether a finish or a shutdown has begun.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.0.load(Ordering::Relaxed) > Phase::Running as u64
    }
}

/// The callback threads of a timer, and which of them wait for the end of the others.
#[derive(Default)]
pub(crate) struct CallbackThreads {
    state: Mutex<CallbackState>,
    changed: Condvar,
}

#[derive(Default)]
struct CallbackState {
    /// The threads that have not ended, and whether each waits in a finish.
    threads: Vec<(ThreadId, bool)>,
    /// The thread of the reaper. Callbacks of other timers may run on it and finish this timer.
    reaper: Option<ThreadId>,
    is_shut_down: bool,
}

impl CallbackThreads {
    /// Adds the thread that `spawn` starts. That thread cannot [leave](Self::leave) before it is
    /// added.
    pub(crate) fn add(&self, spawn: impl FnOnce() -> io::Result<ThreadId>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.threads.push((spawn()?, false));
        Ok(())
    }

    /// Stores the thread of the reaper, and adds it if it runs callbacks.
    pub(crate) fn set_reaper(&self, thread: ThreadId, is_callback_thread: bool) {
        let mut state = self.state.lock();
        state.reaper = Some(thread);
        state.threads.extend(is_callback_thread.then_some((thread, false)));
    }

    /// Returns whether this thread is the reaper.
    pub(crate) fn is_reaper(&self) -> bool {
        self.state.lock().reaper == Some(this_thread())
    }

    /// Removes this thread, if it is a callback thread.
    pub(crate) fn leave(&self) {
        self.state.lock().threads.retain(|thread| thread.0 != this_thread());
        self.changed.notify_all();
    }

    /// Ends the wait of every finish.
    pub(crate) fn shut_down(&self) {
        self.state.lock().is_shut_down = true;
        self.changed.notify_all();
    }

    /// Waits until all callback threads have ended or wait here themselves, the timer is shut down,
    /// or no time remains. Does not wait if this thread is the reaper: without the reaper, no
    /// executor ends.
    pub(crate) fn wait_for_end(&self, remaining: impl Fn() -> Duration) {
        if self.is_reaper() {
            return;
        }
        self.set_waiting(true);
        let waited = catch(|| {
            loop {
                // `remaining` may call a clock of the user, which may panic, so no lock is held.
                let remaining = remaining();
                let state = self.state.lock();
                let is_over = state.is_shut_down || state.threads.iter().all(|thread| thread.1);
                if is_over || remaining.is_zero() {
                    break;
                }
                drop(self.changed.wait_for(state, remaining));
            }
        });
        self.set_waiting(false);
        waited.unwrap_or_else(|panic| panic.resume());
    }

    /// Sets whether this thread waits in a finish, if it is a callback thread.
    fn set_waiting(&self, is_waiting: bool) {
        let mut state = self.state.lock();
        let this = state.threads.iter_mut().filter(|thread| thread.0 == this_thread());
        this.for_each(|thread| thread.1 = is_waiting);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_callback_thread_that_has_waited_or_ended_does_not_count_as_waiting() {
        let threads = CallbackThreads::default();
        threads.add(|| Ok(this_thread())).expect("no thread is started");
        for _ in 0..2 {
            threads.wait_for_end(|| Duration::ZERO);
            assert_eq!(threads.state.lock().threads, [(this_thread(), false)]);
        }
        threads.leave();
        assert!(threads.state.lock().threads.is_empty());
    }
}
