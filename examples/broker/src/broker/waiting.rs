//! The bridge from a purgatory to a connection: an operation that ends sends on a channel.

use delaywheel::{
    Completion, DelayedOperation, OperationGuard, Purgatory, WatchError, WatchErrorKind, Watched,
};
use tokio::sync::oneshot;

/// Shuts a purgatory down and answers the waiting operations. Returns their number, which includes
/// operations that another thread is checking: that thread answers them.
pub(super) fn answer_all<K, O>(purgatory: &Purgatory<K, O>) -> u64
where
    K: Send + 'static,
    O: DelayedOperation<K>,
{
    for operation in purgatory.shutdown() {
        operation.complete(Completion::ShutDown);
    }
    purgatory.stats().shut_down
}

/// Ends an operation that a purgatory has refused.
pub(super) fn end_refused<K, O: DelayedOperation<K>>(refused: WatchError<O>) {
    let is_shut_down = refused.kind() == WatchErrorKind::ShutDown;
    let end = if is_shut_down { Completion::ShutDown } else { Completion::Displaced };
    refused.into_value().complete(end);
}

/// A request that waits, as its connection holds it.
///
/// Dropping it cancels the wait. So the end of a connection leaves no waiting requests.
pub(super) struct Waiting<K: Send + 'static, O: DelayedOperation<K>, T> {
    /// Cancels the wait when it is dropped; `None` if there is none.
    _guard: Option<OperationGuard<K, O>>,
    ended: oneshot::Receiver<T>,
}

impl<K: Send + 'static, O: DelayedOperation<K>, T> Waiting<K, O, T> {
    /// Takes an operation that was passed to a purgatory. One that was refused ends at once.
    pub(super) fn new(
        purgatory: &Purgatory<K, O>,
        watched: Result<Watched, WatchError<O>>,
        ended: oneshot::Receiver<T>,
    ) -> Self {
        let key = watched.map_err(end_refused).ok().and_then(Watched::key);
        Self { _guard: key.map(|key| purgatory.guard(key)), ended }
    }

    /// Waits until the operation has ended; `None` if it ended without an answer, as after a panic.
    pub(super) async fn ended(self) -> Option<T> {
        let Self { _guard, ended } = self;
        ended.await.ok()
    }

    /// Returns the answer of the operation, if it has ended.
    #[cfg(test)]
    pub(super) fn try_ended(&mut self) -> Option<T> {
        self.ended.try_recv().ok()
    }
}
