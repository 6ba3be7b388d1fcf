//! Callbacks may use every function of a timer, also of the timer that runs them.

use std::{
    panic,
    sync::{Arc, Mutex},
    time::Duration,
};

use delaywheel::{ManualClock, ScheduleErrorKind, Timeout, Timer, ValueTimer};

use super::support::{Log, MS, SECOND, YEAR, manual, manual_with, must_return};

/// Holds the handle of a timeout for its own callback.
type Slot = Arc<Mutex<Option<Timeout>>>;

fn take(slot: &Slot) -> Timeout {
    slot.lock().unwrap().take().expect("the test has stored the handle")
}

#[test]
fn a_callback_scheduled_by_a_callback_runs_in_the_same_advance() {
    let (clock, timer) = manual();
    let log = Log::new();
    let (again, second) = (timer.clone(), log.note("second"));
    let first = move || drop(again.schedule(SECOND, second).unwrap());
    timer.schedule(SECOND, first).unwrap();
    timer.schedule(3 * SECOND, log.note("third")).unwrap();
    clock.advance(3 * SECOND);
    assert_eq!(log.take(), ["second", "third"]);
}

#[test]
fn a_callback_finds_its_own_timeout_ended() {
    let (clock, timer) = manual();
    let (slot, log) = (Slot::default(), Log::new());
    let (own, seen) = (Arc::clone(&slot), log.clone());
    let timeout = timer.schedule(SECOND, move || {
        let own = take(&own);
        seen.push([own.is_pending(), own.cancel(), own.reset(SECOND)]);
    });
    *slot.lock().unwrap() = Some(timeout.unwrap());
    clock.advance(YEAR);
    assert_eq!(log.take(), [[false; 3]]);
}

#[test]
fn a_callback_can_cancel_and_reset_others_but_none_of_its_own_batch() {
    let (clock, timer) = manual();
    let (slot, log) = (Slot::default(), Log::new());
    let together = Arc::clone(&slot);
    let later = [2, 3].map(|delay| timer.schedule(delay * SECOND, log.note("later")).unwrap());
    let seen = log.clone();
    timer
        .schedule(SECOND, move || {
            seen.push(if later[0].cancel() { "cancelled" } else { "too late" });
            seen.push(if later[1].reset(9 * SECOND) { "reset" } else { "too late" });
            seen.push(if take(&together).cancel() { "cancelled" } else { "too late" });
        })
        .unwrap();
    clock.advance(999 * MS);
    *slot.lock().unwrap() = Some(timer.schedule(MS, log.note("together")).unwrap());
    clock.advance(9 * SECOND);
    let mut ran = log.take();
    ran.sort_unstable();
    assert_eq!(ran, ["cancelled", "reset", "together", "too late"]);
    clock.advance(MS);
    assert_eq!(log.take(), ["later"]);
}

#[test]
fn a_callback_can_shut_its_timer_down_and_the_others_of_its_batch_still_run() {
    let (clock, timer) = manual();
    let log = Log::new();
    for _ in 0..2 {
        let (own, log) = (timer.clone(), log.clone());
        timer.schedule(SECOND, move || log.push(own.shutdown().len())).unwrap();
    }
    timer.schedule(2 * SECOND, || panic!("it was returned")).unwrap();
    clock.advance(YEAR);
    assert_eq!(log.take(), [1, 0]);
    let error = timer.schedule(SECOND, || ()).unwrap_err();
    assert_eq!(error.kind(), ScheduleErrorKind::ShutDown);
}

#[test]
fn a_callback_can_drop_its_timer() {
    let (clock, timer) = manual();
    let log = Log::new();
    let pending = timer.schedule(2 * SECOND, log.note("never")).unwrap();
    let own = Arc::new(Mutex::new(None));
    let last = Arc::clone(&own);
    let gone = log.note("gone");
    timer
        .schedule(SECOND, move || {
            drop(last.lock().unwrap().take());
            gone();
        })
        .unwrap();
    *own.lock().unwrap() = Some(timer);
    clock.advance(YEAR);
    assert_eq!(log.take(), ["gone"]);
    assert!(!pending.is_pending());
    assert_eq!(clock.advance_to_next(), None);
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the payload of a panic is user code as well");
    }
}

