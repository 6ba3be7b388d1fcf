//! A task that receives values of a queue; see [`receivers`](super::receivers).

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use super::{backlog::Backlog, receivers::Ticket};
use crate::timer::error::RecvError;

/// A task that receives values of a queue.
pub(crate) struct Receiver<T> {
    backlog: Arc<Backlog<T>>,
    ticket: Ticket,
}

impl<T> Receiver<T> {
    pub(crate) const fn new(backlog: Arc<Backlog<T>>) -> Self {
        Self { backlog, ticket: None }
    }

    /// Polls for a due value.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        let taken = self.backlog.poll_take(&mut self.ticket, cx.waker());
        taken.map(|taken| taken.map(|expired| expired.value).map_err(|_| RecvError))
    }
}

#[cfg(all(test, loom))]
impl<T> Receiver<T> {
    /// Drops it with a fault: a woken task does not wake the next one.
    pub(crate) fn forget_ticket(mut self) {
        drop(self.backlog.remove_receiver(&mut self.ticket));
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.backlog.stop_waiting(&mut self.ticket);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
