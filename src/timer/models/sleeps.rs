//! The protocol of sleeps: polls, resets and drops against an expiration.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, Weak},
    task::{Poll, Waker},
    time::{Duration, Instant},
    vec::Vec,
};

use loom::thread;

use super::{shards_with, timer_of_shards, waker};
use crate::{
    clock::{Clock, Driven},
    sync::{AtomicBool, AtomicU64, Ordering, Parker, explore},
    tick::Tick,
    timer::{
        executor::Delivery,
        reaper::Reaper,
        shards::{Shards, shard::ShardGuard},
        shared::Shared,
        sleep::{
            sleeper::{Polled, SleepHandle, Sleeper, Stage},
            wake_each,
        },
    },
    wheel::{Key, TimingWheel},
};

const TICK: Duration = Duration::from_millis(1);

type Wakers = TimingWheel<Waker>;

/// A clock that a model sets.
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

    /// The model takes the place of the reaper.
    fn adopt(&self, _: Weak<dyn Driven>) -> bool {
        true
    }
}

/// A timer of sleeps, its clock and the parker of its reaper.
struct World {
    timer: Arc<Shared<Wakers>>,
    clock: Set,
    parker: Parker,
    is_done: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        let parker = Parker::new();
        let clock = Set(Instant::now(), Arc::new(AtomicU64::new(0)));
        let shards = shards_with(1, None, clock.clone(), parker.unparker());
        let timer = timer_of_shards(&Reaper::new(""), shards, Delivery::Inline, Waker::wake);
        Self { timer, clock, parker, is_done: Arc::new(AtomicBool::new(false)) }
    }

    /// Starts a reaper that expires due sleeps at each of these ticks, and sleeps at the last one
    /// until the task is done.
    fn reap(self, ticks: &'static [u64]) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for tick in ticks {
                self.clock.show(*tick);
                self.turn();
            }
            while !self.is_done.load(Ordering::Acquire) {
                let now = self.timer.shards.clock().now();
                if self.timer.shards.fall_asleep(now, Tick::MAX).is_some() {
                    self.parker.park();
                    self.timer.shards.announce_awake();
                }
                self.turn();
            }
        })
    }

    fn turn(&self) {
        let mut expired = Vec::new();
        self.timer.shards.expire(
            self.timer.shards.clock().read(),
            64,
            &mut expired,
            &mut Vec::new(),
        );
        expired.into_iter().for_each(|expired| expired.value.wake());
    }
}

/// A task with a sleep. Another task may have polled the sleep with another waker.
///
/// All wakers live as long as the model, so that none gets the address of an earlier one.
struct Task {
    shards: Arc<Shards<Wakers>>,
    parker: Parker,
    waker: Waker,
    /// The checker does not allow its atomics in a drop after a deadlock.
    sleep: ManuallyDrop<Sleeper>,
}

type Poller = fn(&mut Task) -> Polled;

impl Task {
    /// Makes a task whose sleep is due after some ticks.
    fn new(world: &World, ticks: u32, first: First) -> Self {
        let parker = Parker::new();
        let (waker, other) = (waker(&parker), waker(&Parker::new()));
        let handle = SleepHandle::new(&world.timer);
        let mut sleep = ManuallyDrop::new(Sleeper::after(handle, ticks * TICK));
        match first {
            First::None => {}
            First::Other => assert!(sleep.poll(&other).is_pending()),
            First::Same => assert!(sleep.poll(&waker).is_pending()),
        }
        std::mem::forget(other);
        Self { shards: Arc::clone(&world.timer.shards), parker, waker, sleep }
    }

    fn poll(&mut self) -> Polled {
        self.sleep.poll(&self.waker)
    }

    /// Returns the key of the sleep, and when it is due.
    fn key(&self) -> Option<(Key, Tick)> {
        let Stage::In { key, due, .. } = self.sleep.stage else { return None };
        Some((key, due))
    }

