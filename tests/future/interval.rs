//! Intervals: their grid, missed ticks, and calls that are dropped.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use delaywheel::{Clock, ManualClock, MissedTicks, Timer, future::Interval};
use futures_core::Stream;

use crate::support::{SECOND, timer};

/// The seconds since `start` of the tick that is due, if one is.
fn tick(interval: &mut Interval, start: Instant) -> Option<f64> {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(tick) = interval.poll_tick(&mut context) else { return None };
    Some((tick.expect("the timer runs") - start).as_secs_f64())
}

/// The ticks taken when the clock shows these seconds.
fn ticks(missed: MissedTicks, shown: &[u64]) -> Vec<Option<f64>> {
    let (timer, clock) = timer();
    let start = clock.now();
    let mut interval = timer.interval(SECOND, missed);
    let mut at = |seconds: u64| {
        clock.advance(Duration::from_secs(seconds).saturating_sub(clock.now() - start));
        tick(&mut interval, start)
    };
    shown.iter().map(|&seconds| at(seconds)).collect()
}

#[test]
fn missed_ticks_come_at_once_or_later_or_not_at_all() {
    let times = [0, 4, 4, 4, 4, 4, 5, 6];
    let some = |seconds: [i32; 8]| -> Vec<Option<f64>> {
        seconds.iter().map(|&n| (n >= 0).then(|| f64::from(n))).collect()
    };
    assert_eq!(ticks(MissedTicks::Burst, &times), some([0, 1, 2, 3, 4, -1, 5, 6]));
    assert_eq!(ticks(MissedTicks::Skip, &times), some([0, 1, 4, -1, -1, -1, 5, 6]));
    assert_eq!(ticks(MissedTicks::Delay, &times), some([0, 1, -1, -1, -1, -1, 5, 6]));
}

/// The ticks, in seconds since the start, of an interval that starts 2.5 s before the first sleep
/// of its timer. Taken now, and each half second after that.
fn ticks_from_the_past(missed: MissedTicks, has_ticked: bool) -> Vec<Vec<f64>> {
    let (timer, clock) = timer();
    let start = clock.now();
    clock.advance(SECOND * 5 / 2);
    let mut interval = timer.interval(SECOND, missed);
    if has_ticked {
        assert!(tick(&mut interval, start).is_some());
    }
    interval.reset_at(start);
    let mut taken = || {
        let taken = std::iter::from_fn(|| tick(&mut interval, start)).collect();
        clock.advance(SECOND / 2);
        taken
    };
    (0..4).map(|_| taken()).collect()
}

#[test]
fn a_start_before_the_first_sleep_of_the_timer_keeps_its_grid() {
    for has_ticked in [false, true] {
        let ticks = |missed| ticks_from_the_past(missed, has_ticked);
        assert_eq!(ticks(MissedTicks::Burst), [vec![0.0, 1.0, 2.0], vec![3.0], vec![], vec![4.0]]);
        assert_eq!(ticks(MissedTicks::Skip), [vec![0.0], vec![3.0], vec![], vec![4.0]]);
        assert_eq!(ticks(MissedTicks::Delay), [vec![0.0], vec![], vec![3.5], vec![]]);
    }
    let (timer, clock) = timer();
    let start = clock.now();
    clock.advance(SECOND);
    let mut interval = timer.interval(Duration::MAX, MissedTicks::Burst);
    interval.reset_at(start);
    assert_eq!((tick(&mut interval, start), tick(&mut interval, start)), (Some(0.0), None));
    clock.advance(Duration::from_secs(600 * 365 * 86400));
    assert_eq!(tick(&mut interval, start), None);
}

#[test]
fn a_dropped_call_takes_no_tick() {
    let (timer, clock) = timer();
    let mut context = Context::from_waker(Waker::noop());
    let start = clock.now();
    let mut interval = timer.interval(SECOND, MissedTicks::Burst);
    interval.reset_at(start + SECOND);
    for _ in 0..3 {
        assert!(pin!(interval.tick()).poll(&mut context).is_pending());
    }
    clock.advance(SECOND);
    drop(interval.tick());
    let Poll::Ready(Ok(first)) = pin!(interval.tick()).poll(&mut context) else {
        panic!("a tick is due");
    };
    assert_eq!(first, start + SECOND);
    assert!(pin!(interval.tick()).poll(&mut context).is_pending());
    drop(interval);
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn an_interval_is_a_stream_that_ends_after_an_error() {
    let (timer, clock) = timer();
    let mut context = Context::from_waker(Waker::noop());
    let mut interval = timer.interval(SECOND, MissedTicks::Burst);
    for _ in 0..3 {
        let next = Pin::new(&mut interval).poll_next(&mut context);
        assert!(matches!(next, Poll::Ready(Some(Ok(_)))));
        assert!(Pin::new(&mut interval).poll_next(&mut context).is_pending());
        clock.advance(SECOND);
    }
    timer.shutdown();
    let mut far = timer.interval(SECOND, MissedTicks::Burst);
    far.reset_at(clock.now() + SECOND);
    let mut next = || Pin::new(&mut far).poll_next(&mut context);
    assert!(matches!(next(), Poll::Ready(Some(Err(_)))));
    assert!((0..3).all(|_| matches!(next(), Poll::Ready(None))), "a second error");
}

#[test]
fn a_reset_starts_the_grid_again() {
    let (timer, clock) = timer();
    let start = clock.now();
    let mut interval = timer.interval(2 * SECOND, MissedTicks::Burst);
    assert_eq!(tick(&mut interval, start), Some(0.0));
    clock.advance(SECOND);
    interval.reset(2 * SECOND);
    clock.advance(SECOND);
    assert_eq!(tick(&mut interval, start), None);
    clock.advance(SECOND);
    assert_eq!(tick(&mut interval, start), Some(3.0));
    interval.reset(Duration::ZERO);
    assert_eq!(tick(&mut interval, start), Some(3.0));
    interval.reset(SECOND);
    clock.advance(SECOND);
    assert_eq!(tick(&mut interval, start), Some(4.0));
    interval.reset_at(clock.now() + 5 * SECOND);
    clock.advance(5 * SECOND);
    assert_eq!(tick(&mut interval, start), Some(9.0));
}

#[test]
fn a_period_of_zero_counts_as_a_tick_of_the_timer() {
    let clock = ManualClock::new();
    let millis = Duration::from_millis(20);
    let timer = Timer::builder().tick(millis).clock(clock.clone()).build().expect("it is valid");
    let mut interval = timer.interval(Duration::ZERO, MissedTicks::Burst);
    let start = clock.now();
    assert_eq!(tick(&mut interval, start), Some(0.0));
    assert_eq!(tick(&mut interval, start), None);
    clock.advance(millis);
    assert_eq!(tick(&mut interval, start), Some(0.02));
}
