//! Calls of user code: catches panics, and defers completions within completions and checks within
//! checks, so that the stack is bounded.
//!
//! A completion or a check may announce the event that completes the next operation. If each call
//! ran inside the previous one, a long chain would overflow the stack. So each thread has a queue
//! of completions and a queue of checks. All purgatories share these queues.
//!
//! - A completion within another one goes into the queue. The thread runs the queue when the
//!   outermost completion has returned.
//! - A check that announces an event may use the number of operations that the event completed. So
//!   checks run within checks, but only [`DEPTH`] deep. A deeper event puts its operations back
//!   unchecked, and pushes a closure onto the queue that checks them later. The thread runs the
//!   queue when its outermost check has returned and it has no operation out.
//! - The checks of a `watch` decide its result, so the thread defers none of them. Checks that call
//!   `watch` nest without a bound.

use std::{
    boxed::Box,
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::Arc,
};

use super::operation::{Completion, DelayedOperation};
use crate::{panics, timer::Events};

/// The calls of user code by a purgatory. Clones share the number of caught panics.
#[derive(Clone)]
pub(super) struct Calls(pub(super) Arc<Events>);

impl Calls {
    /// Runs user code. If it panics, counts the panic, emits an event, and returns the default
    /// value.
    #[inline]
    pub(super) fn catch<V: Default>(&self, user_code: impl FnOnce() -> V) -> V {
        panics::catch(user_code).map_err(|panic| self.0.panicked(&panic)).unwrap_or_default()
    }

    /// Runs a check of an operation.
    #[inline]
    pub(super) fn check(&self, check: impl FnOnce() -> bool) -> bool {
        CHECKING.with(|checking| checking.depth.set(checking.depth.get() + 1));
        let result = self.catch(check);
        CHECKING.with(|checking| {
            debug_assert_ne!(checking.depth.get(), 0, "more checks have ended than begun");
            checking.depth.set(checking.depth.get() - 1);
        });
        result
    }

    /// Completes an operation at once or, when called in a completion, after that completion has
    /// returned.
    #[inline]
    pub(super) fn complete<K, O: DelayedOperation<K>>(&self, operation: O, completion: Completion) {
        let is_nested = COMPLETIONS.try_with(|queue| queue.is_running.replace(true));
        if matches!(is_nested, Ok(true)) {
            return self.defer(operation, completion);
        }
        self.catch(|| operation.complete(completion));
        // A thread that exits has no queue.
        if is_nested.is_ok() {
            COMPLETIONS.with(Queue::run);
        }
    }

    #[cold]
    fn defer<K, O: DelayedOperation<K>>(&self, operation: O, completion: Completion) {
        let calls = self.clone();
        let deferred = move || calls.catch(|| operation.complete(completion));
        COMPLETIONS.with(|queue| queue.push(Box::new(deferred)));
    }
}

/// Maximum nesting of checks.
const DEPTH: u32 = 8;

/// Deferred calls of one kind, which run after the outermost call of this kind has returned.
#[derive(Default)]
struct Queue {
    /// Whether a completion or, in the queue of checks, a deferred check runs.
    is_running: Cell<bool>,
    deferred: RefCell<VecDeque<Box<dyn FnOnce()>>>,
}

/// The checks of a thread.
#[derive(Default)]
struct Checking {
    /// Current nesting of checks.
    depth: Cell<u32>,
    /// Whether the queue of checks may have entries.
    is_deferred: Cell<bool>,
}

#[cfg(loom)]
loom::thread_local! {
    static COMPLETIONS: Queue = Queue::default();
    static CHECKS: Queue = Queue::default();
    static CHECKING: Checking = Checking::default();
}
#[cfg(not(loom))]
std::thread_local! {
    static COMPLETIONS: Queue = const { Queue::new() };
    static CHECKS: Queue = const { Queue::new() };
    static CHECKING: Checking = const {
        Checking { depth: Cell::new(0), is_deferred: Cell::new(false) }
    };
}

/// Returns whether checks must be deferred now.
#[inline]
pub(super) fn is_too_deep() -> bool {
    CHECKING.with(|checking| checking.depth.get() >= DEPTH)
}

