//! The shards of a timer, and the operations on timeouts: insert, cancel, reset, expire.

pub(super) mod annex;
mod choice;
#[cfg(feature = "future")]
mod driver_waker;
pub(super) mod key;
pub(super) mod permits;
mod reaper_side;
pub(super) mod shard;
pub(super) mod wakeup;

#[cfg(feature = "future")]
use std::sync::OnceLock;
use std::{
    boxed::Box,
    iter, mem,
    num::NonZeroU64,
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
    vec::{self, Vec},
};

use crossbeam::utils::CachePadded;

#[cfg(feature = "future")]
use self::driver_waker::DriverWaker;
use self::{
    choice::ShardChoice,
    key::TimeoutKey,
    permits::Permits,
    shard::{HeldTimeouts, Shard},
    wakeup::{Earlier, Wakeup},
};
use super::{
    error::ScheduleError,
    stats::ShardStats,
    tick_clock::{Reading, TickClock},
};
use crate::{
    sync::{AtomicU64, Ordering, Unparker},
    tick::Tick,
    ticks::Nanos,
    wheel::{Key, TimingWheel},
};

/// Timeouts of a batch that are inserted or cancelled in one hold of a shard's lock.
///
/// 256 inserts of 40 ns take about 10 us, which is how long the reaper then waits. Taking the lock
/// is a small part of that.
#[cfg(not(loom))]
const BATCH_PER_HOLD: usize = 256;

/// One timeout in each hold, so that models stay small.
#[cfg(loom)]
const BATCH_PER_HOLD: usize = 1;

/// The part of a batch that was not inserted, and why; `None` if all of it was.
pub(super) type Rest<T> = Option<ScheduleError<Vec<(Duration, T)>>>;

/// A phase of a timer; [`shutdown`](super::shutdown) has the rules.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    Running,
    Closing,
    Finishing,
    ShutDown,
}

/// The shards of a timer, with its clock, its permits and the protocol that wakes its reaper.
pub(crate) struct Shards<T, X = ()> {
    pub(super) all: Box<[CachePadded<Shard<T, X>>]>,
    choice: ShardChoice,
    clock: TickClock,
    wakeup: Wakeup,
    /// Wakes the reaper.
    pub(super) reaper: Unparker,
    /// Wakes the task that expires sleeps in place of the reaper, if there is one.
    #[cfg(feature = "future")]
    driver: OnceLock<DriverWaker>,
    pub(super) permits: Permits,
    /// The [`Phase`] of the timer.
    pub(super) phase: AtomicU64,
}

