//! Deadlines for a whole chain of calls, and the form in which gRPC sends them.

use std::{
    error::Error,
    fmt, format,
    string::String,
    time::{Duration, Instant},
};

/// The units of `grpc-timeout`, finest first.
const UNITS: [u8; 6] = *b"numSMH";

/// The units in nanoseconds.
const NANOS: [u64; 6] = [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000, 3_600_000_000_000];

/// The greatest number of eight digits.
const MOST: u128 = 99_999_999;

/// An instant by which a request must be answered: a time limit for a whole chain of calls.
///
/// Pass the deadline on by value, and give each call the remaining time. With the feature `future`,
/// `timeout` limits a future.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use delaywheel::time::{Deadline, format_grpc_timeout, parse_grpc_timeout};
///
/// let request = Deadline::after(parse_grpc_timeout("5S")?);
/// // A call of another server, which may take one second at most.
/// let call = request.min(Deadline::after(Duration::from_secs(1)));
/// let header = format_grpc_timeout(call.remaining());
/// assert!(parse_grpc_timeout(&header)? <= Duration::from_secs(1));
///
/// // In virtual time, pass the time of the clock.
/// let now = Instant::now();
/// let deadline = Deadline::at(now + Duration::from_secs(9));
/// assert_eq!(deadline.remaining_at(now + Duration::from_secs(4)), Duration::from_secs(5));
/// # Ok::<_, delaywheel::time::ParseGrpcTimeoutError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// A deadline that never comes.
    pub const NEVER: Self = Self(None);

    /// Makes a deadline at a delay from now, by the system's clock. [`NEVER`](Self::NEVER) if no
    /// `Instant` can express it.
    ///
    /// With a timer on another clock, such as a [`BootClock`](crate::BootClock) or a
    /// [`ManualClock`](crate::ManualClock), use
    /// `timer.now().checked_add(delay).map_or(Deadline::NEVER, Deadline::at)`.
    #[must_use]
    pub fn after(delay: Duration) -> Self {
        Self(Instant::now().checked_add(delay))
    }

    /// Makes a deadline at an instant.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// Returns the instant; `None` if it never comes.
    #[must_use]
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.into_iter().chain(other.0).min())
    }

    /// Returns the time left by the system's clock: zero after the deadline, [`Duration::MAX`] if
    /// it never comes.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// Returns the time left at an instant, such as [`Timer::now`](crate::Timer::now).
    #[must_use]
    pub fn remaining_at(self, now: Instant) -> Duration {
        self.0.map_or(Duration::MAX, |instant| instant.saturating_duration_since(now))
    }
}

/// Reads the value of the header `grpc-timeout`: one to eight digits and a unit, one of
/// `H M S m u n`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::time::parse_grpc_timeout;
///
/// assert_eq!(parse_grpc_timeout("250m"), Ok(Duration::from_millis(250)));
/// assert!(parse_grpc_timeout("5s").is_err(), "the unit of seconds is S");
/// ```
///
/// # Errors
///
/// [`ParseGrpcTimeoutError`] names the value if it has another form.
pub fn parse_grpc_timeout(value: &str) -> Result<Duration, ParseGrpcTimeoutError> {
    parse(value).ok_or_else(|| ParseGrpcTimeoutError(value.into()))
}

fn parse(value: &str) -> Option<Duration> {
    let (letter, digits) = value.as_bytes().split_last()?;
    let unit = UNITS.iter().position(|unit| unit == letter)?;
    if digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // Hours of eight digits may exceed 2^64 ns, but not the longest `Duration`.
    Some(Duration::from_nanos(NANOS[unit]) * count)
}

/// Writes a time limit as the value of the header `grpc-timeout`, in the finest unit that needs at
/// most eight digits.
///
/// Rounds down, so the receiver gives up first. Longer limits count as 99,999,999 hours.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::time::format_grpc_timeout;
///
/// assert_eq!(format_grpc_timeout(Duration::from_millis(1_500)), "1500000u");
/// assert_eq!(format_grpc_timeout(Duration::MAX), "99999999H");
/// ```
#[must_use]
pub fn format_grpc_timeout(limit: Duration) -> String {
    let count = |unit: usize| limit.as_nanos() / u128::from(NANOS[unit]);
    let unit = (0..5).find(|unit| count(*unit) <= MOST).unwrap_or(5);
    format!("{}{}", count(unit).min(MOST), char::from(UNITS[unit]))
}

/// Error of [`parse_grpc_timeout`]: the value is not one to eight digits and a unit. Names the
/// value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseGrpcTimeoutError(String);

impl fmt::Display for ParseGrpcTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeout is {:?}, not 1 to 8 digits and one of H, M, S, m, u, n", self.0)
    }
}

impl Error for ParseGrpcTimeoutError {}
