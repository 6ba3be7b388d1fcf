//! `iter` and `drain`: visit or remove all pending timeouts.

use core::iter::FusedIterator;

use super::{Key, TimingWheel};
#[cfg(feature = "std")]
use crate::panics;
use crate::tick::Tick;

/// Iterator over the pending timeouts: key, deadline and value; from [`TimingWheel::iter`].
#[derive(Debug)]
pub struct Iter<'a, T> {
    wheel: &'a TimingWheel<T>,
    /// Index of the next slot to visit.
    next: u32,
    /// Number of timeouts not yielded.
    left: usize,
}

impl<T> TimingWheel<T> {
    /// Returns an iterator over the pending timeouts, in no particular order.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), 'a')?;
    /// assert_eq!(wheel.iter().collect::<Vec<_>>(), [(key, Tick::new(5), &'a')]);
    /// # Ok::<_, delaywheel::InsertError<char>>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { wheel: self, next: 0, left: self.len() }
    }

    /// Returns the number of slots, with or without a timeout.
    #[cfg(feature = "std")]
    pub(crate) fn slots(&self) -> u32 {
        self.values.slots()
    }

    /// Returns the key of the timeout in a slot; `None` if the slot has none.
    #[cfg(feature = "std")]
    pub(crate) fn key_at(&self, slot: u32) -> Option<Key> {
        self.values.key_at(slot)
    }

    /// Returns the key and the value of the timeout in a slot; `None` if the slot has none.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<(Key, &mut T)> {
        self.values.live_mut(slot).map(|(generation, _, value)| (Key::new(slot, generation), value))
    }
}

impl<'a, T> IntoIterator for &'a TimingWheel<T> {
    type Item = (Key, Tick, &'a T);
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (Key, Tick, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let key = self.wheel.values.keys_from(self.next).next()?;
        self.next = key.index() + 1;
        Some((key, self.wheel.deadline(key)?, self.wheel.get(key)?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

impl<T> FusedIterator for Iter<'_, T> {}

/// Iterator that removes all pending timeouts; from [`TimingWheel::drain`].
#[derive(Debug)]
pub struct Drain<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Index of the next slot to visit.
    next: u32,
}

impl<T> TimingWheel<T> {
    /// Removes all pending timeouts and returns an iterator over them, in no particular order.
    ///
    /// Dropping the iterator drops the timeouts that it has not yielded. If the drop of a value
    /// panics, every other value is dropped first, and the wheel is empty and usable. If several
    /// drops panic, the first panic continues. Without the feature `std`, the second panic aborts
    /// the process. If the iterator is leaked, the timeouts that it has not yielded stay pending.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, wheel::TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// let key = wheel.insert(Tick::new(5), "never ran")?;
    /// assert_eq!(wheel.drain().collect::<Vec<_>>(), [(key, Tick::new(5), "never ran")]);
    /// assert!(wheel.is_empty());
    /// # Ok::<_, delaywheel::InsertError<&str>>(())
    /// ```
    pub fn drain(&mut self) -> Drain<'_, T> {
        Drain { wheel: self, next: 0 }
    }
}

impl<T> Iterator for Drain<'_, T> {
    type Item = (Key, Tick, T);

    fn next(&mut self) -> Option<Self::Item> {
        if self.wheel.is_empty() {
            return None;
        }
        let key = self.wheel.values.keys_from(self.next).next()?;
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
/// process.
#[cfg(feature = "std")]
fn drop_each<I>(items: impl Iterator<Item = I>) {
    let mut panics = items.filter_map(|item| panics::catch(|| drop(item)).err());
    let first = panics.next();
    panics.for_each(drop);
    if let Some(panic) = first.filter(|_| !std::thread::panicking()) {
        panic.resume();
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
