//! The wake-up promise: the reaper never sleeps past an expiration, and is not woken without need.
//!
//! One reaper sleeps on behalf of many shards. Each shard publishes the least tick at which it
//! wants to be seen to, in [`Published`]; the reaper publishes the tick until which it sleeps, in
//! [`Wakeup`]. Nobody takes a lock for this besides the shard's own.
//!
//! # Protocol
//!
//! - An inserter, under its shard's lock, (1) stores the lower expiration in its shard; (2) fence;
//!   (3) loads the reaper's `asleep_until`; if its expiration is earlier, it wakes the reaper.
//! - The reaper (1) stores `asleep_until = x`, the least published expiration; (2) fence; (3) loads
//!   what the shards publish once more; if one is earlier than `x`, it does not sleep; (4) parks
//!   until `x`.
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
//! An expiration is only ever raised by the reaper, under the shard's lock. One that is lower than
//! need be costs a turn without work; it is never higher than the least deadline in the shard.

use crate::{
    Tick,
    sync::{AtomicU64, Ordering, fence},
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

    /// The reaper is going to sleep until `until`; it is to look at the shards once more.
    pub(super) fn announce(&self, until: Tick) {
        // A swap, so that this comes after the swap of any inserter that took the reaper to be
        // asleep before: none is to take the value of that one for a later one.
        self.asleep_until.swap(until.get(), Ordering::Acquire);
        fence(Ordering::SeqCst);
    }

    /// The reaper does not sleep.
    pub(super) fn stay_awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
    }
}
