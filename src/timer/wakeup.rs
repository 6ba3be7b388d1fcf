//! The wake-up promise: the reaper never sleeps past an expiration, and is not woken without need.
//!
//! One reaper sleeps on behalf of many shards. Each shard publishes the least tick at which it
//! wants to be seen to, in [`Published`]. The reaper publishes the tick until which it sleeps, in
//! [`Wakeup`]. No lock is taken for this but the shard's own.
//!
//! # Protocol
//!
//! - An inserter reads the clock; then, under its shard's lock, it (1) stores the lower expiration
//!   in its shard; (2) fence; (3) loads the reaper's `asleep_until`. If its expiration is earlier,
//!   it wakes the reaper.
//! - The reaper (1) stores `asleep_until = x`, the least published expiration; (2) fence; (3) loads
//!   the published expirations once more; if one is earlier than `x`, it does not sleep; (4) reads
//!   the clock; (5) parks until `x`, for as long as the clock says.
//! - An inserter that published nothing, because its shard wants to be seen to earlier, loads
//!   `asleep_until` all the same. If the clock that it has read is at or past `x`, the clock has
//!   jumped ahead, and the inserter wakes the reaper.
//! - A reaper that wakes at `x` and expires nothing slept for a timeout that was cancelled or put
//!   off. It raises the published expiration of each shard, under the shard's lock, to what the
//!   wheel says.
//!
//! # Why no wake-up is lost
//!
//! Both fences are sequentially consistent, so one comes first. If it is the inserter's, the
//! reaper's second look sees the new expiration. If it is the reaper's, the inserter sees `x` and
//! wakes the reaper; and the parker remembers a wake-up that comes before the reaper has parked.
//!
//! Of several inserters that see `x`, one swaps it for "awake" and wakes the reaper; the others
//! rely on that one.
//!
//! Only the reaper raises an expiration, and only under the shard's lock. One that is lower than
//! need be costs a turn without work; it is never higher than the least deadline in the shard.
//!
//! # Why a jump of the clock is noticed
//!
//! If the reaper's step 4 sees the clock after the jump, it does not park. Otherwise it read the
//! clock before the jump, and the inserter reads it after the jump, so the reaper's step 1 is past
//! by then. The inserter sees `x`, provided that a look at the clock orders what comes before it
//! against what comes after later looks: a clock behind a lock does, and so does the counter that
//! `Instant` reads on x86-64. Where it does not, a later insert sees `x`.
//!
//! # How often the reaper wakes for nothing
//!
//! Cancelling wakes no thread, and leaves the published expiration as it is. So the reaper may wake
//! at the deadline of a cancelled timeout, at which it began to sleep. After that each shard
//! publishes what its wheel says. While no timeout is cancelled or put off, no further wake-up is
//! for a cancelled one, however many there were, on however many shards.

use crate::{
    sync::{AtomicU64, Ordering, fence},
    tick::Tick,
};

/// The least tick at which a shard wants to be seen to. Written under the shard's lock.
#[derive(Debug)]
pub(super) struct Published(AtomicU64);

impl Published {
    /// For a shard without timeouts.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// What is published; `Tick::MAX` also stands for nothing.
    #[inline]
    pub(super) fn get(&self) -> Tick {
        Tick::new(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set(&self, expiration: Tick) {
        self.0.store(expiration.get(), Ordering::Relaxed);
    }
}

/// Until when the reaper sleeps.
#[derive(Debug)]
pub(super) struct Wakeup {
    asleep_until: AtomicU64,
}

/// Nothing expires before tick 0, so nobody wakes a reaper that sleeps until then.
const AWAKE: u64 = 0;

impl Wakeup {
    /// For a reaper that is awake, or has not been started.
    pub(super) fn new() -> Self {
        Self { asleep_until: AtomicU64::new(AWAKE) }
    }

    /// Whether an inserter that has published `expiration` is to wake the reaper. It is told so
    /// once.
    pub(super) fn must_wake(&self, expiration: Tick) -> bool {
        fence(Ordering::SeqCst);
        expiration.get() < self.asleep_until.load(Ordering::Relaxed)
            && self.asleep_until.swap(AWAKE, Ordering::Release) != AWAKE
    }

    /// Whether the reaper sleeps until `now` or earlier, though it should have woken by then.
    #[inline]
    pub(super) fn is_overdue(&self, now: Tick) -> bool {
        // One comparison: `AWAKE` wraps to the greatest number.
        self.asleep_until.load(Ordering::Relaxed).wrapping_sub(1) < now.get()
    }

    /// Whether an inserter that found the reaper overdue is to wake it. It is told so once.
    #[cold]
    pub(super) fn must_wake_overdue(&self) -> bool {
        self.asleep_until.swap(AWAKE, Ordering::Release) != AWAKE
    }

    /// The reaper is going to sleep until `until`; it is to look at the shards once more.
    pub(super) fn announce(&self, until: Tick) {
        // A swap, so that this comes after the swap of any inserter that took the reaper to be
        // asleep before: none is to take the value of that one for a later one.
        let before = self.asleep_until.swap(until.get(), Ordering::Acquire);
        debug_assert_eq!(before, AWAKE, "the reaper announces once before it sleeps");
        fence(Ordering::SeqCst);
    }

    /// Returns the tick until which the reaper sleeps; tick 0 if it is awake.
    pub(super) fn asleep_until(&self) -> Tick {
        Tick::new(self.asleep_until.load(Ordering::Relaxed))
    }

    /// The reaper does not sleep.
    pub(super) fn stay_awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
    }
}
