//! The protocol of sleeps: polls, resets and drops against an expiration.

use std::{
    future::Future,
    mem::ManuallyDrop,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
    vec::Vec,
};

use loom::thread;

use super::{check, expire_due, join, shards_with, timer_of_shards, waker};
use crate::{
    clock::{Clock, Driven, JumpListener},
    sync::{AtomicBool, AtomicU64, Ordering, Parker},
    tick::Tick,
    timer::{
        delivery::Delivery,
        reaper::Reaper,
        shards::Shards,
        sleep::{
            sleeper::{Parts, Sleep, SleepHandle},
            until_time::TimeSleep,
            wake_each,
        },
        value::SharedTimer,
    },
    wheel::TimingWheel,
};

const TICK: Duration = Duration::from_millis(1);

type WakerWheel = TimingWheel<Waker>;

#[derive(Debug, Clone)]
struct Set(Instant, Arc<AtomicU64>);

impl Set {
    fn show(&self, tick: u64) {
        self.1.store(tick, Ordering::SeqCst);
    }
}

impl Clock for Set {
    fn now(&self) -> Instant {
        self.0 + Duration::from_millis(self.1.load(Ordering::SeqCst))
    }

    fn system_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.1.load(Ordering::SeqCst))
    }

    fn watch(&self, _: Weak<dyn JumpListener>) -> Option<Duration> {
        None
    }

    /// The model takes the place of the reaper.
    fn adopt(&self, _: Weak<dyn Driven>) -> bool {
        true
    }
}

/// A timer of sleeps, its clock and the parker of its reaper.
struct World {
    timer: Arc<SharedTimer<WakerWheel>>,
    clock: Set,
    parker: Parker,
    is_done: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        let parker = Parker::new();
        let clock = Set(Instant::now(), Arc::new(AtomicU64::new(0)));
        let shards = shards_with(1, None, clock.clone(), &parker);
        let timer = timer_of_shards(&Reaper::new(""), shards, Delivery::Inline, Waker::wake);
        Self { timer, clock, parker, is_done: Arc::new(AtomicBool::new(false)) }
    }

    /// Starts a reaper that expires due sleeps at each of these ticks. At the last one, it runs its
    /// loop until the task is done.
    fn reap(self, ticks: &'static [u64]) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for tick in ticks {
                self.clock.show(*tick);
                self.turn();
            }
            while !self.is_done.load(Ordering::Acquire) {
                let now = self.timer.shards.clock.read().now;
                if self.timer.shards.fall_asleep(now, Tick::MAX).is_some() {
                    self.parker.park();
                    self.timer.shards.wakeup.stay_awake();
                }
                self.turn();
            }
        })
    }

    fn turn(&self) {
        let mut expired = Vec::new();
        expire_due(&self.timer.shards, self.timer.shards.clock.read(), &mut expired);
        expired.into_iter().for_each(|expired| expired.value.wake());
    }
}

/// A task with a sleep. Another task may have polled the sleep with another waker.
///
/// All wakers live as long as the model, so that none gets the address of an earlier one.
struct Task {
    shards: Arc<Shards<WakerWheel>>,
    parker: Parker,
    waker: Waker,
    /// The checker does not allow its atomics in a drop after a deadlock.
    sleep: ManuallyDrop<Sleep>,
}

impl Task {
    fn new(world: &World, ticks: u32, first: First) -> Self {
        let parker = Parker::new();
        let (waker, other) = (waker(&parker), waker(&Parker::new()));
        let handle = SleepHandle::Counted(Parts::new(&world.timer));
        let mut sleep = ManuallyDrop::new(Sleep::after(handle, ticks * TICK));
        match first {
            First::None => {}
            First::Other => assert!(sleep.poll_by(&other).is_pending()),
            First::Same => assert!(sleep.poll_by(&waker).is_pending()),
        }
        std::mem::forget(other);
        Self { shards: Arc::clone(&world.timer.shards), parker, waker, sleep }
    }

    /// Runs the task until its sleep has ended, which must not be before this tick.
    fn run(&mut self, due: u64) {
        assert!(self.run_until().is_ok(), "the timer runs");
        assert!(self.shards.clock.read().now >= Tick::new(due), "early");
    }

    /// Runs the task until its sleep has ended. Returns the result.
    fn run_until(&mut self) -> Result<(), ()> {
        loop {
            match self.sleep.poll_by(&self.waker) {
                Poll::Ready(ended) => return ended.map_err(drop),
                Poll::Pending => self.parker.park(),
            }
        }
    }
}

