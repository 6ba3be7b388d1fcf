//! Who takes part: a name, and how to make an empty one.

use delaywheel_compare::Timers;

/// A contestant before it is set to work.
pub(crate) struct Entrant<T> {
    /// What it is called in the report.
    pub(crate) name: &'static str,
    /// Makes an empty one.
    pub(crate) make: fn() -> T,
}

impl<T: Timers + Default> Entrant<T> {
    /// The contestant as it comes.
    pub(crate) fn new() -> Self {
        Self { name: T::NAME, make: T::default }
    }
}

impl<T> Clone for Entrant<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Entrant<T> {}
