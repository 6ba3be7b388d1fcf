//! One bucket, and the levels of buckets.
//!
//! A bucket counts its *live* timeouts apart from its records, so that it knows when it is empty even
//! if stale records remain. It is due at its `expiration`:
//!
//! - While it is *sparse*, that is the least deadline in it (or less, if that timeout has left). A lone
//!   timeout a year ahead expires straight out of its coarse bucket and wakes nobody before.
//! - Once it is *crowded*, it is the start of the bucket's range, as in Kafka. Its timeouts move to finer
//!   levels ahead of the first deadline among them, and a burst is not late.

use alloc::vec::Vec;

use super::{
    geometry::Place,
    records::{Pool, Run},
};
use crate::Tick;

/// More timeouts than this make a bucket crowded.
///
/// Up to here a visit looks at every record and leaves in place what is not due, which costs less than
/// to cascade. See `docs/decisions/0002-when-a-bucket-is-due.md`.
pub(super) const SPARSE: u32 = 16;

/// Stale records that a bucket may hold for each live timeout, and besides, before it is swept.
const STALE_PER_LIVE: u32 = 3;
const STALE_BESIDES: u32 = 64;

/// Timeouts of one level whose deadlines fall into one range of ticks.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// At least one record for each live timeout, and stale ones.
    run: Run,
    /// Number of timeouts that rest here.
    live: u32,
    /// Records at the front of the run that the current sweep has not seen; 0 when there is none.
    unswept: u32,
    /// When the bucket is due; not after any deadline in it. Meaningless while it is empty.
    expiration: Tick,
    is_crowded: bool,
    /// The phase of timeouts that the current sweep has not seen, or of all when there is none.
    ///
    /// A timeout that was reset away from here and came back has two records in the run. A sweep keeps
    /// one: it drops a record whose timeout has the other phase, for that one was kept already.
    phase: bool,
}

impl Bucket {
    const fn new() -> Self {
        Self {
            run: Run::new(),
            live: 0,
            unswept: 0,
            expiration: Tick::ZERO,
            is_crowded: false,
            phase: false,
        }
    }

    #[inline]
    pub(super) const fn live(&self) -> u32 {
        self.live
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
        !self.is_crowded && self.run.len() <= 2 * SPARSE
    }

    /// The phase that sets a timeout apart from those that the current sweep has not seen.
    #[inline]
    pub(super) const fn phase_of_newcomers(&self) -> bool {
        self.phase ^ (self.unswept > 0)
    }

    /// Takes in a timeout. Returns whether the expiration changed.
    #[inline]
    pub(super) fn admit(
        &mut self,
        pool: &mut Pool,
        record: u32,
        deadline: Tick,
        start: impl FnOnce() -> Tick,
    ) -> bool {
        self.run.push(pool, record);
        self.live += 1;
        if self.live == 1 {
            (self.expiration, self.is_crowded) = (deadline, false);
            true
        } else if self.is_crowded {
            false
        } else if self.live > SPARSE {
            self.is_crowded = true;
            self.lower_expiration(start())
        } else {
            self.lower_expiration(deadline)
        }
    }

    /// Makes the bucket due at `tick` if it was due later. Returns whether it was.
    #[inline]
    pub(super) fn lower_expiration(&mut self, tick: Tick) -> bool {
        let is_lower = tick < self.expiration;
        if is_lower {
            self.expiration = tick;
        }
        is_lower
    }

    /// Makes the bucket due at the least deadline in it.
    pub(super) fn set_expiration(&mut self, least: Tick) {
        self.expiration = least;
    }

    /// Counts out a timeout whose record may remain. Returns whether the bucket is empty now.
    #[inline]
    pub(super) fn leave(&mut self, pool: &mut Pool) -> bool {
        debug_assert!(self.live > 0, "a timeout left an empty bucket");
        self.live -= 1;
        if self.live == 0 {
            self.run.clear(pool);
            self.unswept = 0;
        }
        self.live == 0
    }

    /// Takes out the oldest record.
    #[inline]
    pub(super) fn pop(&mut self, pool: &mut Pool) -> Option<u32> {
        let record = self.run.pop(pool)?;
        if self.unswept > 0 {
            self.unswept -= 1;
            self.phase ^= self.unswept == 0;
        }
        Some(record)
    }

