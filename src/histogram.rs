//! A histogram of durations in a fixed array.
//!
//! Each power of two of nanoseconds has eight buckets of equal width, as in an HDR histogram of low
//! precision. So a histogram takes 4 KiB, whatever it records, and nothing while it is empty.

use std::{boxed::Box, fmt, iter, time::Duration};

use crate::ticks::Nanos;

/// Buckets per power of two. The width of a bucket is at most an eighth of its least value.
const SUB_BUCKETS: usize = 8;
const SUB_BUCKET_BITS: u32 = SUB_BUCKETS.ilog2();

/// Buckets for all 64 powers of two.
const LEN: usize = SUB_BUCKETS * 64;

/// A distribution of durations: the lateness of timeouts, or how long operations waited.
///
/// A duration is counted in a bucket whose width is at most an eighth of the duration. A histogram
/// takes 4 KiB from the first duration on, and does not grow. Durations over 584 years count as 584
/// years.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Histogram, ManualClock, Timer};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// timer.schedule(Duration::from_secs(1), || ())?;
/// clock.advance(Duration::from_secs(1));
///
/// let lateness: Histogram = timer.stats().lateness;
/// assert_eq!(lateness.count(), 1);
/// assert_eq!(lateness.percentile(99.0), lateness.max());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Default)]
pub struct Histogram {
    /// Empty until a duration is recorded.
    counts: Box<[u64]>,
    count: u64,
    max: u64,
}

impl Histogram {
    /// Records a duration, `times` times.
    #[inline]
    pub(crate) fn record(&mut self, duration: impl Into<Nanos>, times: u64) {
        let nanos = duration.into().get();
        if self.counts.is_empty() {
            self.counts = Box::new([0; LEN]);
        }
        self.counts[bucket_of(nanos)] += times;
        self.count += times;
        self.max = self.max.max(nanos);
    }

    /// Adds the counts of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            for (count, more) in self.counts.iter_mut().zip(&other.counts) {
                *count += more;
            }
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Returns the durations that were recorded since `earlier`, a former state of this histogram,
    /// with their counts. All durations of a bucket count as the longest one that the bucket can
    /// hold, or as [`max`](Self::max) if that is less.
    ///
    /// This is for programs that pass the distribution on to another system. To get all durations,
    /// pass an empty histogram: [`Histogram::default`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use delaywheel::{Histogram, ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// timer.schedule(Duration::from_secs(1), || ())?;
    /// clock.advance(Duration::from_secs(1));
    ///
    /// let lateness = timer.stats().lateness;
    /// assert!(lateness.since(&Histogram::default()).eq([(Duration::ZERO, 1)]));
    /// assert_eq!(lateness.since(&lateness).count(), 0);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn since(&self, earlier: &Self) -> impl Iterator<Item = (Duration, u64)> {
        let before = earlier.counts.iter().chain(iter::repeat(&0));
        let more = self.counts.iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
        more.enumerate()
            .filter(|(_, more)| *more > 0)
            .map(|(bucket, more)| (Duration::from_nanos(end_of(bucket).min(self.max)), more))
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the greatest recorded duration, exactly; zero if none was recorded.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// Returns the percentile of the recorded durations, at most an eighth too high; zero if none
    /// was recorded.
    ///
    /// A `percent` outside of 0 to 100 is clamped to that range.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a rank need not be exact past 2^53")]
        let rank = self.count as f64 * percent.clamp(0.0, 100.0) / 100.0;
        let mut seen = 0_u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            if *count > 0 && seen as f64 >= rank {
                return Duration::from_nanos(end_of(bucket).min(self.max));
            }
        }
        Duration::ZERO
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("median", &self.percentile(50.0))
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

/// Returns the index of the bucket for `nanos`.
fn bucket_of(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < SUB_BUCKET_BITS {
        return usize::try_from(nanos).expect("it is less than 8");
    }
    let power = power - SUB_BUCKET_BITS;
    let within = usize::try_from((nanos >> power) % SUB_BUCKETS as u64).expect("it is less than 8");
    (power as usize + 1) * SUB_BUCKETS + within
}

/// Returns the greatest number that a bucket counts.
fn end_of(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let power = bucket / SUB_BUCKETS - 1;
    let start = ((SUB_BUCKETS + bucket % SUB_BUCKETS) as u64) << power;
    start + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_adjacent_and_hold_their_numbers() {
        for power in 0..64 {
            for near in 0..3 {
                let number = (1_u64 << power).wrapping_add(near).wrapping_sub(1);
                let end = end_of(bucket_of(number));
                assert!(end >= number && end - number <= number / 8, "{number} ends at {end}");
                assert!(end == u64::MAX || bucket_of(end + 1) == bucket_of(end) + 1);
            }
        }
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_high() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(99.0), Duration::ZERO);
        let mut other = Histogram::default();
        for micros in 1..=1000 {
            let part = if micros % 2 == 0 { &mut histogram } else { &mut other };
            part.record(Duration::from_micros(micros), 1);
        }
        let before = histogram.clone();
        histogram.add(&other);
        let median = histogram.percentile(50.0);
        assert!(median >= Duration::from_micros(500) && median <= Duration::from_micros(563));
        assert_eq!(histogram.percentile(100.0), Duration::from_millis(1));
        assert_eq!(histogram.percentile(0.0), Duration::from_nanos(1023), "the least one");
        assert_eq!(histogram.count(), 1000);
        let since =
            histogram.since(&before).skip_while(|(end, _)| *end < Duration::from_micros(900));
        let ends = [917_503, 983_039, 1_000_000].map(Duration::from_nanos);
        assert!(since.eq(ends.into_iter().zip([33, 33, 8])), "the odd ones, by buckets");
    }
}
