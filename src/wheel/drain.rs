//! Taking out everything that is pending.

use core::iter::FusedIterator;

use super::{Key, TimingWheel};
use crate::Tick;

/// Iterator that takes out all pending timeouts; from [`TimingWheel::drain`].
#[derive(Debug)]
pub struct Drain<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Index of the first slot not looked at.
    next: u32,
}

impl<'a, T> Drain<'a, T> {
    pub(super) fn new(wheel: &'a mut TimingWheel<T>) -> Self {
        wheel.settle_departures();
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
        let pending = self.wheel.arena.remove(key)?;
        self.wheel.depart(pending.place());
        Some((key, pending.deadline, pending.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.wheel.len(), Some(self.wheel.len()))
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

impl<T> FusedIterator for Drain<'_, T> {}

impl<T> Drop for Drain<'_, T> {
    /// Drops what was not taken. If a value's drop panics, the rest is dropped while that unwinds.
    fn drop(&mut self) {
        struct Rest<'a, 'b, T>(&'a mut Drain<'b, T>);

        impl<T> Drop for Rest<'_, '_, T> {
            fn drop(&mut self) {
                self.0.for_each(drop);
            }
        }

        let rest = Rest(self);
        for timeout in rest.0.by_ref() {
            drop(timeout);
        }
    }
}
