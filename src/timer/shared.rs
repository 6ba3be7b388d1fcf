//! The state that the handles and the threads of a timer share, and the start and end of its
//! threads. [`lifecycle`](super::lifecycle) has the protocol of the end.

use std::{
    boxed::Box,
    format, io,
    panic::RefUnwindSafe,
    sync::{Arc, OnceLock, Weak},
    vec::Vec,
};

use crossbeam::utils::CachePadded;

use super::{
    delivery::{Backlog, Delivery, Handler},
    error::ScheduleError,
    lifecycle::{CallbackThreads, Phase},
    reaper::Reaper,
    shards::{ShardParts, ShardRef, Shards, TimeoutKey, shard::ShardState},
    stats::TimerStats,
    tick_clock::Reading,
};
use crate::{
    clock::Driven,
    sync::{AtomicBool, Mutex, Ordering, spawn},
    tick::Tick,
    ticks::Nanos,
    waker::wake_all,
    wheel::TimingWheel,
};

/// A timer without its handles.
///
/// The threads hold it until they end. [`Owner`] counts the user's
/// handles.
pub(crate) struct Shared<S: ShardState> {
    pub(crate) shards: Arc<Shards<S>>,
    /// A reference for the handles of each shard.
    pub(super) references: Box<[ShardRef<S>]>,
    pub(crate) handler: Arc<Handler<S::Due>>,
    pub(super) delivery: Delivery<S::Due>,
    /// `None` once the threads have been started, or if the timer needs none.
    starter: Mutex<Option<Starter>>,
    is_started: AtomicBool,
    /// Whether the clock or a task of the user runs the timer, so that there are no threads.
    is_driven: AtomicBool,
    /// Whether the reaper has panicked, or that of the other half of a [`Timer`](crate::Timer).
    /// Only the user's clock can cause it.
    pub(crate) is_reaper_dead: AtomicBool,
    pub(crate) callback_threads: CallbackThreads,
    /// The counts of the reaper; the others are zero.
    pub(super) reaper_stats: Mutex<TimerStats>,
    /// Called when the reaper panics: makes the other half of a [`Timer`](crate::Timer) refuse too.
    pub(crate) on_panic: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

/// The parts from which the threads of a timer start.
pub(crate) struct Starter {
    pub(crate) reaper: Reaper,
    /// Executor threads that have not been started.
    pub(crate) executors: usize,
}

impl<S: ShardState> Shared<S> {
    pub(crate) fn new(
        shards: Shards<S>,
        handler: Handler<S::Due>,
        delivery: Delivery<S::Due>,
        starter: Starter,
    ) -> Arc<Self> {
        let shards = Arc::new(shards);
        let shared = Arc::new(Self {
            references: (0..shards.count())
                .map(|index| ShardParts { shards: Arc::clone(&shards), index })
                .map(|parts| Arc::new(CachePadded::new(parts)))
                .collect(),
            shards,
            handler: Arc::new(handler),
            delivery,
            starter: Mutex::new(Some(starter)),
            is_started: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
            is_reaper_dead: AtomicBool::new(false),
            callback_threads: CallbackThreads::new(),
            reaper_stats: Mutex::new(TimerStats::default()),
            on_panic: OnceLock::new(),
        });
        shared.offer_to_clock();
        shared
    }

    /// Lets a clock that drives timers adopt this one. Then no thread is started.
    fn offer_to_clock(self: &Arc<Self>) {
        let driven: Weak<dyn Driven> = Arc::<Self>::downgrade(self);
        if self.shards.clock.source.adopt(driven) {
            // The clock may already advance on another thread.
            self.is_driven.store(true, Ordering::Release);
            drop(self.take_starter());
        }
    }

    /// Lets a task of the user expire sleeps in place of the reaper. Call it before the timer has
    /// started a thread.
    pub(crate) fn leave_to_driver(&self) {
        debug_assert!(self.is_driven() || !self.is_started(), "the timer has a reaper");
        self.shards.watch_jumps();
        self.shards.wakeup.leave_to_driver();
        self.is_driven.store(true, Ordering::Release);
        drop(self.take_starter());
    }

