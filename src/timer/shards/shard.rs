//! A shard: one wheel behind one lock. No other file takes this lock.
//!
//! The lock may also guard an [`Annex`]: the state of another layer, whose entries end together
//! with timeouts.
//!
//! A thread holds the lock for one operation, for 256 operations of a batch, or, as the reaper, for
//! a bounded number of steps. No user code runs under it: no callback, and no drop of a value. An
//! annex may compare keys of the user, and documents that. No thread holds the locks of two shards.
//!
//! # Rules
//!
//! - The published expiration is not after any deadline in the shard; see
//!   [`wakeup`](super::wakeup).
//! - A closed shard refuses new timeouts. Inserting and closing take the same lock, so each timeout
//!   is refused or returned by [`Shard::shut_down`], and none is lost.
//!
//! # Handover
//!
//! - A thread that finds the lock taken spins for a few microseconds, then sleeps in a queue.
//! - The reaper unlocks after a bounded number of steps. If threads are in the queue, the reaper
//!   hands the lock to the first of them.
//! - Between two holds, the reaper neither yields nor sleeps. If it finds the lock taken, it waits
//!   for its turn, like any other thread.
//!
//! So a thread that waits for the reaper gets the lock after one hold, or after the threads that
//! waited before it. One that still spins when the hold ends may get it after the next. Without the
//! handover, the reaper, which is running, would take the lock again before the system has woken
//! the other thread, and this throughout a burst.
//!
//! The reaper waits for the threads that wait before it, one operation each. `parking_lot` wakes
//! waiting threads in order, and gives the lock to the first of them at least once a millisecond.
//! So running threads cannot keep taking the lock ahead of the reaper. The reaper gives up no time
//! slice between two holds: with more runnable threads than cores, each would cost milliseconds.
//!
//! The later the reaper is, the more steps it takes in one hold. So its share of the lock grows
//! until it expires more timeouts in a hold than other threads insert between two.

use std::{mem, time::Duration, vec::Vec};

use super::{
    annex::Annex,
    permits::Permits,
    wakeup::{Earlier, Published},
};
use crate::{
    sync::{Mutex, Unparker, unlock_fair},
    tick::Tick,
    timer::{error::ScheduleError, stats::ShardStats, tick_clock::Reading},
    wheel::{Expired, Key, TimingWheel},
};

/// Number of inserts after which a shard checks whether its wheel has to split a crowded bucket
/// ahead of time.
///
/// A bucket with more than 16 records is crowded. Without the check, the reaper would learn of such
/// a bucket only when its first timeout is due. So timeouts of a burst that are due together would
/// be late.
const INSERTS_PER_CHECK: u64 = 64;

/// A wheel behind a lock, and the expiration that it publishes to the reaper.
pub(crate) struct Shard<T, X = ()> {
    state: Mutex<State<T, X>>,
    published: Published,
}

struct State<T, X> {
    timeouts: Timeouts<T>,
    annex: X,
}

struct Timeouts<T> {
    wheel: TimingWheel<T>,
    /// Whether the shard refuses new timeouts.
    is_closed: bool,
    stats: ShardStats,
}

/// The timeouts of a shard whose lock a thread holds.
pub(crate) struct HeldTimeouts<'a, T> {
    timeouts: &'a mut Timeouts<T>,
    permits: &'a Permits,
    published: &'a Published,
}

impl<T, X> Shard<T, X> {
    pub(super) fn new(wheel: TimingWheel<T>, annex: X) -> Self {
        let timeouts = Timeouts { wheel, is_closed: false, stats: ShardStats::default() };
        let state = State { timeouts, annex };
        Self { state: Mutex::new(state), published: Published::new() }
    }

    /// Returns whether a thread holds the lock.
    #[inline]
    pub(super) fn is_locked(&self) -> bool {
        self.state.is_locked()
    }

