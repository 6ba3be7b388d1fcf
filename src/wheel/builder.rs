//! Settings of a wheel.

use super::{
    TimingWheel, arena::Arena, bucket::Levels, departures::Departures, geometry::Geometry,
    queue::BucketQueue, records::Pool,
};
use crate::{BuildError, Tick};

/// Buckets of a level unless told otherwise. See `docs/decisions/0003-default-size.md`.
const DEFAULT_SIZE: usize = 64;

/// Settings of a [`TimingWheel`] that is to be made.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel, WheelBuilder};
///
/// let wheel: TimingWheel<u64> = WheelBuilder::new().size(200).start(Tick::new(1)).build()?;
/// assert_eq!(wheel.size(), 256);
/// # Ok::<_, delaywheel::BuildError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct WheelBuilder {
    size: usize,
    start: Tick,
    max_pending: u32,
}

impl WheelBuilder {
    /// Starts with the default settings.
    pub const fn new() -> Self {
        Self { size: DEFAULT_SIZE, start: Tick::ZERO, max_pending: u32::MAX }
    }

    /// Sets the number of buckets of each level, 2 to 65536; rounded up to a power of two. Default
    /// 64.
    ///
    /// A larger wheel cascades less and takes more memory per level: 108 bytes a bucket. The first
    /// timeout that needs a level makes it, and those below, in that call; with 65536 buckets, that
    /// is 7 MB a level and takes milliseconds.
    pub const fn size(mut self, buckets: usize) -> Self {
        self.size = buckets;
        self
    }

    /// Sets the tick at which the clock starts. Default 0.
    pub const fn start(mut self, start: Tick) -> Self {
        self.start = start;
        self
    }

    /// Sets how many timeouts may be pending at once. Default `u32::MAX`; a wheel can address
    /// 2^32 - 1024.
    pub const fn max_pending(mut self, timeouts: u32) -> Self {
        self.max_pending = timeouts;
        self
    }

    /// Makes the wheel. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError::SizeOutOfRange`] if the size is not in 2..=65536.
    pub fn build<T>(self) -> Result<TimingWheel<T>, BuildError> {
        let geometry = Geometry::new(self.size)?;
        Ok(TimingWheel {
            geometry,
            now: self.start,
            clock: self.start,
            arena: Arena::new(self.max_pending),
            levels: Levels::new(),
            pool: Pool::new(),
            queue: BucketQueue::default(),
            departures: Departures::new(),
            cascades: 0,
        })
    }
}

impl Default for WheelBuilder {
    fn default() -> Self {
        Self::new()
    }
}
