//! The search for the bucket or run that is due next.
//!
//! The hierarchy always knows that bucket or run, and a *witness*: the position of a live record in
//! it. It searches for another only when this record leaves, or when a new record is due earlier.
//!
//! A full search reads the head of each run and the front of the queue. Most timeouts that expire
//! need none. The next live record of the same run, bucket or level is due next, unless it is due
//! after [`until`](NextDue::until): nothing else is due before that tick.

use super::{
    chunks::{Position, bits},
    geometry::BucketId,
    hierarchy::{Hierarchy, NextDue, Source},
    run::Head,
};
use crate::tick::Tick;

impl NextDue {
    fn of_run(Head { level, deadline, position }: Head, until: Tick) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 levels")]
        let source = Source::Run(level as u8);
        Self { expiration: deadline, witness: position, source, until }
    }

    /// Returns whether a bucket can be due at `expiration` without any change of the queue and
    /// `next_due`. Its level is queued for `queued`.
    #[inline]
    pub(super) fn excludes(self, queued: Option<Tick>, id: BucketId, expiration: Tick) -> bool {
        let is_of_level = matches!(self.source, Source::Bucket(next) if next.level() == id.level());
        queued.is_some_and(|queued| queued <= expiration)
            && self.expiration <= expiration
            && (is_of_level || self.until <= expiration)
    }
}

impl Hierarchy {
    /// Returns whether a bucket or run is due.
    #[inline]
    pub(super) fn is_next_due(&self) -> bool {
        self.next_due.is_some_and(|next| next.expiration <= self.now)
    }

    /// Returns the level whose run is due next. `None` if another part of the wheel may be due
    /// before it, or if it is not due.
    #[inline]
    pub(super) fn due_run(&self) -> Option<usize> {
        let Some(NextDue { source: Source::Run(level), expiration, .. }) = self.next_due else {
            return None;
        };
        let is_due = expiration <= self.now;
        let is_first = self.cancelled.is_empty() && !self.may_nursery_be_due();
        (is_due && is_first).then_some(level.into())
    }

    /// Updates the queue and `next_due` for a bucket that is due at `expiration` and holds the
    /// record `witness`.
    #[inline]
    pub(super) fn note_expiration(&mut self, id: BucketId, expiration: Tick, witness: Position) {
        debug_assert!(
            self.expired_to <= expiration,
            "{id:?} is due at {expiration}, before {}",
            self.expired_to
        );
        let queued = self.levels[id.level()].queued;
        if !self.next_due.is_some_and(|next| next.excludes(queued, id, expiration)) {
            self.note_earlier(id, expiration, witness);
        }
    }

    /// The same, if something changes.
    #[inline(never)]
    fn note_earlier(&mut self, id: BucketId, expiration: Tick, witness: Position) {
        let level = &mut self.levels[id.level()];
        if level.queued.is_none_or(|queued| expiration < queued) {
            level.queued = Some(expiration);
            self.queue.set(id.level(), expiration);
        }
        match &mut self.next_due {
            Some(next) if next.expiration <= expiration => {
                next.until = next.until.min(expiration);
            }
            next => {
                let until = next.map_or(Tick::MAX, |next| next.expiration);
                let source = Source::Bucket(id);
                *next = Some(NextDue { expiration, witness, source, until });
            }
        }
    }

    /// Returns whether a record is the witness of `next_due`.
    #[inline]
    pub(super) fn is_witness(&self, position: Position) -> bool {
        self.next_due.is_some_and(|next| next.witness == position)
    }

    /// Finds the bucket or run that is due next, after the witness was cancelled.
    #[cold]
    pub(super) fn replace_witness(&mut self) {
        self.clear_cancelled();
        self.find_next_due();
    }

    /// Finds the bucket or run that is due next. The caller has cleared the bits of all cancelled
    /// records.
    pub(super) fn find_next_due(&mut self) {
        debug_assert!(self.cancelled.is_empty(), "cancelled records are not cleared");
        if let Some(id) = self.runs.gathering() {
            return self.find_next_of_bucket(id);
        }
        let run = self.runs.first(&mut self.chunks);
        self.next_due = loop {
            let (index, queued) = match (run, self.queue.first()) {
                (Some((head, others)), Some((_, queued))) if head.deadline <= queued => {
                    break Some(NextDue::of_run(head, others.min(queued)));
                }
                (Some((head, others)), None) => break Some(NextDue::of_run(head, others)),
                (None, None) => break None,
                (_, Some(queued)) => queued,
            };
            let Some(id) = self.first_bucket(index, queued) else { continue };
            let until = self.least_of_others(index, run.map(|(head, _)| head.deadline));
            let next = self.bucket_due_next(id, until);
            debug_assert!(next.is_some(), "{id:?} has a chunk without a live record");
            break next;
        };
        debug_assert!(
            self.next_due.is_none_or(|next| next.expiration >= self.expired_to),
            "{:?} is before {}",
            self.next_due,
            self.expired_to
        );
    }

