//! The sleeps of a timer: a second timer, whose values are wakers, next to the timer of callbacks.
//!
//! A sleep is a timeout whose value is the waker of the task that polled it last. The reaper of the
//! sleeps takes due wakers out of the wheel and wakes them itself, so a slow callback delays no
//! sleep. The first sleep creates the timer of wakers.
//!
//! # Protocol
//!
//! The [`Place`] of a sleep holds the key of its waker, the tick at which the wheel expires that
//! key, and the identity of the waker. Only the owner of the sleep uses the place, with exclusive
//! access.
//!
//! - The first poll that is pending inserts a clone of the waker.
//! - An expiration at a tick first raises the latest tick of the timer's clock to that tick. Then
//!   it removes the key and the waker under the lock of the shard, and wakes after the release. A
//!   shutdown sets its flag, removes all wakers, and wakes them.
//! - A later poll returns `Pending` without the lock if three conditions hold: the waker of the
//!   poll has the identity of the clone in the wheel; the latest tick is before that of the place;
//!   and neither a finish nor a shutdown has begun. Otherwise, in one hold of the lock, it checks
//!   that the key is live and stores the waker under it. If the key is dead, the poll is ready, or
//!   it inserts again.
//! - A reset to a later deadline only stores the deadline in the sleep. The key then expires before
//!   the deadline and wakes the task, whose poll inserts again. A reset to an earlier deadline
//!   moves a live key. It clears a dead key, so the next poll inserts.
//! - A drop cancels the key.
//!
//! *Invariant*: after a poll that returned `Pending`, the waker of that poll is in the wheel under
//! the sleep's key, or the thread that removed it wakes it.
//!
//! *Why no lock is needed*: suppose that the waker left the wheel, and that its wake-up or drop
//! happened before the poll. Then the poll sees the latest tick or the flag that was stored before,
//! and takes the lock. If instead the wake-up comes later, it wakes the task of this poll, because
//! both wakers have one identity. A task whose waker gets the identity of an older one exists only
//! after the drop of that one. So the place holds the identity of the clone, which the wheel keeps:
//! the waker of a poll may be a temporary one, whose address the next task gets.
//!
//! With a limit of pending timeouts, a reset always moves the key. Otherwise another timeout could
//! take the permit between the expiration and the poll that inserts again. In a finish, a reset and
//! a poll always move the key, because the timer then refuses inserts. A sleep that was moved later
//! before the finish, and that no task polls or moves in it, ends with an error at the tick of its
//! key: only the task knows the later deadline, and a finish does not wait for tasks.
//!
//! Cloning and dropping wakers is user code, so both happen without a lock.

