//! A histogram of durations in a fixed array: eight steps for each power of two of nanoseconds.

use std::{boxed::Box, fmt, time::Duration};

/// Steps for each power of two; a step is off by at most an eighth.
const STEPS: usize = 8;
const STEP_BITS: u32 = STEPS.ilog2();

/// Steps in all, for 64 powers of two.
const LEN: usize = STEPS * 64;

/// How often each duration was seen: how late timeouts were, or how long operations waited.
#[derive(Clone)]
pub struct Durations {
    counts: Box<[u64; LEN]>,
    count: u64,
    max: u64,
}

impl Durations {
    pub(crate) fn new() -> Self {
        Self { counts: Box::new([0; LEN]), count: 0, max: 0 }
    }

    pub(super) fn record(&mut self, duration: Duration, times: u64) {
        self.add_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), times);
    }

    #[inline]
    pub(crate) fn record_nanos(&mut self, nanos: u64) {
        self.add_nanos(nanos, 1);
    }

    #[inline]
    fn add_nanos(&mut self, nanos: u64, times: u64) {
        self.counts[step(nanos)] += times;
        self.count += times;
        self.max = self.max.max(nanos);
    }

    /// Adds what another histogram holds.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// What was recorded since an earlier state of the same: each duration that was seen, and how
    /// often.
    #[cfg(feature = "metrics")]
    pub(super) fn since(&self, earlier: &Self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.counts.iter().zip(earlier.counts.iter()).enumerate();
        counts.filter(|(_, (now, before))| now > before).map(|(step, (now, before))| {
            (Duration::from_nanos(end_of(step).min(self.max)), now - before)
        })
    }

    /// Returns how many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the greatest.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// Returns a duration that `percent` of those recorded did not exceed, at most an eighth too
    /// high.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a rank need not be exact past 2^53")]
        let rank = self.count as f64 * percent.clamp(0.0, 100.0) / 100.0;
        let mut seen = 0_u64;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            if *count > 0 && seen as f64 >= rank {
                return Duration::from_nanos(end_of(step).min(self.max));
            }
        }
        Duration::ZERO
    }
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durations")
            .field("count", &self.count)
            .field("median", &self.percentile(50.0))
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

/// The step that holds a number.
fn step(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < STEP_BITS {
        return usize::try_from(nanos).expect("it is less than a step");
    }
    let power = power - STEP_BITS;
    let within = usize::try_from((nanos >> power) % STEPS as u64).expect("it is less than a step");
    (power as usize + 1) * STEPS + within
}

/// The greatest number that a step holds.
fn end_of(step: usize) -> u64 {
    if step < STEPS {
        return step as u64;
    }
    let power = step / STEPS - 1;
    let start = ((STEPS + step % STEPS) as u64) << power;
    start + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_their_numbers_and_follow_each_other() {
        for power in 0..64 {
            for near in 0..3 {
                let number = (1_u64 << power).wrapping_add(near).wrapping_sub(1);
                let end = end_of(step(number));
                assert!(end >= number && end - number <= number / 8, "{number} ends at {end}");
                assert!(end == u64::MAX || step(end + 1) == step(end) + 1);
            }
        }
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut durations = Durations::new();
        assert_eq!(durations.percentile(99.0), Duration::ZERO);
        for micros in 1..=1000 {
            durations.record(Duration::from_micros(micros), 1);
        }
        let median = durations.percentile(50.0);
        assert!(median >= Duration::from_micros(500) && median <= Duration::from_micros(563));
        assert_eq!(durations.percentile(100.0), Duration::from_millis(1));
        assert_eq!(durations.count(), 1000);
    }
}
