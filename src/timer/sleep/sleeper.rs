//! A sleep: its deadline, and the key under which the wheel holds the waker of its task.
//!
//! # Protocol
//!
//! A sleep in the wheel has the key of a waker, the tick at which the wheel expires that key, and
//! the identity of the waker. Only the owner of the sleep uses these, with exclusive access.
//!
//! - The first poll that is pending inserts a clone of the waker.
//! - A thread that expires a key first raises the latest tick of the timer's clock to the tick of
//!   the key. Then it removes the key and the waker under the lock of the shard, and wakes the task
//!   after the release. A shutdown enters its phase, removes all wakers, and wakes their tasks. A
//!   finish enters its phase, replaces each waker by one that does nothing, and wakes its task. The
//!   keys stay.
//! - A later poll returns `Pending` without the lock if its waker has the identity of the clone in
//!   the wheel, the latest tick is before the tick of the key, and no finish or shutdown has begun.
//!   Otherwise, in one hold of the lock, the poll stores the waker under the key if the key is
//!   live, or inserts the waker again. If the deadline has passed, the poll is ready instead.
//! - A reset to a later deadline only stores the deadline in the sleep. The key then expires before
//!   the deadline and wakes the task, whose poll inserts again. A reset to an earlier deadline
//!   moves a live key. It forgets a dead key, so the next poll inserts.
//! - A drop cancels the key.
//!
//! *Invariant*: after a poll that returned `Pending`, the waker of that poll is in the wheel under
//! the sleep's key, or the thread that removed it wakes it.
//!
//! *Why no lock is needed*: suppose that a thread has removed the waker. If it woke or dropped the
//! waker before the poll, it had stored the latest tick or the phase before that. So the poll sees
//! the tick or the phase, and takes the lock. If the thread wakes the waker after the poll, it
//! wakes the task of this poll, because both wakers have one identity.
//!
//! *Why the identity of the clone*: a waker of another task can get this identity only after the
//! drop of the clone, and a poll with that waker takes the lock, as above. The identity of the
//! poll's own waker would not do: that waker may be temporary, and the waker of another task may
//! get its address at once.
//!
//! With a limit of pending timeouts, a reset always moves the key. Otherwise another timeout could
//! take the permit between the expiration and the poll that inserts again. In a finish, a reset and
//! a poll always move the key, because the timer then refuses inserts. The finish wakes each task
//! once. If a reset had stored a later deadline, the poll moves the key to it. If the key expires
//! before that poll, the sleep ends with an error: only the task knows the later deadline, and a
//! finish does not wait for tasks.
//!
//! After the last turn of a clock that drives the timer, no thread wakes a task. Each turn of such
//! a clock stores the latest tick, and then locks each shard once. A poll that inserts a waker
//! loads the latest tick after its hold. So the turn finds the waker, or the poll finds that the
//! deadline is over.
//!
//! Cloning and dropping wakers is user code, so both happen without a lock.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    ptr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam::utils::CachePadded;

use crate::{
    clock::{Reading, TickClock},
    tick::Tick,
    ticks::Nanos,
    timer::{error::ScheduleError, shards::Shards, value::SharedTimer},
    wheel::{Key, TimingWheel},
};

type SleepShards = Shards<TimingWheel<Waker>>;

/// A handle to the sleeps of a timer. It does not keep the timer running.
#[derive(Clone)]
pub(crate) enum SleepHandle {
    /// Shares a reference count with the other handles of a shard.
    Counted(Arc<CachePadded<Parts>>),
    /// The handle of a timer that exists until the process ends.
    Uncounted(&'static Parts),
}

/// The parts of a timer that sleeps use.
pub(crate) struct Parts {
    /// The shards of `shared`. With a pointer to them here, the drop of a sleep needs one load less
    /// before it locks the shard.
    shards: Arc<SleepShards>,
    shared: Arc<SharedTimer<TimingWheel<Waker>>>,
}

impl Parts {
    pub(in crate::timer) fn new(
        shared: &Arc<SharedTimer<TimingWheel<Waker>>>,
    ) -> Arc<CachePadded<Self>> {
        let parts = Self { shards: Arc::clone(&shared.shards), shared: Arc::clone(shared) };
        Arc::new(CachePadded::new(parts))
    }
}

impl SleepHandle {
    pub(super) fn shared(&self) -> &Arc<SharedTimer<TimingWheel<Waker>>> {
        &self.parts().shared
    }

