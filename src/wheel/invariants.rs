//! The invariants of a wheel between two calls.

use alloc::vec::Vec;

use super::{
    TimingWheel,
    chunks::{NURSERY, Owner, Position},
    geometry::BucketId,
    hierarchy::{Hierarchy, Source},
};
use crate::tick::Tick;

impl<T> TimingWheel<T> {
    /// Checks the invariants of the wheel, for tests and fuzzers.
    ///
    /// Checks the clauses of the [contract](crate::wheel#contract) that one state of the wheel
    /// shows. Also checks the invariants of the implementation. Every timeout has one live record,
    /// in a bucket or run that is not due after its deadline. The wheel knows the bucket or run
    /// that is due next. Masks, lists and queue agree.
    ///
    /// # Panics
    ///
    /// Panics if an invariant does not hold.
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    pub fn check_invariants(&self) {
        self.arena.check_invariants();
        let hierarchy = &self.hierarchy;
        let live = hierarchy.check_invariants();
        assert_eq!(live, self.len(), "records and timeouts differ in number");
        for (slot, position) in self.arena.iter() {
            assert!(hierarchy.is_live(position), "the record of slot {slot} has been removed");
            let of = hierarchy.chunks.record(position).slot;
            assert_eq!(of, slot, "the record of slot {slot} belongs to slot {of}");
        }
    }
}

impl Hierarchy {
    /// Panics if an invariant does not hold. Returns the number of live records.
    fn check_invariants(&self) -> usize {
        let Self { now, expired_to, .. } = *self;
        assert!(expired_to <= now, "timeouts have expired up to {expired_to}, but it is {now}");
        let (mut used, mut live) = (0, 0);
        let mut least: Option<Tick> = None;
        let mut note = |pending: usize, expiration: Tick| {
            live += pending;
            if pending > 0 {
                least = Some(least.map_or(expiration, |least| least.min(expiration)));
            }
        };
        for id in self.occupied() {
            used += self.check_bucket(id);
            note(self.live_in_bucket(id).count(), self.bucket(id).expiration);
        }
        for level in 0..self.runs.levels() {
            self.check_run(level);
            let gathered = self.runs.gathering().filter(|id| id.level() == level);
            for (deadline, position) in self.runs.iter(level) {
                let expiration = gathered.map_or(deadline, |id| self.bucket(id).expiration);
                note(usize::from(self.is_live(position)), expiration);
            }
        }
        used += self.runs.check_invariants(&self.chunks);
        let in_nursery = self.check_nursery();
        self.chunks.check_invariants(used);
        self.check_sparse();
        self.check_queue();
        let next = self.next_due.map(|next| next.expiration);
        assert_eq!(next, least, "`next_due` is not the bucket or run with the least expiration");
        self.check_witness();
        live + in_nursery
    }

    /// Returns whether a record is live and not in the batch of cancelled records.
    pub(super) fn is_live(&self, position: Position) -> bool {
        self.chunks.is_live(position) && self.cancelled.iter().all(|other| other != position)
    }

    /// Returns all buckets with chunks.
    pub(super) fn occupied(&self) -> impl Iterator<Item = BucketId> {
        self.levels.iter().enumerate().flat_map(|(index, level)| {
            let occupied = level.iter().enumerate().filter(|(_, bucket)| !bucket.is_empty());
            occupied.map(move |(number, _)| BucketId::new(index, number))
        })
    }

    /// Returns the chunks of a bucket, each with the mask of its written records.
    pub(super) fn chunks_of(&self, id: BucketId) -> impl Iterator<Item = (u32, u16)> {
        let bucket = self.bucket(id);
        let newest = bucket.newest();
        let written = bucket.written();
        self.chunks
            .list(newest)
            .map(move |chunk| (chunk, if chunk == newest { written } else { u16::MAX }))
    }

    /// Returns the live records of a bucket.
    pub(super) fn live_in_bucket(&self, id: BucketId) -> impl Iterator<Item = Position> {
        let positions = |chunk, written: u16| {
            let is_written = move |offset: &u32| written >> offset & 1 != 0;
            (0..16).filter(is_written).map(move |offset| Position::new(chunk, offset))
        };
        self.chunks_of(id)
            .flat_map(move |(chunk, written)| positions(chunk, written))
            .filter(|&position| self.is_live(position))
    }

    /// Checks one bucket. Returns the number of its chunks.
    fn check_bucket(&self, id: BucketId) -> usize {
        let bucket = self.bucket(id);
        let (level, expiration, expired_to) = (id.level(), bucket.expiration, self.expired_to);
        assert!(self.levels[level].is_occupied(id.index()), "{id:?} is not listed");
        assert!(expiration >= expired_to, "{id:?} is due at {expiration}, before {expired_to}");
        let above = |tick: Tick| tick.get() >> self.geometry.shift(level) >> self.bits();
        assert_eq!(above(expiration), above(expired_to), "{id:?} is out of its lap");
        let digit = (expiration.get() >> self.geometry.shift(level)) % (1 << self.bits());
        assert_eq!(digit, id.index() as u64, "{id:?} is due out of its range");
        let mut owner = Owner::Newest(id);
        let mut count = 0;
        for (chunk, written) in self.chunks_of(id) {
            assert_eq!(self.chunks.owner(chunk), owner, "the list of {id:?} is broken");
            let (mask, unwritten) = (self.chunks.mask(chunk), !written);
            assert_ne!(mask, 0, "chunk {chunk} of {id:?} has no live record");
            assert_eq!(mask & unwritten, unwritten, "chunk {chunk} of {id:?} lost a free position");
            owner = Owner::After(chunk);
            count += 1;
        }
        for position in self.live_in_bucket(id) {
            let deadline = self.chunks.record(position).deadline();
            assert!(deadline >= expiration, "{id:?} is due at {expiration}, after {deadline}");
        }
        assert!(count == 1 || level == 0 || bucket.is_crowded, "{id:?} has {count} chunks");
        count
    }

