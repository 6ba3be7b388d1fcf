//! The wheels of a timer, one a shard, and everything that is done to them under their locks.
//!
//! # Locks
//!
//! A shard has one lock. It is held for one operation of the wheel, or for a bounded number of
//! steps of the reaper, and never while user code runs: not callbacks, nor the drop of a value. No
//! thread holds two.
//!
//! # Rules
//!
//! - A shard publishes an expiration that is not after any deadline in it; see
//!   [`wakeup`](super::wakeup).
//! - A shard that is closed takes in nothing. Closing and inserting are under the same lock, so a
//!   timeout is either refused or handed back by [`Core::close`], and never lost. A drain closes
//!   shards as well, and leaves in them what they have; see [`crew`](super::crew).

use std::{
    boxed::Box,
    iter, mem,
    num::NonZeroU64,
    sync::atomic::{AtomicUsize, Ordering as Relaxation},
    time::{Duration, Instant},
    vec::{self, Vec},
};

use crossbeam::utils::CachePadded;

use super::{
    error::ScheduleError,
    gate::Gate,
    key::TimeoutKey,
    limit::Limit,
    stats::ShardStats,
    ticks::TickClock,
    wakeup::{Published, Wakeup},
};
use crate::{
    Expired, Key, Tick, TimingWheel,
    sync::{AtomicBool, Ordering, Unparker},
};

/// Timeouts of a batch that are inserted or cancelled before a shard's lock is let go of.
///
/// About 10 us of inserts at 40 ns each, so that the reaper does not wait for longer; and the lock
/// is a small part of it.
#[cfg(not(loom))]
const BATCH_PER_HOLD: usize = 256;

/// Each timeout of a batch has a hold of its own, so that models stay small.
#[cfg(loom)]
const BATCH_PER_HOLD: usize = 1;

/// Inserts of a shard between two looks at whether its wheel wants to spread a crowded bucket ahead
/// of time.
///
/// A bucket is crowded from 16 records on. Without a look, a million that are due together 4 s
/// ahead were 51 ms late, on two cores; with one every 64 inserts, 30 ms, and inserting took no
/// longer.
const INSERTS_PER_LOOK: u64 = 64;

/// What is left of a batch, and why; `None` if nothing is.
pub(super) type Rest<T> = Option<ScheduleError<Vec<(Duration, T)>>>;

/// What is under a shard's lock.
struct Contents<T> {
    wheel: TimingWheel<T>,
    /// Whether it refuses new timeouts.
    is_closed: bool,
    stats: ShardStats,
}

impl<T> Contents<T> {
    /// When the wheel wants to be seen to after an insert, as far as that is to be published.
    #[inline]
    fn wanted_after_insert(&self, deadline: Tick) -> Tick {
        if self.stats.scheduled % INSERTS_PER_LOOK > 0 {
            return deadline;
        }
        self.wheel.next_expiration().map_or(deadline, |next| next.min(deadline))
    }

    /// Wakes the reaper, which may wait for the shard to be empty, if it is.
    #[cold]
    fn tell_if_last(&self, reaper: &Unparker) {
        if self.wheel.is_empty() {
            reaper.unpark();
        }
    }
}

struct Shard<T> {
    contents: Gate<Contents<T>>,
    published: Published,
}

/// The shards of a timer.
pub(super) struct Core<T> {
    shards: Box<[CachePadded<Shard<T>>]>,
    ticks: TickClock,
    wakeup: Wakeup,
    /// Wakes the reaper.
    reaper: Unparker,
    limit: Limit,
    /// Whether all shards refuse new timeouts, and the reaper is to end when they have none.
    is_draining: AtomicBool,
}

impl<T> Core<T> {
    pub(super) fn new(
        wheels: impl Iterator<Item = TimingWheel<T>>,
        ticks: TickClock,
        reaper: Unparker,
        max_pending: Option<NonZeroU64>,
    ) -> Self {
        let shards = wheels.map(|wheel| {
            let contents = Contents { wheel, is_closed: false, stats: ShardStats::default() };
            CachePadded::new(Shard { contents: Gate::new(contents), published: Published::new() })
        });
        let limit = Limit::new(max_pending);
        Self {
            shards: shards.collect(),
            ticks,
            wakeup: Wakeup::new(),
            reaper,
            limit,
            is_draining: AtomicBool::new(false),
        }
    }

    pub(super) fn ticks(&self) -> &TickClock {
        &self.ticks
    }

    /// Number of shards, and which of them this thread uses.
    #[inline]
    pub(super) fn shards(&self) -> (usize, usize) {
        let count = self.shards.len();
        (count, current_shard(count))
    }

