//! The state that the handles and the threads of a timer share, and the start of its threads.

use std::{
    boxed::Box,
    format, io,
    string::String,
    sync::{Arc, Weak},
    thread,
    time::Instant,
};

use super::Reaper;
use crate::{
    clock::Driven,
    sync::{AtomicBool, Mutex, Ordering, this_thread},
    timer::{
        executor::{
            Delivery, backlog::Backlog, callback_threads::CallbackThreads, handler::Handler,
        },
        shards::{Shards, ShardsRef, annex::Annex, key::TimeoutKey},
        stats::{ReaperStats, TimerStats},
    },
};

/// A timer without its handles.
///
/// `X` is the type of the annexes of its shards. `D` is the type that the handler receives: `T`, or
/// the entry of an annex. It is always [`Annex::Due`] of `X`. It is a parameter, so that this
/// type needs no bounds on `T`. With such bounds, the compiler does not accept a task that keeps a
/// queue of `&'static str` as `Send`.
///
/// The threads hold it until they end. [`Owner`](crate::timer::shutdown::Owner) counts the user's
/// handles.
pub(crate) struct Shared<T, X = (), D = T> {
    pub(crate) shards: Arc<Shards<T, X>>,
    /// A reference for the handles of each shard.
    references: Box<[ShardsRef<T, X>]>,
    pub(crate) handler: Arc<Handler<D>>,
    pub(crate) delivery: Delivery<D>,
    /// `None` once the threads have been started, or if the timer needs none.
    starter: Mutex<Option<Starter>>,
    is_started: AtomicBool,
    /// Whether the clock or a task of the user runs the timer, so that there are no threads.
    is_driven: AtomicBool,
    /// Whether the reaper has panicked, which only the user's clock can cause.
    pub(crate) is_reaper_dead: AtomicBool,
    pub(crate) callback_threads: Arc<CallbackThreads>,
    pub(super) reaper_stats: Mutex<ReaperStats>,
    /// Called when the reaper panics.
    #[cfg(feature = "future")]
    pub(crate) on_panic: std::sync::OnceLock<fn(&Self)>,
}

/// The parts from which the threads of a timer start.
pub(crate) struct Starter {
    pub(crate) reaper: Reaper,
    /// Executor threads that have not been started.
    pub(crate) executors: usize,
    /// Prefix of the threads' names.
    pub(crate) name: String,
}

