//! Settings of a wheel.

use super::{
    TimingWheel,
    buckets::{Buckets, Geometry},
};
use crate::{error::BuildError, slab::Slab, tick::Tick};

/// Default number of buckets of a level. Decision 0014 has measurements.
const DEFAULT_SIZE: usize = 256;

/// Builder for a [`TimingWheel`].
///
/// # Examples
///
/// ```
/// use delaywheel::wheel::{TimingWheel, WheelBuilder};
///
/// let wheel: TimingWheel<u64> = WheelBuilder::new().size(200).max_pending(1000).build()?;
/// assert!(wheel.is_empty());
/// # Ok::<_, delaywheel::BuildError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct WheelBuilder {
    size: usize,
    max_pending: u32,
}

impl WheelBuilder {
    /// Starts with the default settings.
    pub const fn new() -> Self {
        Self { size: DEFAULT_SIZE, max_pending: u32::MAX }
    }

    /// Sets the number of buckets of each level, 2 to 65536. `build` rounds it up to a power of
    /// two. Default 256.
    ///
    /// A larger wheel cascades less and takes more memory: 16 bytes a bucket, allocated by 32
    /// buckets when a timeout first needs one of them.
    pub const fn size(mut self, buckets: usize) -> Self {
        self.size = buckets;
        self
    }

    /// Sets how many timeouts may be pending at once. Default `u32::MAX`; a wheel can address
    /// 2^32 - 2^20. It panics if they need more than 2^28 chunks of 16 records, which take more
    /// than 50 GB.
    pub const fn max_pending(mut self, timeouts: u32) -> Self {
        self.max_pending = timeouts;
        self
    }

    /// Makes the wheel, whose time starts at 0: call [`TimingWheel::observe`] for a later start.
    /// Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError::SizeOutOfRange`] if the size is not in 2..=65536.
    pub fn build<T>(self) -> Result<TimingWheel<T>, BuildError> {
        Ok(TimingWheel {
            values: Slab::new(),
            buckets: Buckets::new(Geometry::new(self.size)?),
            max_pending: self.max_pending as usize,
            now: Tick::ZERO,
            expired_to: Tick::ZERO,
        })
    }
}

impl Default for WheelBuilder {
    fn default() -> Self {
        Self::new()
    }
}
