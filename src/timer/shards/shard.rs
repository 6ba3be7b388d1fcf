//! A shard: the state behind one lock, which owns a wheel, and the guard of that lock.
//!
//! A thread holds the lock for one operation or, as the reaper, for a bounded number of steps. No
//! user code runs under the lock: no callback, and no drop of a value. A state may compare keys of
//! the user, and documents that. No thread holds the locks of two shards.
//!
//! # Rules
//!
//! - The published expiration is not after any deadline in the shard; see
//!   [`wakeup`](super::wakeup).
//! - A closed shard refuses new timeouts. Inserting and closing take the same lock, so each timeout
//!   is refused or returned by [`ShardGuard::close_and_take`], and none is lost.
//! - Each pending timeout holds a permit. The guard releases the permits of the timeouts that have
//!   left the wheel, however they left it.
//!
//! # Handover
//!
//! - A thread that finds the lock taken spins for a few microseconds, then sleeps in a queue.
//! - The reaper unlocks after a bounded number of steps. If threads are in the queue, the reaper
//!   hands the lock to the first of them.
//! - Between two holds, the reaper neither yields nor sleeps. In each round, it locks every due
//!   shard whose lock is free. Only if none of these had a due timeout does the reaper wait for the
//!   lock of another due shard.
//! - While the reaper waits for a lock, each thread that unlocks a shard lets other threads run. It
//!   may still hold a lock that comes before those of the shards, such as that of a
//!   [`Debounce`](crate::Debounce). This does no harm: the thread waits for no other thread, and
//!   the system could have stopped it there as well.
//!
//! So a thread that waits for the reaper gets the lock after one hold, or after the threads that
//! waited before it. A thread that still spins when the hold ends may get the lock after the next
//! hold. Without the handover, the reaper, which is running, would take the lock again before the
//! system has woken the waiting thread, throughout a burst.
//!
//! The reaper queues behind threads that wait for the lock. Each of them holds the lock for one
//! operation. `parking_lot` wakes waiting threads in order, and gives the lock to the first of them
//! at least once a millisecond. So running threads cannot keep taking the lock ahead of the reaper.
//! The reaper gives up no time slice between two holds: with more runnable threads than cores, each
//! yield would cost milliseconds.
//!
//! The later the reaper is, the more steps it takes in one hold. So its share of the lock grows
//! until it expires more timeouts in a hold than other threads insert between two holds.
//!
//! With more runnable threads than cores, the reaper waits for a time slice, or for a lock whose
//! holder waits for one. An inserter has a time slice. If an inserter that holds no lock finds the
//! reaper more than a tick late and a shard due, it lets other threads run. Before that, if
//! executor threads take the timeouts, it locks a due shard whose lock is free, and hands off up to
//! 32 of them. If every due shard is locked, the inserter would otherwise use up its time slice
//! while the holders of these locks wait for theirs.

use std::{mem, num::NonZeroU64, vec::Vec};

use super::{wakeup::Wakeup, wall::WallDeadlines};
use crate::{
    clock::Reading,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, thread, unlock_fair},
    tick::Tick,
    timer::{ScheduleError, ScheduleErrorKind, TimerStats},
    wheel::{Expired, Key, TimingWheel},
};

/// Number of inserts and resets after which a shard checks whether its wheel has to split a bucket
/// ahead of time.
///
/// Without the check, the reaper would learn of such a bucket only when the first timeout of the
/// bucket is due. So timeouts of a burst that are due together would be late.
const MOVES_PER_CHECK: u8 = 64;

/// The state under the lock of a shard. It owns the wheel with the timeouts of the shard.
///
/// The state of a plain timer is its wheel. A layer with an entry for each timeout keeps these
/// entries here as well. Then one hold of the lock adds or removes a timeout and its entry.
pub(crate) trait ShardState: Send + 'static {
    /// The value of a timeout in the wheel.
    type Value;
    /// The value that the reaper hands off for an expired timeout.
    type Due: Send + 'static;
    /// The values that a guard drops after the release of the lock.
    type Dropped;

    fn wheel(&self) -> &TimingWheel<Self::Value>;

    fn wheel_mut(&mut self) -> &mut TimingWheel<Self::Value>;

    /// Ends due timeouts in at most `steps` steps, and appends them to `expired`. Returns whether
    /// no due timeout is left.
    ///
    /// It may end fewer timeouts than steps, but must end more of them with more steps: otherwise
    /// threads that insert starve a late reaper. It must neither run code nor drop values of the
    /// user.
    fn expire(&mut self, read: Reading, steps: u64, expired: &mut Vec<Expired<Self::Due>>) -> bool;

    /// Takes the values to drop after the release of the lock.
    fn take_dropped(&mut self) -> Self::Dropped;
}

