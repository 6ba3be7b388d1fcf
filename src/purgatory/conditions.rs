//! The conditions that a caller gives an operation, and the rule that decides whether they hold.

use hashbrown::HashTable;
use smallvec::SmallVec;

/// A condition of an operation that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Condition<K> {
    /// The check of the operation returns `true`. Each event of the key leads to a check.
    Events(K),
    /// The value of the key reaches this number. Values never decrease.
    Threshold(K, u64),
}

/// Conditions of an operation, and whether one or all of them must hold; for
/// [`Purgatory::watch`](super::Purgatory::watch).
///
/// # Examples
///
/// A fetch that waits until partition 3 holds a record at offset 100, or until partition 4 changes
/// its leader, which is an event:
///
/// ```
/// use delaywheel::{Condition, Watch};
///
/// let watch = Watch::any([Condition::Threshold(3, 100), Condition::Events(4)]);
/// # let _ = watch;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Watch<I> {
    conditions: I,
    needs: Needs,
}

/// What satisfies an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Its check, after an event on one of its plain keys.
    Check,
    /// One of the conditions of its [`Watch`].
    Any,
    /// All conditions of its [`Watch`].
    All,
}

impl<I> Watch<I> {
    /// Returns conditions of which *one* satisfies the operation: a threshold is reached, or its
    /// check returns `true` after an event. Without any condition, the operation waits as one
    /// without a key.
    pub const fn any(conditions: I) -> Self {
        Self { conditions, needs: Needs::Any }
    }

    /// Returns conditions that must *all* hold: every threshold is reached and, if the operation
    /// watches events, its check returns `true`. Without any condition, only the check decides: the
    /// operation completes at once, or waits as one without a key.
    ///
    /// Each announcement checks the operation at most once. If a caller announces one change both
    /// as a value and as an event, an operation that waits for both is checked twice.
    pub const fn all(conditions: I) -> Self {
        Self { conditions, needs: Needs::All }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Something that an operation can watch: a [`Watch`], or plain keys such as `[3, 4]`, which stand
/// for their events. Other crates cannot implement this trait.
pub trait Watches<K>: sealed::Sealed {
    /// Returns the conditions, and which of them must hold. A threshold comes with a second copy of
    /// its key.
    #[doc(hidden)]
    fn into_conditions(self) -> (Needs, impl Iterator<Item = (K, Option<(u64, K)>)>);
}

impl<I: IntoIterator> sealed::Sealed for I {}

impl<K, I: IntoIterator<Item = K>> Watches<K> for I {
    #[inline]
    fn into_conditions(self) -> (Needs, impl Iterator<Item = (K, Option<(u64, K)>)>) {
        (Needs::Check, self.into_iter().map(|key| (key, None)))
    }
}

impl<I> sealed::Sealed for Watch<I> {}

impl<K: Clone, I: IntoIterator<Item = Condition<K>>> Watches<K> for Watch<I> {
    fn into_conditions(self) -> (Needs, impl Iterator<Item = (K, Option<(u64, K)>)>) {
        let conditions = self.conditions.into_iter().map(|condition| match condition {
            Condition::Events(key) => (key, None),
            Condition::Threshold(key, at) => (key.clone(), Some((at, key))),
        });
        (self.needs, conditions)
    }
}

/// The conditions of an operation that is about to wait, at most `max_keys`.
pub(crate) struct Conditions<K> {
    /// Each key once, with its hash; `None` once the key is on its list.
    pub(super) events: SmallVec<[(u64, Option<K>); 4]>,
    pub(super) thresholds: SmallVec<[Threshold<K>; 1]>,
    pub(super) rule: Rule,
    /// The positions in `events` by hash. Used from [`COMPARED`] events on.
    positions: HashTable<usize>,
    /// Whether conditions were left out, because there are more than `max_keys`.
    pub(super) is_too_large: bool,
}

/// A value that a key must reach.
pub(super) struct Threshold<K> {
    pub(super) hash: u64,
    pub(super) key: K,
    pub(super) at: u64,
    /// A second copy of the key, for its list. The second check reads `key` without a lock.
    pub(super) listed: Option<K>,
}

/// Number of keys below which a new key is compared with each.
const COMPARED: usize = 16;

impl<K: Eq> Conditions<K> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            events: SmallVec::new(),
            thresholds: SmallVec::new(),
            rule: Rule { needs: Needs::Check, check: Check::Always, missing: 0 },
            positions: HashTable::new(),
            is_too_large: false,
        }
    }

    /// Collects conditions, but each key of events only once. Passes each key that it does not need
    /// to `discard`.
    #[inline]
    pub(super) fn collect(
        &mut self,
        watches: impl Watches<K>,
        max_keys: usize,
        hash: impl Fn(&K) -> u64,
        discard: impl Fn(K),
    ) {
        let (needs, conditions) = watches.into_conditions();
        self.rule.needs = needs;
        for (key, threshold) in conditions {
            let hash = hash(&key);
            let is_it =
                |(other, same): &(u64, Option<K>)| *other == hash && same.as_ref() == Some(&key);
            let is_known = match threshold {
                Some(_) => false,
                None if self.events.len() < COMPARED => self.events.iter().any(is_it),
                None => self.is_among_many(hash, is_it),
            };
            if is_known {
                discard(key);
                continue;
            }
            if self.events.len() + self.thresholds.len() == max_keys {
                self.is_too_large = true;
                discard(key);
                if let Some((_, key)) = threshold {
                    discard(key);
                }
                break;
            }
            match threshold {
                None => self.events.push((hash, Some(key))),
                Some((at, listed)) => {
                    self.thresholds.push(Threshold { hash, key, at, listed: Some(listed) });
                }
            }
        }
        if self.events.is_empty() && !self.thresholds.is_empty() {
            self.rule.check = Check::Never;
        }
    }

    /// Makes the operation wait for an event before its first check, for checks that are always
    /// `true`.
    #[cfg(feature = "future")]
    pub(crate) fn need_event(&mut self) {
        if self.rule.check == Check::Always {
            self.rule.check = Check::AfterEvent;
        }
    }

    /// Returns whether `is_it` is true of one of many events with this hash.
    #[cold]
    fn is_among_many(&mut self, hash: u64, is_it: impl Fn(&(u64, Option<K>)) -> bool) -> bool {
        let Self { events, positions, .. } = self;
        for index in positions.len()..events.len() {
            positions.insert_unique(events[index].0, index, |index| events[*index].0);
        }
        positions.find(hash, |index| is_it(&events[*index])).is_some()
    }

    /// Returns the hashes of the keys, one for each watcher that is on no list yet.
    pub(super) fn hashes(&self) -> SmallVec<[u64; 4]> {
        let events = self.events.iter().filter(|(_, key)| key.is_some()).map(|(hash, _)| *hash);
        let thresholds = self.thresholds.iter().filter(|threshold| threshold.listed.is_some());
        events.chain(thresholds.map(|threshold| threshold.hash)).collect()
    }

    /// Passes each key that is left to `discard`.
    #[inline]
    pub(super) fn clear(&mut self, discard: impl Fn(K)) {
        while let Some((_, key)) = self.events.pop() {
            key.into_iter().for_each(&discard);
        }
        while let Some(Threshold { key, listed, .. }) = self.thresholds.pop() {
            discard(key);
            listed.into_iter().for_each(&discard);
        }
    }
}

