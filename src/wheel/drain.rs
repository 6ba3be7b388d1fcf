//! `drain`: removes all pending timeouts.

use core::iter::FusedIterator;

use super::{Key, TimingWheel};
use crate::tick::Tick;

/// Iterator that removes all pending timeouts; from [`TimingWheel::drain`].
#[derive(Debug)]
pub struct Drain<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Index of the next slot to visit.
    next: u32,
}

impl<'a, T> Drain<'a, T> {
    pub(super) fn new(wheel: &'a mut TimingWheel<T>) -> Self {
        Self { wheel, next: 0 }
    }
}

impl<T> Iterator for Drain<'_, T> {
    type Item = (Key, Tick, T);

    fn next(&mut self) -> Option<Self::Item> {
        if self.wheel.is_empty() {
            return None;
        }
        let key = self.wheel.arena.next_from(self.next)?;
        self.next = key.index() + 1;
        let deadline = self.wheel.deadline(key)?;
        Some((key, deadline, self.wheel.cancel(key)?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.wheel.len(), Some(self.wheel.len()))
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

impl<T> FusedIterator for Drain<'_, T> {}

impl<T> Drop for Drain<'_, T> {
    /// Drops the timeouts that were not taken.
    fn drop(&mut self) {
        drop_each(self);
    }
}

/// Drops every item, even if the drop of one panics. Then resumes the first panic.
///
/// Each panic is caught. So a second panic does not occur during unwinding, which would abort the
/// process. The payloads of later panics are leaked, because their drop may panic as well.
#[cfg(feature = "std")]
fn drop_each<I>(items: impl Iterator<Item = I>) {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
        thread,
    };

    let mut first = None;
    for item in items {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(item))) {
            match first {
                None => first = Some(payload),
                Some(_) => core::mem::forget(payload),
            }
        }
    }
    match first {
        Some(payload) if thread::panicking() => core::mem::forget(payload),
        Some(payload) => resume_unwind(payload),
        None => {}
    }
}

/// Drops every item, even if the drop of one panics. A second panic aborts, as it does for a `Vec`.
#[cfg(not(feature = "std"))]
fn drop_each<I>(items: impl Iterator<Item = I>) {
    struct Rest<J: Iterator>(J);

    impl<J: Iterator> Drop for Rest<J> {
        fn drop(&mut self) {
            self.0.by_ref().for_each(drop);
        }
    }

    Rest(items).0.by_ref().for_each(drop);
}