#[test]
fn a_callback_that_panics_is_counted_and_stops_nothing() {
    let (clock, timer) = manual();
    let log = Log::new();
    timer.schedule(SECOND, || panic!("by a callback")).unwrap();
    timer.schedule(SECOND, || panic::panic_any(PanicsWhenDropped)).unwrap();
    let captured = Captured(log.clone());
    timer.schedule(SECOND, move || panic!("with {:p}", &raw const captured)).unwrap();
    timer.schedule(SECOND, log.note("same tick")).unwrap();
    timer.schedule(2 * SECOND, log.note("later")).unwrap();
    clock.advance(3 * SECOND);
    let mut ran = log.take();
    ran.sort_unstable();
    assert_eq!(ran, ["dropped while unwinding", "later", "same tick"]);
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.expired), (3, 5));
}

struct Captured(Log<&'static str>);

impl Drop for Captured {
    fn drop(&mut self) {
        self.0.push("dropped while unwinding");
    }
}

#[test]
fn a_handler_that_panics_is_counted_for_each_value() {
    let clock = ManualClock::new();
    let handler = |value: u32| assert!(value % 3 != 0, "no multiples of three");
    let timer = ValueTimer::builder().clock(clock.clone()).build_with(handler).unwrap();
    for value in 0..99 {
        timer.schedule(SECOND, value).unwrap();
    }
    clock.advance(SECOND);
    assert_eq!((timer.stats().panicked, timer.stats().expired), (33, 99));
}

#[test]
fn a_callback_that_advances_the_clock_runs_newly_due_callbacks_within_the_call() {
    must_return(|| {
        let (clock, timer) = manual();
        let log = Log::new();
        let (nested, mover) = (log.clone(), clock.clone());
        timer
            .schedule(SECOND, move || {
                nested.push(("moves", mover.elapsed()));
                mover.advance(10 * SECOND);
                nested.push(("moved", mover.elapsed()));
            })
            .unwrap();
        for delay in [5, 8, 20] {
            let (log, clock) = (log.clone(), clock.clone());
            timer.schedule(delay * SECOND, move || log.push(("runs", clock.elapsed()))).unwrap();
        }
        clock.advance(6 * SECOND);
        let expected = [("moves", 1), ("runs", 5), ("runs", 8), ("moved", 11)];
        assert_eq!(log.take(), expected.map(|(what, seconds)| (what, seconds * SECOND)));
        assert_eq!(clock.elapsed(), 11 * SECOND, "the clock does not step back");
        assert_eq!(clock.advance_to_next(), Some(9 * SECOND));
        assert_eq!(log.take(), [("runs", 20 * SECOND)]);
    });
}

#[test]
fn a_callback_can_use_another_timer_on_the_same_clock() {
    let (clock, timer) = manual();
    let other = Timer::builder().clock(clock.clone()).build().unwrap();
    let log = Log::new();
    let (note, to) = (log.note("by the other"), other.clone());
    timer.schedule(SECOND, move || drop(to.schedule(SECOND, note).unwrap())).unwrap();
    clock.advance(2 * SECOND);
    assert_eq!(log.take(), ["by the other"]);
    assert_eq!((timer.stats().expired, other.stats().expired), (1, 1));
}

#[test]
fn callbacks_run_on_the_thread_of_a_manual_clock_with_any_executor() {
    for set in 0..3 {
        let (clock, timer) = manual_with(|builder| match set {
            0 => builder.executor_threads(4),
            1 => builder.inline(),
            _ => builder.executor(|_| panic!("the pool gets no callback")),
        });
        let log = Log::new();
        let id = log.clone();
        timer.schedule(Duration::ZERO, move || id.push(std::thread::current().id())).unwrap();
        clock.advance(MS);
        assert_eq!(log.take(), [std::thread::current().id()]);
        assert_eq!(timer.stats().wakeups, 0);
    }
}
