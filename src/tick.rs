//! Time as the wheel counts it: a [`Tick`] is a point, and a `u64` a distance, in whole ticks.
//!
//! The owner of the clock decides how long a tick is. Points have a type of their own, so the
//! compiler rejects the sum of two deadlines.

use core::fmt;

/// A point in time, in ticks since an origin that the caller chose.
///
/// Every `u64` is a valid tick: as a start, as a deadline and as *now*.
///
/// A distance is a number of ticks. There are no operators such as `+`: past the horizon,
/// `saturating_add` returns the horizon.
///
/// # Examples
///
/// ```
/// use delaywheel::Tick;
///
/// let deadline = Tick::new(40).saturating_add(2);
/// assert_eq!(deadline, Tick::new(42));
/// assert_eq!(Tick::new(40).saturating_add(u64::MAX), Tick::MAX);
/// assert_eq!(deadline.saturating_since(Tick::new(40)), 2);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The origin, tick 0.
    pub const ZERO: Self = Self(0);

    /// The horizon: the last tick there is, `u64::MAX`.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes a tick from its number.
    #[must_use]
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the tick.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the tick that lies `ticks` later, or [`Tick::MAX`] if that is past the horizon.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, ticks: u64) -> Self {
        Self(self.0.saturating_add(ticks))
    }

    /// Returns the number of ticks from `earlier` to this tick, or 0 if `earlier` is the later.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tick({})", self.0)
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
