//! Claims: decisions how operations end.

use smallvec::SmallVec;

use super::operation::Completion;

/// An operation that has ended. The caller must complete it.
pub(super) struct Finished<O, R> {
    pub(super) operation: O,
    pub(super) completion: Completion<R>,
}

/// Result of deciding how an operation ends.
pub(super) enum Claim<O, R> {
    /// The operation has ended. The caller completes it.
    Finished(Finished<O, R>),
    /// The end is decided. The operation is out, and the thread that has it completes it.
    Decided,
    /// The operation has ended, or its end was decided before. Returns the completion, because its
    /// drop is user code.
    Lost(Completion<R>),
}

/// Operations whose end was decided in one hold.
pub(super) struct Claims<O, R> {
    pub(super) finished: SmallVec<[Finished<O, R>; 2]>,
    /// Number of operations that other threads check and will complete.
    decided: usize,
}

impl<O, R> Claims<O, R> {
    pub(super) fn new() -> Self {
        Self { finished: SmallVec::new(), decided: 0 }
    }

    /// Returns the number of operations.
    pub(super) fn len(&self) -> usize {
        self.finished.len() + self.decided
    }

    /// Adds an operation, unless its end was decided before. The dropped completion holds no reason
    /// then, so its drop runs no user code.
    pub(super) fn add(&mut self, claim: Claim<O, R>) {
        match claim {
            Claim::Finished(end) => self.finished.push(end),
            Claim::Decided => self.decided += 1,
            Claim::Lost(completion) => {
                debug_assert!(
                    !matches!(completion, Completion::Cancelled(_)),
                    "a reason is dropped under the lock"
                );
            }
        }
    }
}
