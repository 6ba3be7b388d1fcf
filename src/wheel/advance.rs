//! `advance`: expires due buckets in order, one bounded step at a time.

use core::iter::FusedIterator;

use super::{
    Key, TimingWheel,
    arena::Arena,
    chunks::{NIL, Position, Record, bits},
    geometry::BucketId,
    hierarchy::{Hierarchy, NextDue, Source},
    sparse,
};
use crate::tick::Tick;

/// Slots whose cache misses overlap without help.
const FEW: u32 = 2;

/// An expired timeout, with its value.
///
/// # Examples
///
/// ```
/// use delaywheel::{Tick, TimingWheel};
///
/// let mut wheel = TimingWheel::new(Tick::ZERO);
/// let key = wheel.insert(Tick::new(5), "value")?;
/// let expired = wheel.advance(Tick::new(8)).next().unwrap();
/// assert_eq!((expired.key, expired.deadline, expired.value), (key, Tick::new(5), "value"));
/// # Ok::<_, delaywheel::InsertError<&str>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired<T> {
    /// The key of the timeout. It is dead now.
    pub key: Key,
    /// The deadline; never after the tick passed to `advance`.
    pub deadline: Tick,
    /// The value that was inserted.
    pub value: T,
}

/// Iterator over the timeouts that are due; from [`TimingWheel::advance`].
///
/// The wheel is consistent after each call of `next`. So you may drop or leak the iterator at any
/// point.
#[derive(Debug)]
#[must_use = "timeouts expire as this is iterated; the others stay due"]
pub struct Advance<'a, T> {
    wheel: &'a mut TimingWheel<T>,
    /// Steps that may still be taken.
    steps: u64,
}

impl<'a, T> Advance<'a, T> {
    #[inline]
    pub(super) fn new(wheel: &'a mut TimingWheel<T>) -> Self {
        Self { wheel, steps: u64::MAX }
    }

    /// Ends the iteration after `steps` steps, even if more timeouts are due.
    ///
    /// A step expires one timeout, moves one to a finer level, or gathers up to 16 of one bucket to
    /// be sorted. A step takes constant time, with one exception: one gathering step of a bucket
    /// sorts up to 8192 timeouts, or divides them by tick.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel::{Tick, TimingWheel};
    ///
    /// let mut wheel = TimingWheel::new(Tick::ZERO);
    /// for value in 0..5 {
    ///     wheel.insert(Tick::new(10), value)?;
    /// }
    /// let mut due = wheel.advance(Tick::new(10)).limit(3);
    /// assert_eq!(due.by_ref().count(), 3);
    /// assert!(!due.is_drained());
    ///
    /// let mut due = wheel.advance(Tick::new(10));
    /// assert_eq!(due.by_ref().count(), 2);
    /// assert!(due.is_drained());
    /// # Ok::<_, delaywheel::InsertError<i32>>(())
    /// ```
    pub fn limit(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Returns whether no timeout is due. After the iteration, `false` means that it ended at its
    /// limit.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.wheel.next_expiration().is_none_or(|next| next > self.wheel.now())
    }
}

impl<T> Iterator for Advance<'_, T> {
    type Item = Expired<T>;

    #[inline]
    fn next(&mut self) -> Option<Expired<T>> {
        self.wheel.expire_next(&mut self.steps)
    }
}

impl<T> FusedIterator for Advance<'_, T> {}

impl<T> TimingWheel<T> {
    /// Removes the next due timeout, in at most `steps` steps. Subtracts the steps that it used.
    #[inline]
    fn expire_next(&mut self, steps: &mut u64) -> Option<Expired<T>> {
        if let Some(level) = self.hierarchy.due_run() {
            *steps = steps.checked_sub(1)?;
            return Some(self.expire_of_run(level));
        }
        if self.hierarchy.is_next_due() || self.hierarchy.may_nursery_be_due() {
            return self.expire_due(steps);
        }
        self.hierarchy.expired_to = self.hierarchy.now;
        None
    }

