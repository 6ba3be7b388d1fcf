//! A report of how the timeouts are spread: levels, their non-empty buckets, and when those are
//! due.

use alloc::vec::Vec;
use core::fmt;

use super::TimingWheel;
use crate::{Tick, TickSpan};

/// How the timeouts of a wheel are spread over its buckets; from [`TimingWheel::shape`].
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, WheelBuilder};
///
/// let mut wheel = WheelBuilder::new().size(64).build()?;
/// wheel.insert(Tick::new(5), ())?;
/// wheel.insert(Tick::new(700), ())?;
/// wheel.insert(Tick::new(701), ())?;
///
/// let shape = wheel.shape();
/// assert_eq!(shape.levels.len(), 2);
/// assert_eq!(shape.levels[1].buckets[0].pending, 2);
/// assert_eq!(shape.levels[1].buckets[0].expiration, Tick::new(700));
/// assert_eq!(
///     shape.to_string(),
///     "now 0, 3 pending\n\
///      level 0, buckets of 1: 5 (1)\n\
///      level 1, buckets of 64: 700 (2)\n"
/// );
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// The tick of the latest `advance`.
    pub now: Tick,
    /// Number of pending timeouts.
    pub pending: usize,
    /// The levels made so far, finest first.
    pub levels: Vec<LevelShape>,
}

/// One level of a [`Shape`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelShape {
    /// Ticks that a bucket spans.
    pub bucket_span: TickSpan,
    /// The non-empty buckets, that which is due first ahead.
    pub buckets: Vec<BucketShape>,
}

/// One non-empty bucket of a [`LevelShape`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketShape {
    /// When the bucket is due.
    pub expiration: Tick,
    /// Number of timeouts in it.
    pub pending: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "now {}, {} pending", self.now, self.pending)?;
        for (index, level) in self.levels.iter().enumerate() {
            write!(f, "level {index}, buckets of {}:", level.bucket_span)?;
            for bucket in &level.buckets {
                write!(f, " {} ({})", bucket.expiration, bucket.pending)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<T> TimingWheel<T> {
    /// Reports how the timeouts are spread. Takes time proportional to the number of buckets.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let level = |level| LevelShape {
            bucket_span: self.geometry.bucket_span(level),
            buckets: Vec::new(),
        };
        let mut levels: Vec<_> = (0..).take(self.levels()).map(level).collect();
        for (place, expiration) in self.queue.iter().filter(|&(place, _)| self.live(place) > 0) {
            let pending = self.live(place) as usize;
            levels[self.geometry.level(place) as usize]
                .buckets
                .push(BucketShape { expiration, pending });
        }
        for level in &mut levels {
            level.buckets.sort_by_key(|bucket| bucket.expiration);
        }
        Shape { now: self.now, pending: self.len(), levels }
    }
}

impl<T> fmt::Debug for TimingWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { now, pending, levels } = self.shape();
        f.debug_struct("TimingWheel")
            .field("now", &now)
            .field("size", &self.size())
            .field("pending", &pending)
            .field("levels", &levels)
            .finish_non_exhaustive()
    }
}
