//! A mutex that the reaper hands over to the threads that wait for it.
//!
//! # Protocol
//!
//! - A thread that schedules, cancels or resets holds the lock for one operation, or for 256 of a
//!   batch. If it finds the lock taken, it counts itself as waiting until it has it.
//! - The reaper holds the lock for a bounded number of steps. If threads wait when it lets go, it
//!   hands the lock to the one that has waited longest. Otherwise the lock is free.
//! - The reaper neither yields nor sleeps between two holds. If it finds the lock taken, it waits
//!   for its turn as any other thread.
//!
//! # Why both are bounded
//!
//! A thread that waits while the reaper holds the lock gets it after that one hold, or after the
//! threads that waited before it. Without the handover the reaper, which runs, would take the lock
//! again before the system has woken the other thread, for as long as a burst takes.
//!
//! The reaper waits for the threads that wait before it, each for one operation. `parking_lot`
//! wakes waiting threads in order, and gives the lock to the first of them at least once a
//! millisecond, so threads that run cannot take it from the reaper again and again. Between two
//! holds the reaper gives up no time slice: with more runnable threads than cores each would cost
//! it milliseconds, and the number of threads that wait says nothing about when they will run.
//!
//! The later the reaper is, the more steps it takes in one hold. So its share of the lock grows
//! until what expires in a hold outweighs what other threads insert between two.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::sync::{Mutex, MutexGuard, unlock_fair};

/// Steps that the reaper takes in one hold if it is on time: 5 to 10 us, if each misses the cache.
const LEAST_STEPS: u32 = 64;

/// Steps that it takes at most, however late it is: 100 to 400 us.
const MOST_STEPS: u32 = 4096;

/// How many steps the reaper takes in one hold if timeouts are late by so much: twice as many for
/// each millisecond.
pub(super) fn steps_per_hold(late: Duration) -> u64 {
    let doublings = u32::try_from(late.as_millis()).unwrap_or(u32::MAX);
    let steps = LEAST_STEPS.checked_shl(doublings).filter(|steps| *steps >= LEAST_STEPS);
    u64::from(steps.unwrap_or(MOST_STEPS).min(MOST_STEPS))
}

/// A value behind a lock.
pub(super) struct Gate<T> {
    value: Mutex<T>,
    /// Threads that found the lock taken. A hint: no protocol rests on it.
    waiting: AtomicU32,
}

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Ends a hold of the reaper: hands the lock to the thread that has waited longest, if any.
    pub(super) fn hand_over(&self, guard: MutexGuard<'_, T>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            unlock_fair(guard);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_hold_grows_with_the_lateness_and_ends() {
        let steps = [0, 1, 2, 5, 6, 25, 26, 27, 1000].map(|late| {
            assert!(steps_per_hold(Duration::from_micros(late * 1000 + 999)) >= 64);
            steps_per_hold(Duration::from_millis(late))
        });
        assert_eq!(steps, [64, 128, 256, 2048, 4096, 4096, 4096, 4096, 4096]);
        assert_eq!(steps_per_hold(Duration::MAX), 4096);
    }
}
