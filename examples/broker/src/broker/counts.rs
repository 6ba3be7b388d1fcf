//! The counts of a broker.

use std::sync::{Mutex, PoisonError};

/// Events that a broker has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open connections.
    pub connections: u64,
    /// Connections that the broker closed because of their requests.
    pub rejected: u64,
    /// Requests of all kinds.
    pub requests: u64,
    /// Of those, produce requests.
    pub produces: u64,
    /// Of those, fetches.
    pub fetches: u64,
    /// Records that were appended.
    pub records: u64,
    /// Requests to join a group.
    pub joins: u64,
    /// Rebalances: rounds of joins that ended with a new generation.
    pub rebalances: u64,
    /// Members that were removed because no heartbeat came in time.
    pub sessions_ended: u64,
}

/// Counts that many threads change.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Counts>);

impl Shared {
    pub(super) fn update(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