    /// Returns the first bucket of the level that is first in the queue, if it is due at `queued`.
    /// Otherwise corrects the queue.
    #[inline]
    fn first_bucket(&mut self, index: usize, queued: Tick) -> Option<BucketId> {
        let level = &mut self.levels[index];
        let Some(bucket) = level.first() else {
            level.queued = None;
            self.queue.pop();
            return None;
        };
        let expiration = level.bucket(bucket).expiration;
        if expiration > queued {
            level.queued = Some(expiration);
            self.queue.set(index, expiration);
            return None;
        }
        debug_assert_eq!(expiration, queued, "level {index} is queued for another expiration");
        let id = BucketId::new(index, bucket);
        (!self.trim(id)).then_some(id)
    }

    /// Returns a tick before which no bucket of another level and no run is due. The first run is
    /// due at `run`.
    #[inline]
    fn least_of_others(&self, level: usize, run: Option<Tick>) -> Tick {
        let queued = self.levels.iter().map(|level| level.queued).enumerate();
        let others = queued.filter(|&(other, _)| other != level).filter_map(|(_, queued)| queued);
        others.chain(run).min().unwrap_or(Tick::MAX)
    }

    /// Makes `next` due next. Searches everywhere if it is `None`, or if another bucket or run may
    /// be due before it.
    #[inline]
    fn set_next_due(&mut self, next: Option<NextDue>) {
        match next {
            Some(NextDue { expiration, until, .. }) if expiration <= until => self.next_due = next,
            _ => self.find_next_due(),
        }
    }

    /// Updates `next_due` after a timeout of the run of `level` has expired.
    #[inline]
    pub(super) fn find_next_of_run(&mut self, level: usize, until: Tick) {
        let head = self.runs.head(level, &mut self.chunks);
        self.set_next_due(head.map(|head| NextDue::of_run(head, until)));
    }

    /// Updates `next_due` after a timeout of a sorted sparse bucket has expired.
    #[inline]
    pub(super) fn find_next_of_sparse(&mut self, id: BucketId, chunk: u32, until: Tick) {
        debug_assert!(self.runs.gathering().is_none(), "{id:?} is not the one being gathered");
        self.sparse.skip_entry();
        let Some((expiration, witness)) = self.sparse.head(&self.chunks) else {
            self.free_only_chunk(id, chunk);
            return self.find_next_of_level(id.level(), until);
        };
        self.bucket_mut(id).expiration = expiration;
        let source = Source::Bucket(id);
        self.set_next_due(Some(NextDue { expiration, witness, source, until }));
    }

    /// Updates `next_due` after a record of this chunk has left a due bucket that is not sorted.
    #[inline]
    pub(super) fn find_next_of_chunk(&mut self, id: BucketId, chunk: u32) {
        let live = self.live_in(id, chunk);
        if live == 0 {
            self.free_chunk(chunk);
            return self.find_next_of_bucket(id);
        }
        let Some(next) = &mut self.next_due else { unreachable!("a bucket is due") };
        next.witness = Position::new(chunk, live.trailing_zeros());
    }

    /// Updates `next_due` after all records of a chunk have left a due bucket that is not sorted.
    pub(super) fn find_next_of_bucket(&mut self, id: BucketId) {
        if !self.bucket(id).is_empty() && !self.trim(id) {
            self.next_due = self.bucket_due_next(id, self.bucket(id).expiration);
        } else if id.level() == 0 {
            let until = self.next_due.map_or(Tick::ZERO, |next| next.until);
            self.find_next_of_level(0, until);
        } else {
            // The last timeout of a bucket may have completed a run.
            self.find_next_due();
        }
    }

    /// Updates `next_due` after a bucket of `level` has become empty.
    #[inline]
    fn find_next_of_level(&mut self, level: usize, until: Tick) {
        let next = self.levels[level].first();
        let next = next.and_then(|index| self.bucket_due_next(BucketId::new(level, index), until));
        self.set_next_due(next);
    }

    /// Returns an occupied bucket as the one that is due next. `None` if its newest chunk has no
    /// live record.
    #[inline]
    fn bucket_due_next(&self, id: BucketId, until: Tick) -> Option<NextDue> {
        let (newest, expiration) = (self.bucket(id).newest(), self.bucket(id).expiration);
        let offset = bits(self.live_in(id, newest)).next()?;
        let (witness, source) = (Position::new(newest, offset), Source::Bucket(id));
        Some(NextDue { expiration, witness, source, until })
    }
}
