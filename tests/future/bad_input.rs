//! Arguments and timers that no program should pass, and some do.

use std::{future::pending, task::Poll, time::Duration};

use delaywheel::{
    Clock, ManualClock, ScheduleErrorKind, Timer,
    future::{SleepError, TimeoutError},
};

use crate::support::{SECOND, poll, timer};

fn kind(poll: Poll<Result<(), SleepError>>) -> Option<ScheduleErrorKind> {
    match poll {
        Poll::Ready(Err(error)) => Some(error.kind()),
        Poll::Ready(Ok(())) | Poll::Pending => None,
    }
}

#[test]
fn the_longest_delay_is_never_over() {
    let (timer, clock) = timer();
    for delay in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_secs(u64::MAX / 2)]
    {
        let mut sleep = timer.sleep(delay);
        assert_eq!(sleep.deadline(), None);
        assert!(poll(&mut sleep).is_pending());
        assert!(poll(&mut timer.timeout(delay, pending::<()>())).is_pending());
        clock.advance(Duration::from_secs(10 * 365 * 86400));
        assert!(poll(&mut sleep).is_pending() && !sleep.is_elapsed());
        sleep.reset(SECOND);
        clock.advance(SECOND);
        assert!(poll(&mut sleep).is_ready());
        sleep.reset(Duration::MAX);
        assert!(poll(&mut sleep).is_pending());
    }
}

#[test]
fn a_deadline_in_the_past_is_over_at_once() {
    let (timer, clock) = timer();
    let start = clock.now();
    clock.advance(SECOND);
    for instant in [start, clock.now()] {
        assert!(matches!(poll(&mut timer.sleep_until(instant)), Poll::Ready(Ok(()))));
        let mut sleep = timer.sleep(SECOND);
        assert!(poll(&mut sleep).is_pending());
        sleep.reset_at(instant);
        assert!(poll(&mut sleep).is_ready());
    }
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn a_full_timer_refuses_a_sleep_and_takes_it_later() {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).max_pending(1);
    let timer = builder.build().expect("the settings are valid");
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
    assert_eq!(timer.stats().rejected, 2);
    clock.advance(SECOND);
    assert!(poll(&mut second).is_ready());
}
