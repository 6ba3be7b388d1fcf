//! A handle that calls the wait off when it is dropped.

use std::{fmt, hash::Hash, mem, sync::Weak};

use super::{
    core::Core,
    operation::{Completion, DelayedOperation},
    watch::OperationKey,
};

/// Cancels an operation when it is dropped; from [`Purgatory::guard`](super::Purgatory::guard).
///
/// For whoever waits for the answer, and may go away before: a connection that closes, a future
/// that is dropped. It does not keep its purgatory.
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
    R: Default + Send + 'static,
{
    core: Weak<Core<K, O, R>>,
    key: OperationKey,
}

impl<K, O, R> OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Default + Send + 'static,
{
    pub(super) const fn new(core: Weak<Core<K, O, R>>, key: OperationKey) -> Self {
        Self { core, key }
    }

    /// Returns the key of the operation.
    #[must_use]
    pub const fn key(&self) -> OperationKey {
        self.key
    }

    /// Lets the operation wait when the guard is dropped.
    pub fn disarm(mut self) {
        self.core = Weak::new();
        mem::drop(self);
    }
}

impl<K, O, R> Drop for OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Default + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.claim(self.key.0, Completion::Cancelled(R::default()));
        }
    }
}

impl<K, O, R> fmt::Debug for OperationGuard<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Default + Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationGuard").field("key", &self.key).finish_non_exhaustive()
    }
}
