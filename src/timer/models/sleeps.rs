//! The protocol of sleeps: polls, resets and drops against an expiration.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
    vec::Vec,
};

use loom::thread;

use super::waker;
use crate::{
    clock::Clock,
    sync::{AtomicBool, AtomicU64, Ordering, Parker, explore},
    tick::Tick,
    ticks::Nanos,
    timer::{
        error::ScheduleError,
        shards::Shards,
        sleep::registration::{HeldWaker, Registration, wake_each},
        tick_clock::TickClock,
    },
    wheel::WheelBuilder,
};

/// The length of a tick.
const TICK: Nanos = Nanos::new(1_000_000);
const TWO_TICKS: Nanos = Nanos::new(2 * TICK.get());

/// A clock that a model sets.
#[derive(Debug, Clone)]
struct Set(Instant, Arc<AtomicU64>);

impl Clock for Set {
    fn now(&self) -> Instant {
        self.0 + Duration::from_nanos(self.1.load(Ordering::SeqCst))
    }
}

/// A timer, its clock and the parker of its reaper.
struct World {
    shards: Arc<Shards<Waker>>,
    clock: Set,
    parker: Parker,
    is_done: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        let parker = Parker::new();
        let clock = Set(Instant::now(), Arc::new(AtomicU64::new(0)));
        let tick_clock = TickClock::new(Arc::new(clock.clone()), TICK.into());
        let wheel = WheelBuilder::new().size(2).build().expect("the settings are valid");
        let unparker = parker.unparker().clone();
        let wheels = [(wheel, ())].into_iter();
        let shards = Arc::new(Shards::new(wheels, tick_clock, unparker, None));
        Self { shards, clock, parker, is_done: Arc::new(AtomicBool::new(false)) }
    }

    /// Starts a reaper that expires due sleeps at each of these ticks, and sleeps at the last one
    /// until the task is done.
    fn reap(self, ticks: &'static [u64]) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for tick in ticks {
                self.clock.1.store(tick * TICK.get(), Ordering::SeqCst);
                self.turn();
            }
            while !self.is_done.load(Ordering::Acquire) {
                let now = self.shards.clock().now();
                if self.shards.fall_asleep(now, Tick::MAX).is_some() {
                    self.parker.park();
                    self.shards.announce_awake();
                }
                self.turn();
            }
        })
    }

    fn turn(&self) {
        let mut expired = Vec::new();
        self.shards.expire(self.shards.clock().read(), 64, &mut expired);
        expired.into_iter().for_each(|expired| expired.value.wake());
    }
}

/// Polls a sleep whose timer has started its threads.
fn poll(
    shards: &Shards<Waker>,
    sleep: &mut Registration,
    deadline: Nanos,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    sleep.poll(shards, deadline, waker, || Ok(()))
}

/// A task, and its waker. Another task has polled the sleep with another waker.
///
/// All wakers live as long as the model, so that none gets the address of an earlier one.
struct Task {
    parker: Parker,
    waker: Waker,
    other: Waker,
}

impl Task {
    fn new() -> Self {
        let parker = Parker::new();
        let (waker, other) = (waker(&parker), waker(&Parker::new()));
        Self { parker, waker, other }
    }
}

type Poller =
    fn(&Shards<Waker>, &mut Registration, Nanos, &Waker) -> Poll<Result<(), ScheduleError<()>>>;

/// Runs a task until its sleep has ended, which must not be early.
fn run(shards: &Shards<Waker>, task: &Task, sleep: Registration, deadline: Nanos, poll: Poller) {
    let ended = run_until(shards, task, sleep, deadline, poll);
    assert!(ended.is_ok(), "the timer runs");
    assert!(shards.clock().elapsed() >= deadline, "early");
}

/// Runs a task until its sleep has ended. Returns how.
fn run_until(
    shards: &Shards<Waker>,
    task: &Task,
    mut sleep: Registration,
    deadline: Nanos,
    poll: Poller,
) -> Result<(), ScheduleError<()>> {
    loop {
        match poll(shards, &mut sleep, deadline, &task.waker) {
            Poll::Ready(ended) => return ended,
            Poll::Pending => task.parker.park(),
        }
    }
}