    #[inline]
    pub(super) fn parts(&self) -> &Parts {
        match self {
            Self::Counted(parts) => parts,
            Self::Uncounted(parts) => parts,
        }
    }
}

/// Waits until its deadline; from [`Timer::sleep`](crate::Timer::sleep) and
/// [`sleep()`](crate::future::sleep()).
///
/// It is [`Unpin`], because the wheel refers to it by a key and not by an address. So you can move
/// it, store it, and poll `&mut sleep`.
///
/// The first poll registers the sleep in the wheel. Before that, and after its end, the sleep takes
/// no lock. A poll after its end is ready again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel::{ManualClock, Timer};
/// use pollster::block_on;
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let mut idle = timer.sleep(Duration::from_secs(30));
/// clock.advance(Duration::from_secs(20));
/// idle.reset(Duration::from_secs(30));
/// clock.advance(Duration::from_secs(20));
/// assert!(!idle.is_elapsed());
/// clock.advance(Duration::from_secs(10));
/// block_on(&mut idle)?;
/// assert!(idle.is_elapsed());
/// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
///
/// It ends with a [`SleepError`](crate::future::SleepError) if the timer is full or shut down, or
/// cannot start its thread. A shutdown of the timer ends pending sleeps at once.
///
/// # Cancel safety
///
/// A dropped sleep leaves the wheel. Await `&mut sleep` to keep it.
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    handle: SleepHandle,
    /// Time from the start of the timer to the deadline; the delay of a sleep that is `Delayed`.
    deadline: Nanos,
    pub(crate) stage: Stage,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    /// Not polled. The delay begins with the first poll.
    Delayed,
    /// Not polled. The deadline was ahead when the delay began, so the first poll does not read the
    /// clock.
    Ahead,
    /// Not in the wheel. The deadline may have passed, so a poll reads the clock. A wake-up of the
    /// task is no proof: a reset may have moved the deadline since.
    Out,
    /// The wheel of a shard holds the waker with this identity, unless the key has expired. The
    /// wheel expires the key at `due`: at most the tick of the deadline, or the latest tick if that
    /// is greater.
    In { shard: u32, key: Key, due: Tick, id: WakerId },
}

/// The identity of a waker. Two wakers with one identity wake the same task, as long as one of them
/// exists: see [`Waker::will_wake`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WakerId {
    data: usize,
    vtable: usize,
}

impl WakerId {
    #[inline]
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data().addr(), vtable: ptr::from_ref(waker.vtable()).addr() }
    }
}

/// The result of a poll.
pub(crate) type Polled = Poll<Result<(), ScheduleError<()>>>;

impl Sleep {
    /// Makes a sleep whose delay begins with its first poll. Does not read the clock.
    #[inline]
    pub(crate) fn delayed(handle: SleepHandle, delay: Duration) -> Self {
        Self { handle, deadline: delay.into(), stage: Stage::Delayed }
    }

    /// Makes a sleep that ends after `delay`.
    #[inline]
    pub(crate) fn after(handle: SleepHandle, delay: Duration) -> Self {
        // All parts are known before the sleep is made. If code changed a part of it in memory and
        // then copied the whole, the processor would wait for that store.
        let deadline = handle.parts().shards.clock.elapsed().saturating_add(delay.into());
        let stage = if delay.is_zero() { Stage::Out } else { Stage::Ahead };
        Self { handle, deadline, stage }
    }

    /// Makes a sleep that ends at `deadline`.
    pub(crate) fn at(handle: SleepHandle, deadline: Instant) -> Self {
        let deadline = handle.parts().shards.clock.elapsed_at(deadline);
        Self { handle, deadline, stage: Stage::Out }
    }

