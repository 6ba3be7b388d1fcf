//! The shards of a timer, with the operations on timeouts, and the part that the reaper uses:
//! expiration, sleep and wake-up.

pub(super) mod shard;
pub(super) mod wakeup;
mod wall;

use std::{
    num::NonZeroU64,
    panic::RefUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
    vec::Vec,
};

use crossbeam::utils::CachePadded;

use self::{
    shard::{Permits, Shard, ShardGuard, ShardState},
    wakeup::Wakeup,
    wall::{Wall, since_1970},
};
use super::{
    error::ScheduleError,
    lifecycle::{Lifecycle, Phase},
    stats::TimerStats,
};
use crate::{
    clock::{JumpListener, Reading, TickClock},
    sync::Parker,
    tick::Tick,
    wheel::Key,
};

/// The shards of a timer, with its clock, its permits and the protocol that wakes its reaper.
pub(crate) struct Shards<S> {
    pub(super) all: Vec<CachePadded<Shard<S>>>,
    pub(crate) clock: TickClock,
    pub(crate) wakeup: Wakeup,
    pub(super) permits: Permits,
    pub(super) lifecycle: Lifecycle,
    wall: Wall,
    /// `look_at_wall_clock`, once a thread has given a timeout a time of the wall clock. Programs
    /// that never do so do not contain its code: with a direct call, each would have 5 KB more.
    look: OnceLock<fn(&Self, Tick)>,
}

impl<S: ShardState> Shards<S> {
    pub(super) fn new(
        states: impl Iterator<Item = S>,
        clock: TickClock,
        parker: Parker,
        max_pending: Option<NonZeroU64>,
    ) -> Arc<Self> {
        let permits = Permits::new(max_pending);
        let shard = |state| CachePadded::new(Shard::new(state, permits.has_limit()));
        let all: Vec<_> = states.map(shard).collect();
        debug_assert!(!all.is_empty(), "a timer has a shard");
        let (wakeup, lifecycle, wall) = (Wakeup::new(parker), Lifecycle::default(), Wall::new());
        Arc::new(Self { all, clock, wakeup, permits, lifecycle, wall, look: OnceLock::new() })
    }

    /// Returns a reference to each shard.
    pub(super) fn references(self: &Arc<Self>) -> Arc<[ShardRef<S>]> {
        let parts = |index| ShardParts { shards: Arc::clone(self), index };
        (0..self.count()).map(|index| Arc::new(CachePadded::new(parts(index)))).collect()
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the index of the shard that this thread uses.
    #[inline]
    pub(crate) fn current(&self) -> usize {
        // On some systems, a thread that exits has no number any more.
        let thread = THREAD.try_with(|number| *number).unwrap_or_default();
        // A division takes longer than the rest of this function.
        if thread < self.count() { thread } else { thread % self.count() }
    }

    /// Returns the index of the first shard, from the shard of this thread on, whose lock was free
    /// a moment ago. If no lock was free, returns the index of the shard of this thread.
    #[inline]
    pub(crate) fn likely_free(&self) -> usize {
        let (own, count) = (self.current(), self.count());
        let is_free = |index: &usize| !self.all[*index].content.is_locked();
        if is_free(&own) {
            return own;
        }
        (own + 1..own + count).map(|next| next % count).find(is_free).unwrap_or(own)
    }

    /// Locks the shard at `index`.
    #[inline]
    pub(crate) fn lock(&self, index: usize) -> ShardGuard<'_, S> {
        let shard = &self.all[index];
        shard.guard(shard.content.lock(), &self.permits, &self.wakeup)
    }

