//! Intervals: futures and streams that tick once a period.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures_core::Stream;

use super::{Sleep, SleepError};
use crate::{
    ticks::Nanos,
    timer::{MissedTicks, Timer, next_tick},
};

/// Ticks once a period; from [`Timer::interval`] and [`interval()`](super::interval()).
///
/// Ticks lie on a grid, so they do not drift if a task takes them late. [`MissedTicks`] is the
/// policy for ticks that were not taken in time. As a [`Stream`] it yields ticks and never ends.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Clock, ManualClock, MissedTicks, Timer, future::block_on};
///
/// let clock = ManualClock::new();
/// let start = clock.now();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let mut interval = timer.interval(Duration::from_secs(10), MissedTicks::Skip);
/// assert_eq!(block_on(interval.tick())?, start);
/// clock.advance(Duration::from_secs(35));
/// assert_eq!(block_on(interval.tick())?, start + Duration::from_secs(10));
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(block_on(interval.tick())?, start + Duration::from_secs(40));
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
#[must_use = "an interval ticks only when it is awaited"]
pub struct Interval {
    sleep: Sleep,
    /// Nanoseconds by which the next tick lies before the start of the sleeps' clock. If they are
    /// not 0, that start is the deadline of the sleep.
    before_origin: Nanos,
    /// Not zero.
    period: Nanos,
    missed: MissedTicks,
}

impl Interval {
    fn new(sleep: Sleep, period: Duration, missed: MissedTicks) -> Self {
        let period = Nanos::from(period.max(sleep.handle().tick()));
        debug_assert!(period > Nanos::ZERO, "an interval would tick without end");
        Self { sleep, before_origin: Nanos::ZERO, period, missed }
    }

    /// Waits for the next tick. Returns the instant of the tick on the grid.
    ///
    /// # Errors
    ///
    /// [`SleepError`], as for a [`Sleep`]. The tick stays due.
    ///
    /// # Cancel safety
    ///
    /// A dropped call takes no tick, and the next call waits for the same tick.
    pub async fn tick(&mut self) -> Result<Instant, SleepError> {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick. The timer wakes only the task that polled last.
    ///
    /// # Errors
    ///
    /// Those of [`tick`](Self::tick).
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Result<Instant, SleepError>> {
        ready!(Pin::new(&mut self.sleep).poll(cx))?;
        let (planned, before) = (self.sleep.deadline_nanos(), self.before_origin);
        debug_assert!(
            planned == Nanos::ZERO || before == Nanos::ZERO,
            "a tick is before and after the origin"
        );
        let deadline = self.sleep.deadline();
        let instant = deadline.and_then(|time| time.checked_sub(before.into()));
        let Some(instant) = instant else {
            unreachable!("a sleep past the last `Instant` never elapses");
        };
        // The clock may have stepped back within its tick since the poll read it.
        let now = self.sleep.handle().elapsed().max(planned);
        // These times count from `before` nanoseconds before the origin.
        let now = now.saturating_add(before);
        let next = next_tick(self.missed, self.period, planned, now);
        debug_assert!(planned < next, "a tick comes twice");
        debug_assert!(
            self.missed == MissedTicks::Delay
                || next == Nanos::NEVER
                || next.saturating_sub(planned).rest_of(self.period) == Nanos::ZERO,
            "the tick at {next:?} is not on the grid of {planned:?}"
        );
        self.before_origin = before.saturating_sub(next);
        let is_never = next == Nanos::NEVER;
        self.sleep.set_deadline(if is_never { next } else { next.saturating_sub(before) });
        Poll::Ready(Ok(instant))
    }

    /// Restarts the grid: the next tick is a period from now.
    pub fn reset(&mut self) {
        self.reset_after(self.period());
    }

    /// Restarts the grid: the next tick is `delay` from now.
    pub fn reset_after(&mut self, delay: Duration) {
        self.before_origin = Nanos::ZERO;
        self.sleep.reset(delay);
    }

    /// Restarts the grid: the next tick is at `instant`, or at once if `instant` has passed.
    pub fn reset_at(&mut self, instant: Instant) {
        self.before_origin = self.sleep.handle().until_origin(instant);
        self.sleep.reset_at(instant);
    }

    /// Restarts the grid: the next tick is now.
    pub fn reset_immediately(&mut self) {
        self.reset_after(Duration::ZERO);
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period.get())
    }

    /// Returns the policy for missed ticks.
    #[must_use]
    pub const fn missed_ticks(&self) -> MissedTicks {
        self.missed
    }
}

/// Yields ticks and never ends. Also yields an error of the timer; the next poll then tries again.
impl Stream for Interval {
    type Item = Result<Instant, SleepError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_tick(cx).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl Timer {
    /// Returns an interval whose first tick is now.
    ///
    /// A period shorter than a tick of the timer, such as zero, counts as one tick of the timer. A
    /// period of [`Duration::MAX`] ticks once.
    ///
    /// # Cancel safety
    ///
    /// See [`Interval::tick`].
    pub fn interval(&self, period: Duration, missed: MissedTicks) -> Interval {
        Interval::new(self.sleep(Duration::ZERO), period, missed)
    }

    /// Returns an interval whose first tick is at `start`.
    ///
    /// If `start` has passed, the first tick comes at once and returns `start`. The policy decides
    /// on the missed ticks. A start more than 292 years before the first sleep of the timer counts
    /// as 292 years before it.
    ///
    /// # Cancel safety
    ///
    /// See [`Interval::tick`].
    pub fn interval_at(&self, start: Instant, period: Duration, missed: MissedTicks) -> Interval {
        let mut interval = Interval::new(self.sleep_until(start), period, missed);
        interval.before_origin = interval.sleep.handle().until_origin(start);
        interval
    }
}