/// Who polled the sleep before the reaper starts.
#[derive(Clone, Copy)]
enum First {
    /// No task.
    None,
    /// Another task.
    Other,
    /// The task itself.
    Same,
}

/// Runs `task` against a reaper that expires at these ticks. The sleep is due at tick 1.
fn against_the_reaper(
    first: First,
    ticks: &'static [u64],
    run: impl Fn(&Shards<Waker>, &Task, Registration) + Sync + Send + 'static,
) {
    explore(Some(3), move || {
        let world = World::new();
        let (shards, is_done) = (Arc::clone(&world.shards), Arc::clone(&world.is_done));
        let task = Task::new();
        let sleep = registered(&shards, first, &task);
        let reaper = world.reap(ticks);
        run(&shards, &task, sleep);
        is_done.store(true, Ordering::Release);
        shards.unpark_reaper();
        reaper.join().expect("no thread panics");
        assert_eq!(shards.stats().pending, 0, "nothing lingers");
    });
}

/// Polls a sleep that is due at tick 1 for the first time.
fn registered(shards: &Shards<Waker>, first: First, task: &Task) -> Registration {
    let waker = match first {
        First::None => return Registration::new(),
        First::Other => &task.other,
        First::Same => &task.waker,
    };
    let mut sleep = Registration::new();
    assert!(sleep.insert(shards, TICK, waker).is_pending(), "tick 1 is not due");
    sleep
}

#[test]
fn a_first_poll_that_is_pending_is_woken() {
    against_the_reaper(First::None, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, poll);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_waker_that_is_put_in_after_its_key_is_lost() {
    against_the_reaper(First::None, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, |shards, sleep, deadline, waker| {
            if !sleep.is_none() {
                return poll(shards, sleep, deadline, waker);
            }
            let first = poll(shards, sleep, deadline, Waker::noop());
            if let (Poll::Pending, Some(held)) = (&first, sleep.0) {
                shards.with_value(held.key, |value| value.clone_from(waker));
            }
            first
        });
    });
}

#[test]
fn the_task_that_polled_last_is_woken() {
    against_the_reaper(First::Other, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, poll);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_looks_and_changes_the_waker_in_two_holds_is_not_woken() {
    against_the_reaper(First::Other, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, |shards, sleep, deadline, waker| {
            let Some(HeldWaker { key, .. }) = sleep.0 else {
                return poll(shards, sleep, deadline, waker);
            };
            if shards.with_value(key, |_| ()).is_none() {
                return Poll::Ready(Ok(()));
            }
            shards.with_value(key, |value| value.clone_from(waker));
            Poll::Pending
        });
    });
}

