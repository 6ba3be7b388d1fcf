//! A driver that falls asleep beside a thread that registers a sleep, and one that ends the timer.

use std::{mem::ManuallyDrop, sync::Arc, task::Waker};

use loom::thread;

use super::{DUE, check, timer_with, try_insert, waker};
use crate::{
    sync::Parker,
    tick::Tick,
    timer::{
        executor::Delivery,
        reaper::Reaper,
        shards::Shards,
        shared::Shared,
        sleep::driver::{DriverTurn, Turns},
    },
    wheel::TimingWheel,
};

/// Runs the task of a driver, by `turn`, beside a thread that registers a sleep, waits for its end,
/// and shuts the timer down.
fn drive(turn: fn(&mut Turns, &Shared<TimingWheel<Waker>>, &Waker) -> DriverTurn) {
    check(move || {
        let timer = timer_with(&Reaper::new(""), Delivery::Inline, Waker::wake);
        let turns = Turns::new(&timer);
        // The checker does not allow its atomics in a drop after a deadlock.
        let mut turns = ManuallyDrop::new(turns);
        let user = Arc::clone(&timer);
        let user = thread::spawn(move || {
            let sleeper = Parker::new();
            let key = try_insert(&user.shards, 0, DUE, DUE, waker(&sleeper));
            assert!(key.is_ok(), "the timer runs");
            sleeper.park();
            assert!(user.shut_down().is_empty(), "the sleep has ended");
        });
        let task = Parker::new();
        let task_waker = waker(&task);
        loop {
            match turn(&mut turns, &timer, &task_waker) {
                DriverTurn::Sleep(_) => task.park(),
                DriverTurn::Again => (),
                DriverTurn::Ended => break,
            }
        }
        user.join().expect("no thread panics");
        drop(ManuallyDrop::into_inner(turns));
    });
}

#[test]
fn a_driver_that_falls_asleep_notices_a_sleep_and_the_end() {
    drive(|turns, _, waker| turns.turn(waker));
}

/// A turn whose steps are in another order.
fn turn_by_hand(
    timer: &Shared<TimingWheel<Waker>>,
    store: impl Fn(&Shards<TimingWheel<Waker>>),
    is_first: bool,
) -> DriverTurn {
    let shards = &*timer.shards;
    shards.wakeup.stay_awake();
    is_first.then(|| store(shards));
    if timer.shards.is_shut_down() {
        return DriverTurn::Ended;
    }
    timer.expire_due();
    let until = shards.fall_asleep(Tick::ZERO, Tick::MAX);
    (!is_first).then(|| store(shards));
    until.map_or(DriverTurn::Again, |_| DriverTurn::Sleep(None))
}

#[test]
fn the_turn_by_hand_notices_a_sleep_and_the_end() {
    drive(|_, timer, waker| {
        turn_by_hand(timer, |shards| shards.wakeup.store_driver_waker(waker), true)
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_driver_that_stores_its_waker_after_the_announcement_is_not_woken() {
    drive(|_, timer, waker| {
        turn_by_hand(timer, |shards| shards.wakeup.store_driver_waker(waker), false)
    });
}