    fn bits(&self) -> u32 {
        self.geometry.size().ilog2()
    }

    /// Checks the nursery. Returns the number of its live records.
    fn check_nursery(&self) -> usize {
        let mut deadlines = Vec::new();
        for position in (0..NURSERY).flat_map(|chunk| self.live_in_nursery(chunk)) {
            assert!(self.is_live(position), "{position:?} of the nursery has been removed");
            deadlines.push(self.chunks.record(position).deadline());
        }
        let len = self.nursery.len() as usize;
        assert_eq!(deadlines.len(), len, "the nursery counts {len} live records");
        let (bound, least) = (self.nursery.bound(), deadlines.iter().min().copied());
        assert!(bound <= least, "the bound of the nursery is {bound:?}, after {least:?}");
        let is_ahead = least.is_none_or(|least| least >= self.expired_to);
        assert!(is_ahead, "{least:?} of the nursery is before {:?}", self.expired_to);
        if self.nursery.is_exact() {
            assert_eq!(bound, least, "the bound of the nursery is not its least deadline");
        }
        deadlines.len()
    }

    /// Checks that every live record of a run's chunks has an entry that has not been visited.
    fn check_run(&self, level: usize) {
        let mut listed: Vec<_> = self.runs.iter(level).map(|(_, at)| at.number()).collect();
        listed.sort_unstable();
        for (deadline, position) in self.runs.iter(level) {
            if self.is_live(position) {
                let of_record = self.chunks.record(position).deadline();
                assert_eq!(of_record, deadline, "the entry of {position:?} is stale");
                let before = self.expired_to;
                assert!(deadline >= before, "{position:?} is due at {deadline}, before {before}");
            }
        }
        for chunk in self.runs.chunks(level, &self.chunks) {
            for position in (0..16).map(|offset| Position::new(chunk, offset)) {
                let is_listed = listed.binary_search(&position.number()).is_ok();
                assert!(
                    is_listed || !self.is_live(position),
                    "the run of level {level} lost {position:?}"
                );
            }
        }
    }

    /// Checks that the order of the sparse bucket lists each live record of its chunk.
    fn check_sparse(&self) {
        let Some((chunk, entries)) = self.sparse.entries() else { return };
        let Owner::Newest(id) = self.chunks.owner(chunk) else {
            panic!("the sorted chunk {chunk} is in no bucket")
        };
        assert_eq!(self.bucket(id).newest(), chunk, "the order of {id:?} is of another chunk");
        let live: Vec<_> = entries.filter(|&(_, position)| self.is_live(position)).collect();
        assert!(
            live.is_sorted_by_key(|&(deadline, _)| deadline),
            "the order of {id:?} is wrong: {live:?}"
        );
        assert_eq!(
            live.len(),
            self.live_in_bucket(id).count(),
            "the order of {id:?} lacks a timeout"
        );
        for (deadline, position) in live {
            let of_record = self.chunks.record(position).deadline();
            assert_eq!(of_record, deadline, "the entry of {position:?} is stale");
        }
    }

    fn check_queue(&self) {
        for (index, level) in self.levels.iter().enumerate() {
            let in_queue = self.queue.expiration(index);
            assert_eq!(in_queue, level.queued, "level {index} is queued for {in_queue:?}");
            let occupied = level.iter().enumerate().filter(|(_, bucket)| !bucket.is_empty());
            let first = occupied.map(|(number, bucket)| (number, bucket.expiration)).next();
            let occupied = first.map(|(number, _)| number);
            assert_eq!(level.first(), occupied, "level {index} marks another bucket as occupied");
            if let Some((_, expiration)) = first {
                let queued = level.queued.expect("an occupied level is queued");
                assert!(queued <= expiration, "level {index}: {queued} is after {expiration}");
            }
        }
        let queued = self.levels.iter().filter(|level| level.queued.is_some()).count();
        assert_eq!(self.queue.len(), queued, "the queue holds another number of levels");
    }

    fn check_witness(&self) {
        let Some(next) = self.next_due else { return };
        assert!(self.is_live(next.witness), "the witness of {next:?} was removed");
        let (of_level, of_run) = match next.source {
            Source::Bucket(id) => {
                let found = self.live_in_bucket(id).any(|position| position == next.witness);
                assert!(found, "the witness of {next:?} is elsewhere");
                assert_eq!(self.bucket(id).expiration, next.expiration);
                (Some(id.level()), None)
            }
            Source::Run(level) => {
                let mut live = self.runs.iter(level.into()).filter(|&(_, at)| self.is_live(at));
                assert_eq!(live.next(), Some((next.expiration, next.witness)));
                (None, Some(level.into()))
            }
        };
        for id in self.occupied().filter(|id| Some(id.level()) != of_level) {
            let expiration = self.bucket(id).expiration;
            assert!(next.until <= expiration, "{id:?} is due at {expiration}, before {next:?}");
        }
        for level in (0..self.runs.levels()).filter(|&level| Some(level) != of_run) {
            let mut live = self.runs.iter(level).filter(|&(_, at)| self.is_live(at));
            let is_after = live.all(|(deadline, _)| next.until <= deadline);
            assert!(is_after, "the run of level {level} is due before {next:?}");
        }
    }
}
