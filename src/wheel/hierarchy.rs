//! The hierarchy of levels: places records and removes them.
//!
//! It holds records and no values, so wheels of all types share its code. A record is in a chunk of
//! a bucket or of a run. A bit of the chunk's mask tells whether it is live.

use alloc::vec::Vec;

use super::{
    cancelled::{Cancelled, Worn},
    chunks::{Chunks, NIL, NURSERY, Owner, Position, bits},
    geometry::{BucketId, Geometry},
    level::{Bucket, Level},
    nursery::Nursery,
    queue::BucketQueue,
    run::{Runs, WIDEST},
    sparse::SparseOrder,
};
use crate::tick::Tick;

/// The bucket or run that is due next.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextDue {
    /// When it is due.
    pub(super) expiration: Tick,
    /// A live record in it.
    pub(super) witness: Position,
    /// The bucket or run.
    pub(super) source: Source,
    /// No bucket of another level, and no other run, is due before this.
    pub(super) until: Tick,
}

/// The part of the wheel from which timeouts expire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// A bucket, which is due at its expiration.
    Bucket(BucketId),
    /// The run of this level.
    Run(u8),
}

/// The records of a wheel: where each is, and which is due next.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub(super) geometry: Geometry,
    /// The latest tick given to `advance` or `observe`, or the start.
    pub(super) now: Tick,
    /// The tick up to which timeouts have expired: `now`, or less while timeouts are due.
    ///
    /// No bucket or run is due before it.
    pub(super) expired_to: Tick,
    /// `None` if there is no live record in a level.
    pub(super) next_due: Option<NextDue>,
    pub(super) levels: Vec<Level>,
    pub(super) chunks: Chunks,
    pub(super) cancelled: Cancelled,
    /// Chunks to merge with the next cancels.
    pub(super) worn: Worn,
    /// The latest timeouts, which are not in a level yet.
    pub(super) nursery: Nursery,
    pub(super) queue: BucketQueue,
    pub(super) runs: Runs,
    /// The sparse bucket that expires at present.
    pub(super) sparse: SparseOrder,
    /// The chunk whose slots have been read in advance, or `NIL`.
    pub(super) prefetched: u32,
    /// Number of times that a timeout was moved before its deadline.
    pub(super) cascades: u64,
}

impl Hierarchy {
    pub(super) const fn new(geometry: Geometry, start: Tick) -> Self {
        Self {
            geometry,
            now: start,
            expired_to: start,
            next_due: None,
            levels: Vec::new(),
            chunks: Chunks::new(),
            cancelled: Cancelled::new(),
            worn: Worn::new(),
            nursery: Nursery::new(),
            queue: BucketQueue::new(),
            runs: Runs::new(),
            sparse: SparseOrder::new(),
            prefetched: NIL,
            cascades: 0,
        }
    }

    /// Advances `now`, and `expired_to` as well unless a timeout may be due.
    #[inline]
    pub(super) fn observe(&mut self, now: Tick) {
        if now > self.now {
            self.now = now;
            self.update_expired_to();
        }
        let Self { now, expired_to, .. } = *self;
        debug_assert!(expired_to <= now, "timeouts have expired up to {expired_to} at {now}");
    }

    /// Advances `expired_to` to `now` unless a timeout may be due.
    #[inline]
    pub(super) fn update_expired_to(&mut self) {
        if self.expired_to < self.now {
            self.update_expired_to_slowly();
        }
    }

    /// The same, if time has passed. Finds the least deadline of the nursery if it is not known.
    #[inline(never)]
    fn update_expired_to_slowly(&mut self) {
        if self.is_next_due() {
            return;
        }
        if self.may_nursery_be_due() && !self.nursery.is_exact() {
            self.clear_cancelled();
            let (position, deadline) = self.least_in_nursery().expect("the nursery is not empty");
            self.nursery.set_least(position, deadline);
        }
        if !self.may_nursery_be_due() {
            self.expired_to = self.now;
        }
    }

    /// Returns whether a timeout of the nursery may be due. Also `true` if the one that was due has
    /// been cancelled or reset since.
    #[inline]
    pub(super) fn may_nursery_be_due(&self) -> bool {
        self.nursery.bound().is_some_and(|bound| bound <= self.now)
    }

    /// Returns the least expiration of all buckets, runs and timeouts of the nursery.
    #[inline]
    pub(super) fn next_expiration(&self) -> Option<Tick> {
        let first = self.next_due.map(|next| next.expiration);
        let Some(bound) = self.nursery.bound() else { return first };
        if first.is_some_and(|first| first <= bound) {
            return first;
        }
        let in_nursery = if self.nursery.is_exact() {
            Some(bound)
        } else {
            self.least_in_nursery().map(|(_, deadline)| deadline)
        };
        [first, in_nursery].into_iter().flatten().min()
    }

