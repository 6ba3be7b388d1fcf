//! The thread of `hierarchical_hash_wheel_timer`, which owns the wheels; others send it messages.

use std::{
    cell::RefCell,
    fmt::{self, Debug, Formatter},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hierarchical_hash_wheel_timer::{
    ClosureTimer, OneShotClosureState, PeriodicClosureState, Timer,
    thread_timer::{TimerRef, TimerWithThread},
};

use super::{Expectation, SharedTimer, counting};
use crate::{Promises, Wakes};

type Once = OneShotClosureState<u64>;
type Periodic = PeriodicClosureState<u64>;

/// [`TimerWithThread`], with closures that capture eight bytes.
#[derive(Clone)]
pub struct HashWheelThread {
    /// By which a thread sends; that takes exclusive access, for no reason that matters here.
    sender: RefCell<TimerRef<u64, Once, Periodic>>,
    scheduled: Arc<AtomicU64>,
    /// Never freed, as that of our closures.
    ran: &'static AtomicU64,
    _running: Arc<Running>,
}

/// Stops the thread when it is dropped.
struct Running(TimerWithThread<u64, Once, Periodic>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.shutdown_async().expect("the thread has not been stopped");
    }
}

impl HashWheelThread {
    /// Starts the thread.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn new() -> Self {
        let timer = TimerWithThread::new().expect("a thread can be started");
        Self {
            sender: RefCell::new(timer.timer_ref()),
            scheduled: Arc::default(),
            ran: Box::leak(Box::default()),
            _running: Arc::new(Running(timer)),
        }
    }

    /// How many timeouts have run that nobody expected.
    #[must_use]
    pub fn ran(&self) -> u64 {
        self.ran.load(Ordering::Relaxed)
    }

    #[inline]
    fn send(&self, delay: Duration, action: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.scheduled.fetch_add(1, Ordering::Relaxed);
        self.sender.borrow_mut().schedule_action_once(id, delay, move |_| action());
        id
    }
}

impl Default for HashWheelThread {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for HashWheelThread {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashWheelThread")
            .field("scheduled", &self.scheduled)
            .finish_non_exhaustive()
    }
}

impl SharedTimer for HashWheelThread {
    type Timeout = u64;

    const NAME: &'static str = "hash_wheel_thread";

    const PROMISES: Promises = Promises {
        scheme: "scheme 7: hierarchical wheel that ticks, of one thread",
        describes: "early by up to 2 ms; spins while anything is within 256 ms; cancel does not tell \
                    whether it did",
        earliness: 2,
        lateness: 1,
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    #[inline]
    fn schedule(&self, delay: Duration) -> u64 {
        self.send(delay, counting(self.ran))
    }

    /// Cancels and schedules. It is never told whether the one was pending, so it says that it was.
    #[inline]
    fn replace(&self, timeout: &mut u64, delay: Duration) -> bool {
        self.sender.borrow_mut().cancel(timeout);
        *timeout = self.schedule(delay);
        true
    }

    fn schedule_expected(&self, delay: Duration, expectation: Expectation) {
        self.send(delay, move || expectation.meet());
    }

    /// Waits for a message that is worked off at once: the thread takes them in the order in which
    /// they were sent.
    fn catch_up(&self) {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.send(Duration::ZERO, move || sender.send(()).expect("somebody waits"));
        receiver.recv().expect("the thread runs while this is there");
    }
}
