//! Sources of time for timers.
//!
//! A [`Timer`](crate::Timer) reads the time only from its [`Clock`]. With [`SystemClock`] a
//! background thread waits in real time. With [`ManualClock`] a test advances the time, and the
//! same timer runs on the thread of the test.

mod manual;

use std::{fmt, sync::Weak, time::Instant};

pub use self::manual::ManualClock;

/// A source of time for a timer.
///
/// A clock should not run backwards. If it does, a timer stays at the start of the latest tick that
/// it has seen, and no timeout expires early.
///
/// If a clock jumps ahead, the due timeouts expire in order when the reaper reads the clock again.
/// It does so at its next wake-up, or when [`Timer::wake`](crate::Timer::wake) is called. A
/// schedule or reset also wakes it if the clock is then past the time of that wake-up.
///
/// # Examples
///
/// A clock with a resolution of 10 ms:
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use delaywheel::{Clock, Timer};
///
/// #[derive(Debug)]
/// struct Coarse(Instant);
///
/// impl Clock for Coarse {
///     fn now(&self) -> Instant {
///         let steps = self.0.elapsed().as_millis() / 10;
///         self.0 + Duration::from_millis(10) * u32::try_from(steps).unwrap_or(u32::MAX)
///     }
/// }
///
/// let timer = Timer::builder().clock(Coarse(Instant::now())).build()?;
/// # drop(timer);
/// # Ok::<_, delaywheel::TimerBuildError>(())
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    ///
    /// It must not panic. A panic on the reaper thread ends that thread. Then the timer refuses
    /// timeouts, as after a shutdown, and [`is_reaper_dead`](crate::Timer::is_reaper_dead) returns
    /// true.
    fn now(&self) -> Instant;

    /// Registers a timer, which this clock then drives instead of a thread of the timer.
    ///
    /// Returns whether the clock drives the timer; the default is `false`. Not part of the public
    /// interface: only [`ManualClock`] and tests of this crate use it.
    #[doc(hidden)]
    fn adopt(&self, timer: Weak<dyn Driven>) -> bool {
        let _ = timer;
        false
    }
}

/// The part of a timer that a clock uses to drive it. Not part of the public interface.
#[doc(hidden)]
pub trait Driven: Send + Sync {
    /// Expires the due timeouts, on this thread.
    fn turn(&self);

    /// Returns the time of the next turn, or `None` if no timeout is pending.
    fn next_turn(&self) -> Option<Instant>;
}

/// The monotonic clock of the system.
///
/// On Linux it stops while the machine is suspended, so a timeout of an hour expires after the
/// machine has run for an hour. Changes of the wall clock do not affect it.
///
/// # Examples
///
/// ```
/// use delaywheel::{Clock, SystemClock};
///
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
}
