//! The conditions of an operation: its keys and thresholds before it waits, and the rule that
//! decides whether they hold.

use std::{
    boxed::Box,
    collections::{HashMap, hash_map::Entry},
};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::slab::Index;

/// The keys and thresholds of an operation that is about to wait, at most `max_keys`.
pub(super) struct Conditions<K> {
    /// Each key once.
    pub(super) events: SmallVec<[(u64, K); 4]>,
    pub(super) thresholds: SmallVec<[Threshold<K>; 1]>,
    pub(super) rule: Rule,
    /// The position of each hash in `events`, once there are many.
    #[expect(clippy::box_collection, reason = "most operations have none, and a map is large")]
    positions: Option<Box<HashMap<u64, usize, FixedState>>>,
    max_keys: usize,
    pub(super) is_too_large: bool,
}

/// A value that a key must reach.
pub(super) struct Threshold<K> {
    pub(super) hash: u64,
    pub(super) key: K,
    /// A second copy of the key, for the list. The second check reads the first one without a lock.
    pub(super) listed: Option<K>,
    pub(super) at: u64,
    /// Its watcher, once it is on the list.
    pub(super) node: Option<Index>,
}

impl<K> Threshold<K> {
    pub(super) fn new(hash: u64, key: K, at: u64) -> Self
    where
        K: Clone,
    {
        Self { hash, listed: Some(key.clone()), key, at, node: None }
    }
}

/// Number of keys below which a new key is compared with each.
const FEW: usize = 16;

impl<K: Eq> Conditions<K> {
    #[inline]
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            events: SmallVec::new(),
            thresholds: SmallVec::new(),
            rule: Rule::CHECKED,
            positions: None,
            max_keys,
            is_too_large: false,
        }
    }

    /// Adds a key whose events are watched. Returns the key if it is a duplicate, or if there is no
    /// room.
    #[inline]
    pub(super) fn add_events(&mut self, hash: u64, key: K) -> Option<K> {
        if self.is_too_large || self.is_watched(hash, &key) || !self.has_room() {
            return Some(key);
        }
        self.events.push((hash, key));
        None
    }

    /// Adds a threshold. Returns it if there is no room.
    pub(super) fn add_threshold(&mut self, threshold: Threshold<K>) -> Option<Threshold<K>> {
        if !self.has_room() {
            return Some(threshold);
        }
        self.thresholds.push(threshold);
        None
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        self.is_too_large = self.events.len() + self.thresholds.len() == self.max_keys;
        !self.is_too_large
    }

    #[inline]
    fn is_watched(&mut self, hash: u64, key: &K) -> bool {
        let is_it = |(other, same): &(u64, K)| *other == hash && same == key;
        if self.events.len() < FEW {
            return self.events.iter().any(is_it);
        }
        self.is_watched_among_many(hash, key)
    }

    #[cold]
    fn is_watched_among_many(&mut self, hash: u64, key: &K) -> bool {
        let positions = self.positions.get_or_insert_with(|| {
            let hashes = self.events.iter().map(|(hash, _)| *hash);
            Box::new(hashes.zip(0..).collect())
        });
        match positions.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(self.events.len());
                false
            }
            // Keys that share a hash are rare, so they are compared one by one.
            Entry::Occupied(entry) => {
                self.events[*entry.get()].1 == *key
                    || self.events.iter().any(|(other, same)| *other == hash && same == key)
            }
        }
    }

    /// Returns the hashes of the keys, one for each watcher.
    pub(super) fn hashes(&self) -> SmallVec<[u64; 4]> {
        let events = self.events.iter().map(|(hash, _)| *hash);
        events.chain(self.thresholds.iter().map(|threshold| threshold.hash)).collect()
    }
}

/// The conditions of an operation that do not hold yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// Whether all of its conditions must hold, instead of one.
    is_all: bool,
    /// Whether its check is one of the conditions.
    is_checked: bool,
    /// Thresholds that have not been reached.
    missing: u32,
}

/// Effect of an event on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    /// The operation needs a check.
    Check,
    Satisfied,
}

impl Rule {
    /// The check is the only condition.
    pub(super) const CHECKED: Self = Self { is_all: false, is_checked: true, missing: 0 };

    pub(super) const fn new(is_all: bool, is_checked: bool) -> Self {
        Self { is_all, is_checked, missing: 0 }
    }

    /// Adds a threshold that has not been reached.
    pub(super) fn add_threshold(&mut self) {
        self.missing += 1;
    }

    /// Returns the number of thresholds that have not been reached.
    pub(super) const fn missing(self) -> u32 {
        self.missing
    }

    /// Returns the effect of an event on a key.
    #[inline]
    pub(super) const fn on_event(self) -> Effect {
        match self {
            Self { is_checked: false, .. } | Self { is_all: true, missing: 1.., .. } => {
                Effect::Nothing
            }
            Self { .. } => Effect::Check,
        }
    }

    /// Returns the effect of a reached threshold.
    pub(super) fn on_threshold(&mut self) -> Effect {
        debug_assert_ne!(self.missing, 0, "a threshold is reached once");
        self.missing -= 1;
        match self {
            Self { is_all: false, .. } => Effect::Satisfied,
            Self { missing: 1.., .. } => Effect::Nothing,
            Self { is_checked: true, .. } => Effect::Check,
            Self { is_checked: false, .. } => Effect::Satisfied,
        }
    }

    /// Returns the effect of the thresholds before the operation waits. `reached` tells whether any
    /// was reached.
    pub(super) const fn at_first(self, reached: bool) -> Effect {
        match self {
            Self { is_all: false, .. } | Self { is_checked: false, missing: 0, .. } if reached => {
                Effect::Satisfied
            }
            _ => self.on_event(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_there_once_however_often_it_is_added() {
        let mut conditions = Conditions::new(1000);
        for number in (0..100_000).map(|number| number % 500) {
            // Two keys share each hash.
            conditions.add_events(number / 2, number);
        }
        assert!(conditions.events.iter().map(|(_, key)| *key).eq(0..500));
        assert_eq!(conditions.hashes().len(), 500);
    }

    #[test]
    fn conditions_have_room_for_max_keys_and_no_more() {
        for max in 1..40 {
            let mut conditions = Conditions::new(max);
            for number in 0..max as u64 {
                let threshold = Threshold::new(0, number, 1);
                if number % 3 == 0 {
                    assert!(conditions.add_threshold(threshold).is_none());
                } else {
                    assert_eq!(conditions.add_events(number, number), None);
                    assert_eq!(conditions.add_events(number, number), Some(number), "it is there");
                }
                assert!(!conditions.is_too_large);
            }
            assert_eq!((conditions.add_events(99, 99), conditions.is_too_large), (Some(99), true));
        }
    }

    #[test]
    fn any_needs_one_condition_and_all_needs_every() {
        let mut any = Rule::new(false, true);
        any.add_threshold();
        any.add_threshold();
        assert_eq!(any.on_event(), Effect::Check);
        assert_eq!(any.on_threshold(), Effect::Satisfied);

        let mut all = Rule::new(true, true);
        all.add_threshold();
        all.add_threshold();
        assert_eq!(all.on_event(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Check);
        assert_eq!(all.on_event(), Effect::Check);

        let mut thresholds = Rule::new(true, false);
        thresholds.add_threshold();
        assert_eq!(thresholds.on_threshold(), Effect::Satisfied);
        assert_eq!(Rule::new(true, false).at_first(true), Effect::Satisfied);
        assert_eq!(Rule::new(false, false).at_first(false), Effect::Nothing);
    }
}
