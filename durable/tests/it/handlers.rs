//! Handlers that fail in every way: each failure is a failed attempt, and ends nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn an_asynchronous_handler_may_fail_in_every_way() {
    let clock = ManualWallClock::new();
    let timer = DurableTimer::builder(MemoryStore::new())
        .clock(clock.clone())
        .backoff(Backoff::new(SECOND).jitter(0.0))
        .build_async(
            // A runtime keeps the panic of a task to itself.
            |task| drop(catch_unwind(AssertUnwindSafe(|| pollster::block_on(task)))),
            |delivery| {
                let is_first = delivery.attempt() == 1;
                let way = if is_first { delivery.id().to_string() } else { String::new() };
                assert_ne!(way, "closure panics", "before it returns a future");
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
        ("future panics", "the handler panicked"),
    ];
    for (way, _) in ways {
        pollster::block_on(timer.schedule(way, Duration::ZERO, b"")).expect("schedule");
    }
    clock.advance(Duration::ZERO);
    for (way, error) in ways {
        let record = timer.get(way).wait().expect("get").expect("it is tried again");
        assert_eq!((record.attempt, record.error.as_deref()), (1, Some(error)), "{way}");
    }
    assert_eq!((timer.stats().retries, timer.stats().delivering), (3, 0));
    clock.advance(SECOND);
    assert_eq!(timer.count().wait().expect("count").live, 0);
    assert_eq!(timer.stats().acknowledged, 3);
}

/// There is no runtime on the thread of the timer, so `tokio::spawn` panics; then one has ended.
#[test]
fn a_task_that_never_ran_is_no_attempt_and_delays_no_other_queue() {
    let (clock, tries) = (ManualWallClock::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&tries);
    let (sender, seen) = mpsc::channel();
    let other = Queue::with("other", move |delivery| drop(sender.send(delivery.id().clone())));
    let timer = DurableTimer::builder(MemoryStore::new())
        .clock(clock.clone())
        .backoff(Backoff::new(SECOND).attempts(1))
        .queue(other)
        .build_async(
            move |task| match count.fetch_add(1, SeqCst) {
                0..3 => drop(tokio::spawn(task)),
                3..6 => drop(task),
                _ => pollster::block_on(task),
            },
            |delivery| {
                assert_eq!(delivery.attempt(), 1);
                std::future::ready((delivery, Ok::<_, String>(())))
            },
        )
        .expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    let due = clock.now().saturating_add(SECOND / 100);
    let new = NewTimeout::new("b", due, b"").and_then(|new| new.queue("other")).expect("valid");
    timer.schedule_new(new).wait().expect("schedule");
    clock.advance(SECOND / 100);
    assert_eq!((tries.load(SeqCst), seen.try_iter().count()), (1, 1));
    clock.advance(10 * SECOND);
    assert_eq!((tries.load(SeqCst), timer.stats().acknowledged), (7, 1));
}
