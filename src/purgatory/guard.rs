//! A guard that cancels an operation when it is dropped.

use std::{fmt, hash::Hash, sync::Weak};

use super::{
    operation::{Completion, DelayedOperation, OperationKey},
    shared::Shared,
};

/// Cancels an operation when it is dropped; from [`Purgatory::guard`](super::Purgatory::guard).
///
/// Keep one in a connection that may close, or in a future that may be dropped. A guard does not
/// keep its purgatory alive.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{Completion, DelayedOperation, Purgatory};
///
/// struct Poll;
///
/// impl DelayedOperation<u32> for Poll {
///     fn complete(self, completion: Completion) {
///         assert_eq!(completion, Completion::Cancelled(()));
///     }
/// }
///
/// let purgatory = Purgatory::new();
/// let watched = purgatory.try_complete_else_watch(Poll, [1], Duration::from_secs(30))?;
/// let guard = watched.key().map(|key| purgatory.guard(key));
/// drop(guard);
/// assert_eq!(purgatory.stats().cancelled, 1);
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[must_use = "the operation is cancelled as soon as this is dropped"]
pub struct OperationGuard<K, O, R = ()>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    shared: Weak<Shared<K, O, R>>,
    key: OperationKey,
    /// `None` once it is disarmed or dropped.
    reason: Option<R>,
}

impl<K, O, R> OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    pub(super) const fn new(shared: Weak<Shared<K, O, R>>, key: OperationKey, reason: R) -> Self {
        Self { shared, key, reason: Some(reason) }
    }

    /// Returns the key of the operation.
    #[must_use]
    pub const fn key(&self) -> OperationKey {
        self.key
    }

    /// Drops the guard without cancelling the operation.
    pub fn disarm(mut self) {
        self.reason = None;
    }
}

impl<K, O, R> Drop for OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn drop(&mut self) {
        let Some(reason) = self.reason.take() else { return };
        if let Some(shared) = self.shared.upgrade() {
            shared.claim(self.key, Completion::Cancelled(reason));
        }
    }
}

impl<K, O, R> fmt::Debug for OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationGuard").field("key", &self.key).finish_non_exhaustive()
    }
}
