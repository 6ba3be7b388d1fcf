//! What an operation can refuse, one small type each; whatever was handed in is handed back.

use core::{error::Error, fmt};

/// Why [`TimingWheel::insert`](crate::TimingWheel::insert) refused a timeout, with the value it was
/// given.
///
/// # Examples
///
/// ```
/// use delaywheel::{InsertError, Tick, WheelBuilder};
///
/// let mut wheel = WheelBuilder::new().max_pending(1).build()?;
/// wheel.insert(Tick::new(5), "first")?;
/// let refused = wheel.insert(Tick::new(5), "second").unwrap_err();
/// assert_eq!(refused, InsertError::Full("second"));
/// assert_eq!(refused.into_value(), "second");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertError<T> {
    /// As many timeouts are pending as the wheel may hold.
    Full(T),
}

impl<T> InsertError<T> {
    /// Returns the value that was not inserted.
    pub fn into_value(self) -> T {
        match self {
            Self::Full(value) => value,
        }
    }
}

impl<T> fmt::Debug for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("Full(..)"),
        }
    }
}

impl<T> fmt::Display for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the wheel holds as many timeouts as it may"),
        }
    }
}

impl<T> Error for InsertError<T> {}

/// Why [`WheelBuilder::build`](crate::WheelBuilder::build) refused its settings.
///
/// # Examples
///
/// ```
/// use delaywheel::{BuildError, WheelBuilder};
///
/// let refused = WheelBuilder::new().size(1).build::<()>().unwrap_err();
/// assert_eq!(refused, BuildError::SizeOutOfRange { size: 1 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The size of a wheel is not in 2..=65536 buckets.
    SizeOutOfRange {
        /// The size that was asked for, in buckets.
        size: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SizeOutOfRange { size } => {
                write!(f, "a wheel has 2 to 65536 buckets, not {size}")
            }
        }
    }
}

impl Error for BuildError {}