    /// Returns the live record of the nursery with the least deadline. Reads at most 60 records.
    #[inline(never)]
    pub(super) fn least_in_nursery(&self) -> Option<(Position, Tick)> {
        let positions = (0..NURSERY).flat_map(|chunk| self.live_in_nursery(chunk));
        let due = positions.map(|position| (position, self.chunks.record(position).deadline()));
        due.min_by_key(|&(_, deadline)| deadline)
    }

    /// Returns the live records of a chunk of the nursery.
    pub(super) fn live_in_nursery(&self, chunk: u32) -> impl Iterator<Item = Position> {
        let mut live = 0;
        if self.nursery.len() > 0 {
            live = self.chunks.mask(chunk) & self.nursery.written(chunk);
            let cancelled = self.cancelled.iter().filter(|position| position.chunk() == chunk);
            cancelled.for_each(|position| live &= !position.bit());
        }
        bits(live).map(move |offset| Position::new(chunk, offset))
    }

    /// Opens the nursery, so that the next timeouts go into it.
    pub(super) fn open_nursery(&mut self) {
        self.chunks.make_nursery();
        self.begin_chunk_of_nursery();
    }

    /// Makes the next chunk of the nursery, which must be empty, the one that takes records.
    pub(super) fn begin_chunk_of_nursery(&mut self) {
        let chunk = self.nursery.next_chunk();
        let mask = self.nursery.begin();
        self.chunks.set_mask(chunk, mask);
    }

    /// Adds a record to the bucket of `deadline`, which must not be before `expired_to`.
    #[expect(clippy::inline_always, reason = "a call costs 30 of 130 instructions")]
    #[inline(always)]
    pub(super) fn place(&mut self, deadline: Tick, slot: u32) -> Position {
        debug_assert!(
            self.next_due.is_none_or(|next| next.expiration >= self.expired_to),
            "{:?} is before {}",
            self.next_due,
            self.expired_to
        );
        let position = match self.reserve(deadline) {
            Some(position) => position,
            None => self.reserve_slowly(deadline),
        };
        self.chunks.write(position, deadline, slot);
        position
    }

    /// Returns whether new timeouts go into the levels and no time has passed.
    #[inline]
    pub(super) fn takes_records(&self) -> bool {
        self.expired_to >= self.now && !self.nursery.is_open()
    }

    /// Reserves a position for a record with this deadline, if its bucket has room, and if neither
    /// the queue nor `next_due` changes.
    #[inline]
    pub(super) fn reserve(&mut self, deadline: Tick) -> Option<Position> {
        let id = self.geometry.bucket(self.expired_to, deadline);
        let level = self.levels.get_mut(id.level())?;
        let queued = level.queued;
        let bucket = level.get_mut(id.index()).filter(|bucket| !bucket.is_full())?;
        if deadline < bucket.expiration {
            if !self.next_due.is_some_and(|next| next.excludes(queued, id, deadline)) {
                return None;
            }
            bucket.expiration = deadline;
        }
        Some(bucket.reserve())
    }

    /// Like [`place`](Self::place), for moved timeouts. Not inlined, because they are less
    /// frequent.
    #[inline(never)]
    pub(super) fn place_again(&mut self, deadline: Tick, slot: u32) -> Position {
        self.place(deadline, slot)
    }

    /// Reserves a position for a record with this deadline. Makes the bucket, or allocates a chunk,
    /// if that is needed.
    #[inline(never)]
    fn reserve_slowly(&mut self, deadline: Tick) -> Position {
        let id = self.geometry.bucket(self.expired_to, deadline);
        let needs_chunk = self.ensure_bucket(id).is_full();
        if needs_chunk && self.nursery.count_down() {
            self.open_nursery();
        }
        let level = &mut self.levels[id.level()];
        let bucket = level.bucket_mut(id.index());
        if bucket.is_empty() {
            bucket.expiration = deadline;
            bucket.is_crowded = false;
        } else if bucket.is_full() && id.level() > 0 && !bucket.is_crowded {
            bucket.is_crowded = true;
            bucket.expiration = self.geometry.start(id.level(), bucket.expiration);
        }
        let position = bucket.reserve_or_allocate(id, &mut self.chunks);
        bucket.expiration = bucket.expiration.min(deadline);
        let expiration = bucket.expiration;
        if needs_chunk {
            level.mark_occupied(id.index());
        }
        self.note_expiration(id, expiration, position);
        position
    }

    /// Makes a bucket and its level, unless they exist.
    #[inline]
    fn ensure_bucket(&mut self, id: BucketId) -> &mut Bucket {
        while self.levels.len() <= id.level() {
            self.levels.push(Level::new());
        }
        let level = &mut self.levels[id.level()];
        if level.get_mut(id.index()).is_none() {
            level.ensure_bucket(id.index(), self.geometry.size());
        }
        level.bucket_mut(id.index())
    }

