//! The registration of a sleep: the key under which the wheel holds the waker of its task.
//!
//! # Protocol
//!
//! A [`Registration`] holds the key of a waker, the tick at which the wheel expires that key, and
//! the identity of the waker. Only the owner of the sleep uses it, with exclusive access.
//!
//! - The first poll that is pending inserts a clone of the waker.
//! - A thread that expires a key first raises the latest tick of the timer's clock to the tick of
//!   the key. Then it removes the key and the waker under the lock of the shard, and wakes the task
//!   after the release. A shutdown enters its phase, removes all wakers, and wakes their tasks. A
//!   finish enters its phase, replaces each waker by one that does nothing, and wakes its task. The
//!   keys stay.
//! - A later poll returns `Pending` without the lock if its waker has the identity of the clone in
//!   the wheel, the latest tick is before that of the registration, and no finish or shutdown has
//!   begun. Otherwise, in one hold of the lock, it checks that the key is live and stores the waker
//!   under it. If the key is dead, the poll returns `Ready`, or inserts the waker again.
//! - A reset to a later deadline only stores the deadline in the sleep. The key then expires before
//!   the deadline and wakes the task, whose poll inserts again. A reset to an earlier deadline
//!   moves a live key. It clears a dead key, so the next poll inserts.
//! - A drop cancels the key.
//!
//! *Invariant*: after a poll that returned `Pending`, the waker of that poll is in the wheel under
//! the sleep's key, or the thread that removed it wakes it.
//!
//! *Why no lock is needed*: suppose that a thread has removed the waker. If it woke or dropped the
//! waker before the poll, it had stored the latest tick or the phase before that. So the poll sees
//! them and takes the lock. If it wakes the waker after the poll, it wakes the task of this poll,
//! because both wakers have one identity.
//!
//! *Why the identity of the clone*: a waker of another task can get this identity only after the
//! drop of the clone, and a poll with it takes the lock, as above. The waker of a poll may be
//! temporary, and the waker of another task may get its address at once.
//!
//! With a limit of pending timeouts, a reset always moves the key. Otherwise another timeout could
//! take the permit between the expiration and the poll that inserts again. In a finish, a reset and
//! a poll always move the key, because the timer then refuses inserts. The finish wakes each task
//! once. If a reset had stored a later deadline, the poll moves the key to it. If the key expires
//! before that poll, the sleep ends with an error: only the task knows the later deadline, and a
//! finish does not wait for tasks.
//!
//! Cloning and dropping wakers is user code, so both happen without a lock.

use std::{
    io, mem, ptr,
    task::{Poll, Waker},
};

use crate::{
    tick::Tick,
    ticks::Nanos,
    timer::{
        error::ScheduleError,
        executor::receivers::wake_all,
        shards::{Shards, key::TimeoutKey},
    },
};

/// The waker of a sleep in the wheel; none before the first pending poll and after the end.
#[derive(Debug)]
pub(crate) struct Registration(pub(crate) Option<HeldWaker>);

/// A waker that the wheel holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldWaker {
    pub(crate) key: TimeoutKey,
    /// The tick at which the wheel expires the key; not after the deadline's tick.
    pub(crate) due: Tick,
    id: WakerId,
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

