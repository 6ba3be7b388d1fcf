//! Callbacks may use every function of a timer, also of the timer that runs them.

use std::{
    panic,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::support::{Log, MS, SECOND, YEAR, manual, manual_with, must_return};

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
