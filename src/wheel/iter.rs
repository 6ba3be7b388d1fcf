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

impl<'a, T> Iter<'a, T> {
    pub(super) fn new(wheel: &'a TimingWheel<T>) -> Self {
        Self { wheel, next: 0, left: wheel.len() }
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