    /// Puts back a record that was popped and is good.
    #[inline]
    pub(super) fn put_back(&mut self, pool: &mut Pool, record: u32) {
        self.run.push(pool, record);
    }

    /// Whether a sweep would drop enough records to be worth it.
    #[inline]
    pub(super) const fn is_littered(&self) -> bool {
        self.run.len() > self.live.saturating_mul(1 + STALE_PER_LIVE).saturating_add(STALE_BESIDES)
    }

    /// Passes over at most `limit` records; keeps one of each for which `keep(record, phase)` holds.
    ///
    /// `keep` is to hold for a timeout that rests here in the phase it is given, and to flip it. A
    /// sweep goes once around the run, however many calls it takes.
    pub(super) fn sweep(
        &mut self,
        pool: &mut Pool,
        limit: u32,
        mut keep: impl FnMut(u32, bool) -> bool,
    ) {
        if self.unswept == 0 {
            self.unswept = self.run.len();
        }
        for _ in 0..limit.min(self.unswept) {
            let phase = self.phase;
            if let Some(record) = self.pop(pool).filter(|&record| keep(record, phase)) {
                self.put_back(pool, record);
            }
        }
    }

    /// Moves the records to another pool, without the stale ones; `keep` is that of [`Self::sweep`].
    pub(super) fn rewrite(
        &mut self,
        from: &mut Pool,
        to: &mut Pool,
        mut keep: impl FnMut(u32, bool) -> bool,
    ) {
        if self.unswept > 0 {
            self.sweep(from, u32::MAX, &mut keep);
        }
        let mut run = Run::new();
        for record in self.run.iter(from).filter(|&record| keep(record, self.phase)) {
            run.push(to, record);
        }
        self.run = run;
        self.phase = !self.phase;
    }

    /// Whether the record at `position` of the run is the one that a sweep keeps for its timeout.
    pub(super) const fn keeps(&self, position: usize, phase: bool) -> bool {
        let is_unswept = self.unswept == 0 || position < self.unswept as usize;
        is_unswept == (phase == self.phase)
    }
}

/// The levels, finest first; the buckets of one are made when it first receives a timeout.
#[derive(Debug)]
pub(super) struct Levels {
    size: usize,
    levels: Vec<Vec<Bucket>>,
}

impl Levels {
    pub(super) const fn new(size: usize) -> Self {
        Self { size, levels: Vec::new() }
    }

    /// The bucket at a place that has been in use.
    #[inline]
    pub(super) fn bucket(&self, place: Place) -> &Bucket {
        &self.levels[usize::from(place.level)][usize::from(place.bucket)]
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, place: Place) -> &mut Bucket {
        &mut self.levels[usize::from(place.level)][usize::from(place.bucket)]
    }

    /// Makes sure that the level of a place has buckets.
    #[inline]
    pub(super) fn reach(&mut self, place: Place) {
        if self.levels.get(usize::from(place.level)).is_none_or(Vec::is_empty) {
            self.create(usize::from(place.level));
        }
    }

    #[cold]
    fn create(&mut self, level: usize) {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.levels[level].reserve_exact(self.size);
        self.levels[level].resize(self.size, Bucket::new());
    }

    /// Number of levels up to the highest that has buckets.
    pub(super) fn count(&self) -> usize {
        self.levels.len()
    }

    /// Gives back the levels above the last that holds a timeout.
    pub(super) fn shrink(&mut self) {
        let is_used = |level: &Vec<Bucket>| level.iter().any(|bucket| bucket.live > 0);
        let used = self.levels.iter().rposition(is_used).map_or(0, |last| last + 1);
        self.levels.truncate(used);
        self.levels.shrink_to_fit();
    }

    /// All buckets that exist, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Bucket)> {
        self.levels.iter().zip(0..).flat_map(|(buckets, level)| {
            buckets.iter().zip(0..).map(move |(found, bucket)| (Place { level, bucket }, found))
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Bucket)> {
        self.levels.iter_mut().zip(0..).flat_map(|(buckets, level)| {
            buckets.iter_mut().zip(0..).map(move |(found, bucket)| (Place { level, bucket }, found))
        })
    }
}
