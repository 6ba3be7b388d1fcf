//! The three rounding rules between the time of a clock and the ticks of a wheel.
//!
//! [`Ticks`] rounds the present down to a tick, and a deadline up. So a timeout is never early, and
//! late by less than a tick. A wait for a tick never ends before the tick begins, so a loop that
//! waits does not spin.

use core::{fmt, num::NonZeroU64, time::Duration};

use crate::tick::Tick;

/// A number of nanoseconds: a span, or a time since the start of tick 0. At most 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(u64);

impl Nanos {
    /// A time that never comes, or a span without end.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    #[cfg(feature = "std")]
    #[inline]
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }

    #[inline]
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// Returns the duration; `None` for [`NEVER`](Self::NEVER).
    #[inline]
    pub(crate) fn finite(self) -> Option<Duration> {
        (self < Self::NEVER).then(|| self.into())
    }
}

#[cfg(feature = "std")]
impl Nanos {
    pub(crate) const ZERO: Self = Self(0);

    /// The last time that comes.
    pub(crate) const LAST: Self = Self(u64::MAX - 1);

    /// Returns the sum; [`NEVER`](Self::NEVER) past the end.
    #[inline]
    pub(crate) const fn saturating_add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the difference; zero if `earlier` is the greater.
    #[inline]
    pub(crate) const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// [`Nanos::NEVER`] for a duration of 584 years or more.
impl From<Duration> for Nanos {
    #[inline]
    fn from(duration: Duration) -> Self {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        Self(seconds.saturating_add(u64::from(duration.subsec_nanos())))
    }
}

impl From<Nanos> for Duration {
    #[inline]
    fn from(Nanos(count): Nanos) -> Self {
        Self::from_nanos(count)
    }
}

/// Converts the time of a clock into ticks of a fixed length, and back.
///
/// This is for programs that own a [`TimingWheel`](crate::wheel::TimingWheel) and read the clock
/// themselves. Times are durations since any fixed point, such as the start of the program or of
/// the machine. Tick 0 begins at the *origin*. A time before the origin counts as the origin. A
/// time 584 years (2^64 ns) or more after the origin never comes.
///
/// # Examples
///
/// ```
/// use core::time::Duration;
///
/// use delaywheel::{Tick, Ticks, wheel::TimingWheel};
///
/// let ticks = Ticks::new(Duration::ZERO, Duration::from_millis(1));
/// let mut clock = Duration::from_micros(700); // such as `start.elapsed()`
/// let mut wheel = TimingWheel::new(ticks.now(clock));
/// // 1.7 ms after the origin, rounded up to 2 ms.
/// wheel.insert(ticks.deadline(clock + Duration::from_millis(1)), "a millisecond")?;
/// wheel.insert(ticks.deadline(Duration::MAX), "never")?;
///
/// let next = wheel.next_expiration().unwrap();
/// assert_eq!(ticks.wait(clock, next), Duration::from_micros(1_300));
/// clock = Duration::from_micros(1_999);
/// assert_eq!(wheel.advance(ticks.now(clock)).count(), 0, "only one tick is complete");
/// clock = Duration::from_micros(2_000);
/// assert_eq!(wheel.advance(ticks.now(clock)).next().unwrap().value, "a millisecond");
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    origin: Duration,
    /// Nanoseconds in a tick.
    length: NonZeroU64,
    /// `u64::MAX / length`. To multiply by this takes a fraction of the time of a division.
    reciprocal: u64,
}

impl Ticks {
    /// Makes ticks of length `tick`, the first of which begins at `origin`.
    ///
    /// A tick has at least 1 ns. A tick of more than 584 years counts as 584 years.
    ///
    /// # Panics
    ///
    /// Panics if `tick` is zero.
    #[must_use]
    #[track_caller]
    pub fn new(origin: Duration, tick: Duration) -> Self {
        let length = NonZeroU64::new(Nanos::from(tick).get());
        let length = length.expect("a tick of 0ns has no length");
        Self { origin, length, reciprocal: u64::MAX / length }
    }

    /// Returns the length of a tick.
    pub(crate) fn tick(&self) -> Duration {
        Duration::from_nanos(self.length.get())
    }

