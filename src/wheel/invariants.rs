//! The invariants of a wheel between two calls, and a view of its buckets.

use alloc::vec::Vec;

use super::{
    Key, TimingWheel,
    buckets::Contents,
    records::{BucketId, CHUNK},
};
use crate::tick::Tick;

impl<T> TimingWheel<T> {
    /// Checks the clauses of the [contract](crate::contract#the-wheel) that one state of the
    /// wheel shows, and that values, records, buckets and queue agree. For tests and fuzzers.
    ///
    /// # Panics
    ///
    /// Panics if an invariant does not hold.
    ///
    /// # Complexity
    ///
    /// Takes time proportional to the memory in use.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let Self { now, expired_to, values, buckets, .. } = self;
        assert!(expired_to <= now, "timeouts have expired up to {expired_to}, but it is {now}");
        values.check_invariants();
        let is_one = |id: &BucketId| matches!(buckets.bucket(*id).contents, Contents::One(_));
        let records = buckets.records.check_invariants();
        let records = records + buckets.occupied().filter(is_one).count();
        assert_eq!(records, self.len(), "timeouts and records differ in number");
        for key in values.keys_from(0) {
            let position = values.tag_at(key.index());
            let is_live =
                BucketId::of_link(position).is_some() || buckets.records.is_live(position);
            assert!(is_live, "the record of {key:?} is dead");
            let record = buckets.record(position);
            assert_eq!(record.slot, key.index(), "the record of {key:?} is of another timeout");
        }
        buckets.check_invariants();
        let next = self.next_expiration();
        assert!(next.is_none_or(|next| next >= *expired_to), "{next:?} is before {expired_to}");
        let mut listed = 0;
        for id in buckets.occupied() {
            listed += self.check_bucket(id);
        }
        let mut hints: alloc::collections::BTreeMap<_, _> =
            buckets.opened.hints().map(|(tick, position)| (position, tick)).collect();
        for key in values.keys_from(0) {
            let position = values.tag_at(key.index());
            if buckets.records.is_detached(position) {
                let tick = hints.remove(&position).expect("a detached record has a hint");
                assert!(buckets.records.get(position).deadline() >= tick, "{key:?} is late");
                listed += 1;
            }
        }
        assert_eq!(listed, self.len(), "a timeout is in no bucket");
    }

    /// Returns each non-empty bucket, for pictures: its level, its number there, its expiration,
    /// and the keys of its timeouts. Timeouts that are listed by tick are in none of them.
    #[doc(hidden)]
    pub fn buckets(&self) -> impl Iterator<Item = (u32, usize, Tick, Vec<Key>)> {
        let buckets = &self.buckets;
        buckets.occupied().map(|id| {
            let (level, index) = buckets.geometry.split(id);
            let slots = buckets.records_of(id).map(|at| buckets.record(at).slot);
            let keys = slots.filter_map(|slot| self.values.key_at(slot)).collect();
            (level, index, buckets.bucket(id).expiration, keys)
        })
    }

    /// Checks one bucket. Returns the number of its records.
    fn check_bucket(&self, id: BucketId) -> usize {
        let Self { buckets, expired_to, .. } = self;
        let (bucket, geometry) = (buckets.bucket(id), &buckets.geometry);
        let expiration = bucket.expiration;
        assert!(expiration >= *expired_to, "{id:?} is due before {expired_to}");
        assert!(geometry.is_in_lap(id, expiration, *expired_to), "{id:?} is of another lap");
        let is_start = expiration == geometry.start(id, expiration);
        let is_crowded = matches!(bucket.contents, Contents::Chunks { is_crowded: true, .. });
        assert!(!is_crowded || is_start, "the crowded {id:?} is due too late");
        let mut count = 0;
        for position in buckets.records_of(id) {
            let deadline = buckets.record(position).deadline();
            assert!(deadline >= expiration, "{id:?} is due at {expiration}, after {deadline}");
            count += 1;
        }
        assert!(is_crowded || count <= CHUNK as usize, "{id:?} is a crowd of {count}");
        count
    }
}