/// The conditions of an operation that do not hold yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) needs: Needs,
    pub(super) check: Check,
    /// Number of thresholds that have not been reached.
    pub(super) missing: u32,
}

/// Whether the check of an operation is one of its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    Never,
    /// The check counts once an event has been announced.
    #[cfg(feature = "future")]
    AfterEvent,
    Always,
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
    /// Takes note of an event on a key. Returns its effect.
    #[inline]
    pub(super) fn on_event(&mut self) -> Effect {
        #[cfg(feature = "future")]
        if self.check == Check::AfterEvent {
            self.check = Check::Always;
        }
        self.effect()
    }

    /// Returns the effect of the conditions that hold now: a check, if that can still satisfy the
    /// operation.
    #[inline]
    pub(super) fn effect(self) -> Effect {
        if self.check == Check::Always && (self.needs != Needs::All || self.missing == 0) {
            Effect::Check
        } else {
            Effect::Nothing
        }
    }

    /// Returns the effect of a reached threshold.
    pub(super) fn on_threshold(&mut self) -> Effect {
        debug_assert_ne!(self.missing, 0, "a threshold is reached once");
        self.missing -= 1;
        if self.needs == Needs::All && (self.check != Check::Never || self.missing > 0) {
            self.effect()
        } else {
            Effect::Satisfied
        }
    }

    /// Returns the effect of the thresholds before the operation waits: `reached` of them have been
    /// reached, and `missing` have not.
    #[inline]
    pub(super) fn at_first(&mut self, missing: usize, reached: usize) -> Effect {
        self.missing = u32::try_from(missing).expect("`max_keys` is less");
        let do_all_hold = self.check == Check::Never && self.missing == 0;
        if reached > 0 && (self.needs != Needs::All || do_all_hold) {
            Effect::Satisfied
        } else {
            self.effect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(needs: Needs, is_checked: bool, missing: u32) -> Rule {
        let check = if is_checked { Check::Always } else { Check::Never };
        Rule { needs, check, missing }
    }

    #[test]
    fn each_key_is_there_once_however_often_it_is_added() {
        let keys = (0..100_000).map(|number| number % 500);
        // Two keys share each hash.
        let mut conditions = Conditions::new();
        conditions.collect(keys, 500, |number| number / 2, drop);
        assert!(conditions.events.iter().map(|(_, key)| *key).eq((0..500).map(Some)));
        assert_eq!((conditions.hashes().len(), conditions.is_too_large), (500, false));
    }

    #[test]
    fn conditions_have_room_for_max_keys_and_no_more() {
        for max in 1..40_usize {
            for count in [max, max + 1] {
                let condition = |number| match number % 3 {
                    0 => Condition::Threshold(number, 1),
                    _ => Condition::Events(number),
                };
                let twice = (0..count).flat_map(|number| [number, number]).map(condition);
                let twice = twice.filter(|condition| matches!(condition, Condition::Events(_)));
                let once = (0..count).step_by(3).map(condition);
                let watch = Watch::any(once.chain(twice));
                let mut conditions = Conditions::new();
                conditions.collect(watch, max, |key| *key as u64, drop);
                assert_eq!(conditions.is_too_large, count > max);
                assert_eq!(conditions.hashes().len(), max);
            }
        }
    }

    #[test]
    fn any_needs_one_condition_and_all_needs_every() {
        let mut any = rule(Needs::Any, true, 2);
        assert_eq!(any.on_event(), Effect::Check);
        assert_eq!(any.on_threshold(), Effect::Satisfied);

        let mut all = rule(Needs::All, true, 2);
        assert_eq!(all.on_event(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Nothing);
        assert_eq!(all.on_threshold(), Effect::Check);
        assert_eq!(all.on_event(), Effect::Check);

        let mut thresholds = rule(Needs::All, false, 1);
        assert_eq!(thresholds.on_threshold(), Effect::Satisfied);
        assert_eq!(rule(Needs::All, false, 0).at_first(0, 1), Effect::Satisfied);
        assert_eq!(rule(Needs::Any, false, 0).at_first(1, 0), Effect::Nothing);
    }
}