    /// Adds a timeout that expires when `delay` is over.
    #[inline]
    pub(super) fn schedule(
        &self,
        delay: Duration,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let (now, deadline) = self.ticks.now_and_after(delay);
        self.insert(now, deadline, value)
    }

    /// Adds a timeout that expires at `instant`.
    pub(super) fn schedule_at(
        &self,
        instant: Instant,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        self.insert(self.ticks.now(), self.ticks.at(instant), value)
    }

    /// Adds a timeout that expires at `deadline`, without a look at the clock. Both times are in
    /// nanoseconds of [`TickClock::elapsed`].
    pub(super) fn insert_at_elapsed(
        &self,
        now: u64,
        deadline: u64,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let (now, _) = self.ticks.at_and_after(now, Duration::ZERO);
        let (_, deadline) = self.ticks.at_and_after(deadline, Duration::ZERO);
        self.insert(now, deadline, value)
    }

    #[inline]
    pub(super) fn insert(
        &self,
        now: Tick,
        deadline: Tick,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let (_, shard) = self.shards();
        self.insert_at(shard, now, deadline, value)
    }

    /// Adds a timeout to a shard.
    #[inline]
    pub(super) fn insert_at(
        &self,
        shard: usize,
        now: Tick,
        deadline: Tick,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        if !self.limit.admit() {
            return Err(self.refusal(shard, value));
        }
        self.insert_into(shard, now, deadline, value)
    }

    /// Why a timeout is refused for which there is no place: a timer that ends takes in none, full
    /// or not.
    #[cold]
    fn refusal<V>(&self, shard: usize, value: V) -> ScheduleError<V> {
        let is_closed = self.shards[shard].contents.lock().is_closed;
        if is_closed { ScheduleError::shut_down(value) } else { ScheduleError::full(value) }
    }

    /// Adds a timeout, for which there is a place, to a shard.
    #[inline]
    pub(super) fn insert_into(
        &self,
        shard: usize,
        now: Tick,
        deadline: Tick,
        value: T,
    ) -> Result<TimeoutKey, ScheduleError<T>> {
        let inserted = self.shards[shard].insert(now, deadline, value);
        let (key, earlier) = inserted.inspect_err(|_| self.limit.release(1))?;
        self.wake_if_needed(now, earlier);
        Ok(TimeoutKey::new(shard, key))
    }

    /// Takes out a timeout; `None` if it has ended.
    #[inline]
    pub(super) fn cancel(&self, key: TimeoutKey) -> Option<T> {
        let value = self.shard(key)?.cancel(key.in_shard(), &self.reaper)?;
        self.limit.release(1);
        Some(value)
    }

    /// Adds timeouts, in order, until one is refused. Returns their keys, and the rest with the
    /// reason, if any is left.
    ///
    /// The clock is read once. Whoever is to be woken is so after each hold of the lock: the reaper
    /// must not be late for the first of many.
    pub(super) fn schedule_batch(&self, batch: Vec<(Duration, T)>) -> (Vec<TimeoutKey>, Rest<T>) {
        let (now, deadline) = self.ticks.now_and_deadlines();
        let places = self.limit.admit_some(batch.len() as u64);
        let mut keys = Vec::with_capacity(batch.len());
        let mut batch = batch.into_iter();
        let index = current_shard(self.shards.len());
        let mut refused = None;
        while refused.is_none() && (keys.len() as u64) < places {
            let left = places - keys.len() as u64;
            let count =
                usize::try_from(left).map_or(BATCH_PER_HOLD, |left| left.min(BATCH_PER_HOLD));
            let held = batch.by_ref().take(count);
            let held = held.map(|(delay, value)| (delay, deadline(delay), value));
            let (earlier, stopped) = self.shards[index].insert_all(now, held, |key| {
                keys.push(TimeoutKey::new(index, key));
            });
            self.wake_if_needed(now, earlier);
            refused = stopped;
        }
        self.limit.refuse(places - keys.len() as u64);
        (keys, self.rest(index, refused, batch))
    }

    /// What is left of a batch, one of which may have been refused by a shard.
    fn rest(
        &self,
        shard: usize,
        refused: Option<ScheduleError<(Duration, T)>>,
        batch: vec::IntoIter<(Duration, T)>,
    ) -> Rest<T> {
        let Some(refused) = refused else {
            return (batch.len() > 0).then(|| self.refusal(shard, batch.collect()));
        };
        Some(refused.map(|first| iter::once(first).chain(batch).collect()))
    }

