//! One attempt to deliver a timeout, and how it may end.

use std::{fmt, sync::Arc};

use crate::{
    record::{Claim, Record, TimeoutId},
    time::{WallTime, When},
};

/// A delivery that is under way.
///
/// It ends with [`acknowledge`](Self::acknowledge), [`retry`](Self::retry), [`dead`](Self::dead) or
/// [`acknowledged_in_transaction`](Self::acknowledged_in_transaction). A delivery that is dropped
/// counts as failed, as with `retry`.
///
/// None of these methods blocks. The next group commit writes the end. If the process is killed
/// before that, the timeout is delivered again.
#[must_use = "a delivery that is dropped counts as failed"]
pub struct Delivery {
    record: Record,
    ends: Option<Arc<dyn Ends>>,
}

/// Where deliveries end.
pub(super) trait Ends: Send + Sync {
    fn end(&self, record: Record, verdict: Verdict);
}

/// How the handler judged a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    /// With a time if the policy is not to decide.
    Failed(String, Option<When>),
    Dead(String),
    /// The store knows already.
    Settled,
}

impl Delivery {
    pub(super) fn new(record: Record, ends: Arc<dyn Ends>) -> Self {
        Self { record, ends: Some(ends) }
    }

    /// Returns the name of the timeout.
    #[must_use]
    pub fn id(&self) -> &TimeoutId {
        &self.record.id
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.record.payload
    }

    /// Returns the time for which the timeout was scheduled.
    #[must_use]
    pub fn due(&self) -> WallTime {
        self.record.due
    }

    /// Returns the number of this attempt; the first one is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// Returns the error of the attempt before.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.record.error.as_deref()
    }

    /// Returns the proof that this worker holds the timeout. A store that shares transactions with
    /// the handler checks it.
    #[must_use]
    pub fn claim(&self) -> Claim {
        self.record.claim()
    }

    /// Returns the record.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Ends the delivery as successful: the timeout is removed, or its next occurrence scheduled.
    pub fn acknowledge(self) {
        self.end(Verdict::Done);
    }

    /// Ends the delivery as failed. The [`Backoff`](crate::Backoff) decides when it is tried again,
    /// or that it is dead.
    pub fn retry(self, error: impl fmt::Display) {
        self.end(Verdict::Failed(error.to_string(), None));
    }

    /// Ends the delivery as failed; the next attempt is at `when`. The limit of attempts holds.
    pub fn retry_at(self, when: impl Into<When>, error: impl fmt::Display) {
        self.end(Verdict::Failed(error.to_string(), Some(when.into())));
    }

    /// Ends the delivery as failed for good. The timeout is kept as dead.
    pub fn dead(self, error: impl fmt::Display) {
        self.end(Verdict::Dead(error.to_string()));
    }

    /// Ends a delivery that a transaction of the handler has acknowledged already.
    pub fn acknowledged_in_transaction(self) {
        self.end(Verdict::Settled);
    }

    fn end(mut self, verdict: Verdict) {
        if let Some(ends) = self.ends.take() {
            ends.end(self.record.clone(), verdict);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(ends) = self.ends.take() {
            let error = if std::thread::panicking() {
                "the handler panicked"
            } else {
                "the delivery was dropped"
            };
            ends.end(self.record.clone(), Verdict::Failed(error.to_owned(), None));
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("record", &self.record).finish_non_exhaustive()
    }
}
