//! The grid of a repetition or an interval: instants with equal distances.
//!
//! Each point follows from the point before it, not from the time at which that point was taken. So
//! a repetition does not drift.

use std::time::{Duration, Instant};

/// Policy for missed occurrences of a repetition and missed ticks of an interval. An occurrence is
/// missed if it was due before the previous one ended, and a tick if it was due before the task
/// took the previous one. One that is due at that very moment is not missed.
///
/// Under each policy, a delay of less than a period does not move the next occurrence.
///
/// # Examples
///
/// With a period of 10 ms, an occurrence planned for 20 ms ran until 47 ms. The next ones are
/// planned for:
///
/// | | | | |
/// |-|-|-|-|
/// | `Burst` | 30 ms | 40 ms | 50 ms |
/// | `Delay` | 57 ms | 67 ms | 77 ms |
/// | `Skip` | 50 ms | 60 ms | 70 ms |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// Missed occurrences run at once, one after the other, until none is missing. In the long run
    /// there is one run per period.
    #[default]
    Burst,
    /// The next occurrence runs a period after the late one ended, where a new grid starts.
    Delay,
    /// Missed occurrences are left out. The next one runs at the next instant of the grid, and that
    /// may be now.
    Skip,
}

/// A grid, from its next point on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// The next point; `None` if it never comes, or if an [`Instant`] cannot represent it.
    pub(crate) next: Option<Instant>,
    /// Not zero.
    period: Duration,
}

impl Grid {
    /// Starts a grid at `first`. A period shorter than a tick of the timer counts as one tick.
    pub(crate) fn new(first: Option<Instant>, period: Duration, tick: Duration) -> Self {
        debug_assert!(!tick.is_zero(), "a grid would have all its points at one instant");
        Self { next: first, period: period.max(tick) }
    }

    /// Starts a new grid a period after `now`.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.next = now.checked_add(self.period);
    }

    /// Moves on from the next point, whose occurrence ended at `now`, to the one after it. The new
    /// point is missed if it is earlier than `now` by more than `slack`.
    pub(crate) fn advance(&mut self, now: Instant, slack: Duration, missed: MissedTicks) {
        let taken = self.next;
        self.next = taken.and_then(|taken| taken.checked_add(self.period));
        let Some(next) = self.next else { return };
        let late = now.saturating_duration_since(next);
        if late <= slack {
            return;
        }
        match missed {
            MissedTicks::Burst => {}
            MissedTicks::Delay => self.restart(now),
            MissedTicks::Skip => {
                // Zero if a point is due now.
                let ahead = self.rest_of(self.period.saturating_sub(self.rest_of(late)));
                self.next = now.checked_add(ahead);
            }
        }
        debug_assert!(self.next.is_none() || self.next > taken, "a point comes twice");
    }

    /// Returns the remainder of `span` after whole periods.
    fn rest_of(&self, span: Duration) -> Duration {
        let rest = span.as_nanos() % self.period.as_nanos();
        let seconds = u64::try_from(rest / 1_000_000_000).expect("it is below the period");
        Duration::new(seconds, u32::try_from(rest % 1_000_000_000).expect("it is below a second"))
    }
}