    /// Takes out timeouts. Returns the value of each, in order; `None` for those that have ended.
    pub(super) fn cancel_batch(&self, keys: &[TimeoutKey]) -> Vec<Option<T>> {
        let mut values: Vec<_> = keys.iter().map(|_| None).collect();
        let mut order: Vec<_> = (0..keys.len()).collect();
        order.sort_by_key(|&index| keys[index].shard());
        for of_shard in order.chunk_by(|&one, &next| keys[one].shard() == keys[next].shard()) {
            let Some(shard) = self.shard(keys[of_shard[0]]) else { continue };
            for held in of_shard.chunks(BATCH_PER_HOLD) {
                let keys = held.iter().map(|&index| (index, keys[index].in_shard()));
                let count = shard.cancel_all(keys, &mut values, &self.reaper);
                self.limit.release(count);
            }
        }
        values
    }

    /// Moves a timeout to a new deadline. Returns whether it was pending.
    pub(super) fn reset(&self, key: TimeoutKey, delay: Duration) -> bool {
        let (now, deadline) = self.ticks.now_and_after(delay);
        self.reset_to(key, now, deadline)
    }

    /// Moves a timeout to a new deadline, without a look at the clock. Returns whether it was
    /// pending.
    pub(super) fn reset_to(&self, key: TimeoutKey, now: Tick, deadline: Tick) -> bool {
        let Some(shard) = self.shard(key) else { return false };
        let Ok(earlier) = shard.reset(key.in_shard(), now, deadline) else { return false };
        self.wake_if_needed(now, earlier);
        true
    }

    /// Moves a timeout to an instant. Returns whether it was pending.
    pub(super) fn reset_at(&self, key: TimeoutKey, instant: Instant) -> bool {
        self.reset_to(key, self.ticks.now(), self.ticks.at(instant))
    }

    /// The time until a timeout expires; `None` if it has ended.
    pub(super) fn remaining(&self, key: TimeoutKey) -> Option<Duration> {
        let deadline = self.ticks.since_origin(self.deadline(key)?);
        Some(deadline.saturating_sub(Duration::from_nanos(self.ticks.elapsed())))
    }

    /// When a timeout expires; `None` if it has ended.
    pub(super) fn deadline(&self, key: TimeoutKey) -> Option<Tick> {
        self.shard(key)?.contents.lock().wheel.deadline(key.in_shard())
    }

    /// Takes out some of the timeouts that are due at `now`, in at most `steps` steps a shard.
    /// Returns whether these were all.
    pub(super) fn expire(&self, now: Tick, steps: u64, expired: &mut Vec<Expired<T>>) -> bool {
        let before = expired.len();
        let mut is_drained = true;
        for shard in self.shards.iter().filter(|shard| shard.published.get() <= now) {
            is_drained &= shard.expire(now, steps, expired);
        }
        self.limit.release((expired.len() - before) as u64);
        is_drained
    }

    /// The least expiration that a shard has published; `Tick::MAX` also stands for none.
    pub(super) fn next_expiration(&self) -> Tick {
        let published = self.shards.iter().map(|shard| shard.published.get());
        published.min().unwrap_or(Tick::MAX)
    }

