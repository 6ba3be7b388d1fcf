//! The crate `hierarchical_hash_wheel_timer`: four wheels of 256 slots, and a list beyond them.
//!
//! The variant is the one that can cancel: a hash map owns the timeouts, and the wheels hold weak
//! references. So a cancelled timeout leaves a reference in its slot until the slot is due. Time
//! moves by ticks, except where the wheels say that some may be skipped; its own thread drives it
//! in this way.

use std::rc::Rc;

use hierarchical_hash_wheel_timer::{
    TimerError,
    wheels::{
        Skip,
        cancellable::{CancellableTimerEntry, QuadWheelWithOverflow},
    },
};

use crate::prelude::*;

/// A round of the last wheel less one of its slots. A delay between that and a round may get the
/// current slot of the wheel, and then expires from a wheel below. Longer delays are right again.
const MAX_DELAY: u64 = (1 << 32) - (1 << 24);

/// [`QuadWheelWithOverflow`] that can cancel.
pub struct HashWheel {
    wheel: QuadWheelWithOverflow<Entry>,
    /// Timeouts that were due when they were inserted: the wheel hands them back.
    due: Vec<Rc<Entry>>,
    /// The caller's ticks in one of its own, which is a millisecond.
    parts: u64,
    micros: u64,
    now: u64,
    /// Ticks of its own that have passed.
    ticks: u64,
    inserted: u64,
    len: usize,
}

impl Default for HashWheel {
    fn default() -> Self {
        Self::with_parts(1)
    }
}

/// A timeout, and also its key: a cancel does not return the payload, which users know.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    number: u64,
    payload: u64,
}

impl CancellableTimerEntry for Entry {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.number
    }
}

impl HashWheel {
    fn with_parts(parts: u64) -> Self {
        Self {
            wheel: QuadWheelWithOverflow::default(),
            due: Vec::new(),
            parts,
            micros: 1_000 / parts,
            now: 0,
            ticks: 0,
            inserted: 0,
            len: 0,
        }
    }

    fn expire(&mut self, entries: Vec<Rc<Entry>>, expired: &mut impl FnMut(u64)) {
        self.len -= entries.len();
        for entry in entries {
            expired(entry.payload);
        }
    }

    fn cancel_due(&mut self, number: u64) -> bool {
        let index = self.due.iter().position(|entry| entry.number == number);
        index.is_some_and(|index| self.due.remove(index).number == number)
    }
}

impl Timers for HashWheel {
    type Key = Entry;

    const PROMISES: Promises = Promises {
        name: "hash_wheel",
        max_delay: Some(MAX_DELAY),
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    fn insert(&mut self, deadline: u64, payload: u64) -> Entry {
        let entry = Entry { number: self.inserted, payload };
        self.inserted += 1;
        self.len += 1;
        let delay = Duration::from_micros(deadline.saturating_sub(self.now) * self.micros);
        match self.wheel.insert_ref_with_delay(Rc::new(entry), delay) {
            Ok(()) => {}
            Err(TimerError::Expired(entry)) => self.due.push(entry),
            Err(error) => unreachable!("an insert found nothing: {error:?}"),
        }
        entry
    }

    fn cancel(&mut self, Entry { number, payload }: Entry) -> Option<u64> {
        let is_pending = self.wheel.cancel(&number).is_ok() || self.cancel_due(number);
        self.len -= usize::from(is_pending);
        is_pending.then_some(payload)
    }

    fn next_expiration(&mut self) -> Option<u64> {
        if !self.due.is_empty() {
            return Some(self.now);
        }
        let wait = match self.wheel.can_skip() {
            Skip::Empty => return None,
            Skip::Millis(ticks) => u64::from(ticks) + 1,
            Skip::None => 1,
        };
        Some((self.ticks + wait) * self.parts)
    }

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) {
        let due = std::mem::take(&mut self.due);
        self.expire(due, &mut expired);
        self.now = now;
        let end = now / self.parts;
        while self.ticks < end {
            match self.wheel.can_skip() {
                Skip::Empty => self.ticks = end,
                Skip::Millis(ticks) => {
                    let ticks = u64::from(ticks).min(end - self.ticks);
                    self.wheel.skip(u32::try_from(ticks).expect("at most what may be skipped"));
                    self.ticks += ticks;
                }
                Skip::None => {
                    let entries = self.wheel.tick();
                    self.ticks += 1;
                    self.expire(entries, &mut expired);
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn in_tenths() -> impl Timers {
        Self::with_parts(TENTHS)
    }
}