use std::{
    boxed::Box,
    fmt, mem,
    panic::{RefUnwindSafe, UnwindSafe},
    ptr,
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;

use super::{
    MissedTicks,
    builder::TimerBuilder,
    error::ScheduleError,
    key::TimeoutKey,
    occurrences::{Occurrences, Rhythm},
    receivers::wake_all,
    shards::Shards,
    shared::Shared,
    stats::TimerStats,
    value::ValueTimer,
};
use crate::{sync::Mutex, tick::Tick};

/// The part of a timer that its sleeps use. Its drop ends the pending sleeps.
pub(super) struct Sleeps {
    settings: TimerBuilder,
    /// Made by the first sleep, and set under the lock of `is_closed`.
    wakers: OnceLock<Wakers>,
    /// Whether the timer refuses new sleeps. With this flag, an end need not create wheels that no
    /// sleep ever used.
    is_closed: Mutex<bool>,
}

struct Wakers {
    timer: ValueTimer<Waker>,
    /// One handle for each shard, so that threads on different shards use different reference
    /// counts.
    handles: Box<[SleepHandle]>,
}

/// A handle to the sleeps of a timer. It does not keep the timer running.
///
/// `None` stands for the default timer of the process, which is never dropped. So its sleeps count
/// no references.
#[derive(Clone)]
pub(crate) struct SleepHandle(Option<Arc<CachePadded<Arc<Shared<Waker>>>>>);

/// The sleeps of the default timer of the process.
static DEFAULT: OnceLock<Arc<Shared<Waker>>> = OnceLock::new();

impl Sleeps {
    pub(super) fn new(settings: TimerBuilder) -> Self {
        Self { settings, wakers: OnceLock::new(), is_closed: Mutex::new(false) }
    }

    /// Returns the handle that sleeps of this thread use.
    #[inline]
    pub(super) fn handle(&self) -> SleepHandle {
        let wakers = self.wakers();
        let shard = wakers.timer.current_shard();
        wakers.handles[shard].clone()
    }

    /// Makes these sleeps the ones of the default timer of the process, which is never dropped.
    /// Returns their handle.
    #[cold]
    pub(super) fn set_default(&self) -> SleepHandle {
        // This may read the clock, which is user code, so it runs outside of the initialization.
        let shared = self.wakers().timer.shared();
        let default = DEFAULT.get_or_init(|| Arc::clone(shared));
        debug_assert!(Arc::ptr_eq(default, shared), "the process has two default timers");
        SleepHandle(None)
    }

    #[inline]
    fn wakers(&self) -> &Wakers {
        self.wakers.get().unwrap_or_else(|| self.make_wakers())
    }

    #[cold]
    fn make_wakers(&self) -> &Wakers {
        // `Wakers::new` reads the clock, which is user code, so it runs without a lock. Several
        // threads may run it at once. The first result is kept.
        let made = Wakers::new(self.settings.clone());
        let is_closed = self.is_closed.lock();
        let lost = self.wakers.set(made);
        let ends = *is_closed;
        drop(is_closed);
        drop(lost);
        let wakers = self.wakers.get_or_init(|| unreachable!("the wakers have been set"));
        if ends {
            wake_all(wakers.timer.shutdown());
        }
        wakers
    }

    /// Refuses new sleeps. Returns the wakers, if a sleep has ever used them.
    fn close(&self) -> Option<&Wakers> {
        *self.is_closed.lock() = true;
        self.wakers.get()
    }

    /// Ends the pending sleeps with an error, and refuses new ones.
    pub(super) fn shutdown(&self) {
        if let Some(wakers) = self.close() {
            wake_all(wakers.timer.shutdown());
        }
    }

    /// Refuses new sleeps, waits for the pending ones until `deadline`, and then shuts down.
    pub(super) fn finish_by(&self, deadline: Instant) {
        if let Some(wakers) = self.close() {
            wake_all(wakers.timer.finish_by(deadline));
        }
    }

    pub(super) fn check_invariants(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.check_invariants();
        }
    }

    /// Refuses new sleeps.
    pub(super) fn begin_finish(&self) {
        if let Some(wakers) = self.close() {
            wakers.timer.shared().shards.begin_finish();
        }
    }

    /// Makes the reaper read the clock.
    pub(super) fn wake(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.wake();
        }
    }

    pub(super) fn shrink(&self) {
        if let Some(wakers) = self.wakers.get() {
            wakers.timer.shrink();
        }
    }

    pub(super) fn is_reaper_dead(&self) -> bool {
        self.wakers.get().is_some_and(|wakers| wakers.timer.is_reaper_dead())
    }

    /// Adds the counts of the sleeps to those of the callbacks.
    pub(super) fn add_stats(&self, sum: &mut TimerStats) {
        if let Some(wakers) = self.wakers.get() {
            sum.add(&wakers.timer.stats());
        }
    }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        if let Some(wakers) = self.wakers.get() {
            wake_all(wakers.timer.shutdown());
        }
    }
}

impl Wakers {
    fn new(settings: TimerBuilder) -> Self {
        let timer = match settings.for_sleeps().build_with(Waker::wake) {
            Ok(timer) => timer,
            Err(error) => unreachable!("the timer has been built with these settings: {error}"),
        };
        timer.shared().on_panic.get_or_init(|| |shared| wake_all(shared.shut_down()));
        let handle = |_| SleepHandle(Some(Arc::new(CachePadded::new(Arc::clone(timer.shared())))));
        let handles = (0..timer.shard_count()).map(handle).collect();
        Self { timer, handles }
    }
}

