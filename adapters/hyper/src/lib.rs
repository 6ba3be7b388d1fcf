//! The timer of [`delaywheel`] for HTTP connections of the crate [`hyper`].
//!
//! [`HyperTimer`] implements [`hyper::rt::Timer`]. A package of its own, so that a new version of
//! hyper does not force a new version of `delaywheel`.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use delaywheel::{
    Timer,
    future::{Sleep, default_timer},
};
use hyper::rt;

/// A [`Timer`] for the crate `hyper`.
///
/// Pass it to the `timer` function of a connection builder. The connection reads the clock of the
/// timer. So on a [`ManualClock`](delaywheel::ManualClock), a test advances its time limits.
///
/// If the timer is full or shut down, its sleeps end at once, because `hyper` has no error for
/// them. `hyper` then acts as after a timeout. Before such an end, other tasks of the runtime run.
/// So a loop that only sleeps, such as the check of idle connections in the pool of `hyper-util`,
/// spins without blocking them.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::Timer;
/// use delaywheel_hyper::HyperTimer;
/// use hyper::rt::Timer as _;
///
/// let timer = HyperTimer::new(Timer::new());
/// let mut sleep = timer.sleep(Duration::from_secs(30));
/// timer.reset(&mut sleep, std::time::Instant::now());
/// ```
#[derive(Debug, Clone)]
pub struct HyperTimer {
    timer: Timer,
}

impl HyperTimer {
    /// Makes a timer for `hyper`.
    #[must_use]
    pub const fn new(timer: Timer) -> Self {
        Self { timer }
    }
}

/// Uses the [default timer](default_timer()) of the process.
impl Default for HyperTimer {
    fn default() -> Self {
        Self::new(default_timer().clone())
    }
}

/// A sleep without an error.
struct HyperSleep {
    sleep: Sleep,
    /// Whether other tasks have run since the timer refused the sleep.
    has_yielded: bool,
}

impl HyperSleep {
    fn boxed(sleep: Sleep) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Self { sleep, has_yielded: false })
    }
}

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if ready!(Pin::new(&mut self.sleep).poll(cx)).is_err() {
            self.has_yielded = !self.has_yielded;
            if self.has_yielded {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl rt::Sleep for HyperSleep {}

impl rt::Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        HyperSleep::boxed(self.timer.sleep(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        HyperSleep::boxed(self.timer.sleep_until(deadline))
    }

    fn now(&self) -> Instant {
        self.timer.now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            Some(mut sleep) => sleep.sleep.reset_at(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