    /// Locks the shard of a key; `None` if the key belongs to another timer with more shards.
    #[inline]
    fn lock_of(&self, key: TimeoutKey) -> Option<ShardGuard<'_, S>> {
        (key.shard < self.count()).then(|| self.lock(key.shard))
    }

    /// Locks one shard after the other.
    pub(crate) fn lock_each(&self) -> impl Iterator<Item = ShardGuard<'_, S>> {
        (0..self.count()).map(|index| self.lock(index))
    }

    /// Adds a timeout to the shard of this thread. Runs no user code.
    #[inline]
    pub(super) fn insert(
        &self,
        now: Tick,
        deadline: Tick,
        value: S::Value,
    ) -> Result<TimeoutKey, ScheduleError<S::Value>> {
        let shard = self.current();
        let mut guard = self.lock(shard);
        let key = guard.insert(now, deadline, value)?;
        guard.unlock();
        Ok(TimeoutKey { shard, key })
    }

    /// Cancels a timeout and returns its value; `None` if it has ended.
    #[inline]
    pub(super) fn cancel(&self, key: TimeoutKey) -> Option<S::Value> {
        let mut shard = self.lock_of(key)?;
        let value = shard.state_mut().wheel_mut().cancel(key.key);
        shard.unlock();
        value
    }

    /// Moves a timeout to the tick that `deadline` computes. Returns whether it was pending.
    pub(super) fn reset(
        &self,
        key: TimeoutKey,
        deadline: impl FnOnce(&TickClock, Reading) -> Tick,
    ) -> bool {
        let read = self.clock.read();
        let deadline = deadline(&self.clock, read);
        let Some(mut shard) = self.lock_of(key) else { return false };
        let is_pending = shard.reset(key.key, read.now, deadline);
        shard.unlock();
        is_pending
    }

    /// Moves the timeouts by the wall clock if that clock was set. Call it before timeouts expire.
    pub(super) fn follow_wall_clock(&self, now: Tick) {
        if let Some(look) = self.look.get() {
            look(self, now);
        }
    }

    fn look_at_wall_clock(&self, now: Tick) {
        let tick_of = |deadline| self.wall.tick_of(&self.clock, deadline);
        self.wall.look(&self.clock, || {
            self.lock_each().for_each(|mut shard| shard.move_by_wall_clock(now, tick_of));
        });
    }

    /// Moves a timeout to `delay` after a reading, unless its deadline is later. Returns whether
    /// the timeout was pending.
    pub(super) fn postpone(&self, key: TimeoutKey, read: Reading, delay: Duration) -> bool {
        let deadline = self.clock.deadline(read, delay);
        let mut shard = self.lock(key.shard);
        let before = shard.state().wheel().deadline(key.key);
        if before.is_some_and(|before| before < deadline) {
            shard.reset(key.key, read.now, deadline);
        }
        before.is_some()
    }

    /// Returns the deadline of a timeout; `None` if it has ended.
    pub(super) fn deadline(&self, key: TimeoutKey) -> Option<Tick> {
        self.lock_of(key)?.state().wheel().deadline(key.key)
    }

    /// Returns the time until a timeout expires; `None` if it has ended.
    pub(super) fn remaining(&self, key: TimeoutKey) -> Option<Duration> {
        let deadline = self.clock.ticks.start(self.deadline(key)?);
        Some(deadline.saturating_sub(self.clock.elapsed().into()))
    }

    /// Returns the indices of the shards whose published expiration has come.
    pub(super) fn due(&self, now: Tick) -> impl Iterator<Item = usize> {
        (0..self.count()).filter(move |index| self.all[*index].published() <= now)
    }

    /// Locks a shard to expire its timeouts, if its lock is free.
    pub(super) fn try_lock(&self, index: usize) -> Option<ShardGuard<'_, S>> {
        let shard = &self.all[index];
        Some(shard.guard(shard.content.try_lock()?, &self.permits, &self.wakeup))
    }

    /// Locks a shard for the reaper. While the reaper waits, each thread that unlocks a shard lets
    /// other threads run.
    pub(super) fn wait_for(&self, index: usize) -> ShardGuard<'_, S> {
        self.wakeup.is_waiting.store(true, Ordering::Relaxed);
        let shard = self.lock(index);
        self.wakeup.is_waiting.store(false, Ordering::Relaxed);
        shard
    }

    /// Returns the least published expiration; `Tick::MAX` also stands for none.
    pub(super) fn next_expiration(&self) -> Tick {
        self.all.iter().map(|shard| shard.published()).min().unwrap_or(Tick::MAX)
    }

    /// Returns the tick of the next turn; `None` if no timeout is pending or a shutdown has begun:
    /// a turn then does nothing, and a clock that takes turns until none is due would not end.
    ///
    /// A cancelled timeout may make the published expirations too early, but this tick only if its
    /// bucket has other timeouts. The call takes each shard's lock for a moment.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        let is_open = !self.is_shut_down();
        is_open.then(|| self.lock_each().filter_map(|shard| shard.next_turn()).min()).flatten()
    }

    /// Announces that the reaper sleeps until the next expiration, or until `latest` if that is
    /// earlier. Returns that tick; `None` if the reaper must not sleep.
    pub(super) fn fall_asleep(&self, now: Tick, latest: Tick) -> Option<Tick> {
        let until = self.next_expiration().min(latest);
        if until > now {
            self.wakeup.announce(until);
            if self.next_expiration() >= until {
                return Some(until);
            }
            self.wakeup.stay_awake();
        }
        None
    }

    /// Refuses new timeouts, and makes the reaper end once no timeout is pending.
    pub(super) fn begin_finish(&self) {
        // Before the shards refuse, so that a thread that was refused sees the phase.
        self.lifecycle.enter(Phase::Finishing);
        self.lock_each().for_each(|mut shard| shard.close());
        self.wakeup.wake();
    }

    /// Returns whether a finish has closed all shards and no timeout is pending.
    pub(super) fn has_finished(&self) -> bool {
        self.lifecycle.is(Phase::Finishing)
            && self.lock_each().all(|shard| shard.is_closed() && shard.state().wheel().is_empty())
    }

    /// Returns whether a shutdown has begun.
    pub(super) fn is_shut_down(&self) -> bool {
        self.lifecycle.is(Phase::ShutDown)
    }

    /// Refuses new timeouts, wakes the reaper, and returns the values of the pending timeouts.
    pub(super) fn close_and_drain(&self) -> Vec<S::Value> {
        self.lifecycle.enter(Phase::ShutDown);
        let mut values = Vec::new();
        for index in 0..self.count() {
            let mut wheel = self.lock(index).close_and_take();
            values.extend(wheel.drain().map(|(_, _, value)| value));
        }
        self.wakeup.wake();
        values
    }

    /// Checks the invariants of the shards, and those between them. No other thread may insert,
    /// cancel or expire meanwhile.
    pub(super) fn check_invariants(&self) {
        // Loaded first: a reaper that wakes publishes later expirations, and then announces a
        // sleep.
        let asleep_until = self.wakeup.asleep_until();
        let pending = self.lock_each().map(|shard| shard.check_invariants()).sum();
        self.permits.check_invariants(pending);
        assert!(asleep_until <= self.next_expiration(), "the reaper sleeps too long");
        // Not after a finish has begun: after a panic of the clock, the reaper may be closing them.
        let is_closed = || self.lock_each().all(|shard| shard.is_closed());
        assert!(!self.is_shut_down() || is_closed(), "a shutdown closes every shard");
    }

    /// Frees the memory that pending timeouts do not need.
    pub(crate) fn shrink(&self) {
        self.lock_each().for_each(|mut shard| shard.shrink());
    }

    /// Returns the counts of all shards.
    pub(super) fn counts(&self) -> TimerStats {
        self.lock_each().fold(TimerStats::default(), |sum, shard| sum.plus(&shard.counts()))
    }

    /// Makes the reaper read the clock after each jump from now on.
    pub(super) fn watch_jumps(self: &Arc<Self>) {
        if self.clock.watch_jumps(Arc::<Self>::downgrade(self)) {
            self.wakeup.wake();
        }
    }

    /// Moves a timeout to a time of the wall clock. Returns whether the timeout was pending.
    pub(super) fn reset_at_time(self: &Arc<Self>, key: TimeoutKey, time: SystemTime) -> bool {
        let TimeoutKey { shard, key } = key;
        let put = |shard: &mut ShardGuard<'_, S>, now, tick| {
            shard.reset(key, now, tick).then_some(key).ok_or(())
        };
        let now = self.clock.read().now;
        shard < self.count() && self.put_at_time(shard, now, time, put).is_ok()
    }

    /// Lets `put` insert or move a timeout in a shard, by the present tick and the tick of `time`.
    /// Unless `time` has passed, the timeout then follows the wall clock.
    pub(super) fn put_at_time<E>(
        self: &Arc<Self>,
        shard: usize,
        now: Tick,
        time: SystemTime,
        put: impl FnOnce(&mut ShardGuard<'_, S>, Tick, Tick) -> Result<Key, E>,
    ) -> Result<TimeoutKey, E> {
        if self.clock.source.system_time() >= time {
            // Due at once, whatever the wall clock shows from now on.
            let key = put(&mut self.lock(shard), now, now)?;
            return Ok(TimeoutKey { shard, key });
        }
        self.watch_jumps();
        self.look.get_or_init(|| Self::look_at_wall_clock)(self, now);
        let (deadline, mut guard) = (since_1970(time), self.lock(shard));
        let key = put(&mut guard, now, self.wall.tick_of(&self.clock, deadline))?;
        guard.follow_wall_clock(key, deadline);
        Ok(TimeoutKey { shard, key })
    }
}

