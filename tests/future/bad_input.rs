//! Arguments and timers that a program should not pass, but may.

use std::{
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant, SystemTime},
};

use delaywheel::{
    Clock, ManualClock, MissedTicks, ScheduleErrorKind,
    future::{Sleep, SleepError, TimeoutError},
};

use crate::{
    clock::{HookedClock, Set},
    support::{SECOND, Wakes, poll, poll_with, timer, timer_on},
};

fn kind(poll: Poll<Result<(), SleepError>>) -> Option<ScheduleErrorKind> {
    if let Poll::Ready(Err(error)) = poll { Some(error.kind()) } else { None }
}

#[test]
fn a_deadline_in_the_past_is_over_at_once() {
    let (timer, clock) = timer();
    let (_woken, waker) = Wakes::new();
    let start = clock.now();
    let before = start.checked_sub(SECOND).unwrap();
    assert_eq!(timer.sleep_until(before).deadline(), Some(start), "when the timer was made");
    clock.advance(SECOND);
    clock.advance(SECOND + Duration::from_micros(300));
    for instant in [start, clock.now()] {
        assert!(matches!(poll(&mut timer.sleep_until(instant)), Poll::Ready(Ok(()))));
        let mut sleep = timer.sleep(SECOND);
        assert!(poll_with(&mut sleep, &waker).is_pending());
        sleep.reset_at(instant);
        assert!(poll_with(&mut sleep, &waker).is_ready());
        let mut sleep = timer.sleep(SECOND);
        assert!(poll_with(&mut sleep, &waker).is_pending());
        sleep.reset(Duration::ZERO);
        assert!(poll_with(&mut sleep, &waker).is_ready());
    }
    assert_eq!(timer.stats().pending, 0);
}

/// A clock that goes back by a microsecond at each call, from a time that a test sets.
#[derive(Debug, Clone)]
struct Back(Instant, Arc<AtomicU64>);

impl Clock for Back {
    fn now(&self) -> Instant {
        self.0 + Duration::from_micros(self.1.fetch_sub(1, Ordering::Relaxed))
    }
}

#[test]
fn a_clock_that_goes_back_within_a_tick_panics_nowhere() {
    let (clock, timer) =
        timer_on(Back(Instant::now(), Arc::new(AtomicU64::new(10_000))), |builder| builder);
    let start = clock.0 + Duration::from_millis(10);
    drop(timer.sleep(SECOND));
    for ticks in 1..4 {
        let deadline = start + Duration::from_micros(1000 * ticks + 500);
        let mut context = Context::from_waker(Waker::noop());
        let mut interval = timer.interval(SECOND, MissedTicks::Skip);
        interval.reset_at(deadline);
        clock.1.store(10_500 + 1000 * ticks, Ordering::Relaxed);
        let is_ready = interval.poll_tick(&mut context).is_ready();
        clock.1.store(10_500 + 1000 * ticks, Ordering::Relaxed);
        let is_over = poll(&mut timer.timeout_at(deadline, pending::<()>())).is_ready();
        assert!(is_ready && is_over, "the clock showed the deadline");
    }
}

#[test]
fn a_reset_out_of_which_the_clock_panics_has_no_effect() {
    let resets: [fn(&mut Sleep, Instant); 2] =
        [|sleep, _| sleep.reset(SECOND), |sleep, start| sleep.reset_at(start + SECOND)];
    for (reset, most) in resets.into_iter().zip([2, 1]) {
        for reads in 0..most {
            let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
            let (start, (woken, waker)) = (clock.clock.now(), Wakes::new());
            let mut sleep = timer.sleep_until(start + 2 * SECOND);
            assert!(poll_with(&mut sleep, &waker).is_pending());
            clock.panic_after(reads);
            let call = AssertUnwindSafe(|| reset(&mut sleep, start));
            assert!(catch_unwind(call).is_err(), "the clock is read {reads} times");
            assert_eq!(sleep.deadline(), Some(start + 2 * SECOND));
            clock.clock.advance(SECOND);
            assert!(poll_with(&mut sleep, &waker).is_pending());
            clock.clock.advance(SECOND);
            assert_eq!(woken.count(), 1);
            assert!(poll_with(&mut sleep, &waker).is_ready());
        }
    }
}