impl SleepHandle {
    /// Returns the handle to the default timer of the process, if its sleeps exist.
    #[inline]
    pub(crate) fn of_default() -> Option<Self> {
        DEFAULT.get().map(|_| Self(None))
    }

    #[inline]
    fn shared(&self) -> &Arc<Shared<Waker>> {
        match &self.0 {
            Some(shared) => shared,
            None => DEFAULT.get().expect("the default timer exists before its handles"),
        }
    }

    #[inline]
    fn shards(&self) -> &Shards<Waker> {
        &self.shared().shards
    }

    /// Returns the nanoseconds since the sleeps' timer was made, on its clock.
    #[inline]
    pub(crate) fn elapsed(&self) -> u64 {
        self.shards().clock().elapsed()
    }

    /// Returns the nanoseconds from the start of the timer to `instant`; 0 for an earlier one.
    pub(crate) fn elapsed_at(&self, instant: Instant) -> u64 {
        self.shards().clock().elapsed_at(instant)
    }

    /// Returns the instant `elapsed` nanoseconds after the start, or `None` for `u64::MAX`, which
    /// stands for any later time.
    pub(crate) fn instant_at(&self, elapsed: u64) -> Option<Instant> {
        self.shards().clock().instant_at(elapsed)
    }

    /// Returns the length of a tick.
    pub(crate) fn tick(&self) -> Duration {
        self.shards().clock().tick()
    }

    /// Polls the sleep with this place. It is ready at `deadline`, or with an error if the timer
    /// refuses or ends it.
    #[inline]
    pub(crate) fn poll(
        &self,
        place: &mut Option<Place>,
        deadline: u64,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        let shared = self.shared();
        let shards = &*shared.shards;
        if place.is_some() {
            return poll_again(shards, place, deadline, waker);
        }
        if shards.clock().has_passed(deadline) {
            return Poll::Ready(Ok(()));
        }
        match shared.ensure_started() {
            Ok(()) => register(shards, place, deadline, waker),
            Err(cause) => Poll::Ready(Err(ScheduleError::no_thread((), cause))),
        }
    }

    /// Moves the deadline of the sleep with this place.
    pub(crate) fn reset(&self, place: &mut Option<Place>, deadline: u64) {
        reset(self.shards(), place, deadline);
    }

    /// Removes the waker of the sleep from the wheel. Takes no lock if the sleep has no place.
    #[inline]
    pub(crate) fn leave(&self, place: &mut Option<Place>) {
        leave(self.shards(), place);
    }
}

/// The place of a registered sleep in the wheel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(super) key: TimeoutKey,
    /// The tick at which the wheel expires the key; not after the deadline's tick.
    pub(super) due: Tick,
    waker: WakerId,
}

/// The identity of a waker. Two wakers with one identity wake the same task, while one of them
/// exists: see [`Waker::will_wake`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WakerId {
    data: usize,
    vtable: usize,
}

impl WakerId {
    #[inline]
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data().addr(), vtable: ptr::from_ref(waker.vtable()).addr() }
    }
}

/// Inserts the waker of a sleep that has no place.
#[inline]
pub(super) fn register(
    shards: &Shards<Waker>,
    place: &mut Option<Place>,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    debug_assert!(place.is_none(), "a sleep would be in the wheel twice");
    let due = shards.clock().ceil(deadline);
    let held = waker.clone();
    let waker = WakerId::of(&held);
    match shards.insert(shards.current(), shards.clock().latest(), due, held) {
        Ok(key) => {
            *place = Some(Place { key, due, waker });
            Poll::Pending
        }
        Err(_) if has_elapsed(shards, deadline) => Poll::Ready(Ok(())),
        Err(refused) => Poll::Ready(Err(refused.map(drop))),
    }
}

/// Polls a sleep that has a place.
#[inline]
pub(super) fn poll_again(
    shards: &Shards<Waker>,
    place: &mut Option<Place>,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    let is_held = place.is_some_and(|place| {
        debug_assert!(place.due <= shards.clock().ceil(deadline), "the wake-up would be late");
        !shards.clock().has_begun(place.due) && place.waker == WakerId::of(waker)
    });
    if is_held && !shards.is_ending() {
        return Poll::Pending;
    }
    renew(shards, place, deadline, waker)
}

