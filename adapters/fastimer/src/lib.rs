//! The timer of [`delaywheel`] for the traits of the crate `fastimer`.
//!
//! [`MakeWheelDelay`] implements [`MakeDelay`], so timeouts, intervals and scheduled actions of
//! `fastimer` sleep on any runtime. This is a package of its own, so that a new version of
//! `fastimer` does not force a new version of `delaywheel`.
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
use fastimer_core::MakeDelay;

/// Makes delays of a [`Timer`].
///
/// If the timer is full or shut down, its delays end at once, because `fastimer` has no error for
/// them. Before such an end, other tasks of the runtime run. A loop that only waits for delays then
/// spins without blocking them: stop it before you shut the timer down.
///
/// Intervals and actions of `fastimer` count their instants by [`Instant::now`], whatever clock the
/// timer has. So give them a timer on the system's clock. If the clock is ahead, as a
/// [`BootClock`](delaywheel::BootClock) is after a suspension, an interval first ticks without a
/// pause, once for each period by which it is ahead. Delays and timeouts work with each clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::Timer;
/// use delaywheel_fastimer::MakeWheelDelay;
/// use fastimer::MakeDelayExt;
///
/// let delays = MakeWheelDelay::new(Timer::new());
/// let request = delays.timeout(Duration::from_secs(5), async { "answer" });
/// ```
#[derive(Debug, Clone)]
pub struct MakeWheelDelay {
    timer: Timer,
}

impl MakeWheelDelay {
    /// Makes delays that end by the clock of `timer`.
    #[must_use]
    pub const fn new(timer: Timer) -> Self {
        Self { timer }
    }
}

/// Uses the [default timer](default_timer()) of the process.
impl Default for MakeWheelDelay {
    fn default() -> Self {
        Self::new(default_timer().clone())
    }
}

impl MakeDelay for MakeWheelDelay {
    type Delay = WheelDelay;

    fn delay_until(&self, at: Instant) -> WheelDelay {
        WheelDelay::new(self.timer.sleep_until(at))
    }

    fn delay(&self, duration: Duration) -> WheelDelay {
        WheelDelay::new(self.timer.sleep(duration))
    }
}

/// A sleep without an error; from [`MakeWheelDelay`].
///
/// # Cancel safety
///
/// See [`Sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct WheelDelay {
    sleep: Sleep,
    /// Whether other tasks have run since the timer refused the sleep.
    has_yielded: bool,
}

impl WheelDelay {
    const fn new(sleep: Sleep) -> Self {
        Self { sleep, has_yielded: false }
    }
}

impl Future for WheelDelay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if ready!(Pin::new(&mut self.sleep).poll(cx)).is_err() && !self.has_yielded {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
