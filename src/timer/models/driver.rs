//! A driver that falls asleep beside a thread that registers a sleep and then ends the timer.

use std::{mem::ManuallyDrop, task::Waker};

use super::{DUE, beside, check, join, timer_with, try_insert, waker};
use crate::{
    sync::Parker,
    timer::{delivery::Delivery, reaper::Reaper, sleep::driver::Turns},
};

#[test]
fn a_driver_that_falls_asleep_notices_a_sleep_and_the_end() {
    check(|| {
        let timer = timer_with(&Reaper::new(""), Delivery::Inline, Waker::wake);
        // The checker does not allow its atomics in a drop after a deadlock.
        let mut turns = ManuallyDrop::new(Turns::new(&timer));
        let user = beside(&timer, |timer| {
            let sleeper = Parker::new();
            let key = try_insert(&timer.shards, 0, DUE, DUE, waker(&sleeper));
            assert!(key.is_ok(), "the timer runs");
            sleeper.park();
            assert!(timer.shut_down().is_empty(), "the sleep has ended");
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
        join(user);
        drop(ManuallyDrop::into_inner(turns));
    });
}
