//! Helpers of the timer tests: timers in virtual time, a log, and waits with a limit.

use std::{
    panic,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use delaywheel::{ManualClock, Timer, TimerBuilder};

pub(crate) use crate::clock::{HookedClock, Set, YEAR, timer_on};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Limit of waits that end soon unless there is a fault.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// Every way to run callbacks.
pub(crate) const WAYS: [fn(TimerBuilder) -> TimerBuilder; 4] = [
    |builder| builder,
    |builder| builder.executor_threads(3),
    TimerBuilder::inline,
    |builder| builder.executor(|task: Box<dyn FnOnce() + Send>| task()),
];

/// Returns a timer in virtual time, with ticks of 1 ms.
pub(crate) fn manual() -> (ManualClock, Timer) {
    manual_with(|builder| builder)
}

pub(crate) fn manual_with(
    change: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (ManualClock, Timer) {
    timer_on(ManualClock::new(), change)
}

#[derive(Debug, Clone)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn push(&self, entry: T) {
        self.0.lock().expect("no test panics under this lock").push(entry);
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock().expect("no test panics under this lock"))
    }
}

impl<T: Clone + Send + 'static> Log<T> {
    /// Returns a callback that appends an entry.
    pub(crate) fn note(&self, entry: T) -> impl FnOnce() + Send + use<T> {
        let log = self.clone();
        move || log.push(entry)
    }
}

/// Calls a function when it is dropped.
#[derive(Clone)]
pub(crate) struct OnDrop(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl OnDrop {
    pub(crate) fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Blocks a thread of a timer by a callback, until the sender is dropped.
pub(crate) fn block(timer: &Timer) -> mpsc::Sender<()> {
    let ((running, runs), (release, released)) = (mpsc::channel(), mpsc::channel());
    let callback = move || {
        running.send(()).unwrap();
        let _ = released.recv_timeout(2 * GENEROUS);
    };
    timer.schedule(Duration::ZERO, callback).unwrap();
    runs.recv_timeout(GENEROUS).unwrap();
    release
}

/// Runs a closure that would deadlock if a lock were held, and fails if it does not return.
pub(crate) fn must_return<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        let result = run();
        sender.send(()).expect("the caller waits for it");
        result
    });
    let waited = receiver.recv_timeout(GENEROUS);
    assert_ne!(waited, Err(mpsc::RecvTimeoutError::Timeout), "a lock is held");
    thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// Waits for a condition that becomes true soon unless there is a fault.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + GENEROUS;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::yield_now();
    }
}