    /// Returns the tick that has begun at `time`: rounded down, for
    /// [`advance`](crate::wheel::TimingWheel::advance).
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    ///
    /// use delaywheel::{Tick, Ticks};
    ///
    /// let ticks = Ticks::new(Duration::from_secs(5), Duration::from_secs(1));
    /// assert_eq!(ticks.now(Duration::from_millis(7_999)), Tick::new(2));
    /// assert_eq!(ticks.now(Duration::from_secs(8)), Tick::new(3));
    /// assert_eq!(ticks.now(Duration::from_secs(1)), Tick::ZERO);
    /// ```
    #[must_use]
    pub fn now(&self, time: Duration) -> Tick {
        self.floor(time.saturating_sub(self.origin).into())
    }

    /// Returns the first tick that begins at `time` or later: rounded up, for
    /// [`insert`](crate::wheel::TimingWheel::insert). [`Tick::MAX`] for a time that never comes.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    ///
    /// use delaywheel::{Tick, Ticks};
    ///
    /// let ticks = Ticks::new(Duration::from_secs(5), Duration::from_secs(1));
    /// assert_eq!(ticks.deadline(Duration::from_millis(7_001)), Tick::new(3));
    /// assert_eq!(ticks.deadline(Duration::from_secs(8)), Tick::new(3));
    /// assert_eq!(ticks.deadline(Duration::MAX), Tick::MAX);
    /// ```
    #[must_use]
    pub fn deadline(&self, time: Duration) -> Tick {
        self.ceil(time.saturating_sub(self.origin).into())
    }

    /// Returns the time at which `tick` begins; [`Duration::MAX`] if it never comes.
    #[must_use]
    pub fn start(&self, tick: Tick) -> Duration {
        self.until_start(tick)
            .finite()
            .map_or(Duration::MAX, |start| self.origin.saturating_add(start))
    }

    /// Returns how long to wait from `time` until `tick` begins; zero if it has begun, and
    /// [`Duration::MAX`] if it never comes.
    ///
    /// # Examples
    ///
    /// ```
    /// use core::time::Duration;
    ///
    /// use delaywheel::{Tick, Ticks};
    ///
    /// let ticks = Ticks::new(Duration::ZERO, Duration::from_millis(10));
    /// let time = Duration::from_micros(19_900);
    /// assert_eq!(ticks.wait(time, Tick::new(3)), Duration::from_micros(10_100));
    /// assert_eq!(ticks.wait(time, Tick::new(1)), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn wait(&self, time: Duration, tick: Tick) -> Duration {
        match self.start(tick) {
            Duration::MAX => Duration::MAX,
            start => start.saturating_sub(time.max(self.origin)),
        }
    }

    /// Returns the tick with the most trailing zero bits that begins between `from` and `to`, so
    /// that timeouts with overlapping spans often share a tick. If no tick begins there, returns
    /// the next one.
    #[cfg(feature = "std")]
    pub(crate) fn roundest(&self, from: Nanos, to: Nanos) -> Tick {
        let (first, last) = (self.ceil(from).get(), self.floor(to).get());
        if last <= first {
            return Tick::new(first);
        }
        // The highest bit in which the tick before the span differs from the last tick of the span.
        let bit = (first.wrapping_sub(1) ^ last).ilog2();
        Tick::new(last >> bit << bit)
    }

    /// Returns the tick that has begun at `time` after the origin.
    #[inline]
    pub(crate) fn floor(&self, time: Nanos) -> Tick {
        Tick::new(time.get() / self.length)
    }

    /// Returns the first tick that begins at `time` after the origin or later.
    #[inline]
    pub(crate) fn ceil(&self, time: Nanos) -> Tick {
        if time == Nanos::NEVER {
            return Tick::MAX;
        }
        // The reciprocal is at least `2^64 / length - 1`, so `whole` is the quotient or one less.
        let whole = ((u128::from(time.get()) * u128::from(self.reciprocal)) >> 64) as u64;
        let (length, rest) = (self.length.get(), time.get() - whole * self.length.get());
        Tick::new(whole + u64::from(rest > 0) + u64::from(rest > length))
    }

    /// Returns the time from the origin to the start of a tick.
    #[inline]
    pub(crate) const fn until_start(&self, tick: Tick) -> Nanos {
        Nanos(tick.get().saturating_mul(self.length.get()))
    }

    /// Returns whether `time` lies in `tick`, which must begin less than 2^64 ns after the origin.
    ///
    /// The last such tick may end after these 2^64 ns, so a wrapped difference would also find
    /// earlier times in it.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) const fn is_in(&self, Nanos(time): Nanos, tick: Tick) -> bool {
        let start = tick.get() * self.length.get();
        start <= time && time - start < self.length.get()
    }
}

impl fmt::Debug for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticks")
            .field("origin", &self.origin)
            .field("tick", &self.tick())
            .finish_non_exhaustive()
    }
}