    /// Updates the nursery's least deadline and `next_due` after a record was removed.
    #[inline]
    pub(super) fn forget(&mut self, position: Position) {
        self.nursery.forget(position);
        if self.is_witness(position) {
            self.replace_witness();
        }
    }

    /// Clears the bits of all cancelled records.
    #[inline(never)]
    pub(super) fn clear_cancelled(&mut self) {
        let cancelled = self.cancelled.drain();
        let (emptied, count) = self.chunks.clear_all(cancelled, |mask| mask == 0);
        self.runs.remove_dead(cancelled.len(), &self.chunks);
        for &chunk in &emptied[..count] {
            if chunk >= NURSERY && self.chunks.owner(chunk) != Owner::NoBucket {
                self.free_chunk(chunk);
            }
        }
    }

    /// Frees a chunk of a bucket, and marks the bucket as empty if it was the last. None of its
    /// records may be live.
    pub(super) fn free_chunk(&mut self, chunk: u32) {
        self.sparse.drop_order(chunk);
        let emptied = self.unlink(chunk);
        self.chunks.free(chunk);
        if let Some(id) = emptied {
            self.mark_empty(id);
        }
    }

    /// Frees the only chunk of a bucket, and marks the bucket as empty. None of its records may be
    /// live.
    pub(super) fn free_only_chunk(&mut self, id: BucketId, chunk: u32) {
        debug_assert_eq!(self.chunks.owner(chunk), Owner::Newest(id), "chunk {chunk} is elsewhere");
        debug_assert_eq!(self.chunks.next(chunk), NIL, "{id:?} has another chunk than {chunk}");
        self.sparse.drop_order(chunk);
        self.bucket_mut(id).set_newest(NIL);
        self.chunks.free(chunk);
        self.mark_empty(id);
    }

    /// Removes a chunk from its bucket. Returns the bucket if it is empty now; the caller must
    /// [mark it as empty](Self::mark_empty).
    pub(super) fn unlink(&mut self, chunk: u32) -> Option<BucketId> {
        let (owner, next) = (self.chunks.owner(chunk), self.chunks.next(chunk));
        if next != NIL {
            self.chunks.set_owner(next, owner);
        }
        match owner {
            Owner::After(newer) => self.chunks.set_next(newer, next),
            Owner::Newest(id) => {
                self.bucket_mut(id).set_newest(next);
                return (next == NIL).then_some(id);
            }
            Owner::NoBucket => debug_assert!(false, "chunk {chunk} is in no bucket"),
        }
        None
    }

    /// Marks a bucket as empty. Its level's entry in the queue stays until it reaches the front.
    pub(super) fn mark_empty(&mut self, id: BucketId) {
        self.levels[id.level()].mark_empty(id.index());
        if self.runs.gathering() == Some(id) {
            self.finish_run(id.level());
        }
    }

    /// Sorts the run of a level after its bucket was gathered completely.
    fn finish_run(&mut self, level: usize) {
        let span = self.geometry.bucket_span(level);
        if let Some((len, first)) = self.runs.finish(span, &mut self.chunks) {
            self.cascades += if first > self.expired_to { len as u64 } else { 0 };
        }
    }

    /// Frees the newest chunk of a bucket if it has no live record. Returns whether the bucket is
    /// empty.
    ///
    /// A full chunk is freed when its last live record leaves. The newest chunk may have unwritten
    /// positions, whose bits are set, so its mask does not become 0.
    #[inline]
    pub(super) fn trim(&mut self, id: BucketId) -> bool {
        let newest = self.bucket(id).newest();
        if self.live_in(id, newest) != 0 {
            return false;
        }
        self.free_chunk(newest);
        self.bucket(id).is_empty()
    }

    /// Returns whether the wheel must sort a due bucket into a run.
    pub(super) fn is_sortable(&self, id: BucketId) -> bool {
        let level = id.level();
        let has_room = || {
            let is_begun = self.runs.gathering() == Some(id);
            !is_begun || self.runs.has_room(self.geometry.bucket_span(level))
        };
        level > 0 && self.geometry.shift(level) <= WIDEST && has_room()
    }

    /// Returns the mask of the live records in a chunk of a bucket.
    #[inline]
    pub(super) fn live_in(&self, id: BucketId, chunk: u32) -> u16 {
        let bucket = self.bucket(id);
        let written = if bucket.newest() == chunk { bucket.written() } else { u16::MAX };
        self.chunks.mask(chunk) & written
    }

    #[inline]
    pub(super) fn bucket(&self, id: BucketId) -> &Bucket {
        self.levels[id.level()].bucket(id.index())
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        self.levels[id.level()].bucket_mut(id.index())
    }
}
