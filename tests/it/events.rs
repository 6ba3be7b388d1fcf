//! The `tracing` events of a timer, by a subscriber that stores them.

use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use delaywheel::{Purgatory, Timer};
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{
    purgatory::support::{Op, Shared},
    timer::support::{SECOND, Set, manual, manual_with},
};

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            write!(self.0, " {field}={value:?}").unwrap();
        }
    }
}

struct OnEvent<F>(F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "delaywheel"
    }

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        panic!("there are no spans");
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Runs a closure, and returns the events that this thread emits meanwhile.
fn events_of(run: impl FnOnce()) -> Vec<(Level, String)> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let stored = Arc::clone(&lines);
    let store = move |event: &Event<'_>| {
        let mut line = Line(String::new());
        event.record(&mut line);
        stored.lock().unwrap().push((*event.metadata().level(), line.0));
    };
    subscribed(store, run);
    std::mem::take(&mut lines.lock().unwrap())
}

/// Runs code with a subscriber. There is a second one: beside a single subscriber, a thread without
/// it that reaches an event first turns it off for every thread.
fn subscribed(act: impl Fn(&Event<'_>) + Send + Sync + 'static, run: impl FnOnce()) {
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(OnEvent(|_: &Event<'_>| ())));
    tracing::subscriber::with_default(OnEvent(act), run);
}

fn line(level: Level, text: &str) -> (Level, String) {
    (level, text.to_owned())
}

#[test]
fn a_panic_emits_an_event_with_its_text() {
    let (clock, timer) = manual_with(|builder| builder.name("requests"));
    timer.schedule(SECOND, || panic!("a text")).unwrap();
    timer.schedule(2 * SECOND, || panic!("number {}", 7)).unwrap();
    timer.schedule(3 * SECOND, || std::panic::panic_any(7)).unwrap();
    let builder =
        Purgatory::builder().timer(Timer::builder().clock(clock.clone()).name("requests"));
    let operations: Shared = builder.build().unwrap();
    operations.watch(Op::new().end(|_| panic!("an end")), [1], 4 * SECOND).unwrap();
    let text = |payload| format!("user code panicked timer=\"requests\" payload={payload:?}");
    let panicked = |payload| (Level::ERROR, text(payload));
    let expected = [panicked("a text"), panicked("number 7"), panicked("not a text")];
    assert_eq!(events_of(|| clock.advance(3 * SECOND)), expected);
    assert_eq!(events_of(|| clock.advance(SECOND)), [panicked("an end")]);
    let stats = operations.stats();
    assert_eq!((timer.stats().panicked, stats.panicked, stats.timer.panicked), (3, 1, 0));
}

#[test]
fn the_start_of_the_threads_and_the_shutdown_emit_one_event_each() {
    let timer = Timer::builder().name("dw").build().unwrap();
    let start = || {
        for _ in 0..3 {
            timer.schedule(60 * SECOND, || ()).unwrap();
        }
    };
    assert_eq!(events_of(start), [line(Level::DEBUG, "threads started timer=\"dw\"")]);
    let end = || {
        timer.shutdown();
        timer.shutdown();
        drop(timer);
    };
    assert_eq!(events_of(end), [line(Level::DEBUG, "shut down timer=\"dw\" returned=3")]);
    assert_eq!(events_of(|| drop(Timer::new().shutdown())), []);
}

#[test]
fn lateness_emits_an_event_when_it_begins_and_when_it_ends() {
    let clock = Set::new();
    let builder = Timer::builder().clock(clock.clone()).name("dw");
    let timer = builder.warn_if_later_than(2 * SECOND).build().unwrap();
    let late_by = |late: u64| {
        timer.schedule(SECOND, || ()).unwrap();
        events_of(|| clock.pass(Duration::from_secs(1 + late)))
    };
    let late = line(Level::WARN, "timeouts are late timer=\"dw\" latest_by=3s");
    let on_time = line(Level::DEBUG, "timeouts are on time again timer=\"dw\"");
    assert_eq!([late_by(0), late_by(2)], [[], []], "2 s are no more than 2 s");
    assert_eq!((late_by(3), late_by(4)), (vec![late.clone()], vec![]));
    assert_eq!((late_by(1), late_by(0)), (vec![on_time], vec![]));
    assert_eq!(late_by(3), [late]);
}

#[test]
fn a_subscriber_that_panics_or_uses_the_timer_stops_nothing() {
    let (clock, timer) = manual();
    timer.schedule(SECOND, || panic!("by a callback")).unwrap();
    timer.schedule(3 * SECOND, || ()).unwrap();
    let used = timer.clone();
    let meddle = move |_: &Event<'_>| {
        assert!(used.stats().panicked > 0);
        drop(used.schedule(SECOND, || ()));
        panic!("by the subscriber");
    };
    subscribed(meddle, || {
        clock.advance(5 * SECOND);
        assert_eq!(timer.stats().expired, 3);
        timer.shutdown();
    });
}