    /// Marks the threads as started and returns the starter, if no thread has taken it before.
    pub(crate) fn take_starter(&self) -> Option<Starter> {
        let starter = self.starter.lock().take();
        self.is_started.store(true, Ordering::Release);
        starter
    }

    /// Starts the threads unless they have been started. If one cannot be started, the error
    /// returns the value of the caller.
    #[inline]
    pub(crate) fn ensure_started<V>(self: &Arc<Self>, value: V) -> Result<V, ScheduleError<V>> {
        if self.is_started.load(Ordering::Acquire) {
            return Ok(value);
        }
        match self.start() {
            Ok(()) => Ok(value),
            Err(cause) => Err(ScheduleError::no_thread(cause, value)),
        }
    }

    /// Starts the threads unless another call has done so, or the timer has been shut down.
    ///
    /// If an executor thread cannot be started, those before it keep running, and a later call
    /// starts the others.
    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.shards.is_shut_down() {
            return Ok(());
        }
        // This calls the user's clock, so it comes before the lock.
        self.shards.watch_jumps();
        let mut starter = self.starter.lock();
        let Some(parts) = starter.as_mut().filter(|_| !self.shards.is_shut_down()) else {
            return Ok(());
        };
        debug_assert!(!self.is_driven(), "a timer that its clock runs has no threads");
        while let Some(index) = parts.executors.checked_sub(1) {
            let (shared, name) = (Arc::clone(self), &self.handler.events.name);
            let run = Box::new(move || shared.run_executor());
            self.callback_threads.add(|| spawn(format!("{name}-{index}"), run))?;
            parts.executors = index;
        }
        parts.reaper.serve(self.client())?;
        *starter = None;
        self.is_started.store(true, Ordering::Release);
        drop(starter);
        self.handler.events.started();
        Ok(())
    }

    /// Runs callbacks on this thread until the backlog is closed and empty.
    pub(crate) fn run_executor(&self) {
        while let Some(expired) = self.delivery.backlog().and_then(Backlog::take) {
            self.handler.call(expired);
        }
        self.callback_threads.leave();
    }

    /// Returns where expired timeouts go. A clock that drives the timer runs its callbacks.
    pub(super) fn delivery(&self) -> &Delivery<S::Due> {
        let is_inline = self.is_driven() && !self.delivery.is_queue();
        if is_inline { &Delivery::Inline } else { &self.delivery }
    }

    /// Closes the backlog: the threads that take from it end once it is empty.
    pub(super) fn close_backlog(&self) {
        wake_all(self.delivery.backlog().map(Backlog::close).into_iter().flatten());
    }

    /// Refuses new timeouts and ends the threads. Returns the pending timeouts, and unless
    /// `keeps_expired`, those in the backlog.
    pub(crate) fn end(&self, keeps_expired: bool) -> (Vec<S::Value>, Vec<S::Due>) {
        let is_first = self.shards.lifecycle.enter(Phase::ShutDown);
        let pending = self.shards.shut_down();
        self.close_backlog();
        let backlog = self.delivery.backlog().filter(|_| !keeps_expired);
        let expired = backlog.map(Backlog::take_all).into_iter().flatten();
        let expired: Vec<_> = expired.map(|expired| expired.value).collect();
        self.callback_threads.shut_down();
        // A timer that was never used emits no event.
        if is_first && self.is_started() {
            self.handler.events.shut_down(pending.len() + expired.len());
        }
        (pending, expired)
    }

    /// Refuses new timeouts and ends the executors after a panic of the reaper. Pending timeouts
    /// stay until a shutdown returns them.
    pub(super) fn end_after_panic(&self) {
        self.shards.begin_finish();
        // A thread that sees this finds the shards closed.
        self.is_reaper_dead.store(true, Ordering::Release);
        self.close_backlog();
        self.on_panic.get().inspect(|on_panic| on_panic());
    }

