//! Scheme 7 of Varghese and Lauck: a hierarchy of wheels that ticks, as Linux's until 2015.
//!
//! The first wheel has 256 slots of a tick each, and four more have 64 slots each, of which one
//! spans the whole wheel below. Whenever a wheel comes round, the next slot of the one above is
//! spread over it. Starting and stopping a timeout take *O*(1) time for a fixed number of wheels; a
//! timeout moves down at most once for each wheel. Each tick is stepped through.

use slotmap::DefaultKey;

use super::lists::{Lists, Timeout};
use super::rounded::Rounded;
use crate::{Promises, Timers, Wakes};

const FIRST_BITS: u32 = 8;
const BITS: u32 = 6;
const WHEELS: u32 = 5;

/// Ticks that the wheels span.
const RANGE: u64 = 1 << (FIRST_BITS + (WHEELS - 1) * BITS);

/// The list of what was due when it was inserted.
const DUE: usize = (1 << FIRST_BITS) + (WHEELS as usize - 1) * (1 << BITS);

/// Five wheels, of 256 and of 64 slots.
#[derive(Debug)]
pub struct TickingWheel {
    slots: Lists<Timeout>,
    now: u64,
}

impl Default for TickingWheel {
    fn default() -> Self {
        Self { slots: Lists::new(DUE + 1), now: 0 }
    }
}

impl TickingWheel {
    /// The slot for a deadline.
    ///
    /// # Panics
    ///
    /// If the deadline is out of range.
    #[inline]
    #[track_caller]
    fn slot(&self, deadline: u64) -> usize {
        let delay = deadline.saturating_sub(self.now);
        assert!(delay < RANGE, "a delay of {delay} ticks is out of the range of {RANGE}");
        if delay == 0 {
            return DUE;
        }
        let is_within = |wheel: &u32| delay < 1 << (FIRST_BITS + wheel * BITS);
        slot_in((0..WHEELS).find(is_within).expect("the range is that of the last wheel"), deadline)
    }

    /// Spreads the slot of a wheel that has come up over the wheels below. Returns whether this
    /// wheel has come round, so that the one above is next.
    fn cascade(&mut self, wheel: u32) -> bool {
        let slot = slot_in(wheel, self.now);
        while let Some(key) = self.slots.first(slot) {
            let deadline = self.slots.get(key).expect("a slot holds what is there").deadline;
            let place =
                if deadline == self.now { slot_in(0, deadline) } else { self.slot(deadline) };
            debug_assert_ne!(slot, place, "a timeout moves down");
            self.slots.relink(key, place);
        }
        self.now.trailing_zeros() >= FIRST_BITS + wheel * BITS
    }

    fn tick(&mut self, expired: &mut impl FnMut(u64)) {
        self.now += 1;
        let mut wheel = 1;
        let mut has_come_round = self.now.trailing_zeros() >= FIRST_BITS;
        while has_come_round && wheel < WHEELS {
            has_come_round = self.cascade(wheel);
            wheel += 1;
        }
        self.expire(slot_in(0, self.now), expired);
    }

    #[inline]
    fn expire(&mut self, slot: usize, expired: &mut impl FnMut(u64)) {
        while let Some(key) = self.slots.first(slot) {
            self.slots.remove(key).inspect(|timeout| expired(timeout.payload));
        }
    }
}

/// The slot of a wheel where a tick lies.
#[inline]
fn slot_in(wheel: u32, tick: u64) -> usize {
    if wheel == 0 {
        return (tick & ((1 << FIRST_BITS) - 1)) as usize;
    }
    let below = (1 << FIRST_BITS) + (wheel as usize - 1) * (1 << BITS);
    let index = tick >> (FIRST_BITS + (wheel - 1) * BITS) & ((1 << BITS) - 1);
    below + index as usize
}

impl Timers for TickingWheel {
    type Key = DefaultKey;

    const NAME: &'static str = "ticking_wheel";

    const PROMISES: Promises = Promises {
        scheme: "scheme 7: hierarchical wheel that ticks, as Linux's until 2015",
        describes: "refuses what lies beyond 49 days; wakes at every tick",
        max_delay: Some(RANGE - 1),
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
            self.tick(&mut expired);
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
