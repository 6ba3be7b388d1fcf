//! `iter`: visits all pending timeouts.

use core::iter::FusedIterator;

use super::{Key, TimingWheel};
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
    /// use delaywheel::{Tick, TimingWheel};
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
    #[cfg(feature = "future")]
    pub(crate) fn slots(&self) -> u32 {
        self.arena.slots()
    }

    /// Returns the key of the timeout in a slot; `None` if the slot has none.
    #[cfg(feature = "future")]
    pub(crate) fn key_at(&self, slot: u32) -> Option<Key> {
        self.arena.at(slot).map(|(key, _)| key)
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
        let key = self.wheel.arena.next_from(self.next)?;
        self.next = key.index() + 1;
        Some((key, self.wheel.deadline(key)?, self.wheel.get(key)?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

impl<T> FusedIterator for Iter<'_, T> {}