    /// The least tick at which there is something to do; `None` if nothing is pending.
    ///
    /// Unlike what is published, this is not earlier on account of what has been cancelled. Takes
    /// each shard's lock for a moment.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        self.shards.iter().filter_map(|shard| shard.next_turn()).min()
    }

    /// Announces that the reaper sleeps until the next expiration, and returns that; `None` if it
    /// is not to sleep.
    pub(super) fn fall_asleep(&self, now: Tick) -> Option<Tick> {
        let until = self.next_expiration();
        if until > now {
            self.wakeup.announce(until);
            if self.next_expiration() >= until {
                return Some(until);
            }
            self.wakeup.stay_awake();
        }
        None
    }

    /// The reaper has woken up.
    pub(super) fn wake_up(&self) {
        self.wakeup.stay_awake();
    }

    /// Has the reaper look at the clock and at what is due.
    pub(super) fn wake(&self) {
        self.reaper.unpark();
    }

    /// Raises what the shards publish to what their wheels say: a cancelled timeout may have left
    /// it too low. For the reaper alone.
    pub(super) fn raise_published(&self) {
        self.shards.iter().for_each(|shard| shard.raise_published());
    }

    /// The same, broken: what a wheel says may be wrong by the time that it is published.
    #[cfg(all(test, loom))]
    pub(super) fn raise_published_unlocked(&self) {
        for shard in &self.shards {
            let next = shard.contents.lock().wheel.next_expiration().unwrap_or(Tick::MAX);
            shard.published.set(next);
        }
    }

    /// Takes in no more timeouts, and has the reaper end when none is left.
    pub(super) fn begin_to_drain(&self) {
        for shard in &self.shards {
            shard.contents.lock().is_closed = true;
        }
        self.is_draining.store(true, Ordering::Release);
        self.reaper.unpark();
    }

    /// Whether a drain has begun and nothing is left.
    pub(super) fn has_drained(&self) -> bool {
        let is_empty = |shard: &CachePadded<Shard<T>>| shard.contents.lock().wheel.is_empty();
        self.is_draining.load(Ordering::Acquire) && self.shards.iter().all(is_empty)
    }

    /// Takes in no more timeouts, and takes out the pending ones.
    pub(super) fn close(&self) -> Vec<T> {
        let mut values = Vec::new();
        for shard in &self.shards {
            let mut wheel = shard.close();
            values.extend(wheel.drain().map(|(_, _, value)| value));
        }
        self.limit.release(values.len() as u64);
        self.reaper.unpark();
        values
    }

    /// Gives back the memory that pending timeouts do not need.
    pub(super) fn shrink(&self) {
        for shard in &self.shards {
            shard.contents.lock().wheel.shrink();
        }
    }

    /// What all shards have counted, and how many timeouts are pending.
    pub(super) fn stats(&self) -> (ShardStats, u64) {
        let mut sum = ShardStats::default();
        let mut pending = 0;
        for shard in &self.shards {
            let contents = shard.contents.lock();
            sum.add(&contents.stats, contents.wheel.cascades());
            pending += contents.wheel.len() as u64;
        }
        sum.rejected += self.limit.refused();
        (sum, pending)
    }

    /// The shard of a key; `None` if that is one of another, larger timer.
    #[inline]
    fn shard(&self, key: TimeoutKey) -> Option<&Shard<T>> {
        self.shards.get(key.shard()).map(|shard| &**shard)
    }

    /// Wakes the reaper if it sleeps past an expiration that has been published, or past `now`.
    #[inline]
    fn wake_if_needed(&self, now: Tick, published: Option<Tick>) {
        let must_wake = published.is_some_and(|expiration| self.wakeup.must_wake(expiration));
        if must_wake || (self.wakeup.is_overdue(now) && self.wakeup.must_wake_overdue()) {
            self.reaper.unpark();
        }
    }
}

/// The timeout has ended.
struct Dead;

impl<T> Shard<T> {
    /// Returns the key, and when the shard wants to be seen to, if it had not published a tick so
    /// early.
    #[inline]
    fn insert(
        &self,
        now: Tick,
        deadline: Tick,
        value: T,
    ) -> Result<(Key, Option<Tick>), ScheduleError<T>> {
        let mut contents = self.contents.lock();
        if contents.is_closed {
            contents.stats.rejected += 1;
            drop(contents);
            return Err(ScheduleError::shut_down(value));
        }
        contents.wheel.observe(now);
        match contents.wheel.insert(deadline, value) {
            Ok(key) => {
                contents.stats.scheduled += 1;
                let expiration = contents.wanted_after_insert(deadline);
                Ok((key, self.publish_if_earlier(expiration)))
            }
            Err(refused) => {
                contents.stats.rejected += 1;
                drop(contents);
                Err(ScheduleError::full(refused.into_value()))
            }
        }
    }

    /// Inserts what an iterator yields, which runs no user code, until one is refused, and tells the
    /// keys. Returns what [`insert`](Self::insert) does, of all, and what was refused.
    fn insert_all(
        &self,
        now: Tick,
        timeouts: impl Iterator<Item = (Duration, Tick, T)>,
        mut tell: impl FnMut(Key),
    ) -> (Option<Tick>, Option<ScheduleError<(Duration, T)>>) {
        let mut earlier = None;
        let mut contents = self.contents.lock();
        contents.wheel.observe(now);
        for (delay, deadline, value) in timeouts {
            if contents.is_closed {
                return (earlier, Some(ScheduleError::shut_down((delay, value))));
            }
            match contents.wheel.insert(deadline, value) {
                Ok(key) => tell(key),
                Err(refused) => {
                    return (earlier, Some(ScheduleError::full((delay, refused.into_value()))));
                }
            }
            contents.stats.scheduled += 1;
            let expiration = contents.wanted_after_insert(deadline);
            earlier = self.publish_if_earlier(expiration).or(earlier);
        }
        (earlier, None)
    }

