//! Errors of the wheel, and the cell in which every error of the crate keeps a refused value.
//!
//! `?` into common error types requires that an error is `Send + Sync + 'static`. A refused value,
//! such as a boxed `FnOnce`, often is not `Sync`. So errors keep the value in an [`Exclusive`],
//! which gives no access through a shared reference. This is also why such errors have no
//! `PartialEq`: compare their kinds.

use core::{error::Error, fmt};

/// Error of [`TimingWheel::insert`](crate::wheel::TimingWheel::insert): the wheel is full. Holds
/// the refused value.
///
/// The error is `Send` and `Sync` if the value is `Send`. Without the feature `std`, it is `Sync`
/// only if the value is `Sync` as well.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, wheel::WheelBuilder};
///
/// let mut wheel = WheelBuilder::new().max_pending(1).build()?;
/// wheel.insert(Tick::new(5), "first")?;
/// let error = wheel.insert(Tick::new(5), "second").unwrap_err();
/// assert_eq!(error.to_string(), "wheel is full");
/// assert_eq!(error.into_value(), "second");
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct InsertError<T> {
    value: Exclusive<T>,
}

impl<T> InsertError<T> {
    pub(crate) const fn full(value: T) -> Self {
        Self { value: Exclusive::new(value) }
    }

    /// Returns the value that was not inserted.
    pub fn into_value(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError").finish_non_exhaustive()
    }
}

impl<T> fmt::Display for InsertError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wheel is full")
    }
}

impl<T> Error for InsertError<T> {}

/// The kind is [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded).
#[cfg(feature = "std")]
impl<T: Send + 'static> From<InsertError<T>> for std::io::Error {
    fn from(error: InsertError<T>) -> Self {
        Self::new(std::io::ErrorKind::QuotaExceeded, error)
    }
}

/// Error of [`WheelBuilder::build`](crate::wheel::WheelBuilder::build): a setting is out of range.
///
/// # Examples
///
/// ```
/// use delaywheel::{BuildError, wheel::WheelBuilder};
///
/// let error = WheelBuilder::new().size(1).build::<()>().unwrap_err();
/// assert_eq!(error, BuildError::SizeOutOfRange { size: 1 });
/// assert_eq!(error.to_string(), "wheel size is 1, not within 2..=65536 buckets");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BuildError {
    /// The size of a wheel is not within 2..=65536 buckets.
    SizeOutOfRange {
        /// The size that was set, in buckets.
        size: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SizeOutOfRange { size } => {
                write!(f, "wheel size is {size}, not within 2..=65536 buckets")
            }
        }
    }
}

impl Error for BuildError {}

/// The kind is [`InvalidInput`](std::io::ErrorKind::InvalidInput).
#[cfg(feature = "std")]
impl From<BuildError> for std::io::Error {
    fn from(error: BuildError) -> Self {
        Self::new(std::io::ErrorKind::InvalidInput, error)
    }
}

/// A cell from which its value can only be taken. With `std`, the cell is `Sync` if the value is
/// `Send`.
///
/// No thread ever locks the mutex. The cell has one because a `Mutex` is `Sync` for every value
/// that is `Send`. A type of our own with this property would need `unsafe` code. `core` has no
/// such type, so without `std` the cell is `Sync` only if the value is.
pub(crate) struct Exclusive<T> {
    #[cfg(feature = "std")]
    value: std::sync::Mutex<T>,
    #[cfg(not(feature = "std"))]
    value: T,
}

impl<T> Exclusive<T> {
    pub(crate) const fn new(value: T) -> Self {
        #[cfg(feature = "std")]
        let value = std::sync::Mutex::new(value);
        Self { value }
    }

    pub(crate) fn into_inner(self) -> T {
        #[cfg(feature = "std")]
        let value = self.value.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(not(feature = "std"))]
        let value = self.value;
        value
    }
}