    pub(crate) fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    pub(crate) fn is_driven(&self) -> bool {
        self.is_driven.load(Ordering::Acquire)
    }

    pub(crate) fn is_reaper_dead(&self) -> bool {
        self.is_reaper_dead.load(Ordering::Acquire)
    }

    /// Returns the number of timeouts that are pending or in the backlog.
    pub(crate) fn len(&self) -> u64 {
        // A timeout that is taken meanwhile still counts, and none counts twice.
        let taken = self.delivery.backlog().map_or(0, Backlog::taken);
        let counts = self.shards.counts();
        counts.pending + counts.expired - taken
    }

    /// Checks the invariants of the timer. No other thread may use it meanwhile; its own threads
    /// may run.
    pub(crate) fn check_invariants(&self) {
        self.shards.check_invariants();
        let (counts, is_shut_down) = (self.shards.counts(), self.shards.is_shut_down());
        let lateness = self.reaper_stats.lock().lateness.count();
        // A sleep that was moved later has one for each wake-up before its deadline as well.
        assert!(lateness >= counts.expired, "an expired timeout has no lateness");
        assert!(!is_shut_down || counts.pending == 0, "a shutdown returns all timeouts");
        let backlog = self.delivery.backlog();
        let is_closed = backlog.is_none_or(|backlog| backlog.state.lock().is_closed);
        assert!(!is_shut_down || is_closed, "the backlog is open");
    }

    pub(crate) fn stats(&self) -> TimerStats {
        let mut stats = self.shards.counts();
        stats.add(&self.reaper_stats.lock());
        stats.panicked = self.handler.panicked.load(Ordering::Relaxed);
        stats
    }

    /// Helps a reaper that is late. An inserter calls this while it holds no lock.
    #[inline]
    pub(crate) fn help_if_late(&self, read: Reading) {
        if self.shards.wakeup.is_late(read.now) {
            self.help(read);
        }
    }
}

impl<T: Send + 'static> Shared<TimingWheel<T>> {
    /// Adds a timeout to the shard of this thread. Its deadline follows from the reading.
    #[inline]
    pub(super) fn insert(
        self: &Arc<Self>,
        read: Reading,
        deadline: Tick,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let value = self.ensure_started(value)?;
        let shard = self.shards.current();
        let mut guard = self.shards.lock(shard);
        // A refused timeout needs no wake-up, and its release may be slow.
        let key = guard.insert(read.now, deadline, value)?;
        guard.unlock();
        self.help_if_late(read);
        Ok(TimeoutKey { shard, key })
    }

    /// Refuses new timeouts, runs those that become due until `deadline` or until none is left,
    /// then shuts down. Returns the others.
    pub(super) fn finish_by(&self, deadline: Nanos) -> Vec<T> {
        let clock = &self.shards.clock;
        self.shards.begin_finish();
        if self.is_driven() {
            if clock.elapsed() <= deadline {
                self.turn();
            }
        } else if self.is_started() {
            let remaining = || deadline.saturating_sub(clock.elapsed()).into();
            self.callback_threads.wait_for_end(remaining);
        }
        // Without threads no timeout is pending: the first insert starts them.
        //
        // The due values of a queue can still be received.
        self.end_with_values(self.delivery.is_queue())
    }

    /// Refuses new timeouts, ends the threads, and returns all timeouts that did not run.
    pub(crate) fn shut_down(&self) -> Vec<T> {
        self.end_with_values(false)
    }

    fn end_with_values(&self, keeps_expired: bool) -> Vec<T> {
        let (mut pending, expired) = self.end(keeps_expired);
        pending.extend(expired);
        pending
    }
}

/// The user's handles of a timer. When the last one is dropped, the timer shuts down.
pub(super) struct Owner<T: Send + 'static>(pub(super) Arc<Shared<TimingWheel<T>>>);

impl<T: Send + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        drop(self.0.shut_down());
    }
}

// As `Shards`.
impl<S: ShardState> RefUnwindSafe for Shared<S> {}
