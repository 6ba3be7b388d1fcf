//! Where callbacks run.

use std::{
    boxed::Box,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    vec::Vec,
};

use super::{backlog::Backlog, events::Events};
use crate::{
    Expired,
    sync::{AtomicU64, Mutex, Ordering},
};

/// A pool of threads that runs callbacks for a timer.
///
/// Any function that takes a boxed closure is one, so that most pools are one line:
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
    /// Passes a task to a thread that runs it. The reaper calls this. While the call blocks, no other
    /// timeout of the timer expires.
    ///
    /// The timer catches and counts a panic. A task that is dropped without being run still counts
    /// as expired.
    fn execute(&self, task: Box<dyn FnOnce() + Send>);
}

impl<F: Fn(Box<dyn FnOnce() + Send>) + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: Box<dyn FnOnce() + Send>) {
        self(task);
    }
}

/// What is done with what has expired. A panic in it is caught and counted.
pub(super) struct Handler<T> {
    handle: Box<dyn Fn(Expired<T>) + Send + Sync>,
    panicked: AtomicU64,
    events: Events,
}

impl<T> Handler<T> {
    pub(super) fn new(events: Events, handle: impl Fn(Expired<T>) + Send + Sync + 'static) -> Self {
        Self { handle: Box::new(handle), panicked: AtomicU64::new(0), events }
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn call(&self, expired: Expired<T>) {
        self.catch(|| (self.handle)(expired));
    }

    pub(super) fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Runs user code. The payload of a panic is user code too: its drop may panic.
    fn catch(&self, user_code: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) {
            self.panicked.fetch_add(1, Ordering::Relaxed);
            self.events.panicked(&*payload);
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
        }
    }
}

/// The way from the reaper to the handler.
pub(super) enum Delivery<T> {
    /// On the thread of the reaper, or of the clock.
    Inline,
    /// On executor threads of the timer, which take from the backlog.
    Threads(Passage<T>),
    /// Not at all: threads of the user receive the values from the backlog.
    Queue(Passage<T>),
    /// On a pool of the user.
    Pool(Arc<dyn Executor>),
}

/// The way from the wheels to a backlog.
///
/// A thread holds the lock while it moves timeouts from the wheels to the backlog. So a thread that
/// gets the lock finds each timeout in one of the two, and none on its way. The lock comes before
/// those of the shards and that of the backlog.
pub(super) struct Passage<T> {
    lock: Mutex<()>,
    backlog: Arc<Backlog<T>>,
}

impl<T> Passage<T> {
    pub(super) fn new(backlog: Arc<Backlog<T>>) -> Self {
        Self { lock: Mutex::new(()), backlog }
    }

    pub(super) fn backlog(&self) -> &Arc<Backlog<T>> {
        &self.backlog
    }
}

impl<T: Send + 'static> Delivery<T> {
    /// Takes out what has expired, by `expire`, and passes it on. Returns what that returns.
    ///
    /// With a backlog, [`settled`](Self::settled) waits for this.
    pub(super) fn pass_on<R>(
        &self,
        handler: &Arc<Handler<T>>,
        batch: &mut Vec<Expired<T>>,
        expire: impl FnOnce(&mut Vec<Expired<T>>) -> R,
    ) -> R {
        let result;
        match self {
            Self::Inline => {
                result = expire(batch);
                batch.drain(..).for_each(|expired| handler.call(expired));
            }
            Self::Threads(passage) | Self::Queue(passage) => {
                let _held = passage.lock.lock();
                result = expire(batch);
                passage.backlog.put(batch);
            }
            Self::Pool(pool) => {
                result = expire(batch);
                for expired in batch.drain(..) {
                    let task = Arc::clone(handler);
                    handler.catch(|| pool.execute(Box::new(move || task.call(expired))));
                }
            }
        }
        result
    }

    /// Runs `close`, after which no timeout expires, and then ends the threads that take from the
    /// backlog, as soon as it is empty.
    pub(super) fn close<R>(&self, close: impl FnOnce() -> R) -> R {
        self.settled(|| {
            let result = close();
            self.backlog().inspect(|backlog| backlog.close());
            result
        })
    }

    /// Runs `look` at a moment when no timeout is on its way to the backlog.
    pub(super) fn settled<R>(&self, look: impl FnOnce() -> R) -> R {
        match self {
            Self::Threads(passage) | Self::Queue(passage) => {
                let _held = passage.lock.lock();
                look()
            }
            Self::Inline | Self::Pool(_) => look(),
        }
    }

    /// Expired timeouts that no thread has taken yet.
    pub(super) fn backlog(&self) -> Option<&Backlog<T>> {
        match self {
            Self::Threads(passage) | Self::Queue(passage) => Some(&passage.backlog),
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
