//! Handles of timeouts in every state: pending, due, run, cancelled, of a timer that is shut down
//! or dropped.

use std::time::Duration;

use delaywheel::{Clock, TimeoutHandle};

use super::support::{Log, MS, SECOND, YEAR, manual};

/// Asserts that the handle of an ended timeout does nothing and reports that.
fn assert_dead(timeout: &TimeoutHandle) {
    assert!(!timeout.is_pending());
    assert_eq!((timeout.deadline(), timeout.remaining()), (None, None));
    assert!(!timeout.reset(SECOND));
    assert!(!timeout.cancel());
}

#[test]
fn a_handle_of_a_dropped_timer_is_dead_and_does_not_keep_it_running() {
    let (clock, timer) = manual();
    let log = Log::new();
    let timeout = timer.schedule(SECOND, log.note(())).unwrap();
    let guard = timer.schedule(SECOND, log.note(())).unwrap().cancel_on_drop();
    let clone = timer.clone();
    drop(timer);
    assert!(timeout.is_pending(), "a clone still exists");
    drop(clone);
    assert_dead(&timeout);
    assert!(!guard.is_pending());
    drop(guard);
    clock.advance(YEAR);
    assert_eq!(log.take(), []);
}

#[test]
fn a_guard_cancels_unless_it_is_disarmed_or_too_late() {
    let (clock, timer) = manual();
    let log = Log::new();
    let schedule = |name| timer.schedule(SECOND, log.note(name)).unwrap().cancel_on_drop();
    drop(schedule("dropped"));
    schedule("disarmed").disarm();
    let put_off = schedule("reset");
    assert!(put_off.reset(2 * SECOND));
    let kept = schedule("kept");
    clock.advance(SECOND);
    assert_eq!(log.take(), ["disarmed", "kept"]);
    drop((kept, put_off));
    clock.advance(YEAR);
    assert_eq!(log.take(), [""; 0]);
    assert_eq!(timer.stats().cancelled, 2);
}

#[test]
fn a_reset_to_an_instant_moves_the_deadline_and_remaining_counts_down_to_it() {
    let (clock, timer) = manual();
    let ran = Log::new();
    let timeout = timer.schedule(SECOND, ran.note("it")).unwrap();
    clock.advance(400 * MS);
    assert_eq!(timeout.remaining(), Some(600 * MS));
    assert!(timeout.reset_at(clock.now() + 5 * SECOND));
    assert_eq!(timeout.remaining(), Some(5 * SECOND));
    clock.advance(4999 * MS);
    assert_eq!((timeout.remaining(), ran.take()), (Some(MS), vec![]));
    assert!(timeout.reset_at(clock.now().checked_sub(SECOND).unwrap()), "it is still pending");
    assert_eq!(timeout.remaining(), Some(Duration::ZERO));
    clock.advance(Duration::ZERO);
    assert_eq!((timeout.remaining(), ran.take()), (None, vec!["it"]));
    assert!(!timeout.reset_at(clock.now()));
    let far = timer.schedule(Duration::MAX, || ()).unwrap();
    assert!(far.remaining().is_some_and(|remaining| remaining > 500 * YEAR));
}
