//! Schemes 1, 2, 4, 5 and 7 of Varghese and Lauck. All keep timeouts in lists. They differ in the
//! list for a deadline, and in the lists that they look at when time passes.

use std::marker::PhantomData;

use super::lists::Timeout;
use crate::prelude::*;

pub trait Scheme {
    const PROMISES: Promises;
    /// Number of lists; one more holds timeouts that were due when they were inserted.
    const LISTS: usize;
    /// Whether a list is sorted by deadline.
    const IS_SORTED: bool = false;
    /// Whether it moves by ticks. If so, users with a finer clock must round.
    const TICKS: bool = true;

    /// The list for a deadline after `now`.
    fn list(now: u64, deadline: u64) -> usize;

    /// Moves timeouts down when a tick begins.
    fn cascade(_: &mut Lists<Timeout>, _now: u64) {}
}

pub struct Listed<S> {
    lists: Lists<Timeout>,
    now: u64,
    scheme: PhantomData<S>,
}

impl<S: Scheme> Default for Listed<S> {
    fn default() -> Self {
        Self { lists: Lists::new(S::LISTS + 1), now: 0, scheme: PhantomData }
    }
}

impl<S: Scheme> Listed<S> {
    #[track_caller]
    fn list(&self, deadline: u64) -> usize {
        let delay = deadline.saturating_sub(self.now);
        if let Some(longest) = S::PROMISES.max_delay {
            assert!(delay <= longest, "a delay of {delay} ticks, beyond the longest of {longest}");
        }
        if S::TICKS && delay == 0 { S::LISTS } else { S::list(self.now, deadline) }
    }

    /// Expires timeouts at the head of a list, until one is not due.
    fn expire(&mut self, list: usize, expired: &mut impl FnMut(u64)) {
        while let Some(key) = self.lists.first(list) {
            if S::IS_SORTED && self.lists.get(key).is_none_or(|timeout| timeout.deadline > self.now)
            {
                break;
            }
            self.lists.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }

    /// Looks at every timeout of a list in no order.
    fn expire_unsorted(&mut self, list: usize, expired: &mut impl FnMut(u64)) {
        let mut cursor = self.lists.first(list);
        while let Some(key) = cursor {
            cursor = self.lists.next(key);
            if self.lists.get(key).is_some_and(|timeout| timeout.deadline <= self.now) {
                self.lists.remove(key).inspect(|timeout| expired(timeout.payload));
            }
        }
    }
}

impl<S: Scheme> Timers for Listed<S> {
    type Key = DefaultKey;

    const PROMISES: Promises = S::PROMISES;

    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        let (list, timeout) = (self.list(deadline), Timeout { deadline, payload });
        if S::IS_SORTED {
            self.lists.push_behind(list, timeout, |other| other.deadline <= deadline)
        } else {
            self.lists.push(list, timeout)
        }
    }

    fn cancel(&mut self, key: DefaultKey) -> Option<u64> {
        self.lists.remove(key).map(|timeout| timeout.payload)
    }

    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        if S::IS_SORTED {
            let payload = self.cancel(key)?;
            return Some(self.insert(deadline, payload));
        }
        let list = self.list(deadline);
        self.lists.get_mut(key)?.deadline = deadline;
        self.lists.relink(key, list);
        Some(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        if S::TICKS {
            let is_due = self.lists.first(S::LISTS).is_some();
            return (self.lists.len() > 0).then_some(self.now + u64::from(!is_due));
        }
        if S::IS_SORTED {
            return Some(self.lists.get(self.lists.first(0)?)?.deadline);
        }
        self.lists.values().map(|timeout| timeout.deadline).min()
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        if S::TICKS {
            self.expire(S::LISTS, &mut expired);
            while self.now < now {
                self.now += 1;
                S::cascade(&mut self.lists, self.now);
                self.expire(S::list(self.now - 1, self.now), &mut expired);
            }
        } else {
            self.now = now;
            if S::IS_SORTED {
                self.expire(0, &mut expired);
            } else {
                self.expire_unsorted(0, &mut expired);
            }
        }
    }

    fn len(&self) -> usize {
        self.lists.len()
    }

    fn in_tenths() -> impl Timers {
        Rounded::<Self>::new(S::TICKS)
    }
}

/// Scheme 1: one list in no order. Each advance takes *O*(n).
pub type UnorderedList = Listed<Unordered>;

