//! What one operation waits for, with the hashes of its keys.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::rule::Rule;

/// The keys and thresholds of an operation that is about to wait.
pub(super) struct Demand<K> {
    pub(super) events: SmallVec<[(u64, K); 4]>,
    pub(super) thresholds: SmallVec<[Threshold<K>; 1]>,
    pub(super) rule: Rule,
}

/// A value that a key is to reach.
pub(super) struct Threshold<K> {
    pub(super) hash: u64,
    pub(super) key: K,
    /// The same key again: one goes on a list, and the other is what the operation is asked about
    /// afterwards.
    pub(super) asked: K,
    pub(super) at: u64,
}

impl<K: Eq> Demand<K> {
    /// Leaves out what is there twice, and returns the hashes of what remains: of one watcher each.
    pub(super) fn hashes(&mut self) -> SmallVec<[u64; 4]> {
        // Keys of one hash are rare, and compared each with each.
        let mut seen = HashSet::new();
        let mut index = 0;
        while index < self.events.len() {
            let (hash, key) = &self.events[index];
            let is_new = seen.insert(*hash)
                || !self.events[..index].iter().any(|(other, same)| other == hash && same == key);
            if is_new {
                index += 1;
            } else {
                self.events.remove(index);
            }
        }
        let events = self.events.iter().map(|(hash, _)| *hash);
        events.chain(self.thresholds.iter().map(|threshold| threshold.hash)).collect()
    }
}