#[test]
fn a_poll_without_the_lock_is_woken() {
    against_the_reaper(First::Same, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, poll);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_only_compares_the_waker_is_not_woken() {
    against_the_reaper(First::Same, &[1], |shards, task, sleep| {
        run(shards, task, sleep, TICK, |_, _, _, _| Poll::Pending);
    });
}

#[test]
fn a_poll_without_the_lock_sees_a_shutdown() {
    against_a_shutdown(poll);
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_without_the_lock_that_ignores_the_shutdown_is_not_woken() {
    against_a_shutdown(|shards, sleep, deadline, waker| {
        if sleep.0.is_some_and(|held| !shards.clock().has_begun(held.due)) {
            return Poll::Pending;
        }
        poll(shards, sleep, deadline, waker)
    });
}

/// Runs a task against a shutdown, which must end its sleep with an error.
fn against_a_shutdown(poll: Poller) {
    explore(Some(3), move || {
        let World { shards, .. } = World::new();
        let task = Task::new();
        let sleep = registered(&shards, First::Same, &task);
        let ending = thread::spawn({
            let shards = Arc::clone(&shards);
            move || shards.shut_down().into_iter().for_each(Waker::wake)
        });
        let ended = run_until(&shards, &task, sleep, TICK, poll);
        assert!(ended.is_err(), "the time is not over");
        ending.join().expect("no thread panics");
    });
}

#[test]
fn a_poll_without_the_lock_sees_a_finish() {
    against_a_finish(poll);
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_without_the_lock_that_ignores_the_finish_is_not_woken() {
    against_a_finish(|shards, sleep, deadline, waker| {
        if sleep.0.is_some_and(|held| !shards.clock().has_begun(held.due)) {
            return Poll::Pending;
        }
        poll(shards, sleep, deadline, waker)
    });
}

/// Runs a task against a finish, which wakes it, and an expiration, which must end its sleep.
fn against_a_finish(poll: Poller) {
    explore(Some(3), move || {
        let world = World::new();
        let (shards, task) = (Arc::clone(&world.shards), Task::new());
        let sleep = registered(&shards, First::Same, &task);
        let finishing = thread::spawn(move || {
            world.shards.begin_finish();
            wake_each(&world.shards);
            world.clock.1.store(TICK.get(), Ordering::SeqCst);
            world.turn();
        });
        run(&shards, &task, sleep, TICK, poll);
        finishing.join().expect("no thread panics");
        assert_eq!(shards.stats().pending, 0, "nothing lingers");
    });
}

#[test]
fn a_sleep_that_is_moved_later_ends_at_its_new_deadline() {
    against_the_reaper(First::Same, &[1, 2], |shards, task, mut sleep| {
        sleep.reset(shards, TWO_TICKS);
        run(shards, task, sleep, TWO_TICKS, poll);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_without_the_lock_until_the_deadline_misses_the_tick_of_its_key() {
    against_the_reaper(First::Same, &[1, 2], |shards, task, mut sleep| {
        sleep.reset(shards, TWO_TICKS);
        run(shards, task, sleep, TWO_TICKS, |shards, sleep, deadline, waker| {
            if shards.clock().has_passed(deadline) {
                return poll(shards, sleep, deadline, waker);
            }
            Poll::Pending
        });
    });
}

#[test]
fn a_sleep_that_is_moved_earlier_ends_at_its_new_deadline() {
    against_the_reaper(First::None, &[1, 2], |shards, task, mut sleep| {
        let first = sleep.insert(shards, TWO_TICKS, &task.waker);
        assert!(first.is_pending(), "it is due only when the task is done");
        sleep.reset(shards, TICK);
        run(shards, task, sleep, TICK, poll);
    });
}

#[test]
#[should_panic(expected = "late")]
fn broken_a_reset_that_looks_and_moves_in_two_holds_keeps_a_dead_key() {
    against_the_reaper(First::Same, &[1], |shards, _, sleep| {
        let key = sleep.0.expect("the sleep is registered").key;
        if shards.deadline(key).is_some() {
            assert!(shards.reset_to(key, Tick::ZERO, Tick::new(1)), "too late");
        }
        shards.cancel(key);
    });
}

#[test]
fn a_dropped_sleep_leaves_the_wheel_or_has_been_taken_out() {
    against_the_reaper(First::Same, &[1], |shards, _, mut sleep| {
        sleep.cancel(shards);
        let stats = shards.stats();
        assert_eq!((stats.expired + stats.cancelled, stats.pending), (1, 0));
    });
}

#[test]
#[should_panic(expected = "it has left the wheel")]
fn broken_a_drop_that_takes_a_publication_of_its_own_tick_for_a_later_one_leaves_its_waker() {
    against_the_reaper(First::Same, &[1], |shards, _, sleep| {
        let held = sleep.0.expect("the sleep is registered");
        if !shards.is_past(held.key, Tick::ZERO) {
            shards.cancel(held.key);
        }
        let stats = shards.stats();
        let ended = (stats.expired + stats.cancelled, stats.pending);
        assert_eq!(ended, (1, 0), "it has left the wheel");
    });
}
