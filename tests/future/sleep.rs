//! Sleeps: when they end, how they are reset, and what they leave behind.

use std::{
    future::pending,
    panic::{RefUnwindSafe, UnwindSafe},
    task::Poll,
    time::Duration,
};

use delaywheel::{Clock, ManualClock, Timer, future::Sleep, time::DelayMap};
use pollster::block_on;

use crate::support::{SECOND, Set, Wakes, poll, poll_with, timer, timer_on};

#[test]
fn a_sleep_ends_at_its_deadline_and_not_before() {
    let (timer, clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(5 * SECOND);
    assert_eq!(sleep.deadline(), Some(clock.now() + 5 * SECOND));
    assert!(poll_with(&mut sleep, &waker).is_pending());
    clock.advance(Duration::new(4, 999_999_999));
    assert!(!sleep.is_elapsed() && woken.count() == 0);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(sleep.is_elapsed());
    assert_eq!(woken.count(), 1);
    assert!(matches!(poll_with(&mut sleep, &waker), Poll::Ready(Ok(()))));
    assert!(matches!(poll_with(&mut sleep, &waker), Poll::Ready(Ok(()))), "it is ready again");
    assert_eq!(timer.stats().scheduled, 1);
    // One that moves later leaves the wheel twice, and counts once.
    let mut moved = timer.sleep(SECOND);
    assert!(poll(&mut moved).is_pending());
    moved.reset(2 * SECOND);
    for is_ready in [false, true] {
        clock.advance(SECOND);
        assert_eq!(poll(&mut moved).is_ready(), is_ready);
    }
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.refused), (2, 2, 0));
}

#[test]
fn a_deadline_within_a_tick_is_not_early_at_any_nanosecond() {
    for nanos in [1, 999_999, 1_000_000, 1_000_001, 1_999_999] {
        for begun in [0, 1, 500_000, 999_999] {
            let (timer, clock) = timer();
            clock.advance(Duration::from_nanos(begun));
            let delay = Duration::from_nanos(nanos);
            let mut sleep = timer.sleep(delay);
            assert!(poll(&mut sleep).is_pending());
            let start = clock.now();
            while poll(&mut sleep).is_pending() {
                clock.advance(Duration::from_micros(50));
            }
            let took = clock.now() - start;
            // A tick and a step of the clock.
            assert!(took >= delay && took < delay + Duration::from_micros(1_050), "{took:?}");
        }
    }
}

#[test]
fn a_sleep_that_is_due_at_its_first_poll_touches_no_wheel() {
    let (timer, clock) = timer();
    assert!(poll(&mut timer.sleep(Duration::ZERO)).is_ready());
    assert!(poll(&mut timer.sleep_until(clock.now())).is_ready());
    let mut sleep = timer.sleep(SECOND);
    clock.advance(SECOND);
    assert!(poll(&mut sleep).is_ready());
    drop(timer.sleep(SECOND));
    assert_eq!(timer.stats().scheduled, 0);
}

#[test]
fn a_sleep_is_small_and_can_be_shared_and_moved() {
    fn is_shared<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + 'static>() {}
    is_shared::<Sleep>();
    assert!(size_of::<Sleep>() <= 64, "{}", size_of::<Sleep>());
}

#[test]
fn a_far_sleep_that_is_moved_and_others_that_come_and_go_wake_no_thread() {
    let hour = Duration::from_secs(3600);
    let timer = Timer::new();
    let mut far = timer.sleep(hour);
    assert!(poll(&mut far).is_pending());
    block_on(timer.sleep(Duration::from_millis(1))).expect("the timer runs");
    let mut wakeups_of_a_pass = || {
        let before = timer.stats();
        for _ in 0..10_000 {
            far.reset(hour);
            assert!(poll(&mut far).is_pending());
            assert!(poll(&mut timer.timeout(hour, pending::<()>())).is_pending());
        }
        let after = timer.stats();
        assert_eq!((after.cancelled - before.cancelled, after.pending), (10_000, 1));
        after.wakeups - before.wakeups
    };
    let mut woken = wakeups_of_a_pass();
    if woken == 1 {
        // The wake-up for the near sleep came while the reaper was awake, so it was left.
        woken = wakeups_of_a_pass();
    }
    assert_eq!(woken, 0);
}

#[test]
fn a_sleep_wakes_the_task_that_polled_it_last_and_only_at_its_last_deadline() {
    let (timer, clock) = timer();
    let ((one, first), (two, second)) = (Wakes::new(), Wakes::new());
    let mut sleep = timer.sleep(SECOND);
    for waker in [&first, &second, &first] {
        assert!(poll_with(&mut sleep, waker).is_pending());
    }
    sleep.reset(2 * SECOND);
    for waker in [&first, &second] {
        assert!(poll_with(&mut sleep, waker).is_pending());
    }
    sleep.reset(3 * SECOND);
    assert!(poll_with(&mut sleep, &first).is_pending());
    clock.advance(2 * SECOND);
    assert_eq!((one.count(), two.count()), (0, 0), "a poll of another task moves the key");
    clock.advance(SECOND);
    assert_eq!((one.count(), two.count()), (1, 0));
    assert!(poll(&mut sleep).is_ready());
}

