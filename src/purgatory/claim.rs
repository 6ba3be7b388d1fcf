//! Claims: decisions how operations end.

use smallvec::SmallVec;

use super::{
    hold::Hold,
    operation::Completion,
    slab::Index,
    waiters::{HAS_TIMEOUT, Waiters},
};
use crate::{ticks::Nanos, wheel::Key};

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
        match claim {
            Claim::Finished(end) => self.finished.push(end),
            Claim::Decided => self.decided += 1,
        }
    }
}

impl<K: Send + 'static, O: Send + 'static, R: Send + 'static> Waiters<K, O, R> {
    /// Ends the operation with a key. If its end is decided, returns the completion, because the
    /// drop of a reason is user code.
    pub(super) fn claim(
        &mut self,
        key: Key,
        completion: Completion<R>,
        now: Nanos,
        hold: &mut Hold<'_, K>,
    ) -> Result<Claim<O, R>, Completion<R>> {
        match hold.timeouts().cancel(key) {
            Some(()) => Ok(self.claim_without_timeout(key, completion, now, hold)),
            None => Err(completion),
        }
    }

    /// Ends the operation at a position. Its end must not be decided.
    pub(super) fn claim_listed(
        &mut self,
        index: Index,
        completion: Completion<R>,
        now: Nanos,
        hold: &mut Hold<'_, K>,
    ) -> Claim<O, R> {
        let key = self.at(index.position()).expect("a listed operation has a key");
        hold.timeouts().cancel(key).expect(HAS_TIMEOUT);
        self.claim_without_timeout(key, completion, now, hold)
    }

    /// Ends an operation whose timeout has left the timer.
    #[inline]
    pub(super) fn claim_without_timeout(
        &mut self,
        key: Key,
        completion: Completion<R>,
        now: Nanos,
        hold: &mut Hold<'_, K>,
    ) -> Claim<O, R> {
        let operation = self.leave(key, &completion, now, hold);
        if let Some(operation) = operation {
            return Claim::Finished(Finished { operation, completion });
        }
        self.decided.insert(key, completion);
        Claim::Decided
    }
}
