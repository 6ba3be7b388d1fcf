//! The bridge from a purgatory to a connection: an operation that ends sends on a channel.

use std::sync::Arc;

use delaywheel::{
    Completion, DelayedOperation, Purgatory, Watched,
    purgatory::{OperationKey, WatchError},
};
use tokio::sync::oneshot;

use super::log::Partition;

/// What an operation was about, and how it ended.
pub(super) type Ended<T> = (T, Completion);

/// A request that waits, in the hands of the connection that will answer it.
///
/// Dropping it calls the wait off. So a connection that closes leaves nothing behind.
pub(super) struct Waiting<O: DelayedOperation<Arc<Partition>>, T> {
    purgatory: Purgatory<Arc<Partition>, O>,
    /// `None` once there is nothing to call off.
    key: Option<OperationKey>,
    ended: oneshot::Receiver<Ended<T>>,
}

impl<O: DelayedOperation<Arc<Partition>>, T> Waiting<O, T> {
    /// Takes over an operation that was brought to a purgatory. One that was refused ends at once.
    pub(super) fn new(
        purgatory: &Purgatory<Arc<Partition>, O>,
        watched: Result<Watched, WatchError<O>>,
        ended: oneshot::Receiver<Ended<T>>,
    ) -> Self {
        let key = match watched {
            Ok(watched) => watched.key(),
            Err(refused) => {
                let completion = match &refused {
                    WatchError::ShutDown(_) => Completion::ShutDown,
                    _ => Completion::Displaced,
                };
                refused.into_operation().complete(completion);
                None
            }
        };
        Self { purgatory: purgatory.clone(), key, ended }
    }

    /// Waits until the operation has ended; `None` if it ended without a word, which a panic does.
    pub(super) async fn ended(mut self) -> Option<Ended<T>> {
        let ended = (&mut self.ended).await.ok();
        self.key = None;
        ended
    }
}

impl<O: DelayedOperation<Arc<Partition>>, T> Drop for Waiting<O, T> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.purgatory.cancel(key);
        }
    }
}