/// Who polled the sleep before the reaper starts.
#[derive(Clone, Copy)]
enum First {
    None,
    Other,
    Same,
}

/// Runs a task, whose sleep is due at a tick, against a reaper that expires at these ticks.
fn against_the_reaper(
    first: First,
    due: u32,
    ticks: &'static [u64],
    run: impl Fn(&mut Task) + Sync + Send + 'static,
) {
    check(move || {
        let world = World::new();
        let (shards, is_done) = (Arc::clone(&world.timer.shards), Arc::clone(&world.is_done));
        let mut task = Task::new(&world, due, first);
        let reaper = world.reap(ticks);
        run(&mut task);
        drop(ManuallyDrop::into_inner(task.sleep));
        is_done.store(true, Ordering::Release);
        shards.wakeup.wake();
        join(reaper);
        assert_eq!(shards.counts().pending, 0, "nothing lingers");
    });
}

#[test]
fn a_first_poll_that_is_pending_is_woken() {
    against_the_reaper(First::None, 1, &[1], |task| task.run(1));
}

/// Polls a sleep of one tick until it ends, beside the last turn of a clock that drives the timer.
fn beside_the_last_turn<F: Future + Unpin>(
    make: impl Fn(SleepHandle) -> F + Sync + Send + 'static,
) {
    check(move || {
        let (world, parker) = (World::new(), Parker::new());
        let mut sleep = ManuallyDrop::new(make(SleepHandle::Counted(Parts::new(&world.timer))));
        let clock = thread::spawn(move || {
            world.clock.show(1);
            Driven::turn(&*world.timer);
        });
        let waker = waker(&parker);
        while Pin::new(&mut *sleep).poll(&mut Context::from_waker(&waker)).is_pending() {
            parker.park();
        }
        join(clock);
        drop(ManuallyDrop::into_inner(sleep));
    });
}

#[test]
fn a_first_poll_beside_the_last_turn_is_ready_or_woken() {
    beside_the_last_turn(|handle| Sleep::after(handle, TICK));
}

#[test]
fn a_poll_until_a_time_beside_the_last_turn_is_ready_or_woken() {
    beside_the_last_turn(|handle| TimeSleep::new(handle, UNIX_EPOCH + TICK));
}

#[test]
fn the_task_that_polled_last_is_woken() {
    against_the_reaper(First::Other, 1, &[1], |task| task.run(1));
}

#[test]
fn a_poll_without_the_lock_is_woken() {
    against_the_reaper(First::Same, 1, &[1], |task| task.run(1));
}

#[test]
fn a_poll_without_the_lock_sees_a_shutdown() {
    check(move || {
        let world = World::new();
        let mut task = Task::new(&world, 1, First::Same);
        let ending = thread::spawn(move || {
            world.timer.shards.close_and_drain().into_iter().for_each(Waker::wake);
        });
        assert!(task.run_until().is_err(), "the time is not over");
        join(ending);
    });
}

/// The finish wakes the task, and the expiration must end its sleep.
#[test]
fn a_poll_without_the_lock_sees_a_finish() {
    check(move || {
        let world = World::new();
        let mut task = Task::new(&world, 1, First::Same);
        let finishing = thread::spawn(move || {
            world.timer.shards.begin_finish();
            wake_each(&world.timer.shards);
            world.clock.show(1);
            world.turn();
        });
        task.run(1);
        join(finishing);
        assert_eq!(task.shards.counts().pending, 0, "nothing lingers");
    });
}

#[test]
fn a_sleep_that_is_moved_later_ends_at_its_new_deadline_and_counts_once() {
    against_the_reaper(First::Same, 1, &[1, 2], |task| {
        task.sleep.move_to((2 * TICK).into());
        task.run(2);
        assert!(task.shards.counts().scheduled == 1, "it counts once");
    });
}

#[test]
fn a_sleep_that_is_moved_earlier_ends_at_its_new_deadline() {
    against_the_reaper(First::Same, 2, &[1, 2], |task| {
        task.sleep.move_to(TICK.into());
        task.run(1);
    });
}

#[test]
fn a_dropped_sleep_leaves_the_wheel_or_has_been_taken_out() {
    against_the_reaper(First::Same, 1, &[1], |task| {
        task.sleep.cancel();
        let stats = task.shards.counts();
        assert_eq!((stats.expired + stats.cancelled, stats.pending), (1, 0));
    });
}
