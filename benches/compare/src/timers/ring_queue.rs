//! A ring of sets for keep-alives: one set for the connections whose last message came in the same
//! second.
//!
//! The pointer moves by one slot a second. The connections in that slot have been silent for too
//! long. A map tells in which slot each connection is, so that a message moves it in *O*(1) time.
//! It was designed for one delay. Here it accepts any delay up to a minute. Deadlines are rounded
//! up to a second.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Promises, Timers, Wakes, workload::SECOND};

/// Slots of the ring: 60 for a minute, and one for the current second.
const SLOTS: u64 = 61;

/// A set of timeouts for each second, and where each timeout is.
#[derive(Debug)]
pub struct RingQueue {
    slots: Vec<FxHashSet<u64>>,
    /// Due when they were inserted, or reset.
    due: FxHashSet<u64>,
    places: FxHashMap<u64, Place>,
    inserted: u64,
    now: u64,
    /// The second that the pointer has reached.
    second: u64,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    deadline_second: u64,
    payload: u64,
}

impl Default for RingQueue {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| FxHashSet::default()).collect(),
            due: FxHashSet::default(),
            places: FxHashMap::default(),
            inserted: 0,
            now: 0,
            second: 0,
        }
    }
}

impl RingQueue {
    /// The second in which a deadline expires.
    #[inline]
    #[track_caller]
    fn second_of(&self, deadline: u64) -> u64 {
        let delay = deadline.saturating_sub(self.now);
        let range = (SLOTS - 1) * SECOND;
        assert!(delay <= range, "a delay of {delay} ticks is out of the range of {range}");
        deadline.div_ceil(SECOND)
    }

    #[inline]
    fn slot(&mut self, second: u64) -> &mut FxHashSet<u64> {
        if second <= self.second { &mut self.due } else { &mut self.slots[index(second)] }
    }
}

#[inline]
fn index(second: u64) -> usize {
    (second % SLOTS) as usize
}

fn hand_out(
    set: &mut FxHashSet<u64>,
    places: &mut FxHashMap<u64, Place>,
    expired: &mut impl FnMut(u64),
) {
    for key in set.drain() {
        places.remove(&key).inspect(|place| expired(place.payload));
    }
}

impl Timers for RingQueue {
    type Key = u64;

    const NAME: &'static str = "ring_queue";

    const PROMISES: Promises = Promises {
        scheme: "ring of sets for keep-alives, a slot a second",
        describes: "late by up to a second; refuses what lies beyond a minute",
        max_delay: Some((SLOTS - 1) * SECOND),
        lateness: SECOND - 1,
        ordered: false,
        wakes: Wakes::Every(SECOND),
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> u64 {
        let key = self.inserted;
        self.inserted += 1;
        let deadline_second = self.second_of(deadline);
        self.places.insert(key, Place { deadline_second, payload });
        self.slot(deadline_second).insert(key);
        key
    }

    #[inline]
    fn cancel(&mut self, key: u64) -> bool {
        let Some(place) = self.places.remove(&key) else { return false };
        self.slot(place.deadline_second).remove(&key)
    }

    #[inline]
    fn reset(&mut self, key: u64, deadline: u64) -> Option<u64> {
        let second = self.second_of(deadline);
        let place = self.places.get_mut(&key)?;
        let before = std::mem::replace(&mut place.deadline_second, second);
        if before != second {
            self.slot(before).remove(&key);
            self.slot(second).insert(key);
        }
        Some(key)
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        if self.due.is_empty() {
            return (!self.places.is_empty()).then_some((self.second + 1) * SECOND);
        }
        Some(self.now)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.places.len();
        self.now = now;
        hand_out(&mut self.due, &mut self.places, &mut expired);
        while (self.second + 1) * SECOND <= now {
            self.second += 1;
            let slot = &mut self.slots[index(self.second)];
            hand_out(slot, &mut self.places, &mut expired);
        }
        before - self.places.len()
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}
