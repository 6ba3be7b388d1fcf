//! Finding places for an operation that is to wait, if these are limited.

use std::hash::Hash;

use smallvec::SmallVec;

use super::{
    capacity::Overload,
    core::{Core, Ticket},
    demand::Demand,
    error::WatchError,
    operation::{Completion, DelayedOperation},
    shard::Contents,
    slab::Index,
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
        // An operation that displaces none goes first, so that none is displaced for one that is
        // then refused.
        let is_total_first = self.capacity.on_full == Overload::Refuse;
        let is_admitted = !is_total_first || self.admit_to_total();
        let hashes = if is_admitted { self.admit_to_keys(demand) } else { None };
        match hashes {
            Some(hashes) if is_total_first || self.admit_to_total() => Ok(hashes),
            Some(hashes) => {
                hashes.iter().for_each(|&hash| self.capacity.release_from_key(hash));
                self.capacity.refuse();
                Err(WatchError::full)
            }
            None => {
                self.capacity.refuse();
                if !is_admitted {
                    return Err(WatchError::full);
                }
                if is_total_first {
                    self.capacity.release();
                }
                Err(WatchError::key_full)
            }
        }
    }

    /// Takes a place among all.
    #[inline]
    fn admit_to_total(&self) -> bool {
        while !self.capacity.admit() {
            if self.capacity.on_full == Overload::Refuse || !self.displace_eldest() {
                return false;
            }
        }
        true
    }

    /// Takes places among those of all keys, and returns their hashes; or takes none.
    #[inline]
    fn admit_to_keys(&self, demand: &mut Demand<K>) -> Option<SmallVec<[u64; 4]>> {
        if !self.capacity.is_per_key() {
            return Some(SmallVec::new());
        }
        let hashes = demand.hashes();
        for (count, &hash) in hashes.iter().enumerate() {
            if !self.admit_to_key(demand, hash) {
                hashes[..count].iter().for_each(|&hash| self.capacity.release_from_key(hash));
                return None;
            }
        }
        Some(hashes)
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
            || self.displace_greatest(|contents| find(contents))
    }

    /// Ends the operation that has waited longest of those behind the nodes that `first` names, one
    /// in each shard. Returns whether there was one.
    fn displace(&self, first: impl Fn(&Contents<K, O, R>) -> Option<Index>) -> bool {
        let eldest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let contents = shard.contents.lock();
            let eldest = contents.oldest_from(first(&contents))?;
            Some((eldest.since, Ticket::new(number, eldest.place)))
        });
        let eldest = eldest.min_by_key(|&(since, _)| since);
        eldest.inspect(|&(_, ticket)| self.displace_one(ticket)).is_some()
    }

    /// Ends the operation that waits for the greatest value, of those on the lists that `list`
    /// names, one in each shard. Returns whether there was one.
    fn displace_greatest(&self, list: impl Fn(&Contents<K, O, R>) -> Option<Index>) -> bool {
        let greatest = self.shards.iter().enumerate().filter_map(|(number, shard)| {
            let contents = shard.contents.lock();
            let (at, place) = contents.greatest(list(&contents)?)?;
            Some((at, Ticket::new(number, place)))
        });
        let greatest = greatest.max_by_key(|&(at, _)| at);
        greatest.inspect(|&(_, ticket)| self.displace_one(ticket)).is_some()
    }

    /// Ends an operation, unless it has ended by itself: its place is free in either case.
    fn displace_one(&self, ticket: Ticket) {
        self.claim(ticket, Completion::Displaced);
    }
}
