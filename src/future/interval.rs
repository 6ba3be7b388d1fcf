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
    timer::{MissedTicks, Timer},
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
    /// The next tick; `None` if it never comes. The deadline of `sleep` is later if this tick is
    /// before the first sleep of the timer.
    next: Option<Instant>,
    /// Not zero.
    period: Nanos,
    missed: MissedTicks,
}

impl Interval {
    fn new(sleep: Sleep, next: Option<Instant>, period: Duration, missed: MissedTicks) -> Self {
        let period = Nanos::from(period.max(sleep.handle().tick()));
        debug_assert!(period > Nanos::ZERO, "an interval would tick without end");
        Self { sleep, next, period, missed }
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
        let Some(tick) = self.next else { unreachable!("a sleep without end elapses") };
        // The clock may have stepped back within its tick since the poll read it.
        let now = self.sleep.handle().now().max(tick);
        match self.following(tick, now) {
            Some(next) => self.reset_at(next),
            None => self.reset_after(Duration::MAX),
        }
        debug_assert!(self.next.is_none_or(|next| next > tick), "a tick comes twice");
        Poll::Ready(Ok(tick))
    }

    /// Returns the tick that follows `tick`, taken at `now`; `None` if it never comes.
    fn following(&self, tick: Instant, now: Instant) -> Option<Instant> {
        let period = self.period.finite()?;
        let next = tick.checked_add(period)?;
        let late = now.saturating_duration_since(next).as_nanos();
        match self.missed {
            MissedTicks::Delay if late > 0 => now.checked_add(period),
            MissedTicks::Skip if late > 0 => {
                let rest = u64::try_from(late % period.as_nanos()).expect("it is below the period");
                now.checked_add(self.period.saturating_sub(Nanos::new(rest)).into())
            }
            _ => Some(next),
        }
    }

    /// Restarts the grid: the next tick is a period from now.
    pub fn reset(&mut self) {
        self.reset_after(self.period());
    }

    /// Restarts the grid: the next tick is `delay` from now.
    pub fn reset_after(&mut self, delay: Duration) {
        self.sleep.reset(delay);
        self.next = self.sleep.deadline();
    }

    /// Restarts the grid: the next tick is at `instant`, or at once if `instant` has passed.
    pub fn reset_at(&mut self, instant: Instant) {
        self.sleep.reset_at(instant);
        self.next = Some(instant);
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
        let sleep = self.sleep(Duration::ZERO);
        let now = sleep.deadline();
        Interval::new(sleep, now, period, missed)
    }

    /// Returns an interval whose first tick is at `start`.
    ///
    /// If `start` has passed, the first tick comes at once and returns `start`. The policy decides
    /// on the missed ticks.
    ///
    /// # Cancel safety
    ///
    /// See [`Interval::tick`].
    pub fn interval_at(&self, start: Instant, period: Duration, missed: MissedTicks) -> Interval {
        Interval::new(self.sleep_until(start), Some(start), period, missed)
    }
}
