//! Callbacks may use every function of a timer, also of the timer that runs them.

use std::{panic, time::Duration};

use super::support::{Log, MS, SECOND, manual, manual_with};

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
        assert_eq!((timer.stats().wakeups, timer.stats().waiting), (0, 0));
    }
}
