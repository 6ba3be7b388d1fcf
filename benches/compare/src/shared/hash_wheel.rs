//! The thread of `hierarchical_hash_wheel_timer`, which owns the wheels; other threads send it
//! messages.

use std::cell::RefCell;

use hierarchical_hash_wheel_timer::{
    ClosureTimer, OneShotClosureState, PeriodicClosureState, Timer,
    thread_timer::{TimerRef, TimerWithThread},
};

use crate::prelude::*;

type Once = OneShotClosureState<u64>;
type Periodic = PeriodicClosureState<u64>;

/// [`TimerWithThread`], with closures that capture eight bytes.
#[derive(Clone)]
pub struct HashWheelThread {
    /// Sends to the thread, which takes exclusive access.
    sender: RefCell<TimerRef<u64, Once, Periodic>>,
    scheduled: Arc<AtomicU64>,
    pub ran: Counter,
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
    fn send(&self, delay: Duration, action: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.scheduled.fetch_add(1, Ordering::Relaxed);
        self.sender.borrow_mut().schedule_action_once(id, delay, move |_| action());
        id
    }
}

impl SharedTimer for HashWheelThread {
    type Timeout = u64;

    const PROMISES: Promises = Promises {
        name: "hash_wheel_thread",
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
            ran: Counter::new(),
            _running: Arc::new(Running(timer)),
        }
    }

    fn schedule(&self, delay: Duration) -> u64 {
        let ran = self.ran;
        self.send(delay, move || ran.add())
    }

    /// The thread does not report whether a timeout was pending, so this claims that it was.
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
