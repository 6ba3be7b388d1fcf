//! A future that ends at a deadline.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use super::SleepError;
use crate::{
    ticks::nanos,
    timer::{SleepHandle, TimeoutKey, Timer},
};

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
/// use delaywheel::{ManualClock, Timer, future::block_on};
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
pub struct Sleep {
    handle: SleepHandle,
    /// In nanoseconds of the timer; `u64::MAX` for never.
    deadline: u64,
    /// Key of the waker in the wheel; `None` before the first poll and after the end.
    place: Option<TimeoutKey>,
}

impl Sleep {
    pub(super) const fn new(handle: SleepHandle, deadline: u64) -> Self {
        Self { handle, deadline, place: None }
    }

    /// Moves the deadline to `delay` from now. An elapsed sleep starts again.
    ///
    /// The timer wakes the task that polled the sleep last at the new deadline. Poll an elapsed
    /// sleep again first, because the timer has already used its waker.
    pub fn reset(&mut self, delay: Duration) {
        self.set_deadline(self.handle.elapsed().saturating_add(nanos(delay)));
    }

    /// Moves the deadline to `deadline`, like [`reset`](Self::reset).
    pub fn reset_at(&mut self, deadline: Instant) {
        self.set_deadline(self.handle.elapsed_at(deadline));
    }

    pub(super) fn set_deadline(&mut self, deadline: u64) {
        self.deadline = deadline;
        if self.place.is_some() {
            self.handle.reset(&mut self.place, deadline);
        }
    }

    /// Returns the deadline; `None` if an [`Instant`] cannot represent it, as after a delay of
    /// [`Duration::MAX`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.handle.instant_at(self.deadline)
    }

    /// Returns whether the deadline has passed, on the timer's clock.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.handle.elapsed() >= self.deadline
    }

    pub(super) const fn handle(&self) -> &SleepHandle {
        &self.handle
    }

    pub(super) const fn deadline_nanos(&self) -> u64 {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, deadline, place } = &mut *self;
        let result = ready!(handle.poll(place, *deadline, cx.waker()));
        debug_assert!(place.is_none(), "an ended sleep is in the wheel");
        Poll::Ready(result)
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        self.handle.leave(&mut self.place);
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
    /// use delaywheel::{Timer, future::block_on};
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
    /// *O*(1), amortized. Takes no lock, except in the first sleep of a timer, which creates the
    /// wheels of the sleeps.
    #[inline]
    pub fn sleep(&self, delay: Duration) -> Sleep {
        let handle = self.sleep_handle();
        let deadline = handle.elapsed().saturating_add(nanos(delay));
        Sleep::new(handle, deadline)
    }

    /// Returns a future that ends at `deadline`; at once if the deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// See [`Sleep`].
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        let handle = self.sleep_handle();
        let deadline = handle.elapsed_at(deadline);
        Sleep::new(handle, deadline)
    }
}
