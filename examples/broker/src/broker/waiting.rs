//! The bridge from a purgatory to a connection: an operation that ends sends on a channel.

use std::hash::Hash;

use delaywheel::{
    Completion, DelayedOperation, Purgatory, Watched,
    purgatory::{OperationGuard, WatchError, WatchErrorKind},
};
use tokio::sync::oneshot;

/// Shuts a purgatory down, and answers the operations that wait. Returns how many those were.
pub(super) fn answer_all<K, O>(purgatory: &Purgatory<K, O>) -> usize
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K>,
{
    let operations = purgatory.shutdown();
    let answered = operations.len();
    for operation in operations {
        operation.complete(Completion::ShutDown);
    }
    answered
}

/// A request that waits, in the hands of the connection that will answer it.
///
/// Dropping it calls the wait off. So a connection that closes leaves nothing behind.
pub(super) struct Waiting<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>, T> {
    /// Calls the wait off when it is dropped; `None` if there is none.
    _guard: Option<OperationGuard<K, O>>,
    ended: oneshot::Receiver<T>,
}

impl<K: Hash + Eq + Send + 'static, O: DelayedOperation<K>, T> Waiting<K, O, T> {
    /// Takes over an operation that was brought to a purgatory. One that was refused ends at once.
    pub(super) fn new(
        purgatory: &Purgatory<K, O>,
        watched: Result<Watched, WatchError<O>>,
        ended: oneshot::Receiver<T>,
    ) -> Self {
        let guard = match watched {
            Ok(watched) => watched.key().map(|key| purgatory.guard(key)),
            Err(refused) => {
                let completion = match refused.kind() {
                    WatchErrorKind::ShutDown => Completion::ShutDown,
                    _ => Completion::Displaced,
                };
                refused.into_value().complete(completion);
                None
            }
        };
        Self { _guard: guard, ended }
    }

    /// Waits until the operation has ended; `None` if it ended without a word, which a panic does.
    pub(super) async fn ended(self) -> Option<T> {
        let Self { _guard, ended } = self;
        ended.await.ok()
    }

    /// Returns what the operation has sent, if it has ended.
    #[cfg(test)]
    pub(super) fn try_ended(&mut self) -> Option<T> {
        self.ended.try_recv().ok()
    }
}
