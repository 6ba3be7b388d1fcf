//! Intervals: futures and streams that tick once a period.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures_core::Stream;

use super::{Sleep, SleepError};
use crate::timer::{Grid, MissedTicks, Timer};

/// Ticks once a period; from [`Timer::interval`] and [`interval()`](super::interval()).
///
/// Ticks lie on a grid, so they do not drift if a task takes them late. [`MissedTicks`] is the
/// policy for ticks that are missed, which were due before the task took the previous tick. As a
/// [`Stream`], an interval yields ticks, and ends after an error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Clock, ManualClock, MissedTicks, Timer};
/// use pollster::block_on;
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
    /// Its deadline is later than the next tick if that tick is before the timer was made.
    sleep: Sleep,
    grid: Grid,
    missed: MissedTicks,
    /// Whether the stream has yielded an error.
    has_failed: bool,
}

impl Interval {
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
    /// The errors of [`tick`](Self::tick).
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Result<Instant, SleepError>> {
        ready!(Pin::new(&mut self.sleep).poll(cx))?;
        let Some(tick) = self.grid.next else { unreachable!("a sleep without end elapses") };
        // The clock may have stepped back within its tick since the poll read it.
        let now = self.sleep.clock().instant_now().max(tick);
        self.grid.advance(now, Duration::ZERO, self.missed);
        match self.grid.next {
            Some(next) => self.sleep.reset_at(next),
            None => self.sleep.move_to(Duration::MAX.into()),
        }
        Poll::Ready(Ok(tick))
    }

    /// Restarts the grid: the next tick is `delay` from now.
    ///
    /// As everywhere in this crate, `reset` takes a delay. In tokio, `reset` takes no delay and
    /// waits for a period: write `interval.reset(period)`.
    pub fn reset(&mut self, delay: Duration) {
        self.sleep.reset(delay);
        self.grid.next = self.sleep.deadline();
    }

    /// Restarts the grid: the next tick is at `instant`. If `instant` has passed, the tick comes at
    /// once and returns `instant`, and the policy decides on the missed ticks.
    ///
    /// Call it on a new interval to set a first tick other than now.
    pub fn reset_at(&mut self, instant: Instant) {
        self.sleep.reset_at(instant);
        self.grid.next = Some(instant);
    }
}

/// Yields ticks. If the timer refuses a tick or has ended, yields the error and then ends.
impl Stream for Interval {
    type Item = Result<Instant, SleepError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let tick = ready!(self.poll_tick(cx));
        self.has_failed = tick.is_err();
        Poll::Ready(Some(tick))
    }
}

impl Timer {
    /// Returns an interval whose first tick is now. [`Interval::reset_at`] moves it to an instant.
    ///
    /// A period shorter than a tick of the timer, such as zero, counts as one tick of the timer. A
    /// period of [`Duration::MAX`] ticks once.
    ///
    /// # Cancel safety
    ///
    /// See [`Interval::tick`].
    pub fn interval(&self, period: Duration, missed: MissedTicks) -> Interval {
        let sleep = self.sleep(Duration::ZERO);
        let grid = Grid::new(sleep.deadline(), period, sleep.clock().ticks.tick());
        Interval { sleep, grid, missed, has_failed: false }
    }
}