impl<T: Send + 'static> ShardState for TimingWheel<T> {
    type Value = T;
    type Due = T;
    type Dropped = ();

    fn wheel(&self) -> &Self {
        self
    }

    fn wheel_mut(&mut self) -> &mut Self {
        self
    }

    fn expire(&mut self, read: Reading, steps: u64, expired: &mut Vec<Expired<T>>) -> bool {
        let mut due = self.advance(read.now).until(read.now).limit(steps);
        expired.extend(&mut due);
        due.is_drained()
    }

    fn take_dropped(&mut self) {}
}

/// A state behind a lock, and the expiration that the shard publishes to the reaper.
pub(crate) struct Shard<S> {
    pub(super) content: Mutex<Content<S>>,
    /// When the reaper looks here next: never after a deadline, and too early after a cancel.
    /// Written under the lock.
    published: AtomicU64,
}

pub(super) struct Content<S> {
    state: S,
    /// Whether the shard refuses new timeouts.
    is_closed: bool,
    /// Whether [`settle`] must run when the lock is released: there is a limit, or the shard is
    /// closed.
    must_settle: bool,
    /// Number of timeouts whose permits are not released: the timeouts in the wheel and, during a
    /// hold, also those that have left the wheel in this hold.
    unsettled: usize,
    /// Number of inserts and resets since the last check of the wheel.
    unchecked: u8,
    /// `pending` and `cancelled` stay 0 here: they follow from the other counts and the wheel.
    counts: TimerStats,
    wall_deadlines: WallDeadlines,
}

impl<S: ShardState> Shard<S> {
    pub(super) fn new(state: S, has_limit: bool) -> Self {
        let (is_closed, must_settle, unsettled, unchecked) = (false, has_limit, 0, 0);
        let (counts, wall_deadlines) = (TimerStats::default(), WallDeadlines::default());
        let content =
            Content { state, is_closed, must_settle, unsettled, unchecked, counts, wall_deadlines };
        Self { content: Mutex::new(content), published: AtomicU64::new(u64::MAX) }
    }

    /// Returns the published expiration, without the lock; `Tick::MAX` also stands for none.
    #[inline]
    pub(in crate::timer) fn published(&self) -> Tick {
        Tick::new(self.published.load(Ordering::Relaxed))
    }

    #[inline]
    pub(in crate::timer) fn publish(&self, expiration: Tick) {
        self.published.store(expiration.get(), Ordering::Relaxed);
    }

    /// Returns a guard of the locked shard.
    #[inline]
    pub(super) fn guard<'a>(
        &'a self,
        content: MutexGuard<'a, Content<S>>,
        permits: &'a Permits,
        wakeup: &'a Wakeup,
    ) -> ShardGuard<'a, S> {
        let content = Some(content);
        ShardGuard { shard: self, permits, wakeup, content, earlier: None, now: Tick::ZERO }
    }
}

/// A locked shard.
///
/// Its drop releases the permits of the timeouts that have left the wheel, and the lock. Then it
/// wakes the reaper if an operation has made that necessary, and drops the values that the state
/// kept for that moment. All of this also happens in a panic.
pub(crate) struct ShardGuard<'a, S: ShardState> {
    shard: &'a Shard<S>,
    permits: &'a Permits,
    wakeup: &'a Wakeup,
    /// `None` once the lock is released.
    content: Option<MutexGuard<'a, Content<S>>>,
    /// The least expiration that this hold has published, if it has lowered the published one.
    earlier: Option<Tick>,
    /// The present of the latest insert or reset, as that call has read it.
    now: Tick,
}