impl<T, X> Shards<T, X> {
    pub(super) fn new(
        wheels: impl Iterator<Item = (TimingWheel<T>, X)>,
        clock: TickClock,
        reaper: Unparker,
        max_pending: Option<NonZeroU64>,
    ) -> Self {
        let shard = |(wheel, annex)| CachePadded::new(Shard::new(wheel, annex));
        let all: Box<[_]> = wheels.map(shard).collect();
        debug_assert!(!all.is_empty(), "a timer has a shard");
        Self {
            choice: ShardChoice::new(all.len()),
            all,
            clock,
            wakeup: Wakeup::new(),
            reaper,
            #[cfg(feature = "future")]
            driver: OnceLock::new(),
            permits: Permits::new(max_pending),
            phase: AtomicU64::new(Phase::Running as u64),
        }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &TickClock {
        &self.clock
    }

    /// Returns the number of shards.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the index of the shard that this thread uses.
    #[inline]
    pub(crate) fn current(&self) -> usize {
        self.choice.current()
    }

    /// Returns the index of a shard whose lock was free a moment ago. If there is none, returns
    /// that of the shard that this thread uses.
    #[inline]
    pub(crate) fn unlocked(&self) -> usize {
        self.choice.unlocked(|index| self.all[index].is_locked())
    }

    /// Adds a timeout to the shard at `index`.
    #[inline]
    pub(super) fn insert(
        &self,
        index: usize,
        now: Tick,
        deadline: Tick,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        self.insert_and_hold(index, now, deadline, value, |key, _, _| TimeoutKey::new(index, key))
    }

    /// The same, and runs `act` with the key under the same hold, as [`hold`](Self::hold) does.
    #[inline]
    pub(crate) fn insert_and_hold<V>(
        &self,
        index: usize,
        now: Tick,
        deadline: Tick,
        value: T,
        act: impl FnOnce(Key, HeldTimeouts<'_, T>, &mut X) -> V,
    ) -> Result<V, ScheduleError<T>> {
        if !self.permits.acquire() {
            return Err(self.refusal(index, value));
        }
        let on_panic = WakeOnPanic(self);
        let inserted = self.all[index].insert(now, deadline, value, &self.permits, act);
        mem::forget(on_panic);
        let (result, earlier) = inserted.inspect_err(|_| self.permits.release(1))?;
        self.wake_if_needed(now, earlier);
        Ok(result)
    }

    /// Adds a timeout to the current shard, without reading the clock again.
    pub(super) fn insert_at_elapsed(
        &self,
        read: Reading,
        deadline: Nanos,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        self.insert(self.current(), read.now, self.clock.ceil(deadline), value)
    }

    /// Adds timeouts to the current shard, in order, until one is refused. Returns their keys, and
    /// the other timeouts.
    ///
    /// It reads the clock once, and wakes the reaper after each hold of the lock if needed, so that
    /// the first timeouts of a long batch are not late.
    pub(super) fn insert_batch(&self, batch: Vec<(Duration, T)>) -> (Vec<TimeoutKey>, Rest<T>) {
        let read = self.clock.read();
        let deadline = |delay| self.clock.deadline(read, delay);
        let permits = self.permits.acquire_up_to(batch.len());
        let index = self.current();
        let mut keys = Vec::with_capacity(batch.len());
        let mut batch = batch.into_iter();
        let mut refused = None;
        while refused.is_none() && keys.len() < permits {
            let count = BATCH_PER_HOLD.min(permits - keys.len());
            let timeouts = batch.by_ref().take(count);
            let timeouts = timeouts.map(|(delay, value)| (delay, deadline(delay), value));
            let inserted = |key| keys.push(TimeoutKey::new(index, key));
            let (earlier, stopped) = self.all[index].insert_batch(read.now, timeouts, inserted);
            self.wake_if_needed(read.now, earlier);
            refused = stopped;
        }
        debug_assert!(refused.is_some() || keys.len() == permits, "a timeout was not inserted");
        self.permits.release_refused(permits - keys.len());
        (keys, self.rest(index, refused, batch))
    }

    /// Returns the part of a batch that was not inserted: the timeout that the shard refused, if
    /// any, and all after it.
    fn rest(
        &self,
        index: usize,
        refused: Option<ScheduleError<(Duration, T)>>,
        batch: vec::IntoIter<(Duration, T)>,
    ) -> Rest<T> {
        let Some(refused) = refused else {
            return (batch.len() > 0).then(|| self.refusal(index, batch.collect()));
        };
        Some(refused.map(|first| iter::once(first).chain(batch).collect()))
    }

    /// Returns the error for a value without a permit. A closed shard is reported as shut down,
    /// even if the timer is full.
    #[cold]
    fn refusal<V>(&self, index: usize, value: V) -> ScheduleError<V> {
        if self.all[index].is_closed() {
            ScheduleError::shut_down(value)
        } else {
            ScheduleError::full(value)
        }
    }

    /// Runs `act` on the timeouts and the annex of the shard at `index`, under its lock.
    ///
    /// `act` must neither run nor drop anything of the user.
    #[inline]
    pub(crate) fn hold<V>(
        &self,
        index: usize,
        act: impl FnOnce(HeldTimeouts<'_, T>, &mut X) -> V,
    ) -> V {
        self.all[index].hold(&self.permits, &self.reaper, act)
    }

    /// Cancels a timeout and returns its value; `None` if it has ended.
    #[inline]
    pub(super) fn cancel(&self, key: TimeoutKey) -> Option<T> {
        let value = self.shard(key)?.cancel(key.in_shard(), &self.reaper)?;
        self.permits.release(1);
        Some(value)
    }

    /// Cancels timeouts. Returns the value of each, in order; `None` for one that has ended.
    pub(super) fn cancel_batch(&self, keys: &[TimeoutKey]) -> Vec<Option<T>> {
        let mut values: Vec<_> = keys.iter().map(|_| None).collect();
        let mut order: Vec<_> = (0..keys.len()).collect();
        order.sort_by_key(|&index| keys[index].shard());
        for of_shard in order.chunk_by(|&one, &next| keys[one].shard() == keys[next].shard()) {
            let Some(shard) = self.shard(keys[of_shard[0]]) else { continue };
            for of_hold in of_shard.chunks(BATCH_PER_HOLD) {
                let keys = of_hold.iter().map(|&index| (index, keys[index].in_shard()));
                let count = shard.cancel_batch(keys, &mut values, &self.reaper);
                self.permits.release(count);
            }
        }
        values
    }

    /// Moves a timeout to `delay` from now. Returns whether it was pending.
    pub(super) fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        let read = self.clock.read();
        self.reset_to(key, read.now, self.clock.deadline(read, delay))
    }

    /// Moves a timeout to `instant`. Returns whether it was pending.
    pub(super) fn reset_at(&self, key: TimeoutKey, instant: Instant) -> bool {
        self.reset_to(key, self.clock.now(), self.clock.at(instant))
    }

    /// Moves a timeout to a deadline, without reading the clock. Returns whether it was pending.
    pub(super) fn reset_to(&self, key: TimeoutKey, now: Tick, deadline: Tick) -> bool {
        let Some(shard) = self.shard(key) else { return false };
        let Some(earlier) = shard.reset(key.in_shard(), now, deadline) else { return false };
        self.wake_if_needed(now, earlier);
        true
    }

    /// Returns whether a timeout that is due at this tick has certainly left its shard. Takes no
    /// lock.
    ///
    /// A shard publishes no expiration after that of a pending timeout. That is `due`, or a later
    /// tick if `due` had passed when the timeout was added or moved. The later tick is not after
    /// the latest one that a thread has read from the clock.
    #[cfg(feature = "future")]
    #[inline]
    pub(super) fn is_past(&self, key: TimeoutKey, due: Tick) -> bool {
        let due = due.max(self.clock.latest());
        self.shard(key).is_none_or(|shard| shard.published() > due)
    }

    /// Returns whether the number of pending timeouts is limited.
    #[cfg(feature = "future")]
    pub(super) fn has_limit(&self) -> bool {
        self.permits.has_limit()
    }

    /// Runs `change` on the value of a pending timeout; see [`Shard::with_value`].
    #[cfg(feature = "future")]
    pub(super) fn with_value<R>(
        &self,
        key: TimeoutKey,
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        self.shard(key)?.with_value(key.in_shard(), change)
    }

    /// Returns the keys of the pending timeouts, for a caller that has closed the shards.
    #[cfg(feature = "future")]
    pub(super) fn keys(&self) -> Vec<TimeoutKey> {
        let mut keys = Vec::new();
        for (index, shard) in self.all.iter().enumerate() {
            let mut next = Some(0);
            while let Some(start) = next {
                next = shard.keys_from(start, |key| keys.push(TimeoutKey::new(index, key)));
            }
        }
        keys
    }

    /// Returns the deadline of a timeout; `None` if it has ended.
    pub(super) fn deadline(&self, key: TimeoutKey) -> Option<Tick> {
        self.shard(key)?.deadline(key.in_shard())
    }

    /// Returns the time until a timeout expires; `None` if it has ended.
    pub(super) fn remaining(&self, key: TimeoutKey) -> Option<Duration> {
        let deadline = self.clock.since_origin(self.deadline(key)?);
        Some(deadline.saturating_sub(self.clock.elapsed().into()))
    }

    /// Checks the invariants of the shards, and those between them. No other thread may insert,
    /// cancel or expire meanwhile.
    pub(super) fn check_invariants(&self) {
        // The reaper announces a sleep before it sleeps, and publishes later expirations after it.
        let asleep_until = self.wakeup.asleep_until();
        let pending = self.all.iter().map(|shard| shard.check_invariants()).sum();
        self.permits.check_invariants(pending);
        assert!(asleep_until <= self.next_expiration(), "the reaper sleeps too long");
        let is_over = self.phase.load(Ordering::Acquire) >= Phase::Finishing as u64;
        assert!(!is_over || self.is_closed(), "a finish and a shutdown close every shard");
    }

    /// Frees the memory that pending timeouts do not need.
    pub(crate) fn shrink(&self) {
        self.all.iter().for_each(|shard| shard.shrink());
    }

    /// Returns the counts of all shards.
    pub(super) fn stats(&self) -> ShardStats {
        let mut sum = ShardStats::default();
        self.all.iter().for_each(|shard| shard.add_stats(&mut sum));
        sum.rejected += self.permits.refused();
        sum
    }

    /// Returns the shard of a key; `None` if the key is one of another timer with more shards.
    #[inline]
    fn shard(&self, key: TimeoutKey) -> Option<&Shard<T, X>> {
        self.all.get(key.shard()).map(|shard| &**shard)
    }

    /// Wakes the reaper if it sleeps past an expiration that this thread has published, or past
    /// `now`.
    #[inline]
    fn wake_if_needed(&self, now: Tick, earlier: Earlier) {
        let must_wake = earlier.is_some_and(|expiration| self.wakeup.must_wake(expiration));
        if must_wake || (self.wakeup.is_overdue(now) && self.wakeup.must_wake_overdue()) {
            self.unpark_reaper();
        }
    }
}

/// Wakes the reaper when it is dropped: the comparison of a key of the user may panic after an
/// insert has published its expiration.
struct WakeOnPanic<'a, T, X>(&'a Shards<T, X>);

impl<T, X> Drop for WakeOnPanic<'_, T, X> {
    fn drop(&mut self) {
        self.0.unpark_reaper();
    }
}

