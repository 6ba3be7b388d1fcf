//! Operations that are out: a thread has taken them from the shard to check them.

use std::vec::Vec;

use super::operation::Completion;
use crate::wheel::Key;

/// An operation that is out, until it ends or is brought back.
pub(super) struct Out<O, R> {
    pub(super) key: Key,
    /// Whether the shard measures how long it waited.
    pub(super) is_timed: bool,
    /// `None` once it waits again.
    pub(super) operation: Option<O>,
    /// Whether the last check found that it can complete. If it has ended, whether the check
    /// decided that.
    pub(super) is_satisfied: bool,
    /// `None` unless it has ended.
    pub(super) completion: Option<Completion<R>>,
}

impl<O, R> Out<O, R> {
    #[inline]
    pub(super) const fn new(key: Key, is_timed: bool, operation: O) -> Self {
        Self { key, is_timed, operation: Some(operation), is_satisfied: false, completion: None }
    }
}

/// Maximum number of operations that one event takes out at once, and that end in one hold.
pub(super) const BATCH: usize = 32;

/// Operations that are checked between two holds of the lock. There is almost always only one,
/// which needs no allocation.
pub(super) struct Batch<O, R> {
    first: Option<Out<O, R>>,
    rest: Vec<Out<O, R>>,
}

impl<O, R> Batch<O, R> {
    #[inline]
    pub(super) const fn new() -> Self {
        Self { first: None, rest: Vec::new() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(super) fn push(&mut self, out: Out<O, R>) {
        if self.first.is_none() {
            self.first = Some(out);
        } else {
            self.push_further(out);
        }
    }

    fn push_further(&mut self, out: Out<O, R>) {
        debug_assert!(self.len() < BATCH, "too many operations are out at once");
        if self.rest.is_empty() {
            self.rest.reserve_exact(BATCH - 1);
        }
        self.rest.push(out);
    }

    /// Calls a function with each operation, in order.
    #[inline]
    pub(super) fn for_each(&mut self, mut visit: impl FnMut(&mut Out<O, R>)) {
        if let Some(first) = &mut self.first {
            visit(first);
            self.rest.iter_mut().for_each(visit);
        }
    }

    /// Removes all operations, calls a function with each, in order, and keeps the memory.
    #[inline]
    pub(super) fn drain(&mut self, mut take: impl FnMut(Out<O, R>)) {
        if let Some(first) = self.first.take() {
            take(first);
            if !self.rest.is_empty() {
                self.rest.drain(..).for_each(take);
            }
        }
    }
}

/// Operations that wait again but need another check, because an event was announced while they
/// were out.
pub(super) type Announced = Vec<Key>;