/// Defers checks until the outermost check has returned.
pub(super) fn defer_checks(checks: impl FnOnce() + 'static) {
    let mut checks: Option<Box<dyn FnOnce()>> = Some(Box::new(checks));
    if CHECKS.try_with(|queue| checks.take().map(|checks| queue.push(checks))).is_ok() {
        CHECKING.with(|checking| checking.is_deferred.set(true));
    } else if let Some(checks) = checks {
        // Only a thread that exits has no queue. Then checks nest without a bound.
        let depth = CHECKING.with(|checking| checking.depth.replace(0));
        checks();
        CHECKING.with(|checking| checking.depth.set(depth));
    }
}

/// Runs the deferred checks, unless a check is running.
#[inline]
pub(super) fn run_checks() {
    if CHECKING.with(|checking| checking.is_deferred.get() && checking.depth.get() == 0) {
        run_deferred_checks();
    }
}

#[cold]
fn run_deferred_checks() {
    // A deferred check may call this function again. The loop of the outer call runs the rest.
    let is_nested = CHECKS.try_with(|queue| queue.is_running.replace(true));
    if matches!(is_nested, Ok(false)) {
        CHECKS.with(Queue::run);
        CHECKING.with(|checking| checking.is_deferred.set(false));
    }
}

impl Queue {
    #[cfg(not(loom))]
    const fn new() -> Self {
        let deferred = RefCell::new(VecDeque::new());
        Self { is_running: Cell::new(false), deferred }
    }

    fn push(&self, deferred: Box<dyn FnOnce()>) {
        self.deferred.borrow_mut().push_back(deferred);
    }

    /// Runs the deferred calls, and the calls that these defer in turn.
    #[inline]
    fn run(&self) {
        debug_assert!(self.is_running.get(), "two calls run one queue");
        // The borrow ends before the call, which may push onto the queue.
        let next = || self.deferred.borrow_mut().pop_front();
        while let Some(deferred) = next() {
            deferred();
        }
        debug_assert!(self.deferred.borrow().is_empty(), "a deferred call is left");
        // Otherwise, the thread would keep the memory of its longest queue.
        self.deferred.borrow_mut().shrink_to(64);
        self.is_running.set(false);
    }
}

// On Windows, threads drop their values in another order.
#[cfg(all(test, not(any(loom, windows))))]
mod tests {
    use std::{string::String, sync::mpsc, thread, time::Duration};

    use super::*;

    struct AtExit(mpsc::Sender<u32>);

    impl Drop for AtExit {
        fn drop(&mut self) {
            Calls(Arc::new(Events::new(String::new(), Duration::ZERO))).check(|| {
                let sender = self.0.clone();
                let depth = || CHECKING.with(|checking| checking.depth.get());
                defer_checks(move || sender.send(depth()).expect("the test waits"));
                self.0.send(depth()).is_ok()
            });
        }
    }

    #[test]
    fn a_thread_keeps_little_memory_after_a_completion_that_has_ended_a_crowd() {
        let calls = Calls(Arc::new(Events::new(String::new(), Duration::ZERO)));
        calls.complete::<(), _>(Crowd(calls.clone()), Completion::Satisfied);
        let kept = COMPLETIONS.with(|queue| queue.deferred.borrow().capacity());
        assert!(kept <= 64, "room for {kept} calls");
    }

    /// An operation whose completion completes many others.
    struct Crowd(Calls);

    impl DelayedOperation<()> for Crowd {
        fn complete(self, _: Completion) {
            (0..10_000).for_each(|_| self.0.complete::<(), _>(Other, Completion::Satisfied));
        }
    }

    struct Other;

    impl DelayedOperation<()> for Other {
        fn complete(self, _: Completion) {}
    }

    #[test]
    fn a_thread_that_exits_makes_deferred_checks_at_once() {
        std::thread_local! {
            static LAST: RefCell<Option<AtExit>> = const { RefCell::new(None) };
        }
        let (sender, depths) = mpsc::channel();
        let run = move || {
            // Dropped after the queue, because the thread first uses the queue later.
            LAST.set(Some(AtExit(sender)));
            CHECKS.with(|_| ());
        };
        thread::spawn(run).join().expect("it does not panic");
        assert!(depths.try_iter().eq([0, 1]));
    }
}
