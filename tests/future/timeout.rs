//! Timeouts around futures.

use std::{
    future::{Future, pending, ready},
    io,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use delaywheel::{Clock, future::TimeoutError};

use crate::support::{Pending, SECOND, Wakes, poll, poll_with, timer};

#[test]
fn a_future_that_is_ready_at_once_touches_no_wheel() {
    let (timer, _clock) = timer();
    assert!(matches!(poll(&mut timer.timeout(SECOND, ready(7))), Poll::Ready(Ok(7))));
    assert!(matches!(poll(&mut timer.timeout(Duration::ZERO, ready(7))), Poll::Ready(Ok(7))));
    drop(timer.timeout(SECOND, pending::<()>()));
    assert_eq!(timer.stats().scheduled, 0);
}

#[test]
fn the_time_is_over_at_the_deadline_and_not_before() {
    let (timer, clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut limited = timer.timeout(5 * SECOND, pending::<()>());
    assert!(poll_with(&mut limited, &waker).is_pending());
    clock.advance(Duration::new(4, 999_999_999));
    assert!(poll_with(&mut limited, &waker).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(woken.count(), 1);
    let Poll::Ready(Err(error)) = poll_with(&mut limited, &waker) else { panic!("it is over") };
    assert!(matches!(error, TimeoutError::Elapsed));
    assert_eq!(error.to_string(), "deadline has elapsed");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn the_future_wins_at_each_poll_after_the_delay_at_which_it_is_ready() {
    for polls in [1, 3] {
        let (timer, clock) = timer();
        let mut limited = timer.timeout(SECOND, Pending(polls));
        assert!(poll(&mut limited).is_pending());
        clock.advance(SECOND);
        for _ in 1..polls {
            assert!(matches!(poll(&mut limited), Poll::Ready(Err(TimeoutError::Elapsed))));
        }
        assert!(matches!(poll(&mut limited), Poll::Ready(Ok("done"))));
        assert_eq!(timer.stats().scheduled, 1);
    }
}

#[test]
fn the_delay_starts_at_the_first_poll_and_a_deadline_stands() {
    let (timer, clock) = timer();
    let mut by_delay = timer.timeout(2 * SECOND, pending::<()>());
    let mut by_deadline = timer.timeout_at(clock.now() + 2 * SECOND, pending::<()>());
    clock.advance(SECOND);
    assert!(poll(&mut by_delay).is_pending() && poll(&mut by_deadline).is_pending());
    clock.advance(SECOND);
    assert!(poll(&mut by_delay).is_pending() && poll(&mut by_deadline).is_ready());
    clock.advance(SECOND);
    assert!(poll(&mut by_delay).is_ready());
    assert!(poll(&mut timer.timeout_at(clock.now(), pending::<()>())).is_ready());
    clock.advance(Duration::from_nanos(1));
    assert!(poll(&mut timer.timeout(Duration::ZERO, pending::<()>())).is_ready(), "in a tick");
    let mut moved = timer.sleep(SECOND);
    moved.reset(Duration::ZERO);
    assert!(poll(&mut moved).is_ready() && poll(&mut timer.sleep(Duration::ZERO)).is_ready());
}

#[test]
fn a_timeout_whose_future_panics_when_it_is_dropped_leaves_nothing_behind() {
    struct Faulty;
    impl Future for Faulty {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }
    }
    impl Drop for Faulty {
        fn drop(&mut self) {
            panic_any("a future panics");
        }
    }
    let (timer, _clock) = timer();
    let (woken, waker) = Wakes::new();
    let mut limited = timer.timeout(SECOND, Faulty);
    assert!(poll_with(&mut limited, &waker).is_pending());
    drop(waker);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(limited))).is_err());
    assert_eq!((timer.stats().pending, Arc::strong_count(&woken)), (0, 1));
}
