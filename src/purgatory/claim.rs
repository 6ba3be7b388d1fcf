//! Claims: operations whose end is decided.

use smallvec::SmallVec;

use super::{batch::BATCH, operation::Completion};

/// An operation that has ended. The caller must complete it.
pub(super) struct Finished<O, R> {
    pub(super) operation: O,
    pub(super) completion: Completion<R>,
}

/// An operation whose end this thread has decided.
pub(super) enum Claim<O, R> {
    /// It has ended. The caller completes it.
    Finished(Finished<O, R>),
    /// It is out, and the thread that has it completes it.
    Decided,
}

/// Operations whose end was decided in one hold.
pub(super) struct Claims<O, R> {
    pub(super) finished: SmallVec<[Finished<O, R>; 2]>,
    /// Number of operations that other threads check and will complete.
    decided: usize,
}

impl<O, R> Claims<O, R> {
    /// Makes room for operations before a hold, because an allocation may take long.
    pub(super) fn with_capacity(operations: usize) -> Self {
        Self { finished: SmallVec::with_capacity(operations), decided: 0 }
    }

    /// Returns the number of operations.
    pub(super) fn len(&self) -> usize {
        self.finished.len() + self.decided
    }

    pub(super) fn add(&mut self, claim: Claim<O, R>) {
        debug_assert!(self.len() < BATCH, "too many operations end in one hold");
        match claim {
            Claim::Finished(end) => self.finished.push(end),
            Claim::Decided => self.decided += 1,
        }
    }
}
