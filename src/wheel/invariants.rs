//! What must hold of a wheel between any two calls.

use alloc::{collections::BTreeMap, vec, vec::Vec};

use super::{TimingWheel, bucket::Bucket, geometry::Place};

impl<T> TimingWheel<T> {
    /// Checks that the wheel is in order, for tests and fuzzers.
    ///
    /// Clauses of the [contract](crate::wheel#contract) that can be seen at one moment, and what
    /// the implementation relies on: every timeout rests in one bucket that is not due after its
    /// deadline, every non-empty bucket is queued, no other is, and the counts are exact.
    ///
    /// # Panics
    ///
    /// If it is not.
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    pub fn check_invariants(&self) {
        assert!(self.clock <= self.now, "expiry has come further than time");
        self.arena.check_invariants();
        let resting = self.timeouts_by_place();
        let mut chunks = 0;
        for (place, bucket) in self.levels.iter() {
            let timeouts = resting.get(&place).map_or(&[][..], Vec::as_slice);
            assert_eq!(
                self.live(place) as usize,
                timeouts.len(),
                "{place:?} miscounts its timeouts"
            );
            self.check_bucket(place, bucket, timeouts);
            chunks += bucket.run().chunk_count();
        }
        let queued = self.levels.iter().filter(|(_, bucket)| bucket.live() > 0).count();
        assert_eq!(self.queue.len(), queued, "an empty bucket is queued");
        let (all, unused) = self.pool.count();
        assert_eq!(all, chunks + unused, "chunks of records leaked");
    }

    /// Arena indices of the timeouts of each bucket.
    fn timeouts_by_place(&self) -> BTreeMap<Place, Vec<u32>> {
        let mut resting = BTreeMap::new();
        for (key, pending) in self.arena.iter() {
            resting.entry(pending.place()).or_insert_with(Vec::new).push(key.index());
        }
        resting
    }

    fn check_bucket(&self, place: Place, bucket: &Bucket, timeouts: &[u32]) {
        if bucket.live() == 0 {
            assert_eq!(bucket.run().len(), 0, "{place:?} is empty but has records");
            assert_eq!(bucket.unswept(), 0);
            return;
        }
        let expiration = bucket.expiration();
        assert_eq!(self.queue.expiration(place), Some(expiration), "{place:?} is queued wrongly");
        assert!(expiration >= self.clock, "{place:?} was passed over");
        let level = self.geometry.level(place);
        let [lap, clock] = [expiration, self.clock].map(|t| self.geometry.lap_index(level, t));
        let size = self.geometry.size() as u64;
        assert!(lap - clock < size, "{place:?} is out of sight of its level's clock");
        assert_eq!(
            lap % size,
            u64::from(place.number()) % size,
            "{place:?} is due out of its range"
        );
        for &index in timeouts {
            let deadline = self.arena.at(index).expect("it was iterated").deadline;
            assert!(deadline >= expiration, "{place:?} is due after {deadline:?}");
        }
        self.check_records(place, bucket, timeouts);
    }

    /// Each timeout has a record, and just one that a sweep would keep.
    fn check_records(&self, place: Place, bucket: &Bucket, timeouts: &[u32]) {
        let mut found = vec![(false, false); timeouts.len()];
        for (position, record) in bucket.run().iter(&self.pool).enumerate() {
            let Ok(timeout) = timeouts.binary_search(&record) else { continue };
            found[timeout].0 = true;
            let spot = self.arena.at(record).expect("it was iterated").spot();
            found[timeout].1 |= bucket.keeps(position, spot.phase());
        }
        assert!(found.iter().all(|found| found.0), "{place:?} lost the record of a timeout");
        assert!(found.iter().all(|found| found.1), "a sweep of {place:?} would lose a timeout");
        assert!(bucket.unswept() <= bucket.run().len());
    }
}