impl<S: ShardState> ShardGuard<'_, S> {
    fn content(&self) -> &Content<S> {
        self.content.as_ref().expect("a guard holds its lock")
    }

    #[inline]
    fn content_mut(&mut self) -> &mut Content<S> {
        self.content.as_mut().expect("a guard holds its lock")
    }

    pub(crate) fn state(&self) -> &S {
        &self.content().state
    }

    /// Returns the state. Do not add timeouts to it or move deadlines earlier:
    /// [`insert`](Self::insert) and [`reset`](Self::reset) also publish the earlier expiration.
    #[inline]
    pub(crate) fn state_mut(&mut self) -> &mut S {
        &mut self.content_mut().state
    }

    /// Adds a timeout.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        now: Tick,
        deadline: Tick,
        value: S::Value,
    ) -> Result<Key, ScheduleError<S::Value>> {
        let permits = self.permits;
        let Content { state, is_closed, must_settle, unsettled, counts, .. } = self.content_mut();
        if *must_settle {
            if *is_closed || !permits.acquire() {
                counts.refused += 1;
                let closed = is_closed.then_some(ScheduleErrorKind::ShutDown);
                return Err(ScheduleError::new(closed.unwrap_or(ScheduleErrorKind::Full), value));
            }
            *unsettled += 1;
        }
        let wheel = state.wheel_mut();
        wheel.observe(now);
        match wheel.insert(deadline, value) {
            Ok(key) => {
                counts.scheduled += 1;
                self.placed(now, deadline);
                Ok(key)
            }
            Err(refused) => {
                counts.refused += 1;
                Err(ScheduleError::new(ScheduleErrorKind::Full, refused.into_value()))
            }
        }
    }

    /// Adds a timeout again that expired before the later deadline to which it had been moved. The
    /// timeout counts neither as expired nor as scheduled twice, and not as refused.
    pub(crate) fn insert_again(
        &mut self,
        now: Tick,
        deadline: Tick,
        value: S::Value,
    ) -> Result<Key, ScheduleError<S::Value>> {
        let inserted = self.insert(now, deadline, value);
        let counts = &mut self.content_mut().counts;
        if inserted.is_ok() {
            counts.scheduled -= 1;
            counts.expired -= 1;
        } else {
            counts.refused -= 1;
        }
        inserted
    }

    /// Moves a timeout to a new deadline, by the timer's clock. Returns whether it was pending.
    #[inline]
    pub(crate) fn reset(&mut self, key: Key, now: Tick, deadline: Tick) -> bool {
        let wheel = self.state_mut().wheel_mut();
        wheel.observe(now);
        let is_pending = wheel.reset(key, deadline).is_some();
        if is_pending {
            if !self.wall_deadlines().is_empty() {
                self.leave_wall_clock(key);
            }
            self.placed(now, deadline);
        }
        is_pending
    }

    #[cold]
    fn leave_wall_clock(&mut self, key: Key) {
        self.wall_deadlines().remove(&key);
    }

    /// Makes a timeout that was inserted or reset follow the wall clock.
    pub(super) fn follow_wall_clock(&mut self, key: Key, deadline: i128) {
        let deadlines = &self.content().wall_deadlines;
        if deadlines.len() == deadlines.capacity() {
            let live = self.forget_ended().len();
            self.wall_deadlines().reserve(live + 1);
        }
        self.wall_deadlines().insert(key, deadline);
    }

    /// Moves all timeouts by the wall clock to the ticks of their deadlines.
    pub(super) fn move_by_wall_clock(&mut self, now: Tick, tick_of: impl Fn(i128) -> Tick) {
        let mut deadlines = mem::take(self.wall_deadlines());
        deadlines.retain(|key, deadline| self.reset(*key, now, tick_of(*deadline)));
        *self.wall_deadlines() = deadlines;
    }

    /// Frees the memory that pending timeouts do not need.
    pub(super) fn shrink(&mut self) {
        self.forget_ended().shrink_to_fit();
        self.state_mut().wheel_mut().shrink();
    }

    /// Removes the deadlines by the wall clock of timeouts that have ended.
    fn forget_ended(&mut self) -> &mut WallDeadlines {
        let Content { state, wall_deadlines, .. } = self.content_mut();
        wall_deadlines.retain(|key, _| state.wheel().deadline(*key).is_some());
        wall_deadlines
    }

    pub(super) fn wall_deadlines(&mut self) -> &mut WallDeadlines {
        &mut self.content_mut().wall_deadlines
    }

    /// Appends due timeouts to `expired`, in at most `steps` steps. Returns whether no due timeout
    /// is left.
    pub(crate) fn expire(
        &mut self,
        read: Reading,
        steps: u64,
        expired: &mut Vec<Expired<S::Due>>,
    ) -> bool {
        let (before, shard, permits) = (expired.len(), self.shard, self.permits);
        let content = self.content_mut();
        let is_drained = content.state.expire(read, steps, expired);
        content.counts.expired += (expired.len() - before) as u64;
        let wheel = content.state.wheel();
        shard.publish(wheel.next_expiration().unwrap_or(Tick::MAX));
        // Another thread may take these timeouts from the backlog before this hold ends, so their
        // permits are released here. The reaper need not be woken for the last timeout of a closed
        // shard, since only the reaper expires timeouts there.
        if content.must_settle {
            settle(content, permits);
        }
        debug_assert!(!is_drained || shard.published() > read.now, "a due timeout is left");
        // This also holds if an insert that read the clock later has moved the wheel past
        // `read.now`.
        debug_assert!(
            expired[before..].last().is_none_or(|last| last.deadline <= read.now),
            "a timeout expired early"
        );
        is_drained
    }

    /// Raises the published expiration to the next one of the wheel: a cancel or reset may have
    /// left the published one too early. Only the thread that takes the turns calls this.
    pub(in crate::timer) fn raise_published(&self) {
        let next = self.state().wheel().next_expiration().unwrap_or(Tick::MAX);
        self.shard.publish(next.max(self.shard.published()));
    }

    /// Returns the next tick at which the reaper has work here; `None` if no timeout is pending. A
    /// cancelled timeout may make the published expiration too early, but this tick only if its
    /// bucket has other timeouts.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        // The wheel may want to split a crowded bucket earlier than the shard has published.
        self.state().wheel().next_expiration().map(|next| next.max(self.shard.published()))
    }

    /// Makes the shard refuse new timeouts. Pending ones stay.
    pub(crate) fn close(&mut self) {
        let content = self.content_mut();
        if !mem::replace(&mut content.must_settle, true) {
            content.unsettled = content.state.wheel().len();
        }
        content.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.content().is_closed
    }

    /// Closes the shard and returns its wheel. The caller empties it, without the lock.
    pub(super) fn close_and_take(&mut self) -> TimingWheel<S::Value> {
        self.close();
        let Content { state, counts, wall_deadlines, .. } = self.content_mut();
        *wall_deadlines = WallDeadlines::default();
        let wheel = mem::take(state.wheel_mut());
        counts.returned += wheel.len() as u64;
        self.shard.publish(Tick::MAX);
        wheel
    }

    /// Returns the counts of this shard.
    pub(super) fn counts(&self) -> TimerStats {
        let Content { state, counts, .. } = self.content();
        let pending = state.wheel().len() as u64;
        let cancelled = counts.scheduled - counts.expired - counts.returned - pending;
        TimerStats { pending, cancelled, ..counts.clone() }
    }

    /// Checks the invariants of the shard, except the invariants of its state. Returns the number
    /// of pending timeouts.
    pub(crate) fn check_invariants(&self) -> u64 {
        let Content { state, is_closed, counts, .. } = self.content();
        let wheel = state.wheel();
        wheel.check_invariants();
        let published = self.shard.published();
        for (_, deadline, _) in wheel {
            assert!(published <= deadline, "published {published}, but one is due at {deadline}");
        }
        let pending = wheel.len() as u64;
        let ended = counts.expired + counts.returned;
        assert!(counts.scheduled >= pending + ended, "a timeout has ended twice");
        assert!(counts.returned == 0 || *is_closed, "a shutdown closes the shard");
        assert!(counts.returned == 0 || pending == 0, "a shutdown returns all timeouts");
        pending
    }

    /// Publishes the expiration after a timeout was placed.
    #[inline]
    fn placed(&mut self, now: Tick, deadline: Tick) {
        let (content, mut expiration) = (self.content_mut(), deadline);
        content.unchecked += 1;
        if content.unchecked == MOVES_PER_CHECK {
            content.unchecked = 0;
            let next = content.state.wheel().next_expiration();
            expiration = next.map_or(deadline, |next| next.min(deadline));
        }
        self.now = now;
        if expiration < self.shard.published() {
            self.shard.publish(expiration);
            self.earlier = Some(expiration);
        }
        debug_assert!(self.shard.published() <= expiration, "the reaper would sleep too long");
    }

    /// Does what the drop does, but faster.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the parts of a guard stay in registers")]
    pub(crate) fn unlock(mut self) {
        if let Some(content) = self.content.take() {
            end_hold(content, self.permits, self.wakeup, self.now, self.earlier, drop);
        }
    }

    /// Unlocks like `unlock`, and hands the lock to the thread that has waited longest.
    pub(in crate::timer) fn unlock_fairly(mut self) {
        if let Some(content) = self.content.take() {
            end_hold(content, self.permits, self.wakeup, self.now, self.earlier, unlock_fair);
        }
    }
}

