//! Settings of a wheel.

use super::{TimingWheel, arena::Arena, geometry::Geometry, hierarchy::Hierarchy};
use crate::{error::BuildError, tick::Tick};

/// Default number of buckets of a level. See `docs/decisions/0014-levels-of-256.md`.
const DEFAULT_SIZE: usize = 256;

/// Builder for a [`TimingWheel`].
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

    /// Sets the number of buckets of each level, 2 to 65536. `build` rounds it up to a power of
    /// two. Default 256.
    ///
    /// A larger wheel cascades less and takes more memory per level: 16 bytes a bucket. The first
    /// timeout that needs a level allocates it, with the buckets up to its own. With 65536 buckets,
    /// that is up to 1 MiB.
    pub const fn size(mut self, buckets: usize) -> Self {
        self.size = buckets;
        self
    }

    /// Sets the tick at which time starts. Default 0.
    pub const fn start(mut self, start: Tick) -> Self {
        self.start = start;
        self
    }

    /// Sets how many timeouts may be pending at once. Default `u32::MAX`; a wheel can address
    /// 2^32 - 1024. If cancels left its memory nearly empty, it panics when more than 2^30 are
    /// pending, which take more than 60 GB.
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
            arena: Arena::new(self.max_pending),
            hierarchy: Hierarchy::new(geometry, self.start),
        })
    }
}

impl Default for WheelBuilder {
    fn default() -> Self {
        Self::new()
    }
}