/// Stores the waker under the key of a sleep. If the key is dead, the sleep is ready, or it gets
/// another place.
fn renew(
    shards: &Shards<Waker>,
    place: &mut Option<Place>,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    if has_elapsed(shards, deadline) {
        leave(shards, place);
        return Poll::Ready(Ok(()));
    }
    let due = shards.clock().ceil(deadline);
    if place.is_some_and(|place| place.due < due && must_move(shards, place)) {
        move_key(shards, place, due);
    }
    if let Some(held) = place {
        let mut other = waker.clone();
        let id = WakerId::of(&other);
        if shards.with_value(held.key, |held| mem::swap(held, &mut other)).is_some() {
            debug_assert_eq!(WakerId::of(&other), held.waker, "another waker was in the place");
            held.waker = id;
            return Poll::Pending;
        }
        *place = None;
    }
    if has_elapsed(shards, deadline) {
        Poll::Ready(Ok(()))
    } else if shards.is_shut_down() {
        Poll::Ready(Err(ScheduleError::shut_down(())))
    } else {
        register(shards, place, deadline, waker)
    }
}

/// Returns whether the key of a sleep that was moved later must move too: it has expired or is
/// about to, or the timer will refuse to insert it again.
fn must_move(shards: &Shards<Waker>, place: Place) -> bool {
    shards.clock().has_begun(place.due) || shards.is_ending()
}

/// Returns whether a deadline has passed. Reads the clock if no thread has seen that yet.
fn has_elapsed(shards: &Shards<Waker>, deadline: u64) -> bool {
    let clock = shards.clock();
    let is_seen = clock.has_passed(deadline);
    debug_assert!(!is_seen || clock.elapsed() >= deadline, "a sleep ends early");
    is_seen || clock.elapsed() >= deadline
}

/// Moves the deadline of a sleep. If it has passed, the key is due at once, and so is the next
/// poll.
#[inline]
pub(super) fn reset(shards: &Shards<Waker>, place: &mut Option<Place>, deadline: u64) {
    let can_wait = |place: Place| shards.clock().start(place.due) <= deadline;
    if place.is_some_and(|place| !can_wait(place) || shards.has_limit() || shards.is_ending()) {
        let due = shards.clock().ceil(deadline);
        let has_passed = has_elapsed(shards, deadline);
        // A deadline within the latest tick would otherwise count as the tick after it.
        move_key(shards, place, if has_passed { due.min(shards.clock().latest()) } else { due });
    }
    debug_assert!(
        place.is_none_or(|place| place.due <= shards.clock().ceil(deadline)),
        "the wheel wakes the task too late"
    );
}

/// Moves the key of a sleep to `due`. Clears the place if the key is dead.
fn move_key(shards: &Shards<Waker>, place: &mut Option<Place>, due: Tick) {
    let now = shards.clock().latest();
    *place = place
        .filter(|place| shards.reset_to(place.key, now, due))
        .map(|place| Place { due, ..place });
}

/// Removes the waker of a sleep from the wheel. Takes no lock if the sleep has no place, or if the
/// shard shows that the key has expired.
#[inline]
pub(super) fn leave(shards: &Shards<Waker>, place: &mut Option<Place>) {
    let Some(Place { key, due, .. }) = place.take() else { return };
    if !shards.is_past(key, due) {
        drop(shards.cancel(key));
    }
    debug_assert!(shards.deadline(key).is_none(), "a waker stays in the wheel");
}

/// Returns the tick of an interval that follows a tick at `instant` taken at `now`. The period must
/// not be 0.
pub(crate) fn next_tick(missed: MissedTicks, period: u64, instant: u64, now: u64) -> u64 {
    Occurrences::new(Rhythm::Rate(missed), period, instant, 0, 0).next_start(now)
}

// User code never runs under a lock of the timer, so a panic leaves no inconsistent state.
impl UnwindSafe for Sleeps {}
impl RefUnwindSafe for Sleeps {}
impl UnwindSafe for SleepHandle {}
impl RefUnwindSafe for SleepHandle {}

impl fmt::Debug for SleepHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepHandle").finish_non_exhaustive()
    }
}
