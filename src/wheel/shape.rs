//! A report of the levels, their non-empty buckets and the expirations of the buckets.

use alloc::vec::Vec;
use core::fmt;

use super::{TimingWheel, hierarchy::Hierarchy};
use crate::tick::{Tick, TickSpan};

/// The distribution of a wheel's timeouts over its buckets; from [`TimingWheel::shape`].
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
/// let latest = shape.latest.expect("three timeouts are in no level yet");
/// assert_eq!((latest.expiration, latest.pending), (Tick::new(5), 3));
///
/// wheel.shrink(); // places the latest timeouts in levels
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
    /// The tick of the latest `advance` or `observe`, or the start.
    pub now: Tick,
    /// Number of pending timeouts.
    pub pending: usize,
    /// The levels made so far, finest first.
    pub levels: Vec<LevelShape>,
    /// The latest timeouts, up to 60, which are in no level yet.
    pub latest: Option<BucketShape>,
}

/// One level of a [`Shape`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelShape {
    /// Ticks that a bucket spans.
    pub bucket_span: TickSpan,
    /// The non-empty buckets, ordered by expiration.
    pub buckets: Vec<BucketShape>,
}

/// One non-empty bucket of a [`LevelShape`], or one that has been sorted and is expiring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketShape {
    /// The tick at which the bucket is due.
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
        if let Some(BucketShape { expiration, pending }) = self.latest {
            writeln!(f, "in no level yet: {expiration} ({pending})")?;
        }
        Ok(())
    }
}

impl<T> TimingWheel<T> {
    /// Returns the number of buckets of each level.
    #[must_use]
    pub fn size(&self) -> usize {
        self.hierarchy.geometry.size()
    }

    /// Returns the number of levels made so far, from the finest to the highest that a timeout
    /// needed.
    ///
    /// Up to 60 of the latest timeouts are in no level yet. [`shrink`](Self::shrink) places them.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, WheelBuilder};
    ///
    /// let mut wheel = WheelBuilder::new().size(64).build()?;
    /// assert_eq!(wheel.levels(), 0);
    /// wheel.insert(Tick::new(63), ())?;
    /// wheel.shrink(); // places the latest timeouts
    /// assert_eq!(wheel.levels(), 1);
    /// wheel.insert(Tick::new(64), ())?;
    /// wheel.shrink(); // places the latest timeouts
    /// assert_eq!(wheel.levels(), 2);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn levels(&self) -> usize {
        self.hierarchy.levels.len()
    }

    /// Returns how often the wheel moved a timeout before its deadline: to a finer level, or into
    /// sorted order with the others of its bucket.
    #[must_use]
    pub const fn cascades(&self) -> u64 {
        self.hierarchy.cascades
    }

    /// Returns a report of the levels and their buckets. Takes time proportional to the number of
    /// buckets and timeouts.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let (levels, latest) = (self.hierarchy.shape(), self.hierarchy.latest_shape());
        Shape { now: self.now(), pending: self.len(), levels, latest }
    }
}

impl<T> fmt::Debug for TimingWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { now, pending, levels, latest } = self.shape();
        f.debug_struct("TimingWheel")
            .field("now", &now)
            .field("size", &self.size())
            .field("pending", &pending)
            .field("levels", &levels)
            .field("latest", &latest)
            .finish_non_exhaustive()
    }
}

impl Hierarchy {
    fn shape(&self) -> Vec<LevelShape> {
        let level = |index| LevelShape {
            bucket_span: self.geometry.bucket_span(index),
            buckets: self.buckets_of(index),
        };
        (0..self.levels.len()).map(level).collect()
    }

    fn latest_shape(&self) -> Option<BucketShape> {
        let (_, expiration) = self.least_in_nursery()?;
        Some(BucketShape { expiration, pending: self.nursery.len() as usize })
    }

    /// Returns the buckets of a level that hold timeouts, and its run, ordered by expiration.
    fn buckets_of(&self, index: usize) -> Vec<BucketShape> {
        let of = |id| {
            let expiration = self.bucket(id).expiration;
            BucketShape { expiration, pending: self.live_in_bucket(id).count() }
        };
        let ids = self.occupied().filter(|id| id.level() == index);
        let mut buckets: Vec<_> = ids.map(of).collect();
        let mut run = self.runs.iter(index).filter(|&(_, position)| self.is_live(position));
        if let Some((expiration, _)) = run.next() {
            buckets.push(BucketShape { expiration, pending: 1 + run.count() });
        }
        buckets.retain(|bucket| bucket.pending > 0);
        buckets.sort_by_key(|bucket| bucket.expiration);
        buckets
    }
}
