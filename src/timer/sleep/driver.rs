//! A task of the user's runtime that expires the sleeps in place of the reaper.
//!
//! # Protocol
//!
//! The task follows the rules of the reaper in [`wakeup`](crate::timer::shards::wakeup). Where the
//! reaper parks, the task returns `Pending`, and where another thread would unpark the reaper, that
//! thread wakes the task. In each turn the task
//!
//! 1. stores its waker,
//! 2. ends if the timer has shut down,
//! 3. expires due sleeps,
//! 4. announces until when it sleeps, and loads the published expirations again.
//!
//! A thread that has to wake the task takes the waker out and wakes it without a lock.
//!
//! *Why no wake-up is lost*: a thread loads the announced time, or begins the shutdown that step 2
//! finds, before it takes the waker under the waker's lock. If it does not find the waker of this
//! turn, it took that lock before step 1. So the task sees the shutdown in step 2, and the thread
//! has not loaded the time of step 4. The protocol of the reaper covers a thread that has loaded an
//! earlier time.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::SleepTimer;
use crate::{
    timer::{Timer, TimerBuildError, TimerBuilder, reaper::Client, turn::TimerClient},
    waker::wake_all,
    wheel::TimingWheel,
};

pin_project! {
    /// Expires the sleeps of a timer on a task of your runtime, in place of a thread; from
    /// [`TimerBuilder::build_with_driver`].
    ///
    /// Spawn the driver: before its first poll, it wakes no task. It ends after the timer has shut
    /// down. Callbacks still run on threads of the timer.
    ///
    /// A reaper thread passes each task that it wakes to the runtime. The driver wakes tasks on a
    /// worker of the runtime, which takes less processor time. Use it where most sleeps elapse, or
    /// where the program must not have another thread. The reaper is the better choice in two
    /// cases:
    ///
    /// - The runtime has no timer of its own.
    /// - The tasks of the runtime run for long. A worker polls the driver only between tasks, but
    ///   the reaper thread does not wait for a worker.
    ///
    /// The sleep of tokio rounds up to milliseconds. With that sleep, the driver wakes up to a
    /// millisecond later than the reaper does.
    ///
    /// [`Timer::finish`] does not wait for the driver. The finish ends each sleep that is not due
    /// with a [`SleepError`](crate::future::SleepError).
    ///
    /// # Cancel safety
    ///
    /// If the driver is dropped, for example when the runtime ends, all sleeps of the timer end
    /// with a [`SleepError`](crate::future::SleepError), including those that are made later.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Driver<F, S> {
        make_sleep: F,
        #[pin]
        sleep: Option<S>,
        turns: Turns,
    }
}

impl<F: FnMut(Duration) -> S, S: Future> Future for Driver<F, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(delay) = this.turns.turn(cx.waker()) else { return Poll::Ready(()) };
        let has_end = delay < Duration::MAX;
        let sleeps = has_end && !delay.is_zero();
        this.sleep.set(sleeps.then(|| (this.make_sleep)(delay)));
        let is_over = this.sleep.as_pin_mut().is_none_or(|sleep| sleep.poll(cx).is_ready());
        if is_over && has_end {
            // Other tasks of the worker run before the next turn.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<F, S> fmt::Debug for Driver<F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Futures, with the feature `future`.
impl TimerBuilder {
    /// Makes a timer without a thread for its sleeps, and the [`Driver`] that expires them on a
    /// task of your runtime.
    ///
    /// `make_sleep` returns a future of the runtime's timer that ends after a delay, such as
    /// `tokio::time::sleep` or `async_io::Timer::after`. If that future ends early, one poll of the
    /// driver finds no work.
    ///
    /// # Examples
    ///
    /// In this example, another timer takes the place of the runtime's timer:
    ///
    /// ```
    /// use std::{thread, time::Duration};
    ///
    /// use delaywheel::Timer;
    /// use pollster::block_on;
    ///
    /// let runtime = Timer::new();
    /// let make_sleep = move |delay| runtime.sleep(delay);
    /// let (timer, driver) = Timer::builder().build_with_driver(make_sleep)?;
    /// let task = thread::spawn(|| block_on(driver));
    /// block_on(timer.sleep(Duration::from_millis(5)))?;
    /// drop(timer);
    /// task.join().expect("the driver ends with the timer");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// On tokio:
    ///
    /// ```ignore
    /// let (timer, driver) = Timer::builder().build_with_driver(tokio::time::sleep)?;
    /// tokio::spawn(driver);
    /// ```
    ///
    /// # Errors
    ///
    /// [`TimerBuildError`] if a setting is out of range.
    pub fn build_with_driver<F, S>(
        self,
        make_sleep: F,
    ) -> Result<(Timer, Driver<F, S>), TimerBuildError>
    where
        F: FnMut(Duration) -> S,
        S: Future,
    {
        let timer = self.build()?;
        let turns = Turns::new(&timer.sleeps.wakers);
        Ok((timer, Driver { make_sleep, sleep: None, turns }))
    }
}

/// The sleeps of a timer that a task of the user expires.
pub(crate) struct Turns {
    client: TimerClient<TimingWheel<Waker>>,
    /// Whether the last turn announced a sleep.
    is_asleep: bool,
}

impl Turns {
    /// Takes over the sleeps of a timer that has started no thread.
    pub(crate) fn new(shared: &Arc<SleepTimer>) -> Self {
        shared.leave_to_driver();
        Self { client: TimerClient::new(shared), is_asleep: false }
    }

    /// Expires due sleeps, in one hold of each shard. Returns the time until the next turn, and
    /// `None` if the timer has ended.
    ///
    /// The time is zero if the next turn has to follow at once, after other tasks of the worker. It
    /// is [`Duration::MAX`] if no pending sleep ends. Another thread wakes the task if it registers
    /// an earlier sleep, or if the timer ends.
    pub(crate) fn turn(&mut self, waker: &Waker) -> Option<Duration> {
        debug_assert!(self.client.shared.is_threadless(), "the timer has a reaper as well");
        if mem::take(&mut self.is_asleep) {
            self.client.wake_up(true);
        }
        self.client.shared.shards.wakeup.store_driver_waker(waker);
        if self.client.shared.shards.is_shut_down() {
            return None;
        }
        let is_drained = self.client.expire();
        let pause = is_drained.then(|| self.client.fall_asleep(Duration::MAX)).flatten();
        self.is_asleep = pause.is_some();
        Some(pause.unwrap_or_default())
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        wake_all(self.client.shared.shut_down());
    }
}
