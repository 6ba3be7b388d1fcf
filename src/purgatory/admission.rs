//! Finding places for an operation that is to wait, if these are limited.

use std::hash::Hash;

use smallvec::SmallVec;

use super::{
    capacity::Overload,
    core::{Core, Ticket},
    demand::Demand,
    operation::{Completion, DelayedOperation},
    shard::Contents,
    slab::Index,
    watch::WatchError,
};

impl<K, O, R> Core<K, O, R>
where
    K: Hash + Eq + Send + 'static,
    O: DelayedOperation<K, R>,
    R: Send + 'static,
{
    /// Finds places for an operation, of which the caller is to give back those whose hashes are
    /// returned; or says why there are none.
    #[inline]
    #[expect(clippy::type_complexity, reason = "the error is one of the variants")]
    pub(super) fn admit(
        &self,
        demand: &mut Demand<K>,
    ) -> Result<SmallVec<[u64; 4]>, fn(O) -> WatchError<O>> {
        while !self.capacity.admit() {
            if self.capacity.on_full == Overload::Refuse || !self.displace_eldest() {
                self.capacity.refuse();
                return Err(WatchError::Full);
            }
        }
        if !self.capacity.is_per_key() {
            return Ok(SmallVec::new());
        }
        let hashes = demand.hashes();
        for (count, &hash) in hashes.iter().enumerate() {
            if !self.admit_to_key(demand, hash) {
                hashes[..count].iter().for_each(|&hash| self.capacity.release_from_key(hash));
                self.capacity.release();
                self.capacity.refuse();
                return Err(WatchError::KeyFull);
            }
        }
        Ok(hashes)
    }

    fn admit_to_key(&self, demand: &Demand<K>, hash: u64) -> bool {
        while !self.capacity.admit_to_key(hash) {
            let events = demand.events.iter().map(|(hash, key)| (*hash, key));
            let thresholds =
                demand.thresholds.iter().map(|threshold| (threshold.hash, &threshold.key));
            let key = events.chain(thresholds).find(|(other, _)| *other == hash);
            let is_displaced = self.capacity.on_key_full == Overload::DisplaceOldest
                && key.is_some_and(|key| self.displace_on_key(key));
            if !is_displaced {
                return false;
            }
        }
        true
    }

    /// Ends the operation that has waited longest. Returns whether there was one.
    fn displace_eldest(&self) -> bool {
        self.displace(|contents| contents.lists.eldest())
    }

    /// Ends the operation that has watched a key longest; or, if all that watch it wait for its
    /// value, the one that waits for the greatest.
    fn displace_on_key(&self, (hash, key): (u64, &K)) -> bool {
        let find = |contents: &Contents<K, O, R>| contents.lists.find(hash, |other| other == key);
        self.displace(|contents| find(contents).and_then(|list| contents.lists.first(list)))
            || self.shards.iter().enumerate().any(|(number, shard)| {
                let ticket = {
                    let contents = shard.contents.lock();
                    let list = find(&contents);
                    list.and_then(|list| contents.greatest(list))
                };
                ticket.is_some_and(|place| self.displace_at(number, place))
            })
    }

    /// Ends the operation that has waited longest of those behind the nodes that `first` names, one
    /// in each shard.
    fn displace(&self, first: impl Fn(&Contents<K, O, R>) -> Option<Index>) -> bool {
        let eldest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let contents = shard.contents.lock();
            let eldest = contents.oldest_from(first(&contents))?;
            Some((eldest.since, number, eldest.place))
        });
        let eldest = eldest.min_by_key(|&(since, _, _)| since);
        eldest.is_some_and(|(_, number, place)| {
            self.displace_at(number, place);
            true
        })
    }

    fn displace_at(&self, number: usize, place: (Index, u64)) -> bool {
        self.claim(Ticket::new(number, place), Completion::Displaced)
    }
}
