//! What the broker counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that goes up, and sometimes down.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of a broker; read by [`Broker::counts`](super::Broker::counts).
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) connections: Count,
    pub(super) rejected: Count,
    pub(super) requests: Count,
    pub(super) produces: Count,
    pub(super) fetches: Count,
    pub(super) records: Count,
    pub(super) duplicates: Count,
}

impl Counts {
    pub(super) fn read(&self) -> Counted {
        Counted {
            connections: self.connections.read(),
            rejected: self.rejected.read(),
            requests: self.requests.read(),
            produces: self.produces.read(),
            fetches: self.fetches.read(),
            records: self.records.read(),
            duplicates: self.duplicates.read(),
        }
    }
}

/// What a broker has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were closed because of what came through them.
    pub rejected: u64,
    /// Requests of all kinds.
    pub requests: u64,
    /// Of those, produce requests.
    pub produces: u64,
    /// Of those, fetches.
    pub fetches: u64,
    /// Records that were appended.
    pub records: u64,
    /// Batches that an idempotent producer sent again, and that were not appended again.
    pub duplicates: u64,
}
