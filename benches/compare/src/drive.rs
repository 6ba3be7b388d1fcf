//! The loops that are timed, the same source for every contestant.
//!
//! A timeout's payload is its deadline wherever order is checked; so the checks touch no memory of
//! their own, and weigh little on either side of a comparison.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use crate::{Timers, workload::Pair};

/// Runs something and tells how long it took.
pub fn timed<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let begin = Instant::now();
    let result = black_box(work());
    (begin.elapsed(), result)
}

/// Inserts timeouts whose payload is their deadline, and appends their keys.
pub fn insert_all<T: Timers>(timers: &mut T, deadlines: &[u64], keys: &mut Vec<T::Key>) {
    for &deadline in deadlines {
        keys.push(timers.insert(deadline, deadline));
    }
}

/// Cancels each victim and inserts another timeout in its stead.
///
/// # Panics
///
/// If a victim is not pending.
pub fn cancel_insert<T: Timers>(timers: &mut T, keys: &mut [T::Key], pairs: &[Pair]) {
    for pair in pairs {
        let key = &mut keys[pair.victim as usize];
        assert!(timers.cancel(*key), "a victim was not pending");
        *key = timers.insert(pair.deadline, pair.deadline);
    }
}

/// Moves each victim to a new deadline.
///
/// # Panics
///
/// If a victim is not pending.
pub fn reset_all<T: Timers>(timers: &mut T, keys: &mut [T::Key], pairs: &[Pair]) {
    for pair in pairs {
        let key = &mut keys[pair.victim as usize];
        *key = timers.reset(*key, pair.deadline).expect("a victim was not pending");
    }
}

/// What came out of a set of timeouts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Number of timeouts.
    pub count: usize,
    /// Sum of their payloads.
    pub sum: u64,
}

impl Ledger {
    /// What is to come out if these were inserted, with their deadlines as payloads.
    #[must_use]
    pub fn of(deadlines: &[u64]) -> Self {
        let sum = deadlines.iter().fold(0, |sum: u64, deadline| sum.wrapping_add(*deadline));
        Self { count: deadlines.len(), sum }
    }
}

/// Sleeps until the next expiration in virtual time and expires what is due, until nothing is
/// pending.
///
/// Returns what expired, and how often it was woken.
///
/// # Panics
///
/// If a timeout comes early or out of order.
pub fn expire_all<T: Timers>(timers: &mut T) -> (Ledger, u32) {
    let (mut ledger, mut wakeups, mut last) = (Ledger::default(), 0, 0);
    while let Some(now) = timers.next_expiration() {
        wakeups += 1;
        ledger.count += timers.advance(now, |deadline| {
            assert!(last <= deadline && deadline <= now, "{deadline} came after {last} at {now}");
            last = deadline;
            ledger.sum = ledger.sum.wrapping_add(deadline);
        });
    }
    (ledger, wakeups)
}
