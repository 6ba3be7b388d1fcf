//! One bucket, and the levels of buckets.
//!
//! A bucket counts its *live* timeouts apart from its records, so that it knows when it is empty
//! even if stale records remain. It is due at its `expiration`:
//!
//! - While it is *sparse*, that is the least deadline in it (or less, if that timeout has left). A
//!   lone timeout a year ahead expires straight out of its coarse bucket and wakes nobody before.
//! - Once it is *crowded*, because its records spilled out of it, that is the start of its range,
//!   as in Kafka. Its timeouts move to finer levels ahead of the first deadline among them, and a
//!   burst is not late. See `docs/decisions/0002-when-a-bucket-is-due.md`.

use alloc::vec::Vec;

use super::{
    arena::Spot,
    geometry::{Geometry, Place},
    records::{CHUNK, Pool, Run},
};
use crate::Tick;

/// Records that a bucket may hold for each live timeout, as a power of two, before it is swept.
const RECORDS_PER_LIVE: u32 = 4;

/// Live timeouts that are added to that account, so that small buckets are not swept all the time.
const LIVE_BESIDES: u32 = 16;

/// Timeouts of one level whose deadlines fall into one range of ticks.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// At least one record for each live timeout, and stale ones.
    run: Run,
    /// Timeouts that were taken in, counted from when the bucket was empty or swept, and wrapping.
    admitted: u32,
    /// How many of those have left.
    ///
    /// One count of the live ones would do. But to insert would then wait for every cancel before
    /// it, whose bucket is not known until its timeout has been fetched from memory.
    departed: u32,
    /// Records at the front of the run that the current sweep has not seen; 0 when there is none.
    unswept: u32,
    /// When the bucket is due; not after any deadline in it. Meaningless while it is empty.
    expiration: Tick,
    /// Whether records have spilled since the bucket was empty.
    is_crowded: bool,
    /// The phase of timeouts that are yet to come.
    ///
    /// It is that of all timeouts here; but while a sweep is under way, those that it has not seen
    /// have the other one. A timeout that was reset away from here and came back has two records in
    /// the run, of which a sweep is to keep one: having kept it, it flips the phase, and drops the
    /// next.
    phase: bool,
}

const _: () = assert!(size_of::<Bucket>() == 104);

impl Bucket {
    const fn new() -> Self {
        Self {
            run: Run::new(),
            admitted: 0,
            departed: 0,
            unswept: 0,
            expiration: Tick::ZERO,
            is_crowded: false,
            phase: false,
        }
    }

    #[inline]
    pub(super) const fn live(&self) -> u32 {
        self.admitted.wrapping_sub(self.departed)
    }

    #[inline]
    pub(super) const fn run(&self) -> &Run {
        &self.run
    }

    pub(super) const fn unswept(&self) -> u32 {
        self.unswept
    }

    #[inline]
    pub(super) const fn expiration(&self) -> Tick {
        self.expiration
    }

    /// Whether a visit shall leave in place what is not due.
    #[inline]
    pub(super) const fn is_sparse(&self) -> bool {
        !self.is_crowded
    }

    #[inline]
    pub(super) const fn phase(&self) -> bool {
        self.phase
    }

