//! The protocol of sleeps: polls, resets and drops against an expiration.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
    vec::Vec,
};

use loom::thread;

use super::super::{
    error::ScheduleError,
    key::TimeoutKey,
    shards::Shards,
    sleeps::{register, renew, reset},
    tick_clock::TickClock,
};
use super::task::waker;
use crate::{
    clock::Clock,
    sync::{AtomicBool, AtomicU64, Ordering, Parker, explore},
    wheel::WheelBuilder,
};

/// A tick, in nanoseconds.
const TICK: u64 = 1_000_000;

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
        let tick_clock = TickClock::new(Arc::new(clock.clone()), Duration::from_nanos(TICK));
        let wheel = WheelBuilder::new().size(2).build().expect("the settings are valid");
        let unparker = parker.unparker().clone();
        let shards = Arc::new(Shards::new([wheel].into_iter(), tick_clock, unparker, None));
        Self { shards, clock, parker, is_done: Arc::new(AtomicBool::new(false)) }
    }

    /// Starts a reaper that expires what is due at each of these ticks, and sleeps at the last one
    /// until the task is done.
    fn reap(self, ticks: &'static [u64]) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for tick in ticks {
                self.clock.1.store(tick * TICK, Ordering::SeqCst);
                self.turn();
            }
            while !self.is_done.load(Ordering::Acquire) {
                let now = self.shards.clock().now();
                if self.shards.fall_asleep(now).is_some() {
                    self.parker.park();
                    self.shards.wake_up();
                }
                self.turn();
            }
        })
    }

    fn turn(&self) {
        let mut expired = Vec::new();
        self.shards.expire(0, self.shards.clock().now(), 64, &mut expired);
        expired.into_iter().for_each(|expired| expired.value.wake());
    }
}

/// As [`SleepHandle::poll`](super::super::sleeps::SleepHandle::poll), for threads that have started.
fn poll(
    shards: &Shards<Waker>,
    place: &mut Option<TimeoutKey>,
    deadline: u64,
    waker: &Waker,
) -> Poll<Result<(), ScheduleError<()>>> {
    let elapsed = shards.clock().elapsed();
    if elapsed >= deadline {
        return Poll::Ready(Ok(()));
    }
    match place {
        None => register(shards, place, elapsed, deadline, waker),
        Some(_) => renew(shards, place, deadline, waker),
    }
}

/// Runs a task until its sleep has ended, which must not be early.
fn run(
    shards: &Shards<Waker>,
    place: &mut Option<TimeoutKey>,
    deadline: u64,
    poll: impl Fn(
        &Shards<Waker>,
        &mut Option<TimeoutKey>,
        u64,
        &Waker,
    ) -> Poll<Result<(), ScheduleError<()>>>,
) {
    let parker = Parker::new();
    let waker = waker(&parker);
    loop {
        match poll(shards, place, deadline, &waker) {
            Poll::Ready(result) => {
                assert!(result.is_ok(), "the timer runs");
                assert!(shards.clock().elapsed() >= deadline, "early");
                return;
            }
            Poll::Pending => parker.park(),
        }
    }
}

/// Runs `task` against a reaper that expires at these ticks. The sleep is due at tick 1; if
/// `is_registered`, another task has polled it.
fn against_the_reaper(
    is_registered: bool,
    ticks: &'static [u64],
    task: impl Fn(&Shards<Waker>, Option<TimeoutKey>) + Sync + Send + 'static,
) {
    explore(Some(3), move || {
        let world = World::new();
        let (shards, is_done) = (Arc::clone(&world.shards), Arc::clone(&world.is_done));
        let mut place = None;
        if is_registered {
            let first = register(&shards, &mut place, 0, TICK, &waker(&Parker::new()));
            assert!(first.is_pending(), "it is not due");
        }
        let reaper = world.reap(ticks);
        task(&shards, place);
        is_done.store(true, Ordering::Release);
        shards.wake();
        reaper.join().expect("no thread panics");
        assert_eq!(shards.stats().1, 0, "nothing lingers");
    });
}

#[test]
fn a_first_poll_that_is_pending_is_woken() {
    against_the_reaper(false, &[1], |shards, mut place| run(shards, &mut place, TICK, poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_waker_that_is_put_in_after_its_key_is_lost() {
    against_the_reaper(false, &[1], |shards, mut place| {
        run(shards, &mut place, TICK, |shards, place, deadline, waker| {
            if place.is_some() {
                return poll(shards, place, deadline, waker);
            }
            let first = poll(shards, place, deadline, Waker::noop());
            if let (Poll::Pending, Some(key)) = (&first, *place) {
                shards.with_value(key, |held| held.clone_from(waker));
            }
            first
        });
    });
}

#[test]
fn the_task_that_polled_last_is_woken() {
    against_the_reaper(true, &[1], |shards, mut place| run(shards, &mut place, TICK, poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_poll_that_looks_and_changes_the_waker_in_two_holds_is_not_woken() {
    against_the_reaper(true, &[1], |shards, mut place| {
        run(shards, &mut place, TICK, |shards, place, deadline, waker| {
            let Some(key) = *place else { return poll(shards, place, deadline, waker) };
            if shards.with_value(key, |_| ()).is_none() {
                return Poll::Ready(Ok(()));
            }
            shards.with_value(key, |held| held.clone_from(waker));
            Poll::Pending
        });
    });
}

#[test]
fn a_reset_sleep_ends_at_its_new_deadline() {
    against_the_reaper(true, &[1, 2], |shards, mut place| {
        reset(shards, &mut place, 2 * TICK);
        run(shards, &mut place, 2 * TICK, poll);
    });
}

#[test]
#[should_panic(expected = "the timer runs")]
fn broken_a_reset_that_looks_and_moves_in_two_holds_keeps_a_dead_key() {
    against_the_reaper(true, &[1, 2], |shards, mut place| {
        let key = place.expect("it is registered");
        if shards.deadline(key).is_none() {
            place = None;
        } else {
            shards.reset_at_elapsed(key, 2 * TICK);
        }
        run(shards, &mut place, 2 * TICK, poll);
    });
}

#[test]
fn a_dropped_sleep_leaves_the_wheel_or_has_been_taken_out() {
    against_the_reaper(true, &[1], |shards, place| {
        let taken = shards.cancel(place.expect("it is registered"));
        let (stats, pending) = shards.stats();
        assert_eq!((stats.cancelled, pending), (u64::from(taken.is_some()), 0));
        assert_eq!(stats.expired + stats.cancelled, 1);
    });
}

#[test]
#[should_panic(expected = "it was live")]
fn broken_a_drop_that_looks_first_relies_on_what_may_be_over() {
    against_the_reaper(true, &[1], |shards, place| {
        let key = place.expect("it is registered");
        if shards.with_value(key, |_| ()).is_some() {
            shards.cancel(key).expect("it was live");
        }
    });
}