#[test]
fn a_first_poll_out_of_which_the_clock_panics_starts_no_reaper_that_would_die() {
    let (clock, timer) = timer_on(Set::reporting(true, None), |builder| builder);
    let mut sleep = Box::pin(timer.sleep_until_time(SystemTime::now()));
    clock.panic(true);
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut sleep))).is_err());
    assert_eq!(clock.listeners(), 0, "it has started a reaper");
    clock.panic(false);
    assert!(poll(&mut sleep).is_pending());
    assert!(clock.listeners() > 0, "it has started none");
}

#[test]
fn a_tick_is_not_lost_if_the_clock_panics_out_of_its_poll() {
    for reads in 0.. {
        let (clock, timer) = timer_on(HookedClock::new(), |builder| builder);
        let mut context = Context::from_waker(Waker::noop());
        let mut interval = timer.interval(Duration::MAX, MissedTicks::Skip);
        clock.panic_after(reads);
        let call = AssertUnwindSafe(|| interval.poll_tick(&mut context).is_ready());
        if catch_unwind(call).is_ok() {
            assert!(reads > 0, "the clock is not read");
            break;
        }
        assert!(interval.poll_tick(&mut context).is_ready(), "after {reads} reads");
    }
}

#[test]
fn a_delay_past_the_horizon_is_not_over_at_the_horizon() {
    let (timer, clock) = timer();
    let mut interval = timer.interval(Duration::MAX, MissedTicks::Skip);
    let mut context = Context::from_waker(Waker::noop());
    assert!(interval.poll_tick(&mut context).is_ready());
    let mut sleep = timer.sleep(Duration::MAX);
    assert!(poll(&mut sleep).is_pending());
    clock.advance(Duration::from_secs(600 * 365 * 86400));
    sleep.reset(Duration::MAX);
    assert!(poll(&mut sleep).is_pending());
    assert!(!sleep.is_elapsed());
    assert!(interval.poll_tick(&mut context).is_pending());
}

#[test]
fn a_full_timer_refuses_a_sleep_and_takes_it_later() {
    let (clock, timer) = timer_on(ManualClock::new(), |builder| builder.max_pending(1));
    let mut first = timer.sleep(SECOND);
    assert!(poll(&mut first).is_pending());
    let mut second = timer.sleep(SECOND);
    assert_eq!(kind(poll(&mut second)), Some(ScheduleErrorKind::Full));
    let refused = poll(&mut timer.timeout(SECOND, pending::<()>()));
    assert!(matches!(refused, Poll::Ready(Err(TimeoutError::Sleep(_)))), "and not as elapsed");
    assert!(poll(&mut timer.timeout(SECOND, std::future::ready(()))).is_ready());
    assert!(timer.schedule(SECOND, || ()).is_ok(), "callbacks have a limit of their own");
    drop(first);
    assert!(poll(&mut second).is_pending(), "polled again after an error, it tries again");
    assert_eq!(timer.stats().refused, 2);
    clock.advance(SECOND);
    assert!(poll(&mut second).is_ready());
}

#[test]
fn with_a_limit_a_sleep_that_is_moved_later_is_woken_once_and_keeps_its_permit() {
    let (clock, timer) = timer_on(ManualClock::new(), |builder| builder.max_pending(1));
    let (woken, waker) = Wakes::new();
    let mut sleep = timer.sleep(SECOND);
    assert!(poll_with(&mut sleep, &waker).is_pending());
    for _ in 0..3 {
        sleep.reset(2 * SECOND);
        assert_eq!(kind(poll(&mut timer.sleep(SECOND))), Some(ScheduleErrorKind::Full));
        clock.advance(SECOND);
        assert_eq!(woken.count(), 0, "woken at its earlier deadline");
        assert!(poll_with(&mut sleep, &waker).is_pending());
    }
    clock.advance(SECOND);
    assert_eq!((woken.count(), timer.stats().pending), (1, 0));
    assert!(poll_with(&mut sleep, &waker).is_ready());
}