    /// Begins the delay.
    #[inline]
    fn start(&mut self) {
        let delay = self.deadline;
        self.deadline = self.clock().elapsed().saturating_add(delay);
        self.stage = if delay == Nanos::ZERO { Stage::Out } else { Stage::Ahead };
    }

    #[inline]
    fn shards(&self) -> &SleepShards {
        &self.handle.parts().shards
    }

    #[inline]
    pub(crate) fn clock(&self) -> &TickClock {
        &self.shards().clock
    }

    /// Returns the deadline; `None` if an [`Instant`] cannot represent it, as after a delay of
    /// [`Duration::MAX`].
    ///
    /// A deadline before the timer was made counts as the instant at which that happened.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.clock().instant_at(self.deadline)
    }

    /// Returns whether the deadline has passed, on the timer's clock. A poll may be pending for up
    /// to a tick after that.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.clock().has_passed(self.deadline) || self.clock().elapsed() >= self.deadline
    }

    /// Returns whether a thread that removes the waker from the wheel wakes the task of `waker`.
    #[inline]
    fn is_held(&self, due: Tick, id: WakerId, waker: &Waker) -> bool {
        let shards = self.shards();
        debug_assert!(
            due <= shards.clock.ticks.ceil(self.deadline).max(shards.clock.latest()),
            "the wake-up would be late"
        );
        id == WakerId::of(waker) && shards.clock.latest() < due && !shards.lifecycle.is_ending()
    }

    /// Leaves the wheel, and returns `result` for the poll.
    fn leave_with(&mut self, result: Result<(), ScheduleError<()>>) -> Polled {
        self.cancel();
        Poll::Ready(result)
    }

    /// Inserts the waker of a sleep that is not in the wheel.
    #[inline]
    pub(crate) fn insert(&mut self, waker: &Waker) -> Polled {
        debug_assert!(
            !matches!(self.stage, Stage::In { .. }),
            "a sleep would be in the wheel twice"
        );
        let shards = self.shards();
        let due = shards.clock.ticks.ceil(self.deadline);
        let waker = waker.clone();
        let id = WakerId::of(&waker);
        let (shard, now) = (shards.likely_free(), shards.clock.latest());
        let mut guard = shards.lock(shard);
        let inserted = guard.insert(now, due, waker);
        guard.unlock();
        let elapsed = shards.clock.ticks.until_start(now);
        let polled = self.end_insert(shard, due, id, inserted);
        self.handle.shared().help_if_late(Reading { elapsed, now });
        polled
    }

    /// Stores the waker under the key of a sleep, or inserts the waker again if the key is dead, in
    /// one hold of the lock.
    fn renew(&mut self, index: u32, key: Key, held_due: Tick, waker: &Waker) -> Polled {
        if self.is_elapsed() {
            return self.leave_with(Ok(()));
        }
        let mut waker = waker.clone();
        let id = WakerId::of(&waker);
        let shards = self.shards();
        let (due, now) = (shards.clock.ticks.ceil(self.deadline), shards.clock.latest());
        let mut shard = shards.lock(index as usize);
        if let Some(value) = shard.state_mut().get_mut(key) {
            mem::swap(value, &mut waker);
            // A move to a later deadline has left the key at its old tick.
            if held_due < due {
                shard.reset(key, now, due);
            }
            drop(shard);
            self.stage = self.stage_in(index, key, due, id);
            return Poll::Pending;
        }
        let inserted = shard.insert_again(now, due, waker);
        drop(shard);
        self.end_insert(index as usize, due, id, inserted)
    }

    /// Ends a poll that has inserted its waker.
    #[inline]
    fn end_insert(
        &mut self,
        shard: usize,
        due: Tick,
        id: WakerId,
        inserted: Result<Key, ScheduleError<Waker>>,
    ) -> Polled {
        match inserted {
            Ok(key) => {
                #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^16")]
                let shard = shard as u32;
                self.stage = self.stage_in(shard, key, due, id);
                if self.clock().latest() >= due { self.leave_with(Ok(())) } else { Poll::Pending }
            }
            Err(_) if self.is_elapsed() => self.leave_with(Ok(())),
            Err(refused) => self.leave_with(Err(refused.map(drop))),
        }
    }

    /// Moves the deadline to `delay` from now. An elapsed sleep starts again.
    ///
    /// As everywhere in this crate, `reset` takes a delay, and [`reset_at`](Self::reset_at) an
    /// instant. In tokio, `reset` takes an instant; such a call does not compile here.
    ///
    /// A later deadline takes one store: the sleep keeps its bucket in the wheel. So the timer also
    /// wakes the task once at the old deadline, and the poll then returns `Pending`. From the old
    /// deadline until that poll, the sleep counts as expired. In a timer with
    /// [`max_pending`](crate::TimerBuilder::max_pending), the sleep moves at once.
    ///
    /// In a [`finish`](crate::Timer::finish) the sleep also moves at once. A finish also wakes the
    /// task of each sleep. If a reset had only stored a later deadline, the next poll moves the
    /// sleep to it. If the old deadline passes before that poll, the sleep ends with an error.
    ///
    /// As after any wake-up, poll the sleep again to be woken at the new deadline.
    pub fn reset(&mut self, delay: Duration) {
        self.move_to(self.clock().elapsed().saturating_add(delay.into()));
    }

    /// Moves the deadline to `deadline`, like [`reset`](Self::reset).
    pub fn reset_at(&mut self, deadline: Instant) {
        self.move_to(self.clock().elapsed_at(deadline));
    }

    /// Moves the deadline of the sleep. If the new deadline has passed, the key is due at once, and
    /// the next poll is ready.
    #[inline]
    pub(crate) fn move_to(&mut self, deadline: Nanos) {
        if let Stage::In { shard, key, due, id } = self.stage {
            let shards = self.shards();
            let wakes_early = shards.clock.ticks.until_start(due) <= deadline;
            if !wakes_early || shards.permits.has_limit() || shards.lifecycle.is_ending() {
                self.stage = self.move_key(shard, key, id, deadline);
            }
        } else {
            self.stage = Stage::Out;
        }
        // Last, so that a panic of the clock leaves the sleep as it was.
        self.deadline = deadline;
    }

    /// Moves the key to a deadline, or forgets a dead key. Returns the new stage.
    fn move_key(&self, shard: u32, key: Key, id: WakerId, deadline: Nanos) -> Stage {
        let shards = self.shards();
        let read = shards.clock.read();
        let due = shards.clock.due(read, deadline);
        let is_live = shards.lock(shard as usize).reset(key, read.now, due);
        if is_live { self.stage_in(shard, key, due, id) } else { Stage::Out }
    }

    /// Returns the stage of a sleep whose key was just placed at `due`. If that tick had passed,
    /// the wheel may have used a tick as late as the latest one. So the stage has the later of
    /// these two ticks.
    #[inline]
    fn stage_in(&self, shard: u32, key: Key, due: Tick, id: WakerId) -> Stage {
        Stage::In { shard, key, due: due.max(self.clock().latest()), id }
    }

    #[cfg(test)]
    pub(crate) fn poll_by(&mut self, waker: &Waker) -> Polled {
        Pin::new(self).poll(&mut Context::from_waker(waker))
    }

    /// Removes the waker from the wheel, if it may be there.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Stage::In { shard, key, due, .. } = mem::replace(&mut self.stage, Stage::Out) {
            self.leave(shard, key, due);
        }
    }

    /// Removes the waker from the wheel. Takes no lock if the shard shows that the key has expired:
    /// a shard publishes no expiration after the deadline of a pending timeout. Not in line, so
    /// that the drop of a sleep that is not in the wheel needs no frame.
    #[inline(never)]
    fn leave(&self, shard: u32, key: Key, due: Tick) {
        let shards = self.shards();
        if shards.all[shard as usize].published() <= due {
            let mut shard = shards.lock(shard as usize);
            let waker = shard.state_mut().cancel(key);
            shard.unlock();
            // The drop of a waker is user code, so it comes after the release of the lock.
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = Result<(), ScheduleError<()>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let waker = cx.waker();
        if matches!(self.stage, Stage::Delayed) {
            self.start();
        }
        match self.stage {
            Stage::In { due, id, .. } if self.is_held(due, id, waker) => return Poll::Pending,
            Stage::In { shard, key, due, .. } => return self.renew(shard, key, due, waker),
            Stage::Out if self.is_elapsed() => return Poll::Ready(Ok(())),
            _ => {}
        }
        if self.clock().has_passed(self.deadline) {
            return self.leave_with(Ok(()));
        }
        match self.handle.parts().shared.ensure_started(()) {
            Ok(()) => self.insert(waker),
            Err(refused) => self.leave_with(Err(refused)),
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        if let Stage::In { shard, key, due, .. } = self.stage {
            self.leave(shard, key, due);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::mpsc, task::Wake, thread};

    use super::*;
    use crate::{
        clock::{Clock, ManualClock},
        timer::Timer,
    };

    /// The waker of a task that never runs.
    struct Idle;

    impl Wake for Idle {
        fn wake(self: Arc<Self>) {}
    }

    /// The longest time that calls without a lock may take.
    const LIMIT: Duration = Duration::from_secs(60);

    fn timer(shards: usize) -> (ManualClock, Timer) {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).shards(shards).build();
        (clock, timer.expect("the settings are valid"))
    }

    /// A clock that stands still, and drives no timer.
    #[derive(Debug)]
    struct Still(Instant);

    impl Clock for Still {
        fn now(&self) -> Instant {
            self.0
        }
    }

    #[test]
    fn a_poll_makes_way_for_a_late_reaper_that_a_waker_may_block_once_a_tick() {
        let start = Instant::now();
        let timer = Timer::builder().clock(Still(start)).shards(1).build().unwrap();
        let new = || {
            let mut sleep = Sleep::after(timer.sleep_handle(), Duration::from_millis(1));
            // Not through a poll, which would start a reaper.
            assert!(sleep.insert(Waker::noop()).is_pending());
            sleep
        };
        let due = new();
        let SleepShards { clock, wakeup, .. } = due.shards();
        let are_late = || [99, 100].map(|tick| wakeup.is_late(Tick::new(tick)));
        clock.raise_latest(start + Duration::from_millis(99));
        assert_eq!(are_late(), [true; 2]);
        let _other = new();
        assert_eq!(are_late(), [false, true]);
    }

    #[test]
    fn a_sleep_that_is_unpolled_pending_moved_later_or_ended_takes_no_lock() {
        let (clock, timer) = timer(1);
        // A clone, as the first waker may have another identity than its clones.
        let waker = Waker::from(Arc::new(Idle)).clone();
        let second = Duration::from_secs(1);
        let new = |delay| {
            let mut sleep = Sleep::after(timer.sleep_handle(), delay);
            assert!(sleep.poll_by(&waker).is_pending());
            sleep
        };
        let (fired, mut ended) = (new(second), new(second));
        clock.advance(second);
        assert!(ended.poll_by(&waker).is_ready());
        let mut pending = new(second);

        let shards = Arc::clone(&pending.handle.parts().shards);
        let held = shards.lock(0);
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                drop(Sleep::after(timer.sleep_handle(), second));
                assert!(
                    Sleep::after(timer.sleep_handle(), Duration::ZERO).poll_by(&waker).is_ready()
                );
                assert!(pending.poll_by(&waker).is_pending());
                pending.reset(3 * second);
                assert!(pending.poll_by(&waker).is_pending());
                // As if the reaper were late with the other sleeps when this task runs.
                pending.clock().raise_latest(clock.now() + 4 * second);
                drop((ended, fired));
                done.send(pending)
            });
            let pending = is_done.recv_timeout(LIMIT);
            drop(held);
            assert!(pending.is_ok(), "a call takes the lock of the shard");
        });
    }
}
