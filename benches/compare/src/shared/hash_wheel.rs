//! The thread of `hierarchical_hash_wheel_timer`, which owns the wheels; other threads send it
//! messages.

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

use super::{Note, SharedTimer, counter, counting};
use crate::{Promises, Wakes};

type Once = OneShotClosureState<u64>;
type Periodic = PeriodicClosureState<u64>;

/// [`TimerWithThread`], with closures that capture eight bytes.
#[derive(Clone)]
pub struct HashWheelThread {
    /// Sends to the thread, which takes exclusive access.
    sender: RefCell<TimerRef<u64, Once, Periodic>>,
    scheduled: Arc<AtomicU64>,
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
    /// How many timeouts have run that count.
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

    fn start() -> Self {
        let timer = TimerWithThread::new().expect("a thread can be started");
        Self {
            sender: RefCell::new(timer.timer_ref()),
            scheduled: Arc::default(),
            ran: counter(),
            _running: Arc::new(Running(timer)),
        }
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> u64 {
        self.send(delay, counting(self.ran))
    }

    /// Cancels and schedules. The thread does not tell whether a timeout was pending, so this
    /// claims that it was.
    #[inline]
    fn replace(&self, timeout: &mut u64, delay: Duration) -> bool {
        self.sender.borrow_mut().cancel(timeout);
        *timeout = self.schedule(delay);
        true
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        self.send(delay, move || note.run());
    }

    /// Waits for a timeout that is due at once: the thread takes messages in the order of sending.
    fn catch_up(&self) {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.send(Duration::ZERO, move || sender.send(()).expect("the caller waits"));
        receiver.recv().expect("the thread runs while this is there");
    }
}
