//! Wall-clock time in microseconds.
//!
//! A due time is rounded up to a microsecond and the present is rounded down, so no timeout is
//! early by rounding.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use delaywheel::Clock;

use crate::error::InputError;

/// A point in time: whole microseconds since the start of 1970 in UTC, up to the end of the year
/// 9999.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
///
/// use delaywheel_durable::WallTime;
///
/// let time = WallTime::try_from(UNIX_EPOCH + Duration::from_nanos(1_500))?;
/// assert_eq!(time.as_micros(), 2);
/// assert!(WallTime::try_from(UNIX_EPOCH - Duration::from_secs(1)).is_err());
/// # Ok::<_, delaywheel_durable::InputError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(u64);

impl WallTime {
    /// The start of 1970.
    pub const MIN: Self = Self(0);

    /// The last microsecond of the year 9999. No timer delivers a timeout that is due then.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// Returns the time that is `micros` microseconds after the start of 1970.
    pub fn from_micros(micros: u64) -> Result<Self, InputError> {
        if micros > Self::MAX.0 { Err(InputError::AfterYear9999) } else { Ok(Self(micros)) }
    }

    /// Returns the number of microseconds since the start of 1970.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the microsecond before, or the start of 1970.
    pub(crate) const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the end of a range up to this time, of which the end of time is a part.
    pub(crate) fn end(self) -> Self {
        Self(self.0 + u64::from(self == Self::MAX))
    }

    /// Returns the present of a clock.
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        Self::now_of(clock.system_time())
    }

    /// Returns the present of a clock: `time` rounded down and clamped to the range.
    #[must_use]
    pub fn now_of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX).min(Self::MAX.0))
    }

    /// Adds a delay, rounded up to a microsecond; `None` after the year 9999.
    #[must_use]
    pub fn checked_add(self, delay: Duration) -> Option<Self> {
        let sum = u128::from(self.0).checked_add(delay.as_nanos().div_ceil(1_000))?;
        u64::try_from(sum).ok().filter(|&micros| micros <= Self::MAX.0).map(Self)
    }

    /// Adds a delay, rounded up to a microsecond; [`WallTime::MAX`] if the sum is later.
    #[must_use]
    pub fn saturating_add(self, delay: Duration) -> Self {
        self.checked_add(delay).unwrap_or(Self::MAX)
    }

    /// Subtracts a span; [`WallTime::MIN`] if the difference is earlier.
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(u64::try_from(span.as_micros()).map_or(0, |span| self.0.saturating_sub(span)))
    }

    /// Returns the time since `earlier`; zero if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns the same time as a [`SystemTime`].
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0)
    }
}

/// Rounds up.
impl TryFrom<SystemTime> for WallTime {
    type Error = InputError;

    fn try_from(time: SystemTime) -> Result<Self, InputError> {
        let since = time.duration_since(UNIX_EPOCH).map_err(|_| InputError::Before1970)?;
        Self::MIN.checked_add(since).ok_or(InputError::AfterYear9999)
    }
}

/// Rounds up.
#[cfg(feature = "jiff")]
impl TryFrom<jiff::Timestamp> for WallTime {
    type Error = InputError;

    fn try_from(time: jiff::Timestamp) -> Result<Self, InputError> {
        Self::try_from(SystemTime::from(time))
    }
}

/// Writes the time in the form of RFC 3339, in UTC.
#[cfg(feature = "jiff")]
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The range of that crate ends a day earlier.
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
}

impl fmt::Debug for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// When a timeout is due: a point in time, or a delay from now.
///
/// The methods of a timer and of a delivery take `impl Into<When>`. A
/// [`NewTimeout`](crate::NewTimeout) takes a [`WallTime`]: for a delay, that is
/// `timer.now().saturating_add(delay)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// At a time of the wall clock. A time that has passed is due at once.
    At(SystemTime),
    /// This long after the call, by the wall clock.
    In(Duration),
}

impl When {
    /// Returns the due time, rounded up to a microsecond.
    pub fn resolve(self, now: WallTime) -> Result<WallTime, InputError> {
        match self {
            Self::At(time) => WallTime::try_from(time),
            Self::In(delay) => now.checked_add(delay).ok_or(InputError::AfterYear9999),
        }
    }
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        Self::At(time)
    }
}

impl From<WallTime> for When {
    fn from(time: WallTime) -> Self {
        Self::At(time.to_system_time())
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        Self::In(delay)
    }
}

#[cfg(feature = "jiff")]
impl From<jiff::Timestamp> for When {
    fn from(time: jiff::Timestamp) -> Self {
        Self::At(time.into())
    }
}