    /// Adds a timeout, for which the caller has a permit. Then runs `act` with its key under the
    /// same hold, as [`hold`](Self::hold) does.
    #[inline]
    pub(super) fn insert<V>(
        &self,
        now: Tick,
        deadline: Tick,
        value: T,
        permits: &Permits,
        act: impl FnOnce(Key, HeldTimeouts<'_, T>, &mut X) -> V,
    ) -> Result<(V, Earlier), ScheduleError<T>> {
        let mut guard = self.state.lock();
        let State { timeouts, annex } = &mut *guard;
        if timeouts.is_closed {
            timeouts.stats.rejected += 1;
            drop(guard);
            return Err(ScheduleError::shut_down(value));
        }
        timeouts.wheel.observe(now);
        match timeouts.wheel.insert(deadline, value) {
            Ok(key) => {
                let earlier = timeouts.publish_insert(deadline, &self.published);
                let held = HeldTimeouts { timeouts, permits, published: &self.published };
                Ok((act(key, held, annex), earlier))
            }
            Err(refused) => {
                timeouts.stats.rejected += 1;
                drop(guard);
                Err(ScheduleError::full(refused.into_value()))
            }
        }
    }

    /// Adds timeouts in one hold until one is refused, and passes each key to `inserted`. Returns
    /// the refused timeout as well.
    ///
    /// The iterator must not run user code.
    pub(super) fn insert_batch(
        &self,
        now: Tick,
        timeouts: impl Iterator<Item = (Duration, Tick, T)>,
        mut inserted: impl FnMut(Key),
    ) -> (Earlier, Option<ScheduleError<(Duration, T)>>) {
        let mut earlier = None;
        let mut state = self.state.lock();
        state.timeouts.wheel.observe(now);
        for (delay, deadline, value) in timeouts {
            if state.timeouts.is_closed {
                return (earlier, Some(ScheduleError::shut_down((delay, value))));
            }
            match state.timeouts.wheel.insert(deadline, value) {
                Ok(key) => inserted(key),
                Err(refused) => {
                    return (earlier, Some(ScheduleError::full((delay, refused.into_value()))));
                }
            }
            earlier = state.timeouts.publish_insert(deadline, &self.published).or(earlier);
        }
        (earlier, None)
    }

    /// Passes the keys of the pending timeouts in up to 256 slots of the wheel, from `start` on, to
    /// `found`. Returns the slot after these; `None` after the last.
    #[cfg(feature = "future")]
    pub(super) fn keys_from(&self, start: u32, found: impl FnMut(Key)) -> Option<u32> {
        let state = self.state.lock();
        let wheel = &state.timeouts.wheel;
        let end = wheel.slots().min(start.saturating_add(256));
        (start..end).filter_map(|slot| wheel.key_at(slot)).for_each(found);
        (end < wheel.slots()).then_some(end)
    }

    /// Runs `change` on the value of a pending timeout, under the lock. Returns `None` if the
    /// timeout has ended. `change` must neither run nor drop anything of the user.
    #[cfg(feature = "future")]
    pub(super) fn with_value<R>(&self, key: Key, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.state.lock().timeouts.wheel.get_mut(key).map(change)
    }

    /// Cancels a timeout and returns its value; `None` if it has ended. Wakes the reaper if the
    /// shard is closed and now empty.
    #[inline]
    pub(super) fn cancel(&self, key: Key, reaper: &Unparker) -> Option<T> {
        let mut state = self.state.lock();
        let value = state.timeouts.wheel.cancel(key)?;
        state.timeouts.stats.cancelled += 1;
        if state.timeouts.is_closed {
            state.timeouts.wake_if_empty(reaper);
        }
        Some(value)
    }

    /// Cancels timeouts in one hold, and stores the value of each in `values` at its index. Returns
    /// their number.
    pub(super) fn cancel_batch(
        &self,
        keys: impl Iterator<Item = (usize, Key)>,
        values: &mut [Option<T>],
        reaper: &Unparker,
    ) -> usize {
        let mut count = 0;
        let mut state = self.state.lock();
        for (index, key) in keys {
            debug_assert!(values[index].is_none(), "a value would be dropped under the lock");
            values[index] = state.timeouts.wheel.cancel(key);
            count += usize::from(values[index].is_some());
        }
        state.timeouts.stats.cancelled += count as u64;
        if state.timeouts.is_closed {
            state.timeouts.wake_if_empty(reaper);
        }
        count
    }

    /// Runs `act` on the timeouts and the annex, under the lock. Wakes the reaper if the shard is
    /// closed and now empty.
    ///
    /// `act` must neither run nor drop anything of the user.
    #[inline]
    pub(super) fn hold<V>(
        &self,
        permits: &Permits,
        reaper: &Unparker,
        act: impl FnOnce(HeldTimeouts<'_, T>, &mut X) -> V,
    ) -> V {
        let mut guard = self.state.lock();
        let State { timeouts, annex } = &mut *guard;
        let held = HeldTimeouts { timeouts: &mut *timeouts, permits, published: &self.published };
        let result = act(held, annex);
        if timeouts.is_closed {
            timeouts.wake_if_empty(reaper);
        }
        result
    }

    /// Moves a timeout to a new deadline. Returns `None` if it has ended.
    #[inline]
    pub(super) fn reset(&self, key: Key, now: Tick, deadline: Tick) -> Option<Earlier> {
        let mut state = self.state.lock();
        state.timeouts.wheel.observe(now);
        state.timeouts.wheel.reset(key, deadline)?;
        let earlier = self.published.set_if_earlier(deadline);
        debug_assert!(self.published() <= deadline, "the reaper would sleep too long");
        Some(earlier)
    }

    /// Returns the deadline of a timeout; `None` if it has ended.
    pub(super) fn deadline(&self, key: Key) -> Option<Tick> {
        self.state.lock().timeouts.wheel.deadline(key)
    }

    /// Appends due timeouts to `expired`, in at most `steps` steps. Returns whether no due timeout
    /// is left. Only the reaper calls this.
    pub(super) fn expire(
        &self,
        Reading { elapsed, now }: Reading,
        steps: u64,
        permits: &Permits,
        expired: &mut Vec<Expired<X::Due>>,
    ) -> bool
    where
        X: Annex<T>,
    {
        let before = expired.len();
        let mut guard = self.state.lock();
        let State { timeouts, annex } = &mut *guard;
        let mut due = timeouts.wheel.advance(now).limit(steps);
        let size_before = annex.size();
        while annex.may_expire(expired.len() - before, steps, size_before) {
            let Some(next) = due.next() else { break };
            expired.push(annex.expire(next, elapsed));
        }
        let is_drained = due.is_drained();
        let memory = annex.emptied().and_then(|newest| timeouts.wheel.take_memory(newest));
        let count = expired.len() - before;
        timeouts.stats.expired += count as u64;
        // Another thread may see the end of an entry of the annex as soon as the lock is free.
        permits.release(count);
        self.published.set(timeouts.next_expiration());
        debug_assert!(!is_drained || self.published() > now, "a due timeout is left");
        // The wheel may be ahead of `now`: an insert may have read the clock later.
        debug_assert!(
            expired[before..].last().is_none_or(|last| last.deadline <= timeouts.wheel.now()),
            "a timeout expired early"
        );
        unlock_fair(guard);
        drop(memory);
        is_drained
    }

    /// Returns the published expiration, without the lock; `Tick::MAX` also stands for none.
    #[inline]
    pub(super) fn published(&self) -> Tick {
        self.published.get()
    }

    /// Raises the published expiration to that of the wheel: a cancel or reset may have left it too
    /// early. Only the reaper calls this.
    pub(super) fn raise_published(&self) {
        let state = self.state.lock();
        self.published.set(state.timeouts.next_expiration().max(self.published.get()));
    }

    /// The same with a fault: another thread may publish between the unlock and the store.
    #[cfg(all(test, loom))]
    pub(super) fn raise_published_unlocked(&self) {
        let next = self.state.lock().timeouts.next_expiration();
        self.published.set(next);
    }

    /// Returns the next tick at which the reaper has work here; `None` if no timeout is pending.
    ///
    /// Unlike the published expiration, a cancelled timeout does not make it too early.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        let state = self.state.lock();
        // The wheel may want to split a crowded bucket earlier than the shard has published.
        state.timeouts.wheel.next_expiration().map(|next| next.max(self.published.get()))
    }

    /// Makes the shard refuse new timeouts. Pending ones stay.
    pub(crate) fn close(&self) {
        self.state.lock().timeouts.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().timeouts.is_closed
    }

    /// Closes the shard and returns its wheel. The caller empties it, without the lock.
    pub(crate) fn shut_down(&self) -> TimingWheel<T> {
        let mut state = self.state.lock();
        let wheel = mem::take(&mut state.timeouts.wheel);
        state.timeouts.is_closed = true;
        state.timeouts.stats.returned += wheel.len() as u64;
        state.timeouts.stats.cascades += wheel.cascades();
        self.published.set(Tick::MAX);
        debug_assert!(state.timeouts.wheel.is_empty(), "a timeout stayed in the shard");
        wheel
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().timeouts.wheel.is_empty()
    }

    /// Checks the invariants of the shard. Returns the number of pending timeouts.
    pub(super) fn check_invariants(&self) -> u64 {
        self.state.lock().timeouts.check_invariants(&self.published)
    }

    /// Frees the memory that pending timeouts do not need.
    pub(super) fn shrink(&self) {
        self.state.lock().timeouts.wheel.shrink();
    }

    /// Adds the counts of this shard to `sum`.
    pub(super) fn add_stats(&self, sum: &mut ShardStats) {
        let state = self.state.lock();
        let Timeouts { wheel, stats, .. } = &state.timeouts;
        sum.add(stats);
        sum.pending += wheel.len() as u64;
        sum.cascades += wheel.cascades();
    }
}

impl<T> HeldTimeouts<'_, T> {
    /// Cancels a timeout and returns its value; `None` if it has ended.
    #[inline]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let value = self.timeouts.wheel.cancel(key)?;
        self.timeouts.stats.cancelled += 1;
        self.permits.release(1);
        Some(value)
    }

    /// Makes the shard refuse new timeouts. Pending ones stay.
    pub(crate) fn close(&mut self) {
        self.timeouts.is_closed = true;
    }

    /// Takes the memory of the wheel if that is empty; see [`TimingWheel::take_memory`].
    pub(crate) fn take_memory(&mut self, newest: u32) -> Option<TimingWheel<T>> {
        self.timeouts.wheel.take_memory(newest)
    }

    /// Returns whether a timeout is pending.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.timeouts.wheel.get(key).is_some()
    }

    /// Checks the invariants of the shard, except those of its annex. Returns the number of pending
    /// timeouts.
    pub(crate) fn check_invariants(&self) -> u64 {
        self.timeouts.check_invariants(self.published)
    }
}