impl<S: ShardState> JumpListener for Shards<S> {
    fn clock_has_jumped(&self) {
        self.wakeup.wake();
    }
}

// User code never runs under a lock of a timer, so a panic leaves no inconsistent state. The same
// holds for `SharedTimer` and `Backlog`, and so for each handle of a timer.
impl<S> RefUnwindSafe for Shards<S> {}

/// A shard of a timer, for the handles of its timeouts.
///
/// It does not keep the timer running. Each shard has a reference count of its own: if all handles
/// shared one count, threads that schedule and cancel would contend for its cache line. The shards
/// stay in memory as long as a reference exists, empty once the timer has shut down.
pub(crate) type ShardRef<S> = Arc<CachePadded<ShardParts<S>>>;

/// The parts of a timer that the handles of a shard use.
pub(crate) struct ShardParts<S> {
    pub(super) shards: Arc<Shards<S>>,
    pub(super) index: usize,
}

/// Key of a timeout in the [`ValueTimer`](crate::ValueTimer) or [`DelayQueue`](crate::DelayQueue)
/// that made it.
///
/// It is plain data, and valid until the timeout ends. The timer does not use it for another
/// timeout afterwards. Do not pass it to another timer, in which it may name an unrelated timeout.
/// [`ValueTimer`](crate::ValueTimer) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeoutKey {
    /// A whole word, as the key is, although 32 bits would do: if code stores half of a word and
    /// then copies the whole, the processor waits for that store.
    pub(super) shard: usize,
    /// The key in the wheel of the shard.
    pub(super) key: Key,
}

