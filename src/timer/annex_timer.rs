//! A timer for another layer of the crate, which keeps its own state in the shards.

use std::{io, ops::Deref, sync::Arc, vec::Vec};

use super::{
    builder::TimerBuilder,
    error::TimerBuildError,
    reaper::shared::Shared,
    shards::{Shards, annex::Annex},
    shutdown::Unfinished,
    stats::TimerStats,
};
use crate::wheel::Expired;

/// A timer whose shards have an annex each. `D` is the type of expired timeouts.
///
/// Clones are the same timer. It runs until it is shut down.
pub(crate) struct AnnexTimer<T, X, D> {
    shared: Arc<Shared<T, X, D>>,
    /// Those of `shared`, one step nearer.
    shards: Arc<Shards<T, X>>,
}

impl<T, X, D> Clone for AnnexTimer<T, X, D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), shards: Arc::clone(&self.shards) }
    }
}

impl<T, X, D> AnnexTimer<T, X, D> {
    fn from_shared(shared: Arc<Shared<T, X, D>>) -> Self {
        Self { shards: Arc::clone(&shared.shards), shared }
    }
}

impl<T, X, D> Deref for AnnexTimer<T, X, D> {
    type Target = Shards<T, X>;

    #[inline]
    fn deref(&self) -> &Shards<T, X> {
        &self.shards
    }
}

impl<T: Send + 'static, X: Annex<T>> AnnexTimer<T, X, X::Due> {
    /// Starts the threads unless they have been started.
    #[inline]
    pub(crate) fn ensure_started(&self) -> io::Result<()> {
        self.shared.ensure_started()
    }

    /// Refuses new timeouts, ends the threads, and returns the expired timeouts whose callbacks did
    /// not run. The caller has removed the pending ones.
    pub(crate) fn shut_down(&self) -> Vec<X::Due> {
        let Unfinished { pending, expired } = self.shared.end(self.shared.delivery.backlog());
        debug_assert!(pending.is_empty(), "an entry of an annex still waits");
        expired
    }

    pub(crate) fn stats(&self) -> TimerStats {
        self.shared.stats()
    }

    /// Expires due timeouts on this thread, as the reaper does.
    #[cfg(all(test, loom))]
    pub(crate) fn turn(&self) {
        if !self.shared.shards.is_shut_down() {
            self.shared.expire_due(&self.shared.delivery);
        }
    }

    /// Runs callbacks on this thread until the timer is shut down, as an executor thread does.
    #[cfg(all(test, loom))]
    pub(crate) fn run_executor(&self) {
        let backlog = self.shared.delivery.backlog().expect("the timer has executor threads");
        while let Some(expired) = backlog.take() {
            self.shared.handler.call(expired);
        }
    }
}

impl TimerBuilder {
    /// Makes a timer whose shards have an annex each. `annex` makes it from the index of the shard
    /// and the number of shards.
    pub(crate) fn build_with_annex<T: Send + 'static, X: Annex<T>>(
        self,
        annex: impl FnMut(usize, usize) -> X,
        handler: impl Fn(X::Due) + Send + Sync + 'static,
    ) -> Result<AnnexTimer<T, X, X::Due>, TimerBuildError> {
        let (delivery, executors) = self.delivery();
        let handle = move |expired: Expired<X::Due>| handler(expired.value);
        self.build_shared(delivery, executors, annex, handle).map(AnnexTimer::from_shared)
    }
}