    /// Takes out timeouts, each to its place among `values`. Returns their number.
    fn cancel_all(
        &self,
        keys: impl Iterator<Item = (usize, Key)>,
        values: &mut [Option<T>],
        reaper: &Unparker,
    ) -> u64 {
        let mut count = 0;
        let mut contents = self.contents.lock();
        for (index, key) in keys {
            // What was there is `None`, of which nothing is dropped.
            values[index] = contents.wheel.cancel(key);
            count += u64::from(values[index].is_some());
        }
        contents.stats.cancelled += count;
        if contents.is_closed {
            contents.tell_if_last(reaper);
        }
        count
    }

    #[inline]
    fn cancel(&self, key: Key, reaper: &Unparker) -> Option<T> {
        let mut contents = self.contents.lock();
        let value = contents.wheel.cancel(key)?;
        contents.stats.cancelled += 1;
        if contents.is_closed {
            contents.tell_if_last(reaper);
        }
        Some(value)
    }

    fn reset(&self, key: Key, now: Tick, deadline: Tick) -> Result<Option<Tick>, Dead> {
        let mut contents = self.contents.lock();
        contents.wheel.observe(now);
        contents.wheel.reset(key, deadline).ok_or(Dead)?;
        Ok(self.publish_if_earlier(deadline))
    }

    /// Takes out what is due, in a bounded number of steps. Returns whether that was all.
    fn expire(&self, now: Tick, steps: u64, expired: &mut Vec<Expired<T>>) -> bool {
        let mut contents = self.contents.lock();
        let before = expired.len();
        let mut due = contents.wheel.advance(now).limit(steps);
        expired.extend(due.by_ref());
        let is_drained = due.is_drained();
        contents.stats.expired += (expired.len() - before) as u64;
        self.published.set(contents.wheel.next_expiration().unwrap_or(Tick::MAX));
        self.contents.hand_over(contents);
        is_drained
    }

    /// For the reaper: publishes what the wheel says, unless that is earlier than what is published.
    fn raise_published(&self) {
        let contents = self.contents.lock();
        let next = contents.wheel.next_expiration().unwrap_or(Tick::MAX);
        self.published.set(next.max(self.published.get()));
    }

    /// When the reaper has something to do here that it has been told of.
    fn next_turn(&self) -> Option<Tick> {
        let contents = self.contents.lock();
        // A wheel may wish to spread a crowded bucket earlier than it has been told of.
        contents.wheel.next_expiration().map(|next| next.max(self.published.get()))
    }

    /// Takes in no more, and takes out the wheel. Nothing is moved, so that the lock is held only
    /// for a moment.
    fn close(&self) -> TimingWheel<T> {
        let mut contents = self.contents.lock();
        let wheel = mem::take(&mut contents.wheel);
        contents.is_closed = true;
        contents.stats.returned += wheel.len() as u64;
        contents.stats.cascades += wheel.cascades();
        self.published.set(Tick::MAX);
        wheel
    }

    /// Under the lock: publishes an expiration if it is earlier than what is published, and returns
    /// it if so.
    #[inline]
    fn publish_if_earlier(&self, expiration: Tick) -> Option<Tick> {
        let is_earlier = expiration < self.published.get();
        is_earlier.then(|| {
            self.published.set(expiration);
            expiration
        })
    }
}

/// The shard that this thread uses, of `count`.
#[inline]
fn current_shard(count: usize) -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static THREAD: usize = THREADS.fetch_add(1, Relaxation::Relaxed);
    }
    // A thread that is being torn down has no local data any more.
    if count == 1 { 0 } else { THREAD.try_with(|&thread| thread % count).unwrap_or(0) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ManualClock, ScheduleErrorKind, WheelBuilder, sync::Parker};

    /// As when all 2^32 indices are in use, for which no test has the memory.
    #[test]
    fn what_a_wheel_without_room_refuses_is_handed_back_and_counted() {
        let wheel = WheelBuilder::new().max_pending(1).build().expect("the settings are valid");
        let ticks =
            TickClock::new(std::sync::Arc::new(ManualClock::new()), Duration::from_millis(1));
        let core = Core::new(iter::once(wheel), ticks, Parker::new().unparker().clone(), None);
        let delay = Duration::from_secs(1);
        assert!(core.schedule(delay, 1).is_ok());
        let error = core.schedule(delay, 2).unwrap_err();
        assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::Full, 2));
        let (added, rest) = core.schedule_batch(std::vec![(delay, 3), (delay, 4)]);
        assert!(added.is_empty());
        let error = rest.expect("a part is refused");
        assert_eq!(error.kind(), ScheduleErrorKind::Full);
        assert_eq!(error.into_value(), [(delay, 3), (delay, 4)]);
        assert_eq!((core.stats().0.rejected, core.stats().1), (3, 1));
    }
}
