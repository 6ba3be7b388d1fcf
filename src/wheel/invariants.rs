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
    /// that is due first. Masks, lists and queue agree.
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
            assert_eq!(hierarchy.chunks.record(position).slot, slot, "a record is another's");
        }
    }
}

impl Hierarchy {
    /// Panics if an invariant does not hold. Returns the number of live records.
    fn check_invariants(&self) -> usize {
        assert!(self.expired_to <= self.now, "expiry has come further than time");
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
            let gathered = self.runs.gathered().filter(|id| id.level() == level);
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
        assert_eq!(self.first.map(|first| first.expiration), least, "another is due first");
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
    fn chunks_of(&self, id: BucketId) -> impl Iterator<Item = (u32, u16)> {
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
        let (level, expiration) = (id.level(), bucket.expiration);
        assert!(self.levels[level].is_occupied(id.index()), "{id:?} is not listed");
        assert!(expiration >= self.expired_to, "{id:?} was passed over");
        let above = |tick: Tick| tick.get() >> self.geometry.shift(level) >> self.bits();
        assert_eq!(above(expiration), above(self.expired_to), "{id:?} is out of its lap");
        let digit = (expiration.get() >> self.geometry.shift(level)) % (1 << self.bits());
        assert_eq!(digit, id.index() as u64, "{id:?} is due out of its range");
        let mut owner = Owner::Newest(id);
        let mut count = 0;
        for (chunk, written) in self.chunks_of(id) {
            assert_eq!(self.chunks.owner(chunk), owner, "the list of {id:?} is broken");
            assert_ne!(self.chunks.mask(chunk), 0, "an empty chunk was kept");
            let unwritten = !written;
            assert_eq!(self.chunks.mask(chunk) & unwritten, unwritten, "a bit is lost");
            owner = Owner::After(chunk);
            count += 1;
        }
        for position in self.live_in_bucket(id) {
            let deadline = self.chunks.record(position).deadline();
            assert!(deadline >= expiration, "{id:?} is due after {deadline:?}");
        }
        assert!(count == 1 || level == 0 || bucket.is_crowded, "{id:?} is crowded");
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
        assert_eq!(deadlines.len(), self.nursery.len() as usize, "the nursery miscounts");
        let least = deadlines.iter().min().copied();
        assert!(self.nursery.bound() <= least, "the nursery is due after a deadline in it");
        assert!(least.is_none_or(|least| least >= self.expired_to), "the nursery was passed over");
        if self.nursery.is_exact() {
            assert_eq!(self.nursery.bound(), least, "the nursery is due before its deadlines");
        }
        deadlines.len()
    }

    /// Checks that every live record of a run's chunks has an entry that has not been visited.
    fn check_run(&self, level: usize) {
        let mut listed: Vec<_> = self.runs.iter(level).map(|(_, at)| at.number()).collect();
        listed.sort_unstable();
        for (deadline, position) in self.runs.iter(level) {
            if self.is_live(position) {
                assert_eq!(self.chunks.record(position).deadline(), deadline, "a run is stale");
                assert!(deadline >= self.expired_to, "a run has been passed over");
            }
        }
        for chunk in self.runs.chunks(level, &self.chunks) {
            for position in (0..16).map(|offset| Position::new(chunk, offset)) {
                let is_listed = listed.binary_search(&position.number()).is_ok();
                assert!(is_listed || !self.is_live(position), "a run lost {position:?}");
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
        assert!(live.is_sorted_by_key(|&(deadline, _)| deadline), "{id:?} is not in order");
        assert_eq!(live.len(), self.live_in_bucket(id).count(), "{id:?} lost a timeout");
        for (deadline, position) in live {
            assert_eq!(self.chunks.record(position).deadline(), deadline, "{id:?} is stale");
        }
    }

    fn check_queue(&self) {
        for (index, level) in self.levels.iter().enumerate() {
            assert_eq!(level.queued, self.queue.expiration(index), "level {index} is misqueued");
            let occupied = level.iter().enumerate().filter(|(_, bucket)| !bucket.is_empty());
            let first = occupied.map(|(number, bucket)| (number, bucket.expiration)).next();
            assert_eq!(level.first(), first.map(|(number, _)| number), "level {index} miscounts");
            if let Some((_, expiration)) = first {
                let queued = level.queued.expect("an occupied level is queued");
                assert!(queued <= expiration, "level {index} is queued too late");
            }
        }
        let queued = self.levels.iter().filter(|level| level.queued.is_some()).count();
        assert_eq!(self.queue.len(), queued, "a level is queued that is not there");
    }

    fn check_witness(&self) {
        let Some(first) = self.first else { return };
        assert!(self.is_live(first.witness), "the witness was removed");
        match first.source {
            Source::Bucket(id) => {
                let found = self.live_in_bucket(id).any(|position| position == first.witness);
                assert!(found, "the witness is not in {id:?}");
                assert_eq!(self.bucket(id).expiration, first.expiration);
            }
            Source::Run(level) => {
                let mut live = self.runs.iter(level).filter(|&(_, at)| self.is_live(at));
                assert_eq!(live.next(), Some((first.expiration, first.witness)));
            }
        }
    }
}
