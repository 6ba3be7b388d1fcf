//! Contestants whose timeouts are futures: our sleeps, async-io and futures-timer.
//!
//! A timeout is polled once, so that it is registered. Tasks of an executor with its own thread
//! await noted timeouts.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Waker},
};

use async_io::Timer;
use futures_lite::future;
use futures_timer::Delay;
use tokio::sync::oneshot::{self, Sender};

use super::Tokio;
use crate::prelude::*;

/// A peer with a future for each timeout. Its helper thread never ends.
pub trait Sleeps: Clone + Send + Sync + 'static {
    type Sleep: Future + Unpin + Send + 'static;

    const NAME: &'static str;

    /// Starts the executor of the tasks that await.
    fn start() -> Executor;

    /// Makes a future that completes after a delay.
    fn sleep(delay: Duration) -> Self::Sleep;

    /// Waits until the helper thread has processed everything.
    fn catch_up() {}
}

/// Runs tasks on one thread, until the last clone is dropped.
#[derive(Clone)]
pub enum Executor {
    /// Dropping the sender ends the thread.
    Own(Arc<async_executor::Executor<'static>>, Arc<Sender<()>>),
    /// A runtime, which is entered to use the peer.
    Tokio(Tokio),
}

impl Executor {
    /// Starts a thread that runs tasks inside of `block_on`.
    fn own(block_on: fn(Pin<&mut (dyn Future<Output = ()> + '_)>)) -> Self {
        let tasks = Arc::new(async_executor::Executor::new());
        let (sender, receiver) = oneshot::channel();
        let runner = Arc::clone(&tasks);
        let run = move || {
            let mut run = std::pin::pin!(runner.run(async move { drop(receiver.await) }));
            block_on(run.as_mut());
        };
        thread::Builder::new().name("tasks".into()).spawn(run).expect("a thread can be started");
        Self::Own(tasks, Arc::new(sender))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Own(tasks, _) => tasks.spawn(task).detach(),
            Self::Tokio(runtime) => runtime.spawn(task),
        }
    }
}

/// A peer as a timer that threads share.
#[derive(Clone)]
pub struct Awaited<S>(Executor, PhantomData<S>);

impl<S: Sleeps> SharedTimer for Awaited<S> {
    type Timeout = S::Sleep;

    const NAME: &'static str = S::NAME;

    fn start() -> Self {
        Self(S::start(), PhantomData)
    }

    fn enter(&self) -> impl Sized {
        if let Executor::Tokio(runtime) = &self.0 { Some(runtime.enter()) } else { None }
    }

    fn schedule(&self, delay: Duration) -> S::Sleep {
        let mut sleep = S::sleep(delay);
        is_pending(&mut sleep);
        sleep
    }

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

fn is_pending(sleep: &mut (impl Future + Unpin)) -> bool {
    Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// `async_io::Timer`: a tree behind one lock, which the reactor thread checks; smol uses it.
pub type AsyncIo = Awaited<AsyncIoSleeps>;

#[derive(Clone)]
pub struct AsyncIoSleeps;

impl Sleeps for AsyncIoSleeps {
    type Sleep = Timer;

    const NAME: &'static str = "async_io";

    fn start() -> Executor {
        Executor::own(|run| async_io::block_on(run))
    }

    fn sleep(delay: Duration) -> Timer {
        Timer::after(delay)
    }
}

/// `futures_timer::Delay`: a heap that a helper thread owns; other threads send it updates.
pub type FuturesTimer = Awaited<FuturesSleeps>;

#[derive(Clone)]
pub struct FuturesSleeps;

impl Sleeps for FuturesSleeps {
    type Sleep = Delay;

    const NAME: &'static str = "futures_timer";

    fn start() -> Executor {
        Executor::own(|run| future::block_on(run))
    }

    fn sleep(delay: Duration) -> Delay {
        Delay::new(delay)
    }

    /// Waits for a timeout that is due at once: the helper thread processes all earlier updates
    /// first.
    fn catch_up() {
        future::block_on(Delay::new(Duration::ZERO));
    }
}

/// The free functions of this crate, in tasks on tokio.
pub type OwnSleeps = Awaited<Sleeping>;

#[derive(Clone)]
pub struct Sleeping;

impl Sleeps for Sleeping {
    type Sleep = Pin<Box<delaywheel::future::Sleep>>;

    const NAME: &'static str = "delaywheel sleeps";

    fn start() -> Executor {
        Executor::Tokio(Tokio::start())
    }

    fn sleep(delay: Duration) -> Self::Sleep {
        Box::pin(delaywheel::future::sleep(delay))
    }
}
