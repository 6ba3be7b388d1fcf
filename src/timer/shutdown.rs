//! The ways in which a timer ends: shutdown, finish, the drop of the last handle, a dead reaper.
//!
//! A *shutdown* returns the pending timeouts at once. A *finish* first waits until no timeout is
//! pending and no callback runs, or until its deadline.
//!
//! A finish has to know when no callback runs any more. A count of running callbacks would slow
//! each of them down. Instead, threads end: the reaper stops serving the timer once no timeout is
//! left, and then each executor ends once its backlog is empty. A finish waits for the end of these
//! [`callback_threads`].
//!
//! [`callback_threads`]: super::executor::callback_threads
//!
//! # Phases
//!
//! | [`Phase`] | Begins | Then |
//! |-|-|-|
//! | `Running` | with the timer | |
//! | `Closing` | before a finish closes the shards | polls of sleeps take the lock |
//! | `Finishing` | after it has closed every shard | the reaper ends once no timeout is pending |
//! | `ShutDown` | before a shutdown closes the shards and empties them | the threads end |
//!
//! A timer may skip phases, and never returns to one. So a finish does not end a shutdown. A
//! purgatory closes its shards itself before it shuts down.
//!
//! # Protocol
//!
//! A finish
//!
//! 1. closes every shard,
//! 2. enters `Finishing`,
//! 3. wakes the reaper,
//! 4. waits until it is over or its deadline has come,
//! 5. shuts the timer down.
//!
//! The others follow these rules:
//!
//! - Before it sleeps, the reaper loads the phase. If it is `Finishing` and every shard is empty,
//!   the reaper closes the backlog, and stops serving the timer.
//! - A thread that cancels the last timeout of a closed shard wakes the reaper.
//! - If the clock of the timer panics, the reaper performs steps 1 to 3 itself, and closes the
//!   backlog.
//! - A callback thread that ends or begins to wait, and a shutdown, change their state under the
//!   lock of [`callback_threads`], and then notify every finish.
//!
//! # Why no finish waits for too long
//!
//! After step 1 the number of pending timeouts never grows. One of three threads removes the last
//! timeout of a shard:
//!
//! - the reaper, which checks again before it sleeps,
//! - a thread that cancels it before step 1, and the reaper checks after step 3,
//! - a thread that cancels it after step 1, and wakes the reaper.
//!
//! The parker keeps a wake-up that comes between the check and the sleep. A finish checks and
//! begins to wait under one lock, so it misses no change.

use std::{
    sync::Arc,
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    executor::{Delivery, backlog::Backlog},
    reaper::shared::Shared,
    shards::{Phase, Shards, annex::Annex},
    tick_clock::after,
};
use crate::{clock::Driven, sync::Ordering};

impl<T, X> Shards<T, X> {
    /// Enters a phase, unless a later one has begun. Returns whether this call entered it.
    fn enter(&self, phase: Phase) -> bool {
        self.phase.fetch_max(phase as u64, Ordering::AcqRel) < phase as u64
    }

    /// Returns whether every shard refuses new timeouts.
    pub(super) fn is_closed(&self) -> bool {
        self.all.iter().all(|shard| shard.is_closed())
    }

    /// Refuses new timeouts, and makes the reaper end once no timeout is pending.
    pub(super) fn begin_finish(&self) {
        // Before the shards refuse, so that a thread that was refused sees it.
        self.enter(Phase::Closing);
        self.all.iter().for_each(|shard| shard.close());
        self.enter(Phase::Finishing);
        self.unpark_reaper();
    }

    /// Returns whether a finish has begun and no timeout is pending.
    pub(super) fn has_finished(&self) -> bool {
        let is_finishing = self.phase.load(Ordering::Acquire) == Phase::Finishing as u64;
        is_finishing && self.all.iter().all(|shard| shard.is_empty())
    }

    /// Returns whether a shutdown has begun.
    pub(super) fn is_shut_down(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::ShutDown as u64
    }

    /// Returns whether a finish or a shutdown has begun.
    #[cfg(feature = "future")]
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.phase.load(Ordering::Relaxed) > Phase::Running as u64
    }

    /// Refuses new timeouts, wakes the reaper, and returns the values of the pending timeouts.
    pub(super) fn shut_down(&self) -> Vec<T> {
        self.enter(Phase::ShutDown);
        let mut values = Vec::new();
        for shard in &self.all {
            let mut wheel = shard.shut_down();
            values.extend(wheel.drain().map(|(_, _, value)| value));
        }
        self.permits.release(values.len());
        self.unpark_reaper();
        values
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Finishes with a deadline `within` from now.
    pub(super) fn finish(&self, within: Duration) -> Vec<T> {
        self.finish_by(after(self.shards.clock().source().now(), within))
    }

    /// Refuses new timeouts, runs those that become due until `deadline` or until none is left,
    /// then shuts down. Returns the others.
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
        let Unfinished { mut pending, expired } = self.end(backlog);
        pending.extend(expired);
        pending
    }
}

/// The timeouts that a timer had when it ended. `D` is the type of expired ones.
pub(super) struct Unfinished<T, D> {
    pub(super) pending: Vec<T>,
    /// Timeouts that had expired, and whose callbacks did not run.
    pub(super) expired: Vec<D>,
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X, X::Due> {
    /// Ends the timer, and returns the timeouts that are pending or in `backlog`.
    pub(super) fn end(&self, backlog: Option<&Backlog<X::Due>>) -> Unfinished<T, X::Due> {
        let is_started = self.is_started();
        let is_first = self.shards.enter(Phase::ShutDown);
        let pending = self.delivery.close(|| self.shards.shut_down());
        debug_assert!(self.shards.is_closed(), "a shard accepts timeouts after the end");
        let expired = backlog.map(Backlog::take_all).into_iter().flatten();
        let expired: Vec<_> = expired.map(|expired| expired.value).collect();
        self.callback_threads.shut_down();
        // A timer that was never used emits no event.
        if is_first && is_started {
            self.handler.events().shut_down(pending.len() + expired.len());
        }
        Unfinished { pending, expired }
    }

    /// Refuses new timeouts and ends the executors after a panic of the reaper. Pending timeouts
    /// stay until a shutdown returns them.
    pub(super) fn end_after_panic(&self) {
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
