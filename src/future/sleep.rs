//! A future that ends at a deadline.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

use crate::timer::{ScheduleError, SleepHandle, Sleeper, TimeSleep, Timer};

/// Waits until its deadline; from [`Timer::sleep`] and [`sleep()`](super::sleep()).
///
/// It is [`Unpin`], because the wheel refers to it by a key and not by an address. So you can move
/// it, store it, and poll `&mut sleep`.
///
/// The first poll registers it in the wheel. Before that, and after it has ended, it takes no lock.
/// A poll after its end is ready again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ManualClock, Timer};
/// use pollster::block_on;
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let mut idle = timer.sleep(Duration::from_secs(30));
/// clock.advance(Duration::from_secs(20));
/// idle.reset(Duration::from_secs(30));
/// clock.advance(Duration::from_secs(20));
/// assert!(!idle.is_elapsed());
/// clock.advance(Duration::from_secs(10));
/// block_on(&mut idle)?;
/// assert!(idle.is_elapsed());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
///
/// It ends with a [`SleepError`] if the timer is full or shut down, or cannot start its thread. A
/// shutdown of the timer ends pending sleeps at once.
///
/// # Cancel safety
///
/// A dropped sleep leaves the wheel. Await `&mut sleep` to keep it.
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep(Sleeper);

impl Sleep {
    /// Makes a sleep whose delay begins with its first poll. Does not read the clock.
    #[inline]
    pub(super) fn delayed(handle: SleepHandle, delay: Duration) -> Self {
        Self(Sleeper::delayed(handle, delay))
    }

    /// Makes a sleep that ends after `delay`.
    #[inline]
    pub(super) fn after(handle: SleepHandle, delay: Duration) -> Self {
        Self(Sleeper::after(handle, delay))
    }

    /// Makes a sleep that ends at `deadline`.
    pub(super) fn at(handle: SleepHandle, deadline: Instant) -> Self {
        Self(Sleeper::at(handle, deadline))
    }

    /// Moves the deadline to `delay` from now. An elapsed sleep starts again.
    ///
    /// As everywhere in this crate, `reset` takes a delay, and [`reset_at`](Self::reset_at) an
    /// instant. In tokio, `reset` takes an instant; such a call does not compile here.
    ///
    /// A later deadline takes one store: the sleep keeps its bucket in the wheel. So the timer also
    /// wakes the task once at the old deadline, and the poll then returns `Pending`. Until that
    /// poll, the sleep counts as expired. In a timer with
    /// [`max_pending`](crate::TimerBuilder::max_pending), the sleep moves at once.
    ///
    /// In a [`finish`](Timer::finish) the sleep also moves at once. A finish also wakes the task of
    /// each sleep. If a reset had only stored a later deadline, the poll moves the sleep to it. If
    /// the old deadline passes before that poll, the sleep ends with an error.
    ///
    /// As after any wake-up, poll the sleep again to be woken at the new deadline.
    pub fn reset(&mut self, delay: Duration) {
        self.0.reset(delay);
    }

    /// Moves the deadline to `deadline`, like [`reset`](Self::reset).
    pub fn reset_at(&mut self, deadline: Instant) {
        self.0.reset_at(deadline);
    }

    /// Returns the deadline; `None` if an [`Instant`] cannot represent it, as after a delay of
    /// [`Duration::MAX`].
    ///
    /// A deadline before the timer was made counts as the instant at which that happened.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Returns whether the deadline has passed, on the timer's clock. A poll sees that up to a tick
    /// later.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.0.is_elapsed()
    }

    /// Returns the length of a tick of the timer.
    pub(super) fn tick(&self) -> Duration {
        self.0.clock().ticks.tick()
    }

    /// Returns the time of the timer's clock.
    pub(super) fn now(&self) -> Instant {
        self.0.clock().instant_now()
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx.waker())
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

/// Futures, with the feature `future`.
impl Timer {
    /// Returns a future that ends after `delay`: not earlier, and less than a tick plus scheduling
    /// delay later.
    ///
    /// The delay starts now. A delay of zero ends at once. A delay of [`Duration::MAX`] never ends.
    /// The sleep does not keep the timer running.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::Timer;
    /// use pollster::block_on;
    ///
    /// let timer = Timer::new();
    /// block_on(timer.sleep(Duration::from_millis(5)))?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    ///
    /// # Complexity
    ///
    /// *O*(1). Takes no lock.
    #[inline]
    pub fn sleep(&self, delay: Duration) -> Sleep {
        Sleep::after(self.sleep_handle(), delay)
    }

    /// Returns a future that ends at `deadline`; at once if the deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::at(self.sleep_handle(), deadline)
    }

    /// Returns a future that ends when the wall clock shows `time` or later.
    ///
    /// If the wall clock is set, the sleep follows it, as a timeout of
    /// [`schedule_at_time`](Self::schedule_at_time) does.
    ///
    /// # Cancel safety
    ///
    /// See [`TimeSleep`].
    pub fn sleep_until_time(&self, time: impl Into<SystemTime>) -> TimeSleep {
        TimeSleep::new(self.sleep_handle(), time.into())
    }
}

/// Error of a [`Sleep`] whose timer cannot wake it: the timer is full, is shut down,
/// or cannot start its thread.
///
/// It converts to [`std::io::Error`]; a timer that is shut down is
/// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
pub type SleepError = ScheduleError<()>;
