//! Scheme 4 of Varghese and Lauck: a wheel with one slot for each tick of a bounded range.
//!
//! Everything takes *O*(1) time, and each tick is stepped through. Beyond its range it refuses, as
//! it has no slot for that.

use slotmap::DefaultKey;

use super::lists::{Lists, Timeout};
use super::rounded::Rounded;
use crate::{Promises, Timers, Wakes};

/// Slots of the wheel; enough for a minute of ticks.
const SLOTS: u64 = 1 << 16;

/// The list of what was due when it was inserted.
const DUE: usize = 1 << 16;

const _: () = assert!(DUE as u64 == SLOTS);

/// 65,536 slots, each a list of the timeouts of one tick.
#[derive(Debug)]
pub struct SimpleWheel {
    slots: Lists<Timeout>,
    now: u64,
}

impl Default for SimpleWheel {
    fn default() -> Self {
        Self { slots: Lists::new(DUE + 1), now: 0 }
    }
}

impl SimpleWheel {
    /// The list for a deadline.
    ///
    /// # Panics
    ///
    /// If the deadline is out of range.
    #[inline]
    #[track_caller]
    fn slot(&self, deadline: u64) -> usize {
        if deadline <= self.now {
            return DUE;
        }
        let delay = deadline - self.now;
        assert!(delay < SLOTS, "a delay of {delay} ticks is out of the range of {SLOTS}");
        index(deadline)
    }

    #[inline]
    fn expire(&mut self, slot: usize, expired: &mut impl FnMut(u64)) {
        while let Some(key) = self.slots.first(slot) {
            self.slots.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }
}

#[inline]
fn index(tick: u64) -> usize {
    (tick % SLOTS) as usize
}

impl Timers for SimpleWheel {
    type Key = DefaultKey;

    const NAME: &'static str = "simple_wheel";

    const PROMISES: Promises = Promises {
        scheme: "scheme 4: simple wheel",
        describes: "refuses what lies beyond its 65,536 slots; wakes at every tick",
        max_delay: Some(SLOTS - 1),
        wakes: Wakes::Every(1),
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> DefaultKey {
        self.slots.push(self.slot(deadline), Timeout { deadline, payload })
    }

    #[inline]
    fn cancel(&mut self, key: DefaultKey) -> bool {
        self.slots.remove(key).is_some()
    }

    #[inline]
    fn reset(&mut self, key: DefaultKey, deadline: u64) -> Option<DefaultKey> {
        let slot = self.slot(deadline);
        self.slots.get_mut(key)?.deadline = deadline;
        self.slots.relink(key, slot);
        Some(key)
    }

    #[inline]
    fn next_expiration(&mut self) -> Option<u64> {
        let is_due = self.slots.first(DUE).is_some();
        (self.slots.len() > 0).then_some(self.now + u64::from(!is_due))
    }

    #[inline]
    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.slots.len();
        self.expire(DUE, &mut expired);
        while self.now < now {
            self.now += 1;
            self.expire(index(self.now), &mut expired);
        }
        before - self.slots.len()
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn in_tenths() -> impl Timers {
        Rounded::<Self>::default()
    }
}
