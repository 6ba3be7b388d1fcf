//! What a hold of a shard's lock hands out: operations in hand, claims, and ends.

use smallvec::SmallVec;

use super::{operation::Completion, slab::Index};
use crate::Key;

/// An operation that is out, until it has ended or is brought back.
pub(super) struct InHand<O, R> {
    pub(super) index: Index,
    /// `None` once it waits again.
    pub(super) operation: Option<O>,
    /// Whether the last check found that it can complete, and that is how it has ended if it has.
    pub(super) is_satisfied: bool,
    /// How it has ended, and its timeout, if that is still to be cancelled.
    pub(super) end: Option<(Completion<R>, Option<Key>)>,
}

impl<O, R> InHand<O, R> {
    #[inline]
    pub(super) const fn new(index: Index, operation: O) -> Self {
        Self { index, operation: Some(operation), is_satisfied: false, end: None }
    }
}

/// Operations that are out at once for one event, and operations that end in one hold.
pub(super) const BATCH: usize = 32;

/// Operations that are checked between two holds of the lock.
pub(super) type Batch<O, R> = SmallVec<[InHand<O, R>; 2]>;

/// Operations that wait again, but are to be checked again: an event was announced while they were
/// out.
pub(super) type Announced = SmallVec<[(Index, u64); 2]>;

/// An operation that has ended, and is to be completed.
pub(super) struct Finished<O, R> {
    pub(super) operation: O,
    pub(super) completion: Completion<R>,
    /// Is still to be cancelled.
    pub(super) timeout: Option<Key>,
}

/// Operations that have ended in one hold of the lock.
pub(super) type Finishes<O, R> = SmallVec<[Finished<O, R>; 2]>;

/// Result of deciding how an operation ends.
pub(super) enum Claim<O, R> {
    /// It has ended so. The caller completes it.
    Finished(Finished<O, R>),
    /// It ends so. It is out, and the thread that holds it completes it.
    Decided { timeout: Option<Key> },
    /// Its end was decided before. The completion is handed back, as its drop is user code.
    Lost(Completion<R>),
}

/// The operation that has waited longest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Oldest {
    pub(super) since: u64,
    pub(super) place: (Index, u64),
}