    /// Whether there must be made room before a timeout can come.
    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.run.is_full()
    }

    /// Whether it is mostly stale records that would crowd the bucket.
    pub(super) const fn is_untidy(&self) -> bool {
        !self.run.has_spilled() && self.live() as usize <= CHUNK / 2
    }

    /// Makes room for records. Returns whether that crowds the bucket, so that it is due at its
    /// start.
    pub(super) fn make_room(&mut self, pool: &mut Pool) -> bool {
        self.run.make_room(pool);
        let was_crowded = self.is_crowded;
        self.is_crowded |= self.run.has_spilled();
        self.is_crowded && !was_crowded
    }

    /// Takes in a timeout, for whose record there is room. Returns whether the bucket is due
    /// earlier by it.
    #[inline]
    pub(super) fn admit(&mut self, record: u32, deadline: Tick) -> bool {
        self.run.push(record);
        self.admitted = self.admitted.wrapping_add(1);
        deadline < self.expiration || self.admitted == 1
    }

    #[inline]
    pub(super) fn set_expiration(&mut self, expiration: Tick) {
        self.expiration = expiration;
    }

    /// Counts out a timeout, whose record may remain. Returns whether the bucket is empty now.
    #[inline]
    pub(super) fn leave(&mut self) -> bool {
        debug_assert!(self.live() > 0, "a timeout left an empty bucket");
        self.departed = self.departed.wrapping_add(1);
        self.departed == self.admitted
    }

    /// Drops the records of a bucket without timeouts. *O*(1).
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.run.clear(pool);
        (self.admitted, self.departed) = (0, 0);
        self.unswept = 0;
        self.is_crowded = false;
    }

    /// Takes out the oldest record.
    #[inline]
    pub(super) fn pop(&mut self, pool: &mut Pool) -> Option<u32> {
        self.unswept = self.unswept.saturating_sub(1);
        self.run.pop(pool)
    }

    /// Whether a sweep would drop enough records to be worth it.
    #[inline]
    pub(super) const fn is_littered(&self) -> bool {
        self.run.len() / RECORDS_PER_LIVE > self.live() + LIVE_BESIDES
    }

    /// Passes over at most `limit` records; keeps one of each timeout for which `keep` holds.
    ///
    /// `keep(record, unseen)` is to hold for a timeout that rests at the spot `unseen`, and to flip
    /// its phase. A sweep goes once around the run, however many calls it takes.
    pub(super) fn sweep(
        &mut self,
        place: Place,
        pool: &mut Pool,
        limit: u32,
        mut keep: impl FnMut(u32, Spot) -> bool,
    ) {
        if self.unswept == 0 {
            self.unswept = self.run.len();
            self.phase = !self.phase;
        }
        // A bucket that never empties is swept again and again; so `admitted` does not come round
        // to 1, which `admit` takes for the first timeout of an empty bucket.
        (self.admitted, self.departed) = (self.live(), 0);
        let unseen = Spot::new(place, !self.phase);
        let mut left = limit.min(self.unswept);
        while left > 0 {
            let mut group = self.run.take_oldest(pool, left);
            left -= group.len();
            self.unswept -= group.len();
            group.retain(|record| keep(record, unseen));
            self.run.append(pool, &group);
        }
    }

    /// Moves the records to another pool, without the stale ones; `keep` is that of
    /// [`Self::sweep`].
    pub(super) fn rewrite(
        &mut self,
        place: Place,
        from: &mut Pool,
        to: &mut Pool,
        mut keep: impl FnMut(u32, Spot) -> bool,
    ) {
        if self.unswept > 0 {
            self.sweep(place, from, u32::MAX, &mut keep);
        }
        let unseen = Spot::new(place, self.phase);
        self.phase = !self.phase;
        self.run = self.run.rewritten(from, to, |record| keep(record, unseen));
    }

    /// Whether a sweep would keep a record at `position` of the run for a timeout of this phase.
    pub(super) const fn keeps(&self, position: usize, phase: bool) -> bool {
        let is_unswept = position < self.unswept as usize;
        (phase == self.phase) != is_unswept
    }
}

/// The buckets of all levels, by place; a level is made when it first receives a timeout.
#[derive(Debug)]
pub(super) struct Levels {
    buckets: Vec<Bucket>,
}

impl Levels {
    pub(super) const fn new() -> Self {
        Self { buckets: Vec::new() }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut Bucket> {
        self.buckets.get_mut(place.number() as usize)
    }

    /// The bucket at a place that has been in use.
    #[inline]
    pub(super) fn bucket(&self, place: Place) -> &Bucket {
        &self.buckets[place.number() as usize]
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, place: Place) -> &mut Bucket {
        &mut self.buckets[place.number() as usize]
    }

    /// Makes the level of a place, and those below.
    pub(super) fn reach(&mut self, geometry: &Geometry, place: Place) {
        let end = geometry.end_of_level(place);
        if end > self.buckets.len() {
            self.buckets.reserve_exact(end - self.buckets.len());
            self.buckets.resize(end, Bucket::new());
        }
    }

    /// Number of buckets made.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Gives back the levels above the last that holds a timeout.
    pub(super) fn shrink(&mut self, geometry: &Geometry) {
        let last = self.iter().filter(|(_, bucket)| bucket.live() > 0).last();
        let end = last.map_or(0, |(place, _)| geometry.end_of_level(place));
        self.buckets.truncate(end);
        self.buckets.shrink_to_fit();
    }

    /// All buckets that exist, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Bucket)> {
        self.buckets.iter().zip(0..).map(|(bucket, number)| (Place::new(number), bucket))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Bucket)> {
        self.buckets.iter_mut().zip(0..).map(|(bucket, number)| (Place::new(number), bucket))
    }
}
