//! The place of an operation while its end is not decided, and the operation while a thread has
//! taken it out.

use std::{boxed::Box, vec::Vec};

use super::{
    conditions::Rule,
    lists::{Lists, Spot, Watcher},
    operation::Completion,
};
use crate::{ticks::Nanos, wheel::Key};

/// Keys that an operation names without an allocation.
const FEW: usize = 3;

/// The place of an operation whose end is not decided: the value of its timeout.
pub(super) struct Place<O> {
    /// `None` while a thread has it out.
    pub(super) operation: Option<O>,
    /// Its number in the order of registration.
    pub(super) number: u64,
    /// The last pass that has visited it.
    pub(super) seen: u64,
    /// The time of its registration.
    pub(super) since: Nanos,
    pub(super) rule: Rule,
    /// Where it watches events.
    pub(super) spots: [Spot; FEW],
    /// Its thresholds, and then the spots for which there is no room above.
    #[expect(clippy::box_collection, reason = "most operations have none, and a word is a third")]
    pub(super) further: Option<Box<Vec<Watcher>>>,
    /// Whether an event was announced while it is out.
    pub(super) is_announced: bool,
    /// Whether the limits that displace count it.
    pub(super) is_counted: bool,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Place<&u8>>() == 64);

impl<O> Place<O> {
    /// Makes a place whose operation is out.
    #[inline]
    pub(super) fn new(since: Nanos, rule: Rule) -> Self {
        Self {
            operation: None,
            number: 0,
            seen: 0,
            since,
            rule,
            spots: [Spot::NONE; FEW],
            further: None,
            is_announced: false,
            is_counted: false,
        }
    }

    /// Returns the watchers, with their numbers in the order of registration.
    #[inline]
    pub(super) fn watchers(&self) -> impl Iterator<Item = (u64, Watcher)> {
        let few = self.spots.iter().filter(|&&spot| spot != Spot::NONE);
        let few = few.map(|&spot| (self.number, Watcher::Event(spot)));
        let further = self.further.iter().flat_map(|further| further.iter());
        few.chain((self.number + 1..).zip(further.copied()))
    }

    /// Leaves all lists and the limits, and counts the end.
    #[inline]
    pub(super) fn leave<K>(&self, lists: &mut Lists<K>, how: Completion, now: Nanos) {
        for (number, watcher) in self.watchers() {
            lists.remove(number, watcher, self.is_counted);
        }
        if lists.limits.is_total() {
            lists.all.remove(&self.number);
            if self.is_counted {
                lists.limits.release();
            }
        }
        lists.stats.count(how, now.saturating_sub(self.since));
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
    /// Whether its last check found that it can complete.
    pub(super) can_complete: bool,
    pub(super) back: Back,
}

/// What became of an operation that a thread has brought back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    Waits,
    /// It waits, but an event was announced while it was out.
    IsAnnounced,
    /// It has ended, and the thread that had it out completes it.
    Ended(Completion),
}

impl<O> Out<O> {
    #[inline]
    pub(super) const fn new(key: Key, operation: O) -> Self {
        Self { key, operation: Some(operation), can_complete: false, back: Back::Waits }
    }

    /// Makes one that waits, and needs a check.
    pub(super) const fn announced(key: Key) -> Self {
        Self { key, operation: None, can_complete: false, back: Back::IsAnnounced }
    }
}