    fn lock(&self) -> ShardGuard<'_, Wakers> {
        self.shards.lock(0)
    }

    /// Returns whether the key is live, after a store of the waker in the hold of this call.
    fn store(&self, key: Key) -> bool {
        let clone = self.waker.clone();
        let mut shard = self.lock();
        let before = shard.get_mut(key).map(|held| std::mem::replace(held, clone));
        drop(shard);
        before.is_some()
    }

    /// Runs the task until its sleep has ended, which must not be before this tick.
    fn run(&mut self, due: u64, poll: Poller) {
        assert!(self.run_until(poll).is_ok(), "the timer runs");
        assert!(self.shards.clock().now() >= Tick::new(due), "early");
    }

    /// Runs the task until its sleep has ended. Returns how.
    fn run_until(&mut self, poll: Poller) -> Result<(), ()> {
        loop {
            match poll(self) {
                Poll::Ready(ended) => return ended.map_err(drop),
                Poll::Pending => self.parker.park(),
            }
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

/// Runs a task, whose sleep is due at a tick, against a reaper that expires at these ticks.
fn against_the_reaper(
    first: First,
    due: u32,
    ticks: &'static [u64],
    run: impl Fn(&mut Task) + Sync + Send + 'static,
) {
    explore(Some(3), move || {
        let world = World::new();
        let (shards, is_done) = (Arc::clone(&world.timer.shards), Arc::clone(&world.is_done));
        let mut task = Task::new(&world, due, first);
        let reaper = world.reap(ticks);
        run(&mut task);
        drop(ManuallyDrop::into_inner(task.sleep));
        is_done.store(true, Ordering::Release);
        shards.unpark_reaper();
        reaper.join().expect("no thread panics");
        assert_eq!(shards.counts().pending, 0, "nothing lingers");
    });
}

#[test]
fn a_first_poll_that_is_pending_is_woken() {
    against_the_reaper(First::None, 1, &[1], |task| task.run(1, Task::poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_waker_that_is_put_in_after_its_key_is_lost() {
    against_the_reaper(First::None, 1, &[1], |task| {
        task.run(1, |task| {
            if task.key().is_some() {
                return task.poll();
            }
            let first = task.sleep.poll(Waker::noop());
            if let (Poll::Pending, Some((key, _))) = (&first, task.key()) {
                task.store(key);
            }
            first
        });
    });
}

#[test]
fn the_task_that_polled_last_is_woken() {
    against_the_reaper(First::Other, 1, &[1], |task| task.run(1, Task::poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_looks_and_changes_the_waker_in_two_holds_is_not_woken() {
    against_the_reaper(First::Other, 1, &[1], |task| {
        task.run(1, |task| {
            let Some((key, _)) = task.key() else { return task.poll() };
            if task.lock().get_mut(key).is_none() {
                return Poll::Ready(Ok(()));
            }
            task.store(key);
            Poll::Pending
        });
    });
}

#[test]
fn a_poll_without_the_lock_is_woken() {
    against_the_reaper(First::Same, 1, &[1], |task| task.run(1, Task::poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_only_compares_the_waker_is_not_woken() {
    against_the_reaper(First::Same, 1, &[1], |task| task.run(1, |_| Poll::Pending));
}

#[test]
fn a_poll_without_the_lock_sees_a_shutdown() {
    explore(Some(3), move || {
        let world = World::new();
        let mut task = Task::new(&world, 1, First::Same);
        let ending = thread::spawn(move || {
            world.timer.shards.shut_down().into_iter().for_each(Waker::wake);
        });
        assert!(task.run_until(Task::poll).is_err(), "the time is not over");
        ending.join().expect("no thread panics");
    });
}

/// The finish wakes the task, and the expiration must end its sleep.
#[test]
fn a_poll_without_the_lock_sees_a_finish() {
    explore(Some(3), move || {
        let world = World::new();
        let mut task = Task::new(&world, 1, First::Same);
        let finishing = thread::spawn(move || {
            world.timer.shards.begin_finish();
            wake_each(&world.timer.shards);
            world.clock.show(1);
            world.turn();
        });
        task.run(1, Task::poll);
        finishing.join().expect("no thread panics");
        assert_eq!(task.shards.counts().pending, 0, "nothing lingers");
    });
}

#[test]
fn a_sleep_that_is_moved_later_ends_at_its_new_deadline_and_counts_once() {
    against_the_reaper(First::Same, 1, &[1, 2], |task| {
        task.sleep.move_to((2 * TICK).into());
        task.run(2, Task::poll);
        assert!(task.shards.counts().scheduled == 1, "it counts once");
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_without_the_lock_until_the_deadline_misses_the_tick_of_its_key() {
    against_the_reaper(First::Same, 1, &[1, 2], |task| {
        task.sleep.move_to((2 * TICK).into());
        task.run(2, |task| {
            if task.shards.clock().has_passed((2 * TICK).into()) {
                return task.poll();
            }
            Poll::Pending
        });
    });
}

#[test]
fn a_sleep_that_is_moved_earlier_ends_at_its_new_deadline() {
    against_the_reaper(First::Same, 2, &[1, 2], |task| {
        task.sleep.move_to(TICK.into());
        task.run(1, Task::poll);
    });
}

#[test]
#[should_panic(expected = "late")]
fn broken_a_reset_that_looks_and_moves_in_two_holds_keeps_a_dead_key() {
    against_the_reaper(First::Same, 1, &[1], |task| {
        let (key, _) = task.key().expect("the sleep is in the wheel");
        if task.lock().deadline(key).is_some() {
            assert!(task.lock().reset(key, Tick::ZERO, Tick::new(1)), "too late");
        }
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

#[test]
#[should_panic(expected = "it has left the wheel")]
fn broken_a_drop_that_takes_a_publication_of_its_own_tick_for_a_later_one_leaves_its_waker() {
    against_the_reaper(First::Same, 1, &[1], |task| {
        let (key, _) = task.key().expect("the sleep is in the wheel");
        if !task.shards.is_past(0, Tick::ZERO) {
            let waker = task.lock().cancel(key);
            drop(waker);
        }
        let stats = task.shards.counts();
        let ended = (stats.expired + stats.cancelled, stats.pending);
        assert_eq!(ended, (1, 0), "it has left the wheel");
    });
}
