//! A ring of sets for keep-alives: one set for all connections that have been silent for equally
//! many seconds.
//!
//! The pointer moves on by a slot a second and expires the timeouts in the next slot. A map holds
//! the second of each timeout, so a message moves it in *O*(1) time. The structure is made for one
//! delay; here it takes any of up to a minute. Deadlines are rounded up to a second.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::prelude::*;

/// Slots of the ring: 60 for a minute, and one for the current second.
const SLOTS: u64 = 61;

/// A set of timeouts for each second.
pub struct RingQueue {
    slots: Vec<FxHashSet<u64>>,
    /// Due when they were inserted, or reset.
    due: FxHashSet<u64>,
    /// The second and the payload of each timeout.
    timeouts: FxHashMap<u64, (u64, u64)>,
    inserted: u64,
    now: u64,
    /// The second that the pointer has reached.
    second: u64,
}

impl Default for RingQueue {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| FxHashSet::default()).collect(),
            due: FxHashSet::default(),
            timeouts: FxHashMap::default(),
            inserted: 0,
            now: 0,
            second: 0,
        }
    }
}

impl RingQueue {
    /// The second in which a deadline expires.
    #[track_caller]
    fn second_of(&self, deadline: u64) -> u64 {
        let delay = deadline.saturating_sub(self.now);
        let range = (SLOTS - 1) * SECOND;
        assert!(delay <= range, "a delay of {delay} ticks is out of the range of {range}");
        deadline.div_ceil(SECOND)
    }

    fn slot(&mut self, second: u64) -> &mut FxHashSet<u64> {
        if second <= self.second { &mut self.due } else { &mut self.slots[index(second)] }
    }
}

fn index(second: u64) -> usize {
    (second % SLOTS) as usize
}

impl Timers for RingQueue {
    type Key = u64;

    const PROMISES: Promises = Promises {
        name: "ring_queue",
        max_delay: Some((SLOTS - 1) * SECOND),
        lateness: SECOND - 1,
        ordered: false,
        wakes: Wakes::Every(SECOND),
        ..Promises::STRICT
    };

    fn insert(&mut self, deadline: u64, payload: u64) -> u64 {
        let key = self.inserted;
        self.inserted += 1;
        let second = self.second_of(deadline);
        self.timeouts.insert(key, (second, payload));
        self.slot(second).insert(key);
        key
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        let (second, payload) = self.timeouts.remove(&key)?;
        self.slot(second).remove(&key).then_some(payload)
    }

    fn reset(&mut self, key: u64, deadline: u64) -> Option<u64> {
        let second = self.second_of(deadline);
        let timeout = self.timeouts.get_mut(&key)?;
        let before = std::mem::replace(&mut timeout.0, second);
        if before != second {
            self.slot(before).remove(&key);
            self.slot(second).insert(key);
        }
        Some(key)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        if self.due.is_empty() {
            return (!self.timeouts.is_empty()).then_some((self.second + 1) * SECOND);
        }
        Some(self.now)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        self.now = now;
        let mut expire = |set: &mut FxHashSet<u64>| {
            for key in set.drain() {
                self.timeouts.remove(&key).inspect(|(_, payload)| expired(*payload));
            }
        };
        expire(&mut self.due);
        while (self.second + 1) * SECOND <= now {
            self.second += 1;
            expire(&mut self.slots[index(self.second)]);
        }
    }

    fn len(&self) -> usize {
        self.timeouts.len()
    }
}
