//! A pending operation, whose end is not decided yet, and an operation that a thread has taken out.

use std::{boxed::Box, vec::Vec};

use super::{
    conditions::{Check, Needs, Rule},
    lists::{Lists, Spot, Watcher},
    operation::Completion,
};
use crate::{ticks::Nanos, wheel::Key};

/// Number of keys whose events an operation watches without an allocation.
const SPOTS: usize = 3;

/// A pending operation, whose end is not decided yet: the value of its timeout. With its slot, a
/// small operation takes 64 bytes, and the fields that an event reads are in one cache line.
#[repr(C)]
pub(super) struct Pending<O> {
    /// Its thresholds, and then the spots for which `spots` has no room.
    #[expect(clippy::box_collection, reason = "mostly `None`, in one word instead of three")]
    pub(super) further: Option<Box<Vec<Watcher>>>,
    /// The time of its registration.
    pub(super) since: Nanos,
    /// Where it watches events.
    pub(super) spots: [Spot; SPOTS],
    /// The last pass that visited it, as a distance from `number`; [`OLD`] if the distance is too
    /// large.
    pub(super) seen: u32,
    /// The parts of its rule: this field and the next two.
    pub(super) missing: u32,
    needs: Needs,
    pub(super) check: Check,
    /// Whether an event was announced while it is out.
    pub(super) is_announced: bool,
    /// Whether the limits that displace count it.
    pub(super) is_counted: bool,
    /// Its number in the order of registration.
    pub(super) number: u64,
    /// `None` while a thread has it out.
    pub(super) operation: Option<O>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Pending<&u8>>() == 56);

/// Stands for every pass whose distance is too large: each of its visits counts as the first one.
const OLD: u32 = u32::MAX;

impl<O> Pending<O> {
    /// Makes a pending operation that is out.
    #[inline]
    pub(super) fn new(since: Nanos, rule: Rule) -> Self {
        let Rule { needs, check, missing } = rule;
        Self {
            further: None,
            since,
            spots: [Spot::NONE; SPOTS],
            seen: 0,
            missing,
            needs,
            check,
            is_announced: false,
            is_counted: false,
            number: 0,
            operation: None,
        }
    }

    #[inline]
    pub(super) const fn rule(&self) -> Rule {
        Rule { needs: self.needs, check: self.check, missing: self.missing }
    }

    /// Notes the visit of a pass, which is later than this operation. Returns `false` if this pass
    /// or a later one has visited the operation before.
    #[inline]
    pub(super) fn see(&mut self, pass: u64) -> bool {
        let after = u32::try_from(pass - self.number).unwrap_or(OLD);
        let is_new = self.seen < after || after == OLD;
        self.seen = self.seen.max(after);
        is_new
    }

    /// Returns the watchers, with their numbers in the order of registration.
    pub(super) fn watchers(&self) -> impl Iterator<Item = (u64, Watcher)> {
        let few = self.spots.iter().filter(|&&spot| spot != Spot::NONE);
        few.map(|&spot| (self.number, Watcher::Event(spot))).chain(self.further())
    }

    /// Returns the watchers of the field `further`, with their numbers.
    fn further(&self) -> impl Iterator<Item = (u64, Watcher)> {
        (self.number + 1..).zip(self.further.iter().flat_map(|further| further.iter()).copied())
    }

    /// Leaves all lists and the limits, and counts the end.
    #[inline]
    pub(super) fn leave<K>(&self, lists: &mut Lists<K>, how: Completion, now: Nanos) {
        for &spot in self.spots.iter().take_while(|&&spot| spot != Spot::NONE) {
            lists.remove_event(spot, self.is_counted);
        }
        if self.further.is_some() {
            self.leave_further(lists);
        }
        if lists.limits.total.is_some() {
            lists.by_age.remove(&self.number);
            if self.is_counted {
                lists.limits.leave_total();
            }
        }
        lists.stats.count(how, now.saturating_sub(self.since));
    }

    #[cold]
    fn leave_further<K>(&self, lists: &mut Lists<K>) {
        for (number, watcher) in self.further() {
            match watcher {
                Watcher::Event(spot) => lists.remove_event(spot, self.is_counted),
                Watcher::Threshold(key, at) => {
                    lists.remove_threshold(key, (at, number), self.is_counted);
                }
                Watcher::Reached => {}
            }
        }
    }

    /// Marks the threshold with a number as reached. Returns its key and its value, unless it was
    /// marked before.
    pub(super) fn reach(&mut self, number: u64) -> Option<(u32, u64)> {
        let index = usize::try_from(number - self.number - 1).ok()?;
        let watcher = self.further.as_mut()?.get_mut(index)?;
        let &mut Watcher::Threshold(key, at) = watcher else { return None };
        *watcher = Watcher::Reached;
        Some((key, at))
    }
}

/// An operation that a thread has taken out.
pub(super) struct Out<O> {
    pub(super) key: Key,
    /// `None` if it waits again.
    pub(super) operation: Option<O>,
    /// How the thread that has it ends it; `None` if it should wait again. If another thread has
    /// decided the end meanwhile, `put_back` stores that end here.
    pub(super) end: Option<Completion>,
    /// Whether it waits again, and needs a check, since an event was announced while it was out.
    pub(super) needs_check: bool,
}

impl<O> Out<O> {
    /// Without an `operation`, the result stands for an operation that waits and must be checked
    /// again.
    #[inline]
    pub(super) const fn new(key: Key, operation: Option<O>) -> Self {
        let needs_check = operation.is_none();
        Self { key, operation, end: None, needs_check }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pass_skips_an_operation_that_it_or_a_later_one_has_visited_unless_that_is_not_known() {
        let rule = Rule { needs: Needs::Check, check: Check::Always, missing: 0 };
        let mut one = Pending { number: 7, ..Pending::<()>::new(Nanos::ZERO, rule) };
        assert!(one.see(9) && !one.see(9) && !one.see(8) && one.see(10));
        let far = 7 + u64::from(OLD);
        assert!(one.see(far - 1) && !one.see(far - 1));
        assert!(one.see(far) && one.see(far) && one.see(u64::MAX) && !one.see(far - 1));
    }
}