impl<S: ShardState> Drop for ShardGuard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            end_hold_in_drop(content, self.permits, self.wakeup, self.now, self.earlier);
        }
    }
}

/// Not inlined: so the code that drops a guard in a panic gets the parts of the guard as arguments,
/// and the compiler keeps them in registers until then.
#[inline(never)]
fn end_hold_in_drop<S: ShardState>(
    content: MutexGuard<'_, Content<S>>,
    permits: &Permits,
    wakeup: &Wakeup,
    now: Tick,
    earlier: Option<Tick>,
) {
    end_hold(content, permits, wakeup, now, earlier, drop);
}

/// Ends the hold of a guard with these parts.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as for `unlock`")]
fn end_hold<'a, S: ShardState>(
    mut content: MutexGuard<'a, Content<S>>,
    permits: &Permits,
    wakeup: &Wakeup,
    now: Tick,
    earlier: Option<Tick>,
    unlock: impl FnOnce(MutexGuard<'a, Content<S>>),
) {
    let is_emptied = content.must_settle && settle(&mut content, permits);
    let dropped = content.state.take_dropped();
    unlock(content);
    wakeup.wake_if_needed(now, earlier);
    if is_emptied {
        wakeup.wake();
    }
    if wakeup.is_waiting.load(Ordering::Relaxed) {
        let_run();
    }
    drop(dropped);
}

