//! Where callbacks run: on the reaper, on executor threads, on a pool, or nowhere for a queue.

pub(super) mod backlog;
pub(super) mod callback_threads;
pub(super) mod handler;
#[cfg(feature = "future")]
pub(super) mod receiver;
#[cfg(feature = "future")]
pub(super) mod receivers;

use std::{boxed::Box, fmt, sync::Arc, vec::Vec};

use self::{backlog::Backlog, handler::Handler};
use crate::wheel::Expired;

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
    /// Executor threads of the timer take the timeouts from the backlog.
    Threads(Arc<Backlog<T>>),
    /// Threads of the user receive the values from the backlog.
    Queue(Arc<Backlog<T>>),
    /// A pool of the user runs the handler.
    Pool(Arc<dyn Executor>),
}

impl<T: Send + 'static> Delivery<T> {
    /// Calls `expire`, which fills `batch`, and hands the batch off. Returns the result of
    /// `expire`.
    pub(super) fn hand_off<R>(
        &self,
        handler: &Arc<Handler<T>>,
        batch: &mut Vec<Expired<T>>,
        expire: impl FnOnce(&mut Vec<Expired<T>>) -> R,
    ) -> R {
        debug_assert!(batch.is_empty(), "a timeout of the last batch was not handed off");
        let result;
        match self {
            Self::Inline => {
                result = expire(batch);
                batch.drain(..).for_each(|expired| handler.call(expired));
            }
            Self::Threads(backlog) | Self::Queue(backlog) => {
                let transfer = backlog.lock_transfer();
                result = expire(batch);
                #[cfg(feature = "future")]
                let count = batch.len();
                backlog.put(batch);
                drop(transfer);
                #[cfg(feature = "future")]
                for waker in backlog.take_wakers(count) {
                    handler.catch(|| waker.wake());
                }
            }
            Self::Pool(pool) => {
                result = expire(batch);
                for expired in batch.drain(..) {
                    let task = Arc::clone(handler);
                    handler.catch(|| pool.execute(Box::new(move || task.call(expired))));
                }
            }
        }
        debug_assert!(batch.is_empty(), "a timeout was not handed off");
        result
    }

    /// Calls `close`, after which no timeout expires, and closes the backlog: the threads that take
    /// from it end once it is empty.
    pub(super) fn close<R>(&self, close: impl FnOnce() -> R) -> R {
        let backlog = self.backlog();
        let transfer = backlog.map(|backlog| backlog.lock_transfer());
        let result = close();
        backlog.inspect(|backlog| backlog.close());
        drop(transfer);
        #[cfg(feature = "future")]
        backlog.inspect(|backlog| receivers::wake_all(backlog.take_wakers(usize::MAX)));
        result
    }

    /// Returns the backlog, if there is one.
    pub(super) fn backlog(&self) -> Option<&Backlog<T>> {
        match self {
            Self::Threads(backlog) | Self::Queue(backlog) => Some(backlog),
            Self::Inline | Self::Pool(_) => None,
        }
    }
}

impl<T> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inline => "Inline",
            Self::Threads(_) => "Threads",
            Self::Queue(_) => "Queue",
            Self::Pool(_) => "Pool",
        })
    }
}
