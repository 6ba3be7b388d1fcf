//! Ends of the timer: no sleep stays pending.

use std::{
    future::pending,
    io,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use delaywheel::{Clock, ScheduleErrorKind, Timer, future::TimeoutError};
use pollster::block_on;

use crate::{
    clock::Deadly,
    support::{SECOND, Set, Wakes, begin, poll, poll_with, timer, timer_on},
};

#[test]
fn a_shutdown_wakes_the_sleeps_and_they_end_with_an_error() {
    let (timer, clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    let mut by_wall_clock = timer.sleep_until_time(clock.system_time() + 9 * SECOND);
    let mut limited = timer.timeout(SECOND, pending::<()>());
    let mut unpolled = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    assert!(poll_with(&mut by_wall_clock, &waker).is_pending());
    assert!(poll_with(&mut limited, &waker).is_pending());
    timer.schedule(SECOND, || ()).expect("the timer runs");
    assert_eq!(timer.shutdown().len(), 1, "the callback, and no sleep");
    assert_eq!(woken.count(), 3);
    let Poll::Ready(Err(error)) = poll(&mut sleep) else { panic!("the timer is shut down") };
    assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::BrokenPipe);
    assert!(matches!(poll(&mut limited), Poll::Ready(Err(TimeoutError::Sleep(_)))));
    assert!(matches!(poll(&mut unpolled), Poll::Ready(Err(_))));
    assert!(matches!(poll(&mut timer.sleep(SECOND)), Poll::Ready(Err(_))));
    assert!(matches!(poll(&mut timer.sleep(Duration::ZERO)), Poll::Ready(Ok(()))), "it is over");
    clock.advance(2 * SECOND);
    assert!(matches!(poll(&mut unpolled), Poll::Ready(Ok(()))), "its time is over");
    let stats = timer.stats();
    assert_eq!(stats.scheduled, stats.expired + stats.cancelled + stats.returned);
    assert_eq!(stats.refused, 2, "the polls of sleeps that the shutdown ended count as no others");
    let Poll::Ready(Err(error)) = poll(&mut by_wall_clock) else { panic!("it has no timer") };
    assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
}

#[test]
fn a_finish_lets_due_sleeps_end_and_refuses_new_ones() {
    let (timer, _clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut far = timer.sleep(9 * SECOND);
    assert!(poll_with(&mut far, &waker).is_pending());
    assert!(timer.finish(SECOND).is_empty());
    assert_eq!(woken.count(), 1);
    assert!(matches!(poll(&mut far), Poll::Ready(Err(_))));
    assert!(matches!(poll(&mut timer.sleep(SECOND)), Poll::Ready(Err(_))));

    let timer = Timer::new();
    let mut near = timer.sleep(Duration::from_millis(2));
    begin(&mut near, Duration::from_millis(2), &waker);
    assert!(timer.finish(Duration::from_secs(3600)).is_empty(), "this takes 2 ms");
    assert_eq!(woken.count(), 2);
    assert!(matches!(poll(&mut near), Poll::Ready(Ok(()))));
}

#[test]
fn a_sleep_whose_time_is_over_ends_well_after_a_shutdown_and_leaves_the_timer() {
    let hour = Duration::from_secs(3600);
    let (clock, timer) = timer_on(Set::quiet(), |builder| builder);
    let mut unpolled = timer.sleep(hour);
    timer.shutdown();
    clock.pass(hour);
    assert!(matches!(poll(&mut unpolled), Poll::Ready(Ok(()))));

    let (clock, timer) = timer_on(Set::quiet(), |builder| builder);
    let (_woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(hour);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    clock.pass(hour);
    assert!(matches!(poll(&mut sleep), Poll::Ready(Ok(()))), "another task reads the clock");
    assert_eq!(timer.stats().pending, 0);
}

struct EndOnDrop<'a>(&'a Timer);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.0.shutdown());
    }
}

#[test]
fn a_sleep_that_is_moved_before_or_in_a_finish_ends_at_its_later_deadline() {
    let (clock, timer) = timer_on(Set::quiet(), |builder| builder);
    let pass = |seconds: u32| {
        clock.pass(seconds * SECOND);
        timer.wake();
    };
    let (woken, waker) = Wakes::new();
    let wait_for = |count| {
        let start = Instant::now();
        while woken.count() < count {
            assert!(start.elapsed() < 60 * SECOND, "no wake-up comes");
            thread::yield_now();
        }
        assert_eq!(woken.count(), count);
    };
    // The last sleep ends in order after those that were to end before it.
    let [mut in_finish, mut before, mut other] = [1, 2, 3].map(|seconds| {
        let mut sleep = timer.sleep(seconds * SECOND);
        assert!(poll_with(&mut sleep, &waker).is_pending());
        sleep
    });
    before.reset(20 * SECOND);
    thread::scope(|scope| {
        // A failed assertion also ends the finish.
        let _end = EndOnDrop(&timer);
        scope.spawn(|| timer.finish(Duration::from_secs(3600)));
        // The finish wakes the task of each sleep, so each task polls.
        wait_for(3);
        for sleep in [&mut in_finish, &mut before, &mut other] {
            assert!(poll_with(sleep, &waker).is_pending());
        }
        in_finish.reset(10 * SECOND);
        for (seconds, count) in [(3, 1), (7, 2), (10, 3)] {
            pass(seconds);
            wait_for(3 + count);
            let ended = [&mut other, &mut in_finish, &mut before].map(poll);
            for (index, ended) in (1..).zip(ended) {
                assert_eq!(matches!(ended, Poll::Ready(Ok(()))), index <= count, "{ended:?}");
                assert_eq!(ended.is_pending(), index > count, "{ended:?}");
            }
            // The last poll was that of another task.
            for sleep in [&mut in_finish, &mut before] {
                assert!(poll_with(sleep, &waker).is_pending() || sleep.is_elapsed());
            }
        }
    });
}

#[test]
fn a_dead_reaper_of_sleeps_or_of_callbacks_ends_the_sleeps_with_an_error_and_refuses_callbacks() {
    for victim in ["timer-sleeps-reaper", "timer-reaper"] {
        let (clock, timer) = timer_on(Deadly::of(victim), |builder| builder);
        let hour = Duration::from_secs(3600);
        timer.schedule(hour, || ()).expect("the timer runs");
        let mut sleep = timer.sleep(hour);
        let (woken, waker) = Wakes::new();
        assert!(poll_with(&mut sleep, &waker).is_pending());
        clock.kill();
        timer.wake();
        let start = Instant::now();
        while woken.count() == 0 {
            assert!(start.elapsed() < 60 * SECOND, "{victim} ends no sleep");
            thread::yield_now();
        }
        assert!(timer.is_reaper_dead(), "{victim}");
        assert!(block_on(sleep).is_err());
        assert!(block_on(timer.sleep(SECOND)).is_err());
        let refused = timer.schedule(Duration::ZERO, || ()).expect_err("the timer has ended");
        assert_eq!(refused.kind(), ScheduleErrorKind::ShutDown, "{victim}");
        assert_eq!(timer.shutdown().len(), 1, "the callback is handed back");
    }
}
