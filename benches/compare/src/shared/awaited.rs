//! Peers whose timeouts are futures: async-io, futures-timer and pingora-timeout.
//!
//! A timeout is polled once, so that it is registered. Tasks of an executor with its own thread
//! await noted timeouts.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use async_executor::Executor as Tasks;
use async_io::Timer;
use futures_lite::future;
use futures_timer::Delay;
use pingora_timeout::{ToTimeout, fast_timeout::FastTimeout};
use tokio::sync::oneshot::{self, Sender};

use super::{Note, SharedTimer, Tokio};
use crate::{Promises, Wakes};

/// A peer with a future for each timeout. All share one helper thread, which never ends.
pub trait Sleeps: Clone + Send + Sync + 'static {
    /// The future.
    type Sleep: Future + Unpin + Send + 'static;

    /// Name in the report.
    const NAME: &'static str;

    /// Structure and limits.
    const PROMISES: Promises;

    /// Starts the executor of the tasks that await.
    fn start() -> Self;

    /// A guard that a thread holds while it uses the peer.
    fn enter(&self) -> impl Sized {}

    /// Runs a task to its end.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Makes a future that completes after a delay.
    fn sleep(delay: Duration) -> Self::Sleep;

    /// Waits until the helper thread has processed everything.
    fn catch_up() {}
}

/// A peer as a timer that threads share.
#[derive(Debug, Clone)]
pub struct Awaited<S>(S);

impl<S: Sleeps> SharedTimer for Awaited<S> {
    type Timeout = S::Sleep;

    const NAME: &'static str = S::NAME;

    const PROMISES: Promises = S::PROMISES;

    fn start() -> Self {
        Self(S::start())
    }

    fn enter(&self) -> impl Sized {
        self.0.enter()
    }

    #[inline]
    fn schedule(&self, delay: Duration) -> S::Sleep {
        let mut sleep = S::sleep(delay);
        is_pending(&mut sleep);
        sleep
    }

    #[inline]
    fn replace(&self, sleep: &mut S::Sleep, delay: Duration) -> bool {
        let was_pending = is_pending(sleep);
        *sleep = self.schedule(delay);
        was_pending
    }

    fn schedule_noted(&self, delay: Duration, note: Note) {
        let sleep = S::sleep(delay);
        self.0.spawn(async move {
            sleep.await;
            note.run();
        });
    }

    fn catch_up(&self) {
        S::catch_up();
    }
}

#[inline]
fn is_pending(sleep: &mut (impl Future + Unpin)) -> bool {
    Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// One thread that runs tasks until the last of its clones is dropped.
#[derive(Debug, Clone)]
struct Executor {
    tasks: Arc<Tasks<'static>>,
    /// Dropped with the last clone, which ends the thread.
    _end: Arc<Sender<()>>,
}

impl Executor {
    /// Starts the thread, which blocks on the executor in this way.
    fn start(block_on: fn(Pin<&mut (dyn Future<Output = ()> + '_)>)) -> Self {
        let tasks = Arc::new(Tasks::new());
        let (sender, receiver) = oneshot::channel();
        let runner = Arc::clone(&tasks);
        let run = move || {
            let mut run = std::pin::pin!(runner.run(async move { drop(receiver.await) }));
            block_on(run.as_mut());
        };
        thread::Builder::new().name("tasks".into()).spawn(run).expect("a thread can be started");
        Self { tasks, _end: Arc::new(sender) }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task).detach();
    }
}

/// `async_io::Timer`: a tree behind one lock, which the reactor thread checks; smol uses it.
pub type AsyncIo = Awaited<AsyncIoTasks>;

/// [`AsyncIo`].
#[derive(Debug, Clone)]
pub struct AsyncIoTasks(Executor);

impl Sleeps for AsyncIoTasks {
    type Sleep = Timer;

    const NAME: &'static str = "async_io";

    const PROMISES: Promises =
        Promises { scheme: "scheme 3: tree behind one lock, async-io's Timer", ..Promises::STRICT };

    fn start() -> Self {
        Self(Executor::start(|run| async_io::block_on(run)))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    #[inline]
    fn sleep(delay: Duration) -> Timer {
        Timer::after(delay)
    }
}

/// `futures_timer::Delay`: a heap that a helper thread owns; other threads send it updates.
pub type FuturesTimer = Awaited<FuturesTasks>;

/// [`FuturesTimer`].
#[derive(Debug, Clone)]
pub struct FuturesTasks(Executor);

impl Sleeps for FuturesTasks {
    type Sleep = Delay;

    const NAME: &'static str = "futures_timer";

    const PROMISES: Promises = Promises {
        scheme: "scheme 3: heap of a helper thread, futures-timer",
        describes: "every operation wakes its thread",
        ..Promises::STRICT
    };

    fn start() -> Self {
        Self(Executor::start(|run| future::block_on(run)))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    #[inline]
    fn sleep(delay: Duration) -> Delay {
        Delay::new(delay)
    }

    /// Waits for a timeout that is due at once: the helper thread processes all earlier updates
    /// first.
    fn catch_up() {
        future::block_on(Delay::new(Duration::ZERO));
    }
}

/// `pingora_timeout`: a tree for each thread, which a clock thread checks every 10 ms.
///
/// All timeouts of a thread that are due in the same 10 ms share one entry of its tree, which stays
/// until then, cancelled or not. Tasks run on tokio.
pub type Pingora = Awaited<PingoraTasks>;

/// [`Pingora`].
#[derive(Debug, Clone)]
pub struct PingoraTasks(Tokio);

impl Sleeps for PingoraTasks {
    type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

    const NAME: &'static str = "pingora";

    const PROMISES: Promises = Promises {
        scheme: "a tree a thread in steps of 10 ms, pingora-timeout",
        describes: "early by up to 1 ms and late by up to 20; wakes every 10 ms; cancelled timeouts \
                    stay",
        earliness: 1,
        lateness: 20,
        wakes: Wakes::Every(10),
        ..Promises::STRICT
    };

    fn start() -> Self {
        Self(Tokio::start())
    }

    fn enter(&self) -> impl Sized {
        self.0.enter()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    #[inline]
    fn sleep(delay: Duration) -> Self::Sleep {
        FastTimeout::create(delay).timeout()
    }
}