/// A reference to the shards of a timer, for the handles of the timeouts of one shard.
///
/// It does not keep the timer running. Each shard has a reference count of its own: if all handles
/// shared one count, threads that schedule and cancel would contend for its cache line. The shards
/// stay in memory as long as a reference exists, empty once the timer has shut down.
pub(crate) struct ShardsRef<T, X = ()>(Arc<CachePadded<Arc<Shards<T, X>>>>);

impl<T, X> ShardsRef<T, X> {
    /// Makes a reference for each shard.
    pub(super) fn for_each_shard(shards: &Arc<Shards<T, X>>) -> Box<[Self]> {
        let reference = |_| Self(Arc::new(CachePadded::new(Arc::clone(shards))));
        (0..shards.count()).map(reference).collect()
    }

    /// Returns whether these are the shards that it refers to.
    pub(super) fn is_of(&self, shards: &Arc<Shards<T, X>>) -> bool {
        Arc::ptr_eq(&**self.0, shards)
    }
}

impl<T, X> Clone for ShardsRef<T, X> {
    #[inline]
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T, X> Deref for ShardsRef<T, X> {
    type Target = Shards<T, X>;

    #[inline]
    fn deref(&self) -> &Shards<T, X> {
        &self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{clock::ManualClock, sync::Parker, timer::ScheduleErrorKind, wheel::WheelBuilder};

    /// A wheel refuses a timeout if all 2^32 indices are in use. No test has the memory for that.
    #[test]
    fn a_full_wheel_hands_values_back_and_they_count_as_rejected() {
        let wheel = WheelBuilder::new().max_pending(1).build().expect("the settings are valid");
        let clock = TickClock::new(Arc::new(ManualClock::new()), Duration::from_millis(1));
        let shards =
            Shards::new(iter::once((wheel, ())), clock, Parker::new().unparker().clone(), None);
        let deadline = Tick::new(1000);
        assert!(shards.insert(0, Tick::ZERO, deadline, 1).is_ok());
        let error = shards.insert(0, Tick::ZERO, deadline, 2).unwrap_err();
        assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::Full, 2));
        let delay = Duration::from_secs(1);
        let (keys, rest) = shards.insert_batch(std::vec![(delay, 3), (delay, 4)]);
        assert!(keys.is_empty());
        let error = rest.expect("the wheel is full");
        assert_eq!(error.kind(), ScheduleErrorKind::Full);
        assert_eq!(error.into_value(), [(delay, 3), (delay, 4)]);
        let stats = shards.stats();
        assert_eq!((stats.rejected, stats.pending), (3, 1));
    }
}
