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
    ticks::Nanos,
    timer::{Registration, SleepHandle, Timer},
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
    when: When,
    registration: Registration,
}

/// When a sleep ends.
#[derive(Clone, Copy)]
enum When {
    /// After this delay, which [`Sleep::start`] begins.
    Delay(Nanos),
    /// At this deadline, which was ahead when the delay began. The poll of a sleep that is not
    /// registered does not read the clock again.
    Ahead(Nanos),
    /// At this deadline, which may have passed. The poll of a sleep that is not registered reads
    /// the clock, so that it ends at once. A poll after the end must: the deadline may lie within
    /// the latest tick.
    At(Nanos),
}

impl Sleep {
    #[inline]
    const fn new(handle: SleepHandle, when: When) -> Self {
        Self { handle, when, registration: Registration::new() }
    }

    /// Makes a sleep whose delay begins with [`start`](Self::start). Does not read the clock.
    #[inline]
    pub(super) fn delayed(handle: SleepHandle, delay: Duration) -> Self {
        Self::new(handle, When::Delay(delay.into()))
    }

    /// Makes a sleep that ends after `delay`.
    #[inline]
    pub(super) fn after(handle: SleepHandle, delay: Duration) -> Self {
        let when = When::after(&handle, delay.into());
        Self::new(handle, when)
    }

    /// Makes a sleep that ends at `deadline`.
    pub(super) fn at(handle: SleepHandle, deadline: Instant) -> Self {
        let when = When::At(handle.elapsed_at(deadline));
        Self::new(handle, when)
    }

    /// Counts the delay from now, unless it has begun.
    #[inline]
    pub(super) fn start(&mut self) {
        if let When::Delay(delay) = self.when {
            debug_assert!(self.registration.is_none(), "it is registered without a deadline");
            self.when = When::after(&self.handle, delay);
        }
    }

    /// Moves the deadline to `delay` from now. An elapsed sleep starts again.
    ///
    /// A later deadline takes one store: the sleep keeps its bucket in the wheel. So the timer also
    /// wakes the task once at the old deadline, and the poll then returns `Pending`. The timer
    /// counts such a wake-up as expired, and the poll as scheduled. In a timer with
    /// [`max_pending`](crate::TimerBuilder::max_pending), the sleep moves at once.
    ///
    /// In a [`finish`](Timer::finish) the sleep also moves at once. A finish also wakes the task of
    /// each sleep. If a reset had only stored a later deadline, the poll moves the sleep to it. If
    /// the old deadline passes before that poll, the sleep ends with an error.
    ///
    /// As after any wake-up, poll the sleep again to be woken at the new deadline.
    pub fn reset(&mut self, delay: Duration) {
        self.set_deadline(self.handle.elapsed().saturating_add(delay.into()));
    }

    /// Moves the deadline to `deadline`, like [`reset`](Self::reset).
    pub fn reset_at(&mut self, deadline: Instant) {
        self.set_deadline(self.handle.elapsed_at(deadline));
    }

    fn set_deadline(&mut self, deadline: Nanos) {
        self.when = When::At(deadline);
        self.handle.reset(&mut self.registration, deadline);
    }

    /// Returns the deadline; `None` if an [`Instant`] cannot represent it, as after a delay of
    /// [`Duration::MAX`].
    ///
    /// A deadline before the first sleep of the timer counts as the instant at which that sleep was
    /// made.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.handle.instant_at(self.when.nanos())
    }

    /// Returns whether the deadline has passed, on the timer's clock. A poll sees that up to a tick
    /// later.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.handle.elapsed() >= self.when.nanos()
    }

    pub(super) const fn handle(&self) -> &SleepHandle {
        &self.handle
    }
}

impl When {
    #[inline]
    fn after(handle: &SleepHandle, delay: Nanos) -> Self {
        let deadline = handle.elapsed().saturating_add(delay);
        if delay == Nanos::ZERO { Self::At(deadline) } else { Self::Ahead(deadline) }
    }

    /// Returns the delay or the deadline.
    #[inline]
    const fn nanos(self) -> Nanos {
        let (Self::Delay(nanos) | Self::Ahead(nanos) | Self::At(nanos)) = self;
        nanos
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, when, registration } = &mut *self;
        debug_assert!(!matches!(when, When::Delay(_)), "its delay has not begun");
        let (reads_clock, deadline) = (matches!(when, When::At(_)), when.nanos());
        if reads_clock && registration.is_none() && handle.elapsed() >= deadline {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(handle.poll(registration, deadline, cx.waker()));
        debug_assert!(registration.is_none(), "an ended sleep is in the wheel");
        *when = When::At(deadline);
        // The clock may have stepped back within its tick since the poll read it.
        debug_assert!(
            result.is_err() || handle.elapsed().saturating_add(handle.tick().into()) >= deadline,
            "a sleep ends early"
        );
        Poll::Ready(result)
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        self.handle.cancel(&mut self.registration);
        debug_assert!(self.registration.is_none(), "a dropped sleep is in the wheel");
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
}
