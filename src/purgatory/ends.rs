//! Ends of operations: the first claim decides how one ends.

use super::{
    claim::{Claim, Finished},
    hold::Hold,
    operation::Completion,
    slab::Index,
    waiters::{HAS_TIMEOUT, Waiters},
};
use crate::{ticks::Nanos, wheel::Key};

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
        // A replaced completion would be dropped under the lock.
        let replaced = self.decided.insert(key, completion);
        debug_assert!(replaced.is_none(), "the end of {key:?} is decided twice");
        Claim::Decided
    }
}