    #[inline(never)]
    fn expire_due(&mut self, steps: &mut u64) -> Option<Expired<T>> {
        if *steps == 0 {
            return None;
        }
        if !self.hierarchy.cancelled.is_empty() {
            self.hierarchy.clear_cancelled();
        }
        if self.hierarchy.may_nursery_be_due() {
            self.place_nursery();
        }
        while let Some(next) = self.hierarchy.next_due.filter(|_| self.hierarchy.is_next_due()) {
            *steps = steps.checked_sub(1)?;
            debug_assert!(self.hierarchy.expired_to <= next.expiration, "{next:?} was skipped");
            self.hierarchy.expired_to = next.expiration;
            let id = match next.source {
                Source::Run(level) => return Some(self.expire_of_run(level.into())),
                Source::Bucket(id) => id,
            };
            let Some((position, is_sparse)) = self.next_position(id, next.witness) else {
                continue;
            };
            let expired = self.expire(position);
            let (hierarchy, chunk) = (&mut self.hierarchy, position.chunk());
            if is_sparse {
                hierarchy.find_next_of_sparse(id, chunk, next.until);
            } else {
                hierarchy.find_next_of_chunk(id, chunk);
            }
            return Some(expired);
        }
        self.hierarchy.expired_to = self.hierarchy.now;
        None
    }

    /// Returns the due timeout of a due bucket, and whether the bucket is sparse and sorted. `None`
    /// if the step gathers timeouts or moves one.
    #[inline]
    fn next_position(&mut self, id: BucketId, witness: Position) -> Option<(Position, bool)> {
        if id.level() > 0 {
            if let Some(position) = self.hierarchy.due_in_sparse(id, witness) {
                return Some((position, true));
            }
            if self.hierarchy.is_sortable(id) {
                self.gather(id);
                return None;
            }
        }
        if self.hierarchy.prefetched != witness.chunk() {
            self.prefetch(id, witness.chunk());
        }
        let record = self.hierarchy.chunks.record(witness);
        if record.deadline() > self.hierarchy.expired_to {
            self.cascade_from(id, witness, record);
            return None;
        }
        Some((witness, false))
    }

    /// Removes the timeout that is due next, in the run of a level.
    #[inline(never)]
    fn expire_of_run(&mut self, level: usize) -> Expired<T> {
        let Self { arena, hierarchy } = self;
        let Some(NextDue { expiration: deadline, witness, until, .. }) = hierarchy.next_due else {
            unreachable!("a run is due")
        };
        hierarchy.expired_to = deadline;
        hierarchy.runs.skip_entry(level);
        if hierarchy.runs.must_read_ahead(level) {
            prefetch_run(arena, hierarchy, level);
        }
        let slot = hierarchy.chunks.record(witness).slot;
        let (key, value) = arena.remove_at(slot).expect("a live record has a timeout");
        hierarchy.chunks.clear(witness);
        hierarchy.find_next_of_run(level, until);
        Expired { key, deadline, value }
    }

    /// Moves a timeout of a due bucket to a finer level. Such a bucket spans too many ticks to be
    /// sorted, or holds more timeouts than a run.
    #[inline(never)]
    fn cascade_from(&mut self, id: BucketId, position: Position, record: Record) {
        self.hierarchy.sparse.drop_order(position.chunk());
        self.cascade(record);
        self.hierarchy.chunks.clear(position);
        self.hierarchy.find_next_of_chunk(id, position.chunk());
    }

