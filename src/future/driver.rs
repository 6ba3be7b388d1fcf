//! A task of the user's runtime in place of the thread that wakes sleeping tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::timer::{DriverTurn, Timer, TimerBuildError, TimerBuilder, Turns};

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
    /// - Its tasks run for long. A worker polls the driver only between tasks, but the reaper
    ///   thread does not wait for a worker.
    ///
    /// The sleep of tokio rounds up to milliseconds. With it, the driver wakes up to a millisecond
    /// later than the reaper does.
    ///
    /// [`Timer::finish`] does not wait for the driver. It ends each sleep that is not due with a
    /// [`SleepError`](super::SleepError).
    ///
    /// # Cancel safety
    ///
    /// If the driver is dropped, for example when the runtime ends, all sleeps of the timer end
    /// with a [`SleepError`](super::SleepError), including those that are made later.
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
        let delay = match this.turns.turn(cx.waker()) {
            DriverTurn::Ended => return Poll::Ready(()),
            DriverTurn::Again => Some(Duration::ZERO),
            DriverTurn::Sleep(delay) => delay,
        };
        let nonzero = delay.filter(|delay| !delay.is_zero());
        this.sleep.set(nonzero.map(this.make_sleep));
        debug_assert!(this.sleep.is_none() || delay.is_some(), "it wakes without a deadline");
        let is_over = this.sleep.as_pin_mut().is_none_or(|sleep| sleep.poll(cx).is_ready());
        if is_over && delay.is_some() {
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
    /// `tokio::time::sleep` or `async_io::Timer::after`. If it ends early, the driver polls once
    /// without work.
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
        let turns = timer.leave_sleeps_to_driver();
        Ok((timer, Driver { make_sleep, sleep: None, turns }))
    }
}
