//! The default timer of the process. Only this test uses the free functions.

use std::{
    future::{Future, pending},
    io,
    task::Poll,
};

use delaywheel::{
    Clock, MissedTicks, Timer,
    future::{
        DefaultTimerError, default_timer, interval, set_default_timer, sleep, sleep_until, timeout,
        timeout_at,
    },
    time::DelayMap,
};

use crate::support::{SECOND, poll, timer};

#[test]
fn the_free_functions_use_the_timer_that_was_set_before() {
    let (timer, clock) = timer();
    set_default_timer(timer).expect("no test has used it");
    let error: DefaultTimerError = set_default_timer(Timer::new()).expect_err("it is set");
    assert_eq!(error.to_string(), "default timer is set already");
    let refused = error.into_value();
    let error = set_default_timer(refused).expect_err("it is still set");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AlreadyExists);

    let mut sleeps = [sleep(SECOND), sleep_until(clock.now() + SECOND)];
    let mut limited = timeout(SECOND, pending::<()>());
    let mut limited_at = timeout_at(clock.now() + SECOND, pending::<()>());
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let mut ticks = interval(SECOND, MissedTicks::Burst);
    let mut later = interval(SECOND, MissedTicks::Burst);
    later.reset_at(clock.now() + SECOND);
    assert!(ticks.poll_tick(context).is_ready() && later.poll_tick(context).is_pending());
    assert!(sleeps.iter_mut().all(|sleep| poll(sleep).is_pending()));
    assert!(poll(&mut limited).is_pending() && poll(&mut limited_at).is_pending());
    assert_eq!(default_timer().stats().pending, 5);
    clock.advance(SECOND);
    assert!(sleeps.iter_mut().all(|sleep| matches!(poll(sleep), Poll::Ready(Ok(())))));
    assert!(poll(&mut limited).is_ready() && poll(&mut limited_at).is_ready());
    assert!(ticks.poll_tick(context).is_ready() && later.poll_tick(context).is_ready());

    // A map without a timer has the clock of the system, whatever that of the default timer is.
    let mut map = DelayMap::new();
    map.insert("far", 1, 3_600 * SECOND).expect("there is room");
    let mut next = Box::pin(map.next());
    assert!(next.as_mut().poll(context).is_pending());
    clock.advance(7_200 * SECOND);
    assert!(next.as_mut().poll(context).is_pending(), "an entry ends early");
}