pub struct Unordered;

impl Scheme for Unordered {
    const PROMISES: Promises =
        Promises { name: "unordered_list", ordered: false, largest: 10_000, ..Promises::STRICT };
    const LISTS: usize = 1;
    const TICKS: bool = false;

    fn list(_: u64, _: u64) -> usize {
        0
    }
}

/// Scheme 2: one list in the order of deadlines. An insert takes *O*(n).
pub type OrderedList = Listed<Ordered>;

pub struct Ordered;

impl Scheme for Ordered {
    const PROMISES: Promises =
        Promises { name: "ordered_list", largest: 10_000, ..Promises::STRICT };
    const LISTS: usize = 1;
    const IS_SORTED: bool = true;
    const TICKS: bool = false;

    fn list(_: u64, _: u64) -> usize {
        0
    }
}

/// Slots of schemes 4 and 5; more than the ticks of a minute.
const SLOTS: u64 = 1 << 16;

fn slot(tick: u64) -> usize {
    (tick % SLOTS) as usize
}

/// Scheme 4: one slot for each tick of a bounded range, stepped through.
pub type SimpleWheel = Listed<Simple>;

pub struct Simple;

impl Scheme for Simple {
    const PROMISES: Promises = Promises {
        name: "simple_wheel",
        max_delay: Some(SLOTS - 1),
        wakes: Wakes::Every(1),
        ..Promises::STRICT
    };
    const LISTS: usize = 1 << 16;

    fn list(_: u64, deadline: u64) -> usize {
        slot(deadline)
    }
}

/// Scheme 5: a hashed wheel whose buckets are sorted by deadline. Each tick looks at the head of
/// one bucket.
pub type SortedHashedWheel = Listed<SortedHashed>;

pub struct SortedHashed;

impl Scheme for SortedHashed {
    const PROMISES: Promises = Promises {
        name: "sorted_hashed_wheel",
        wakes: Wakes::Every(1),
        largest: 1_000_000,
        ..Promises::STRICT
    };
    const LISTS: usize = 1 << 16;
    const IS_SORTED: bool = true;

    fn list(_: u64, deadline: u64) -> usize {
        slot(deadline)
    }
}

const FIRST_BITS: u32 = 8;
const BITS: u32 = 6;
const WHEELS: u32 = 5;

/// Scheme 7: a hierarchy of wheels that ticks, as Linux's until 2015.
///
/// The first wheel has 256 slots of a tick, four more have 64 slots each, of which one spans the
/// whole wheel below. After each turn of a wheel, the timeouts of the next slot of the wheel above
/// move into it.
pub type TickingWheel = Listed<Ticking>;

pub struct Ticking;

impl Ticking {
    /// The slot of a wheel for a tick.
    fn slot(wheel: u32, tick: u64) -> usize {
        if wheel == 0 {
            return (tick & ((1 << FIRST_BITS) - 1)) as usize;
        }
        let below = (1 << FIRST_BITS) + (wheel as usize - 1) * (1 << BITS);
        let index = tick >> (FIRST_BITS + (wheel - 1) * BITS) & ((1 << BITS) - 1);
        below + index as usize
    }
}

impl Scheme for Ticking {
    const PROMISES: Promises = Promises {
        name: "ticking_wheel",
        max_delay: Some((1 << (FIRST_BITS + (WHEELS - 1) * BITS)) - 1),
        wakes: Wakes::Every(1),
        ..Promises::STRICT
    };
    const LISTS: usize = (1 << FIRST_BITS) + (WHEELS as usize - 1) * (1 << BITS);

    fn list(now: u64, deadline: u64) -> usize {
        let delay = deadline - now;
        let is_within = |wheel: &u32| delay < 1 << (FIRST_BITS + wheel * BITS);
        let wheel = (0..WHEELS).find(is_within).expect("the range is that of the last wheel");
        Self::slot(wheel, deadline)
    }

    fn cascade(lists: &mut Lists<Timeout>, now: u64) {
        for wheel in 1..WHEELS {
            if now.trailing_zeros() < FIRST_BITS + (wheel - 1) * BITS {
                return;
            }
            let slot = Self::slot(wheel, now);
            while let Some(key) = lists.first(slot) {
                let deadline = lists.get(key).expect("a slot holds pending timeouts").deadline;
                lists.relink(key, Self::list(now, deadline));
            }
        }
    }
}
