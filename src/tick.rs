//! Time as the wheel counts it: points ([`Tick`]) and distances ([`TickSpan`]), in whole ticks.
//!
//! The owner of the clock decides how long a tick is. Points and distances have separate types, so
//! the compiler rejects the sum of two deadlines.

use core::fmt;

/// A point in time, in ticks since an origin that the caller chose.
///
/// Every `u64` is a valid tick: as a start, as a deadline and as *now*.
///
/// There are no operators such as `+`: past the horizon, `saturating_` functions return the
/// horizon.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TickSpan};
///
/// let deadline = Tick::new(40).saturating_add(TickSpan::new(2));
/// assert_eq!(deadline, Tick::new(42));
/// assert_eq!(Tick::new(40).saturating_add(TickSpan::MAX), Tick::MAX);
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

    /// Returns the tick that lies `span` later, or [`Tick::MAX`] if that is past the horizon.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, span: TickSpan) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the distance from `earlier` to this tick, or [`TickSpan::ZERO`] if `earlier` is the
    /// later.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> TickSpan {
        TickSpan(self.0.saturating_sub(earlier.0))
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

/// A distance in time, in whole ticks.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TickSpan};
///
/// assert_eq!(Tick::new(7).saturating_since(Tick::new(5)), TickSpan::new(2));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TickSpan(u64);

impl TickSpan {
    /// The empty span, 0 ticks.
    pub const ZERO: Self = Self(0);

    /// The longest distance, `u64::MAX` ticks.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes a span of `count` ticks.
    #[must_use]
    #[inline]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Returns the number of ticks.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for TickSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TickSpan({})", self.0)
    }
}

impl fmt::Display for TickSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
