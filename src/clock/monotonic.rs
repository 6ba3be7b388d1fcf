//! The monotonic clock of the system as a number of nanoseconds.
//!
//! A timer reads the clock for each timeout. To subtract two [`Instant`]s takes longer than to
//! insert a timeout. See `docs/decisions/0016-where-others-are-faster.md`.

use std::time::Instant;

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, clock_gettime};

use crate::ticks::Nanos;

/// The time since an instant, on the clock of [`Instant`].
#[derive(Debug)]
pub(crate) struct Monotonic {
    /// The clock's reading at that instant, or later by the shortest of 16 pauses.
    origin: Reading,
}

impl Monotonic {
    /// Returns the present time, and a clock that counts from it.
    ///
    /// The count is never ahead of the instant: a timeout whose deadline is an [`Instant`] would be
    /// early. It is behind by the time between two readings of the clock.
    pub(crate) fn start() -> (Instant, Self) {
        // The scheduler may interrupt this thread between two readings.
        let readings = (0..16).map(|_| (Reading::now(), Instant::now(), Reading::now()));
        let closest = readings.min_by_key(|(before, _, after)| after.since(before));
        let Some((_, instant, origin)) = closest else { unreachable!("the range is not empty") };
        (instant, Self { origin })
    }

    /// Returns the time since the start.
    #[inline]
    pub(crate) fn elapsed(&self) -> Nanos {
        Reading::now().since(&self.origin)
    }
}

/// Nanoseconds of the clock that [`Instant`] uses on Linux.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Reading(Nanos);

#[cfg(target_os = "linux")]
impl Reading {
    #[inline]
    #[expect(clippy::cast_sign_loss, reason = "this clock counts from the start of the system")]
    fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = (time.tv_sec as u64).wrapping_mul(1_000_000_000);
        Self(Nanos::new(seconds.wrapping_add(time.tv_nsec as u64)))
    }

    #[inline]
    fn since(&self, earlier: &Self) -> Nanos {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
struct Reading(Instant);

#[cfg(not(target_os = "linux"))]
impl Reading {
    #[inline]
    fn now() -> Self {
        Self(Instant::now())
    }

    #[inline]
    fn since(&self, earlier: &Self) -> Nanos {
        self.0.saturating_duration_since(earlier.0).into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_counts_the_time_of_instants_and_is_never_ahead_of_it() {
        let (origin, clock) = Monotonic::start();
        for _ in 0..1000 {
            let before = origin.elapsed();
            let elapsed = Duration::from(clock.elapsed());
            let after = origin.elapsed();
            assert!(elapsed <= after, "{elapsed:?} have passed after {after:?}");
            // The clock is behind by the shortest of 16 pauses between two readings.
            let latest = elapsed + Duration::from_secs(1);
            assert!(latest > before, "{elapsed:?} have passed after {before:?}");
        }
    }
}