#[test]
fn after_a_resume_a_sleep_that_is_over_wakes_its_task() {
    let (clock, timer) = timer_on(Set::reporting(true, None), |builder| builder);
    let mut sleep = timer.sleep(Duration::from_secs(3600));
    assert!(poll(&mut sleep).is_pending());
    clock.pass(Duration::from_secs(3600));
    clock.step(Duration::ZERO);
    assert!(block_on(sleep).is_ok());
}

#[test]
fn a_sleep_until_a_time_follows_the_wall_clock() {
    let (timer, clock) = timer();
    let start = clock.system_time();
    // The least difference of two `SystemTime`.
    let nanos = if cfg!(windows) { 100 } else { 1 };
    let (woken, waker) = Wakes::new();
    assert!(poll(&mut timer.sleep_until_time(start)).is_ready(), "its time has come");
    let mut sleep = timer.sleep_until_time(start + 5 * SECOND);
    assert!(poll(&mut sleep).is_pending() && poll_with(&mut sleep, &waker).is_pending());
    assert_eq!(timer.stats().pending, 1);
    clock.set_system_time(start - SECOND);
    clock.advance(5 * SECOND);
    assert_eq!(woken.count(), 0, "the wall clock was set back");
    clock.set_system_time(start + 5 * SECOND);
    assert_eq!(woken.count(), 1, "the wall clock was set forward");
    assert!(poll(&mut sleep).is_ready() && poll(&mut sleep).is_ready());
    clock.set_system_time(start);
    assert!(poll_with(&mut sleep, &waker).is_pending(), "it is earlier again");
    clock.advance(Duration::new(4, 1_000_000_000 - nanos));
    assert_eq!(woken.count(), 1);
    clock.advance(Duration::from_nanos(nanos.into()));
    assert_eq!(woken.count(), 2);
    clock.set_system_time(start);
    assert!(poll(&mut sleep).is_ready(), "its time has come");
    assert!(poll_with(&mut sleep, &waker).is_pending());
    drop(sleep);
    assert_eq!(timer.stats().pending, 0, "a dropped sleep stays");
    clock.advance(9 * SECOND);
    assert_eq!(woken.count(), 2);
}

#[test]
fn a_sleep_until_a_time_that_has_come_is_over_though_the_clock_is_set_back_before_the_poll() {
    let (clock, timer) = timer_on(ManualClock::new(), |builder| builder.max_pending(1));
    let noon = clock.system_time() + 12 * SECOND;
    let mut sleep = timer.sleep_until_time(noon);
    assert!(poll(&mut sleep).is_pending());
    clock.set_system_time(noon);
    clock.set_system_time(noon - SECOND);
    let mut other = timer.sleep(SECOND);
    assert!(poll(&mut other).is_pending(), "the first sleep has left the wheel");
    assert_eq!(poll(&mut sleep).map(|end| end.is_ok()), Poll::Ready(true));
    let stats = timer.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.refused), (2, 1, 0));
}

#[test]
fn a_sleep_until_a_time_is_over_a_tick_after_the_clock_was_set_to_it() {
    let (timer, clock) = timer();
    let (now, half) = (clock.system_time(), Duration::from_micros(500));
    clock.advance(half);
    let mut sleep = timer.sleep_until_time(now);
    clock.set_system_time(now - SECOND);
    assert!(poll(&mut sleep).is_pending(), "its time had come, but no poll has seen that");
    clock.set_system_time(now);
    clock.advance(half);
    clock.set_system_time(now - SECOND);
    assert!(poll(&mut sleep).is_ready());
}

#[test]
fn if_the_clock_steps_back_what_a_sleep_or_its_timer_has_seen_counts_for_both() {
    let (clock, timer) = timer_on(Set::quiet(), |builder| builder);
    let (start, mut map) = (timer.now(), DelayMap::on(&timer));
    map.insert(1, "due", 6 * SECOND).expect("there is room");
    clock.pass(10 * SECOND);
    assert!(poll(&mut timer.sleep(Duration::ZERO)).is_ready());
    clock.step_back(6 * SECOND);
    assert_eq!(timer.now(), start + 10 * SECOND);
    assert_eq!(map.pop_expired(), Some((1, "due")));
    clock.pass(16 * SECOND);
    assert_eq!(timer.now(), start + 20 * SECOND);
    clock.step_back(6 * SECOND);
    assert_eq!(timer.sleep(SECOND).deadline(), Some(start + 21 * SECOND));
}