impl Registration {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Polls the sleep. Calls `start` to start the reaper before it inserts the first waker.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        shards: &Shards<Waker>,
        deadline: Nanos,
        waker: &Waker,
        start: impl FnOnce() -> io::Result<()>,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        if let Some(held) = self.0 {
            return self.poll_again(held, shards, deadline, waker);
        }
        if shards.clock().has_passed(deadline) {
            return Poll::Ready(Ok(()));
        }
        match start() {
            Ok(()) => self.insert(shards, deadline, waker),
            Err(cause) => Poll::Ready(Err(ScheduleError::no_thread((), cause))),
        }
    }

    /// Inserts the waker of a sleep that is not registered.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        shards: &Shards<Waker>,
        deadline: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        debug_assert!(self.is_none(), "a sleep would be in the wheel twice");
        let due = shards.clock().ceil(deadline);
        let (index, now) = (shards.unlocked(), shards.clock().latest());
        let waker = waker.clone();
        let id = WakerId::of(&waker);
        match shards.insert(index, now, due, waker) {
            Ok(key) => {
                self.0 = Some(HeldWaker { key, due, id });
                Poll::Pending
            }
            Err(_) if has_elapsed(shards, deadline) => Poll::Ready(Ok(())),
            Err(refused) => Poll::Ready(Err(refused.map(drop))),
        }
    }

    /// Polls a sleep that is registered.
    #[inline]
    fn poll_again(
        &mut self,
        held: HeldWaker,
        shards: &Shards<Waker>,
        deadline: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        debug_assert!(held.due <= shards.clock().ceil(deadline), "the wake-up would be late");
        let is_held = !shards.clock().has_begun(held.due) && held.id == WakerId::of(waker);
        if is_held && !shards.is_ending() {
            return Poll::Pending;
        }
        self.renew(shards, deadline, waker)
    }

    /// Stores the waker under the key of a sleep. If the key is dead, the sleep is ready, or it is
    /// inserted again.
    fn renew(
        &mut self,
        shards: &Shards<Waker>,
        deadline: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>> {
        if has_elapsed(shards, deadline) {
            self.cancel(shards);
            return Poll::Ready(Ok(()));
        }
        let due = shards.clock().ceil(deadline);
        if self.0.is_some_and(|held| held.due < due && must_move(shards, held)) {
            self.move_key(shards, due);
        }
        if let Some(held) = &mut self.0 {
            let mut other = waker.clone();
            let id = WakerId::of(&other);
            if shards.with_value(held.key, |value| mem::swap(value, &mut other)).is_some() {
                // A finish leaves a waker that does nothing.
                debug_assert!(
                    shards.is_ending() || WakerId::of(&other) == held.id,
                    "the wheel held another waker"
                );
                held.id = id;
                return Poll::Pending;
            }
            self.0 = None;
        }
        if has_elapsed(shards, deadline) {
            Poll::Ready(Ok(()))
        } else if shards.is_shut_down() {
            Poll::Ready(Err(ScheduleError::shut_down(())))
        } else {
            self.insert(shards, deadline, waker)
        }
    }

    /// Moves the deadline of the sleep. If the new deadline has passed, the key is due at once, and
    /// the next poll is ready.
    #[inline]
    pub(crate) fn reset(&mut self, shards: &Shards<Waker>, deadline: Nanos) {
        let can_wait = |held: HeldWaker| shards.clock().start(held.due) <= deadline;
        if self.0.is_some_and(|held| !can_wait(held) || shards.has_limit() || shards.is_ending()) {
            let due = shards.clock().ceil(deadline);
            let has_passed = has_elapsed(shards, deadline);
            // A deadline within the latest tick would otherwise count as the tick after it.
            self.move_key(shards, if has_passed { due.min(shards.clock().latest()) } else { due });
        }
        debug_assert!(
            self.0.is_none_or(|held| held.due <= shards.clock().ceil(deadline)),
            "the wheel wakes the task too late"
        );
    }

    /// Moves the key to `due`, or forgets it if it is dead.
    fn move_key(&mut self, shards: &Shards<Waker>, due: Tick) {
        let now = shards.clock().latest();
        self.0 = self
            .0
            .filter(|held| shards.reset_to(held.key, now, due))
            .map(|held| HeldWaker { due, ..held });
    }

    /// Removes the waker from the wheel. Takes no lock if there is none, or if the shard shows that
    /// the key has expired.
    #[inline]
    pub(crate) fn cancel(&mut self, shards: &Shards<Waker>) {
        let Some(HeldWaker { key, due, .. }) = self.0.take() else { return };
        if !shards.is_past(key, due) {
            drop(shards.cancel(key));
        }
        debug_assert!(shards.deadline(key).is_none(), "a waker stays in the wheel");
    }
}

/// Returns whether the key of a sleep must move to a later deadline now: its tick has begun, or the
/// timer would refuse a later insert of the waker.
fn must_move(shards: &Shards<Waker>, held: HeldWaker) -> bool {
    shards.clock().has_begun(held.due) || shards.is_ending()
}

/// Wakes the task of each sleep, after a finish has begun. The keys stay in the wheel.
pub(crate) fn wake_each(shards: &Shards<Waker>) {
    debug_assert!(shards.is_ending(), "a poll without the lock would miss the wake-up");
    let take = |key| shards.with_value(key, |held| mem::replace(held, Waker::noop().clone()));
    wake_all(shards.keys().into_iter().filter_map(take));
}

/// Returns whether a deadline has passed. Reads the clock if no thread has seen that yet.
fn has_elapsed(shards: &Shards<Waker>, deadline: Nanos) -> bool {
    let clock = shards.clock();
    let is_seen = clock.has_passed(deadline);
    debug_assert!(!is_seen || clock.elapsed() >= deadline, "a sleep ends early");
    is_seen || clock.elapsed() >= deadline
}