impl<T: Send + 'static, X: Annex<T>> Shared<T, X, X::Due> {
    pub(crate) fn new(
        shards: Shards<T, X>,
        handler: Handler<X::Due>,
        delivery: Delivery<X::Due>,
        starter: Starter,
    ) -> Arc<Self> {
        let shards = Arc::new(shards);
        let shared = Arc::new(Self {
            references: ShardsRef::for_each_shard(&shards),
            shards,
            handler: Arc::new(handler),
            delivery,
            starter: Mutex::new(Some(starter)),
            is_started: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
            is_reaper_dead: AtomicBool::new(false),
            callback_threads: CallbackThreads::new(),
            reaper_stats: Mutex::new(ReaperStats::new()),
            #[cfg(feature = "future")]
            on_panic: std::sync::OnceLock::new(),
        });
        shared.offer_to_clock();
        shared
    }

    /// Lets a clock that drives timers adopt this one. Then no thread is started.
    fn offer_to_clock(self: &Arc<Self>) {
        let driven: Weak<dyn Driven> = Arc::<Self>::downgrade(self);
        if self.shards.clock().source().adopt(driven) {
            // The clock may already advance on another thread.
            self.is_driven.store(true, Ordering::Release);
            drop(self.take_starter());
        }
    }

    /// Lets a task of the user expire sleeps in place of the reaper. Call it before the timer has
    /// started a thread.
    #[cfg(feature = "future")]
    pub(crate) fn leave_to_driver(&self) {
        debug_assert!(self.is_driven() || !self.is_started(), "the timer has a reaper");
        self.shards.leave_to_driver();
        self.is_driven.store(true, Ordering::Release);
        drop(self.take_starter());
    }

    /// Returns a reference for the handle of a timeout.
    #[inline]
    pub(crate) fn reference(&self, key: TimeoutKey) -> ShardsRef<T, X> {
        self.references[key.shard()].clone()
    }

    /// Marks the threads as started and returns the starter, if no thread has taken it before.
    pub(crate) fn take_starter(&self) -> Option<Starter> {
        let starter = self.starter.lock().take();
        self.is_started.store(true, Ordering::Release);
        starter
    }

    /// Starts the threads unless they have been started.
    #[inline]
    pub(crate) fn ensure_started(self: &Arc<Self>) -> io::Result<()> {
        if self.is_started() { Ok(()) } else { self.start() }
    }

    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.start_threads()? {
            self.handler.events().started();
        }
        Ok(())
    }

    /// Returns whether this call started the threads: never after a shutdown.
    fn start_threads(self: &Arc<Self>) -> io::Result<bool> {
        let mut starter = self.starter.lock();
        let Some(parts) = &mut *starter else { return Ok(false) };
        if self.shards.is_shut_down() {
            return Ok(false);
        }
        debug_assert!(!self.is_driven(), "a timer that its clock runs has no threads");
        self.start_executors(parts)?;
        debug_assert_eq!(parts.executors, 0, "an executor thread was not started");
        parts.reaper.serve(self.client())?;
        *starter = None;
        self.is_started.store(true, Ordering::Release);
        Ok(true)
    }

    /// Starts the executor threads that have not been started. If one cannot be started, those
    /// before it keep running, and a later call starts the others.
    fn start_executors(&self, starter: &mut Starter) -> io::Result<()> {
        let Delivery::Threads(backlog) = &self.delivery else { return Ok(()) };
        while let Some(index) = starter.executors.checked_sub(1) {
            let (backlog, handler) = (Arc::clone(backlog), Arc::clone(&self.handler));
            let thread = self.callback_threads.register();
            let run = move || {
                thread.begin(this_thread());
                while let Some(expired) = backlog.take() {
                    handler.call(expired);
                }
            };
            thread::Builder::new().name(format!("{}-{index}", starter.name)).spawn(run)?;
            starter.executors = index;
        }
        Ok(())
    }

    #[inline]
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
    pub(crate) fn len(&self) -> usize {
        let backlog = self.delivery.backlog();
        let _transfer = backlog.map(|backlog| backlog.lock_transfer());
        let pending = usize::try_from(self.shards.stats().pending).unwrap_or(usize::MAX);
        pending.saturating_add(backlog.map_or(0, Backlog::len))
    }

    /// Checks the invariants of the timer. No other thread may use it meanwhile; its own threads
    /// may run.
    pub(crate) fn check_invariants(&self) {
        // The reaper expires under this lock, if there is a backlog.
        let backlog = self.delivery.backlog();
        let _transfer = backlog.map(|backlog| backlog.lock_transfer());
        self.shards.check_invariants();
        self.callback_threads.check_invariants();
        let stats = self.shards.stats();
        assert_eq!(self.reaper_stats.lock().lateness.count(), stats.expired, "each has a lateness");
        assert!(
            !self.shards.is_shut_down() || stats.pending == 0,
            "a shutdown returns all timeouts"
        );
        assert!(
            !self.shards.is_shut_down() || backlog.is_none_or(Backlog::is_closed),
            "the backlog is open"
        );
    }

    pub(crate) fn stats(&self) -> TimerStats {
        let shards = self.shards.stats();
        let reaper = self.reaper_stats.lock();
        TimerStats {
            pending: shards.pending,
            scheduled: shards.scheduled,
            expired: shards.expired,
            cancelled: shards.cancelled,
            rejected: shards.rejected,
            returned: shards.returned,
            panicked: self.handler.panicked(),
            wakeups: reaper.wakeups,
            cascades: shards.cascades,
            lateness: reaper.lateness.clone(),
        }
    }
}

impl<T: Send + 'static, X: Annex<T>> Driven for Shared<T, X, X::Due> {
    fn turn(&self) {
        if !self.shards.is_shut_down() {
            let is_queue = matches!(self.delivery, Delivery::Queue(_));
            let delivery = if is_queue { &self.delivery } else { &Delivery::Inline };
            self.expire_due(delivery);
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        self.shards.clock().instant(self.shards.next_turn()?)
    }
}
