//! The order of callbacks, and the steps of a manual clock.

use std::time::Duration;

use delaywheel::Timer;

use super::support::{Log, MS, SECOND, Set, YEAR, manual};

#[test]
fn the_clock_stops_only_at_ticks_with_a_pending_timeout() {
    let (clock, timer) = manual();
    let log = Log::new();
    let first = timer.schedule(5 * SECOND, log.note(5)).unwrap();
    let second = timer.schedule(YEAR, log.note(6)).unwrap();
    assert!(first.cancel());
    assert_eq!(clock.advance_to_next(), Some(YEAR), "not for a cancelled timeout");
    assert_eq!(log.take(), [6]);
    assert!(!second.cancel());
    assert!(timer.schedule(SECOND, || ()).unwrap().cancel());
    assert_eq!(clock.advance_to_next(), None);
    assert_eq!(clock.elapsed(), YEAR);
    timer.schedule(SECOND, || ()).unwrap();
    assert_eq!(clock.advance_to_next(), Some(SECOND), "from now on");
}

#[test]
fn an_advance_ends_after_all_callbacks_that_are_due_at_its_end() {
    let (clock, timer) = manual();
    let later = Timer::builder().clock(clock.clone()).build().unwrap();
    let (log, next) = (Log::new(), timer.clone());
    let note = log.note(1);
    later.schedule(SECOND, move || drop(next.schedule(Duration::ZERO, note).unwrap())).unwrap();
    clock.advance(SECOND);
    assert_eq!(log.take(), [1], "the other timer had its turn before");
}

#[test]
fn a_run_until_idle_ends_with_the_last_callback_or_at_its_limit() {
    fn chain(timer: &Timer, left: u32, log: Log<u32>) {
        log.push(left);
        if left > 0 {
            let next = timer.clone();
            timer.schedule(SECOND, move || chain(&next, left - 1, log)).unwrap();
        }
    }
    let (clock, timer) = manual();
    let log = Log::new();
    chain(&timer, 10, log.clone());
    assert!(!clock.run_until_idle(4));
    assert_eq!(log.take(), [10, 9, 8, 7, 6]);
    assert!(clock.run_until_idle(6));
    assert_eq!(log.take(), [5, 4, 3, 2, 1, 0]);
    assert_eq!(clock.elapsed(), 10 * SECOND);
}

#[test]
fn values_inserted_by_many_threads_are_received_in_the_order_of_their_deadlines() {
    let clock = Set::new();
    let queue = Timer::builder().clock(clock.clone()).build_queue().unwrap();
    for thread in 0..8 {
        let insert = || {
            for delay in 0..300 {
                queue.insert((delay * 8 + thread) * MS, delay * 8 + thread).unwrap();
            }
        };
        std::thread::scope(|scope| drop(scope.spawn(insert)));
    }
    clock.show(60 * SECOND);
    let received: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    assert!(received.into_iter().eq(0..8 * 300));
}