    /// Adds one chunk of a due bucket to the run of its level, and sorts the run after the last
    /// chunk. A reset may have moved a deadline beyond the bucket's range. Such timeouts are placed
    /// in another bucket.
    #[inline(never)]
    fn gather(&mut self, id: BucketId) {
        let hierarchy = &mut self.hierarchy;
        if hierarchy.runs.gathering() != Some(id) {
            let start = hierarchy.geometry.start(id.level(), hierarchy.expired_to);
            hierarchy.runs.begin(id, start, &mut hierarchy.chunks);
        }
        let bucket = hierarchy.bucket(id);
        let chunk = bucket.newest();
        // No insert writes to the chunk any more.
        let live = hierarchy.chunks.mask(chunk) & bucket.written();
        hierarchy.chunks.set_mask(chunk, live);
        hierarchy.sparse.drop_order(chunk);
        let emptied = hierarchy.unlink(chunk);
        let span = hierarchy.geometry.bucket_span(id.level());
        let beyond = hierarchy.runs.gather(chunk, span, &mut hierarchy.chunks);
        for offset in bits(beyond) {
            let position = Position::new(chunk, offset);
            self.cascade(self.hierarchy.chunks.record(position));
            self.hierarchy.chunks.clear(position);
        }
        if let Some(id) = emptied {
            self.hierarchy.mark_empty(id);
        }
        self.hierarchy.find_next_of_bucket(id);
    }

    /// Writes a new record for the timeout, into the bucket of its deadline at present.
    fn cascade(&mut self, record: Record) {
        let moved = self.hierarchy.place_again(record.deadline(), record.slot);
        self.arena.set_position(record.slot, moved);
        self.hierarchy.cascades += 1;
    }

    /// Removes the timeout of a record and returns it.
    #[inline]
    fn expire(&mut self, position: Position) -> Expired<T> {
        let record = self.hierarchy.chunks.record(position);
        debug_assert!(record.deadline() <= self.hierarchy.expired_to, "{position:?} expires early");
        let (key, value) = self.arena.remove_at(record.slot).expect("a live record has a timeout");
        self.hierarchy.chunks.clear(position);
        Expired { key, deadline: record.deadline(), value }
    }

    /// Reads the slots of the live timeouts of a bucket's chunk in advance, so that their cache
    /// misses overlap.
    #[inline(never)]
    fn prefetch(&mut self, id: BucketId, chunk: u32) {
        let Self { arena, hierarchy } = self;
        hierarchy.prefetched = chunk;
        let live = hierarchy.live_in(id, chunk);
        if live.count_ones() > FEW {
            let records = hierarchy.chunks.records(chunk);
            arena.prefetch(bits(live).map(|offset| records[offset as usize].slot));
        }
    }
}

/// Reads the slots of the next 16 timeouts of a run, so that their cache misses overlap.
#[inline(never)]
fn prefetch_run<T>(arena: &Arena<T>, hierarchy: &Hierarchy, level: usize) {
    let ahead = hierarchy.runs.ahead(level);
    arena.prefetch(ahead.map(|position| hierarchy.chunks.record(position).slot));
}

impl Hierarchy {
    /// Returns the due timeout of a due sparse bucket, which it sorts unless the order is known.
    /// `None` if the bucket must become a run or cascade: it is crowded or too wide, a deadline is
    /// beyond its range, or the timeout that was the earliest has left.
    ///
    /// Level 0 needs no order: the timeouts of a bucket are due at the same tick.
    #[inline]
    pub(super) fn due_in_sparse(&mut self, id: BucketId, witness: Position) -> Option<Position> {
        if self.sparse.is_due(witness, self.expired_to) {
            return Some(witness);
        }
        let bucket = self.bucket(id);
        let (chunk, level) = (bucket.newest(), id.level());
        if !self.sparse.is_of(chunk) {
            let shift = self.geometry.shift(level);
            if bucket.is_crowded || level == 0 || shift > sparse::WIDEST {
                return None;
            }
            debug_assert_eq!(self.chunks.next(chunk), NIL, "{id:?} is sparse but has two chunks");
            let live = self.chunks.mask(chunk) & bucket.written();
            let start = self.geometry.start(level, self.expired_to);
            if !self.sparse.sort(chunk, live, start, shift, &self.chunks) {
                return None;
            }
        }
        let (deadline, position) = self.sparse.head(&self.chunks)?;
        (deadline <= self.expired_to).then_some(position)
    }
}