impl<T> Timeouts<T> {
    fn check_invariants(&self, published: &Published) -> u64 {
        self.wheel.check_invariants();
        let published = published.get();
        for (_, deadline, _) in &self.wheel {
            assert!(published <= deadline, "published {published}, but one is due at {deadline}");
        }
        let pending = self.wheel.len() as u64;
        let ShardStats { scheduled, expired, cancelled, returned, .. } = self.stats;
        let ended = expired + cancelled + returned;
        assert_eq!(scheduled, pending + ended, "a timeout is pending or has ended once");
        assert!(returned == 0 || self.is_closed, "a shutdown closes the shard");
        assert!(returned == 0 || pending == 0, "a shutdown returns all timeouts");
        pending
    }

    /// Returns the next expiration of the wheel; `Tick::MAX` if it is empty.
    #[inline]
    fn next_expiration(&self) -> Tick {
        self.wheel.next_expiration().unwrap_or(Tick::MAX)
    }

    /// Counts an insert with `deadline`, and publishes the expiration that follows from it.
    #[inline]
    fn publish_insert(&mut self, deadline: Tick, published: &Published) -> Earlier {
        self.stats.scheduled += 1;
        let is_check = self.stats.scheduled % INSERTS_PER_CHECK == 0;
        let next = if is_check { self.next_expiration().min(deadline) } else { deadline };
        let earlier = published.set_if_earlier(next);
        debug_assert!(published.get() <= deadline, "the reaper would sleep too long");
        earlier
    }

    /// Wakes the reaper, which may wait for the shard to be empty.
    #[cold]
    fn wake_if_empty(&self, reaper: &Unparker) {
        debug_assert!(self.is_closed, "the reaper does not wait for an open shard");
        if self.wheel.is_empty() {
            reaper.unpark();
        }
    }
}
