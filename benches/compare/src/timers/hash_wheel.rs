//! The crate `hierarchical_hash_wheel_timer`: four wheels of 256 slots, and a list beyond them.
//!
//! This is the variant that can cancel. A hash map owns the timeouts, and the wheels hold weak
//! references to them. So a cancelled timeout leaves a reference in its slot until the slot is due.
//! Time moves by ticks, except for those that the wheels allow to skip. The crate's own thread
//! drives the wheels in the same way.

use std::{
    fmt::{self, Debug, Formatter},
    rc::Rc,
    time::Duration,
};

use hierarchical_hash_wheel_timer::{
    TimerError,
    wheels::{
        Skip,
        cancellable::{CancellableTimerEntry, QuadWheelWithOverflow},
    },
};

use super::rounded::TENTHS;
use crate::{Promises, Timers, Wakes};

/// One lap of the last wheel, minus one of its slots. A delay between this and a full lap may fall
/// into the current slot, and then expires too early. Longer delays are correct.
const MAX_DELAY: u64 = (1 << 32) - (1 << 24);

/// [`QuadWheelWithOverflow`] that can cancel.
pub struct HashWheel {
    wheel: QuadWheelWithOverflow<Entry>,
    /// Timeouts that were due when they were inserted: the wheel hands them back.
    due: Vec<Rc<Entry>>,
    /// Ticks of the caller in one tick of the wheel, which is a millisecond.
    parts: u64,
    micros: u64,
    now: u64,
    /// Ticks of the wheel that have passed.
    ticks: u64,
    inserted: u64,
    len: usize,
}

impl Default for HashWheel {
    fn default() -> Self {
        Self::with_parts(1)
    }
}

/// A timeout, identified by its number. The payload is not returned by a cancel, as the caller
/// knows it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    number: u64,
    payload: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    payload: u64,
}

impl CancellableTimerEntry for Entry {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.number
    }
}

impl Debug for HashWheel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashWheel").field("len", &self.len).finish_non_exhaustive()
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

    #[inline]
    fn expire(&mut self, entries: Vec<Rc<Entry>>, expired: &mut impl FnMut(u64)) {
        self.len -= entries.len();
        for entry in entries {
            expired(entry.payload);
        }
    }

    #[inline]
    fn cancel_due(&mut self, number: u64) -> bool {
        let index = self.due.iter().position(|entry| entry.number == number);
        index.is_some_and(|index| self.due.remove(index).number == number)
    }
}

impl Timers for HashWheel {
    type Key = Key;

    const NAME: &'static str = "hash_wheel";

    const PROMISES: Promises = Promises {
        scheme: "scheme 7: hierarchical wheel that ticks, hierarchical_hash_wheel_timer",
        describes: "between 49.5 and 49.7 days, fires after hours or panics; ticks while anything is \
                    within 256 ticks; wakes for what was cancelled; rounds delays down",
        max_delay: Some(MAX_DELAY),
        wakes: Wakes::ForCancelled,
        ..Promises::STRICT
    };

    #[inline]
    fn insert(&mut self, deadline: u64, payload: u64) -> Key {
        let number = self.inserted;
        self.inserted += 1;
        self.len += 1;
        let delay = Duration::from_micros(deadline.saturating_sub(self.now) * self.micros);
        match self.wheel.insert_ref_with_delay(Rc::new(Entry { number, payload }), delay) {
            Ok(()) => {}
            Err(TimerError::Expired(entry)) => self.due.push(entry),
            Err(error) => unreachable!("an insert found nothing: {error:?}"),
        }
        Key { number, payload }
    }

    #[inline]
    fn cancel(&mut self, Key { number, .. }: Key) -> bool {
        let is_pending = self.wheel.cancel(&number).is_ok() || self.cancel_due(number);
        self.len -= usize::from(is_pending);
        is_pending
    }

    /// Cancels and inserts, as it has no way to move a timeout.
    #[inline]
    fn reset(&mut self, key: Key, deadline: u64) -> Option<Key> {
        self.cancel(key).then(|| self.insert(deadline, key.payload))
    }

    #[inline]
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

    fn advance(&mut self, now: u64, mut expired: impl FnMut(u64)) -> usize {
        let before = self.len;
        let due = std::mem::take(&mut self.due);
        self.expire(due, &mut expired);
        self.now = now;
        let end = now / self.parts;
        while self.ticks < end {
            match self.wheel.can_skip() {
                Skip::Empty => self.ticks = end,
                Skip::Millis(ticks) if self.ticks + u64::from(ticks) >= end => {
                    let ticks = u32::try_from(end - self.ticks).expect("less than may be skipped");
                    self.wheel.skip(ticks);
                    self.ticks = end;
                }
                Skip::Millis(ticks) => {
                    self.wheel.skip(ticks);
                    self.ticks += u64::from(ticks);
                }
                Skip::None => {
                    let entries = self.wheel.tick();
                    self.ticks += 1;
                    self.expire(entries, &mut expired);
                }
            }
        }
        before - self.len
    }

    fn len(&self) -> usize {
        self.len
    }

    fn in_tenths() -> impl Timers {
        Self::with_parts(TENTHS)
    }
}