// In models, all threads begin with the first shard, and each execution begins anew.
#[cfg(loom)]
loom::thread_local! {
    static THREAD: usize = 0;
}
#[cfg(not(loom))]
std::thread_local! {
    /// The number of this thread, in the order in which threads first used a timer.
    static THREAD: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        clock::{BootClock, ManualClock, SystemClock},
        timer::{ScheduleErrorKind, Timer, TimerBuilder},
        wheel::{TimingWheel, WheelBuilder},
    };

    fn shards_of<T: Send + 'static, const N: usize>(
        wheels: [TimingWheel<T>; N],
        max_pending: Option<NonZeroU64>,
    ) -> Arc<Shards<TimingWheel<T>>> {
        let clock = TickClock::new(Some(Arc::new(ManualClock::new())), Duration::from_millis(1));
        let parker = Parker::new();
        Shards::new(wheels.into_iter(), clock, parker, max_pending)
    }

    #[test]
    fn a_timer_on_a_manual_clock_has_one_shard_on_all_machines() {
        let builder = Timer::builder().clock(ManualClock::new());
        let timer = builder.build_with(drop::<u32>).expect("the settings are valid");
        assert_eq!(timer.shared().shards.count(), 1);
    }

    #[test]
    fn a_timer_reads_the_clock_of_the_system_directly_also_if_it_was_set() {
        let is_system = |builder: TimerBuilder| {
            let timer = builder.build_with(drop::<u32>).expect("the settings are valid");
            timer.shared().shards.clock.is_system
        };
        assert!(is_system(Timer::builder()));
        assert!(is_system(Timer::builder().clock(BootClock).clock(SystemClock)));
        assert!(!is_system(Timer::builder().clock(SystemClock).clock(BootClock)));
    }

    #[test]
    fn a_finish_that_is_closing_the_shards_breaks_no_invariant() {
        let shards = shards_of([TimingWheel::<u32>::default()], None);
        shards.lifecycle.enter(Phase::Finishing);
        shards.check_invariants();
        assert!(!shards.has_finished(), "a shard is open");
    }

    /// A wheel refuses a timeout if all 2^32 - 2^20 indices are in use. No test has that memory.
    #[test]
    fn a_full_wheel_hands_values_back_and_they_count_as_refused() {
        let wheel = WheelBuilder::new().max_pending(1).build().expect("the settings are valid");
        let shards = shards_of([wheel], NonZeroU64::new(2));
        let deadline = Tick::new(1000);
        assert!(shards.lock(0).insert(Tick::ZERO, deadline, 1).is_ok());
        let error = shards.lock(0).insert(Tick::ZERO, deadline, 2).unwrap_err();
        assert_eq!((error.kind(), error.into_value()), (ScheduleErrorKind::Full, 2));
        let counts = shards.counts();
        assert_eq!((counts.refused, counts.pending), (1, 1));
        drop(shards.wait_for(0));
        assert!(!shards.wakeup.is_waiting.load(Ordering::Relaxed));
        // A refused timeout holds no permit.
        shards.check_invariants();
    }

    /// Another thread may take the value, and use another shard, before this hold ends.
    #[test]
    fn a_timeout_that_has_expired_holds_no_permit_when_it_is_handed_off() {
        let shards = shards_of([(); 2].map(|()| TimingWheel::default()), NonZeroU64::new(1));
        let due = Tick::new(1);
        assert!(shards.lock(0).insert(Tick::ZERO, due, 1).is_ok());
        let (mut shard, mut expired) = (shards.lock(0), Vec::new());
        let read = Reading { elapsed: shards.clock.ticks.until_start(due), now: due };
        assert!(shard.expire(read, 64, &mut expired) && expired.len() == 1);
        assert!(shards.lock(1).insert(due, Tick::new(2), 2).is_ok());
        assert!(shards.lock(1).insert(due, Tick::new(2), 3).is_err());
        drop(shard);
        shards.check_invariants();
    }

    #[test]
    fn a_thread_takes_the_first_free_shard_from_its_own_on() {
        let shards = shards_of([(); 4].map(|()| TimingWheel::<()>::default()), None);
        let own = shards.current();
        for locked in 0..16 {
            let is_locked = |index: &usize| locked >> index & 1 == 1;
            let guards: Vec<_> = (0..4).filter(is_locked).map(|index| shards.lock(index)).collect();
            let mut order = (0..4).map(|step| (own + step) % 4);
            let free = order.find(|index| !is_locked(index)).unwrap_or(own);
            assert_eq!(shards.likely_free(), free, "{locked:04b}");
            drop(guards);
        }
    }

    #[test]
    fn resets_publish_when_a_crowded_bucket_is_due_for_a_split() {
        let shards = shards_of([TimingWheel::default()], None);
        let keys: Vec<_> = (0..60)
            .map(|value| {
                shards.lock(0).insert(Tick::ZERO, Tick::new(900_000), value).expect("room")
            })
            .collect();
        for deadline in [500_000, 499_999].map(Tick::new) {
            for &key in &keys {
                assert!(shards.reset(TimeoutKey { shard: 0, key }, |_, _| deadline));
            }
        }
        let next = shards.lock(0).state().next_expiration();
        assert!(next < Some(Tick::new(499_999)), "no bucket is crowded");
        assert_eq!(Some(shards.next_expiration()), next);
    }
}
