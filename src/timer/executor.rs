//! Where callbacks run: on the reaper, on executor threads, on a pool, or nowhere for a queue.

use std::{boxed::Box, sync::Arc};

use super::{backlog::Backlog, tracing::Events};
use crate::{
    panics::catch,
    sync::{AtomicU64, Ordering},
    wheel::Expired,
};

/// A pool of threads that runs callbacks for a timer.
///
/// Any function that takes a boxed closure is an executor, so most pools need one line:
///
/// ```ignore
/// Timer::builder().executor(|task| rayon::spawn(task))
/// Timer::builder().executor(move |task: Box<_>| drop(handle.spawn_blocking(task)))
/// ```
///
/// # Examples
///
/// ```
/// use std::{sync::mpsc, thread, time::Duration};
///
/// use delaywheel::Timer;
///
/// let timer = Timer::builder().executor(|task| drop(thread::spawn(task))).build()?;
/// let (ran, events) = mpsc::channel();
/// timer.schedule(Duration::ZERO, move || ran.send(()).unwrap())?;
/// events.recv()?;
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Passes a task to a thread that runs it. The reaper calls this. While the call blocks, no
    /// other timeout of this reaper's timers expires.
    ///
    /// The timer catches and counts a panic of this call or of the task. A task that is dropped
    /// without a run still counts as expired.
    fn execute(&self, task: Box<dyn FnOnce() + Send>);
}

impl<F: Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: Box<dyn FnOnce() + Send>) {
        self(task);
    }
}

/// Where expired timeouts go.
pub(crate) enum Delivery<T> {
    /// The handler runs on the thread of the reaper, or of the clock.
    Inline,
    /// Executor threads of the timer, or threads and tasks of the user, take the timeouts from the
    /// backlog.
    Backlog(Arc<Backlog<T>>),
    /// A pool of the user runs the handler.
    Pool(Arc<dyn Executor>),
}

impl<T> Delivery<T> {
    /// Returns the backlog, if there is one.
    pub(super) fn backlog(&self) -> Option<&Backlog<T>> {
        if let Self::Backlog(backlog) = self { Some(backlog) } else { None }
    }

    /// Returns whether the user receives the timeouts.
    pub(super) fn is_queue(&self) -> bool {
        self.backlog().is_some_and(|backlog| backlog.is_queue)
    }

    /// Returns whether threads of the timer take the timeouts.
    pub(super) fn has_executors(&self) -> bool {
        self.backlog().is_some_and(|backlog| !backlog.is_queue)
    }
}

/// Runs the user's handler, and catches and counts its panics.
pub(crate) struct Handler<T> {
    handle: Box<dyn Fn(T) + Send + Sync>,
    pub(super) panicked: AtomicU64,
    pub(super) events: Events,
}

impl<T> Handler<T> {
    pub(super) fn new(events: Events, handle: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self { handle: Box::new(handle), panicked: AtomicU64::new(0), events }
    }

    pub(crate) fn call(&self, expired: Expired<T>) {
        self.catch(|| (self.handle)(expired.value));
    }

    /// Runs user code, and catches and counts its panic. Returns whether it returned.
    pub(super) fn catch(&self, user_code: impl FnOnce()) -> bool {
        let panic = catch(user_code).err();
        if let Some(panic) = &panic {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            self.events.panicked(panic);
        }
        panic.is_none()
    }
}
