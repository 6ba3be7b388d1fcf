//! A driver that falls asleep beside a thread that registers a sleep, and one that ends the timer.

use std::{mem::ManuallyDrop, sync::Arc, task::Waker};

use loom::thread;

use super::{DUE, check, timer_with, try_insert, waker};
use crate::{
    sync::Parker,
    timer::{delivery::Delivery, reaper::Reaper, sleep::driver::Turns},
};

#[test]
fn a_driver_that_falls_asleep_notices_a_sleep_and_the_end() {
    check(|| {
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
            match turns.turn(&task_waker) {
                Some(pause) if pause.is_zero() => (),
                Some(_) => task.park(),
                None => break,
            }
        }
        user.join().expect("no thread panics");
        drop(ManuallyDrop::into_inner(turns));
    });
}
