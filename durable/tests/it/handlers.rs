//! Handlers that fail in every way: each failure is a failed attempt, and ends nothing else.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    time::Duration,
};

use delaywheel_durable::{Backoff, DurableTimer, ManualWallClock, MemoryStore};

const SECOND: Duration = Duration::from_secs(1);

thread_local! {
    /// How the spawner treats the next future: virtual time runs the handler and it on one thread.
    static SPAWN: Cell<&'static str> = const { Cell::new("run") };
}

#[test]
fn an_asynchronous_handler_may_fail_before_in_and_without_its_future() {
    let clock = ManualWallClock::new();
    let timer = DurableTimer::builder(MemoryStore::new())
        .clock(clock.clone())
        .backoff(Backoff::new(SECOND).jitter(0.0))
        .build_async(
            |future| match SPAWN.replace("run") {
                "drop" => drop(future),
                "panic" => panic!("there is no runtime"),
                // A runtime keeps the panic of a task to itself.
                _ => drop(catch_unwind(AssertUnwindSafe(|| pollster::block_on(future)))),
            },
            |delivery| {
                let way =
                    if delivery.attempt() == 1 { delivery.id().to_string() } else { String::new() };
                assert_ne!(way, "closure panics", "before it returns a future");
                SPAWN.set(match &*way {
                    "future is dropped" => "drop",
                    "spawner panics" => "panic",
                    _ => "run",
                });
                async move {
                    assert_ne!(way, "future panics");
                    let result = if way == "error" { Err("no route") } else { Ok(()) };
                    (delivery, result)
                }
            },
        )
        .expect("start");
    let ways = [
        ("closure panics", "the handler panicked"),
        ("error", "no route"),
        ("future is dropped", "the delivery was dropped"),
        ("future panics", "the handler panicked"),
        ("spawner panics", "the handler panicked"),
    ];
    for (way, _) in ways {
        timer.schedule(way, Duration::ZERO, b"").expect("schedule");
    }
    clock.advance(Duration::ZERO);
    for (way, error) in ways {
        let record = timer.get(way).expect("get").expect("it is tried again");
        assert_eq!((record.attempt, record.error.as_deref()), (1, Some(error)), "{way}");
    }
    assert_eq!((timer.stats().retries, timer.stats().delivering), (5, 0));
    clock.advance(SECOND);
    assert_eq!(timer.count().expect("count").live, 0);
    assert_eq!(timer.stats().acknowledged, 5);
}

/// The handler runs on the thread that also claims and delivers all other timeouts.
#[test]
fn a_handler_that_panics_does_not_end_the_thread_of_the_driver() {
    let (sender, seen) = mpsc::channel();
    let timer = DurableTimer::builder(MemoryStore::new())
        .backoff(Backoff::new(Duration::from_micros(1)))
        .build_with(move |delivery| {
            assert!(delivery.attempt() > 1, "the first attempt panics");
            sender.send(delivery.id().to_string()).expect("the test waits");
            delivery.acknowledge();
        })
        .expect("start");
    for id in ["a", "b"] {
        timer.schedule(id, Duration::ZERO, b"").expect("schedule");
        assert_eq!(seen.recv_timeout(60 * SECOND).expect("delivery"), id);
    }
    assert!(timer.finish(60 * SECOND));
    assert_eq!(timer.count().expect("count").live, 0);
}
