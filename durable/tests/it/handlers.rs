//! Handlers that fail in every way: each failure is a failed attempt, and ends nothing else.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    task::{Context, Wake, Waker},
};

use super::{simulation::Call, *};

/// Writes its causes as those of `anyhow` do.
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if f.alternate() { "no payment: no route" } else { "no payment" })
    }
}

#[test]
fn an_asynchronous_handler_may_fail_in_every_way() {
    let clock = ManualClock::new();
    let timer = DurableTimer::builder(SqliteStore::in_memory())
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
                    let result = if way == "error" { Err(Refused) } else { Ok(()) };
                    (delivery, result)
                }
            },
        )
        .expect("start");
    let ways = [
        ("closure panics", "the handler panicked"),
        ("error", "no payment: no route"),
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

#[test]
fn a_timeout_keeps_the_error_of_a_blocking_handler_with_its_causes() {
    let clock = ManualClock::new();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock.clone());
    let timer = builder.build_blocking(|_| {
        let refused = StoreError::with_source(StoreErrorReason::Refused, "no such account");
        Err(StoreError::with_source(StoreErrorReason::Other, refused).into())
    });
    let timer = timer.expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let record = timer.get("a").wait().expect("get").expect("it is tried again");
    let causes = "store failed: database refused a value: no such account";
    assert_eq!(record.error.as_deref(), Some(causes));
}

/// There is no runtime on the thread of the timer, so `tokio::spawn` panics; then one has ended.
#[test]
fn a_task_that_never_ran_is_no_attempt_and_delays_no_other_queue() {
    let (clock, tries) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&tries);
    let (sender, seen) = mpsc::channel();
    let other = Queue::with("other", move |delivery| drop(sender.send(delivery.id().clone())));
    let timer = DurableTimer::builder(SqliteStore::in_memory())
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
    let due = timer.now().saturating_add(SECOND / 100);
    let new = NewTimeout::new("b", due, b"").and_then(|new| new.queue("other")).expect("valid");
    timer.schedule_new(new).wait().expect("schedule");
    clock.advance(SECOND / 100);
    assert_eq!((tries.load(SeqCst), seen.try_iter().count()), (1, 1));
    #[cfg(feature = "tracing")]
    assert_eq!(crate::timer::warnings(|| clock.advance(10 * SECOND)), 5);
    #[cfg(not(feature = "tracing"))]
    clock.advance(10 * SECOND);
    assert_eq!((tries.load(SeqCst), timer.stats().acknowledged), (7, 1));
}

/// The thread of the runtime must not wait for them.
#[tokio::test]
async fn a_task_finishes_a_timer_whose_handlers_run_on_its_own_thread() {
    let runtime = tokio::runtime::Handle::current();
    let timer = DurableTimer::builder(SqliteStore::in_memory())
        .build_async(
            move |task| drop(runtime.spawn(task)),
            |delivery| async { (delivery, Ok::<_, String>(())) },
        )
        .expect("start");
    timer.schedule("a", Duration::ZERO, b"").await.expect("schedule");
    let finished = timer.finish(20 * SECOND);
    let refused = timer.schedule("b", DAY, b"").await;
    assert!(matches!(refused, Err(DurableError::ShutDown)));
    assert!(finished.await.expect("finish"));
    assert_eq!(timer.stats().acknowledged, 1);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        // Without a message on standard error.
        resume_unwind(Box::new("the waker fails"));
    }
}

/// Polls a future that waits, with a waker that panics.
fn poll(future: Pin<&mut impl Future>, waker: &Arc<Panics>) {
    let waker = Waker::from(Arc::clone(waker));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
}

#[test]
fn a_waker_that_panics_ends_no_thread() {
    let is_slow = |call: &Call<'_>| matches!(call, Call::Write(_) | Call::Other);
    let (store, _, go) = crate::waits::slow(&SqliteStore::in_memory(), is_slow);
    let (sender, deliveries) = mpsc::channel();
    let handler = move |delivery| drop(sender.send(delivery));
    let timer = DurableTimer::builder(store).build_with(handler).expect("start");
    let (mut scheduled, mut counted) = (timer.schedule("far", DAY, b""), timer.count());
    let waker = Arc::new(Panics);
    poll(Pin::new(&mut scheduled), &waker);
    poll(Pin::new(&mut counted), &waker);
    drop(go);
    timer.count().wait().expect("count");
    let mut held = Vec::new();
    for id in ["a", "b"] {
        timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
        let delivery = deliveries.recv_timeout(20 * SECOND).expect("delivery");
        let mut stopped = Box::pin(delivery.stop_token().stopped());
        poll(stopped.as_mut(), &waker);
        timer.cancel(id).wait().expect("cancel");
        held.push((delivery, stopped));
    }
}

#[test]
fn a_task_that_no_longer_waits_for_the_end_of_a_delivery_leaves_no_waker() {
    let clock = ManualClock::new();
    let (timer, deliveries) =
        crate::timer::held(DurableTimer::builder(SqliteStore::in_memory()), &clock);
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let delivery = deliveries.try_recv().expect("delivery");
    let waker = Arc::new(Panics);
    poll(pin!(delivery.stop_token().stopped()), &waker);
    assert_eq!(Arc::strong_count(&waker), 1);
}

/// A task that ends its delivery when it hears that this is void.
struct Obeys(parking_lot::Mutex<Option<Delivery>>);

impl Wake for Obeys {
    fn wake(self: Arc<Self>) {
        self.0.lock().take().expect("a delivery").acknowledge();
    }
}

#[test]
fn a_handler_that_stops_at_its_limit_does_not_acknowledge() {
    let clock = ManualClock::new();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).handler_limit(Some(SECOND));
    let (timer, deliveries) = crate::timer::held(builder, &clock);
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let delivery = deliveries.try_recv().expect("delivery");
    let mut stopped = pin!(delivery.stop_token().stopped());
    let waker = Waker::from(Arc::new(Obeys(Some(delivery).into())));
    assert!(stopped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(SECOND);
    assert!(stopped.poll(&mut Context::from_waker(&waker)).is_ready());
    let record = timer.get("a").wait().expect("get").expect("its end is ignored");
    assert_eq!(record.error.as_deref(), Some("the handler exceeded its limit"));
    assert_eq!((timer.stats().acknowledged, timer.stats().fenced), (0, 1));
}