/// Lets other threads run: the reaper waits for a lock, and the thread that holds it may have lost
/// its processor.
#[cold]
pub(in crate::timer) fn let_run() {
    thread::yield_now();
}

/// Releases the permits of the timeouts that have left a wheel. Returns whether the reaper may have
/// to end now: the shard is closed, and has just become empty.
///
/// Call it before another thread can see the end of a timeout: before the lock is free and, if the
/// timeout has expired, before it is in the backlog.
#[cold]
fn settle<S: ShardState>(content: &mut Content<S>, permits: &Permits) -> bool {
    let pending = content.state.wheel().len();
    debug_assert!(pending <= content.unsettled, "a timeout is pending without a permit");
    let ended = mem::replace(&mut content.unsettled, pending) - pending;
    permits.release(ended);
    content.is_closed && ended > 0 && pending == 0
}

/// A fixed number of permits. Each pending timeout holds one.
pub(crate) struct Permits {
    /// Number of permits; `None` without a limit.
    limit: Option<NonZeroU64>,
    /// Permits that are free; not used without a limit.
    free: AtomicU64,
}

impl Permits {
    /// Makes `limit` permits; without a number there is no limit.
    pub(crate) fn new(limit: Option<NonZeroU64>) -> Self {
        let free = AtomicU64::new(limit.map_or(0, NonZeroU64::get));
        Self { limit, free }
    }

    /// Returns whether the number of permits is limited.
    pub(in crate::timer) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Takes a permit. Returns whether one was free. The number must be limited.
    #[inline]
    pub(crate) fn acquire(&self) -> bool {
        let take = |free: u64| free.checked_sub(1);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Releases permits.
    #[inline]
    pub(crate) fn release(&self, permits: usize) {
        let Some(limit) = self.limit.filter(|_| permits > 0) else { return };
        let free = self.free.fetch_add(permits as u64, Ordering::Relaxed);
        debug_assert!(free + permits as u64 <= limit.get(), "a permit was released twice");
    }

    /// Checks that each pending timeout holds a permit, and nothing else does.
    pub(super) fn check_invariants(&self, pending: u64) {
        let Some(limit) = self.limit else { return };
        let free = self.free.load(Ordering::Relaxed);
        assert_eq!(free + pending, limit.get(), "each permit is free or held by a pending timeout");
    }
}
