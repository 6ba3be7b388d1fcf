//! A timer that waits does nothing and blocks nobody, and times of the crate `jiff`.

use std::{
    pin::Pin,
    sync::{Mutex, OnceLock, atomic::AtomicBool},
    task::{Context, Waker},
    time::SystemTime,
};

use delaywheel_durable::Sharded;

use super::{
    simulation::{Call, RemoteStore},
    *,
};

/// The timer takes the timeout into memory half a window before it is due. Until then, it claims
/// once in each lane when it rechecks.
fn waits_without_a_turn(store: impl Store, recheck: Option<Duration>) {
    let clock = ManualClock::new();
    let mut builder = DurableTimer::builder(store).clock(clock.clone());
    if recheck.is_some() {
        builder = builder.recheck(recheck);
    }
    let timer = builder.build_blocking(|_| Ok(())).expect("start");
    timer.schedule("far", 300 * DAY, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let before = timer.stats();
    clock.advance(DAY);
    let a_day = recheck.map_or(0, |recheck| DAY.as_secs() / recheck.as_secs());
    for _ in 0..298 * a_day {
        assert_eq!(clock.advance_to_next(), recheck, "no turn before it is needed");
    }
    let after = timer.stats();
    assert_eq!((after.claims, after.commits), (before.claims + 2 * 299 * a_day, before.commits));
    let next = recheck.unwrap_or(299 * DAY - 30 * SECOND);
    assert_eq!(clock.advance_to_next(), Some(next), "no turn before it is needed");
    clock.advance(DAY);
    assert_eq!((timer.stats().acknowledged, timer.stats().lateness.max), (1, Duration::ZERO));
    assert!(recheck.is_some() || clock.advance_to_next().is_none(), "the store is empty");
}

#[test]
fn a_timer_that_waits_for_a_far_timeout_does_nothing_or_rechecks() {
    waits_without_a_turn(SqliteStore::in_memory(), None);
    waits_without_a_turn(SqliteStore::in_memory(), Some(600 * SECOND));
}

/// The store answers when another task of the same thread has run.
#[tokio::test(flavor = "current_thread")]
async fn a_task_that_waits_for_the_store_lets_other_tasks_run() {
    let (store, _, answer) = slow(&SqliteStore::in_memory(), is_other);
    let timer = DurableTimer::builder(store).build().expect("start");
    let all = Query::Prefix { prefix: String::new(), after: None };
    let other = async { (0..8).for_each(|_| answer.send(()).expect("the store waits")) };
    let (get, list, count, due, attempts, queues, paused, resumed, ()) = tokio::join!(
        timer.get("a"),
        timer.list(&all, 9),
        timer.count(),
        timer.count_due(),
        timer.history(None, None, 9),
        timer.queues(),
        timer.pause(""),
        timer.resume(""),
        other,
    );
    assert_eq!((get.expect("get"), list.expect("list").len()), (None, 0));
    assert_eq!((count.expect("count"), due.expect("count")), (Counts::default(), 0));
    assert_eq!((attempts.expect("history").len(), queues.expect("queues").len()), (0, 1));
    paused.and(resumed).expect("pause");
}

#[test]
fn a_store_that_panics_while_it_is_asked_is_an_error() {
    let store = RemoteStore::hooked(&SqliteStore::in_memory(), |call| match call {
        // Without a message on standard error.
        Call::Other => std::panic::resume_unwind(Box::new("the store fails")),
        _ => Ok(()),
    });
    let timer = DurableTimer::builder(store).build().expect("start");
    let error = timer.count().wait().expect_err("it panics");
    assert!(
        matches!(&error, DurableError::Store(error)
            if error.reason() == StoreErrorReason::OutcomeUnknown),
        "{error:?}"
    );
}

fn until(mut is_met: impl FnMut() -> bool) {
    let deadline = Instant::now() + 60 * SECOND;
    while !is_met() {
        assert!(Instant::now() < deadline, "it takes too long");
        thread::yield_now();
    }
}

/// The first calls of the store fail, which the threads of the timer tell the subscriber.
#[cfg(feature = "tracing")]
#[test]
fn a_subscriber_that_panics_ends_no_thread() {
    timer::warnings(|| ());
    let calls = [0; 2].map(AtomicUsize::new);
    let store = RemoteStore::hooked(&SqliteStore::in_memory(), move |call| {
        let is_write = matches!(call, Call::Write(..));
        let is_first = calls[usize::from(is_write)].fetch_add(1, SeqCst) < 3;
        if is_first { Err(StoreError::new(StoreErrorReason::Full)) } else { Ok(()) }
    });
    let (sender, seen) = mpsc::channel();
    let builder = DurableTimer::builder(store);
    let timer = builder.build_blocking(move |_| Ok(sender.send(())?)).expect("start");
    let schedule = || timer.schedule("a", Duration::ZERO, b"").wait();
    until(|| schedule().is_ok());
    seen.recv_timeout(300 * SECOND).expect("delivery");
    assert!(timer.finish(300 * SECOND).wait().expect("finish"));
    assert!(timer.stats().store_errors > 1);
}

/// A clock that panics on the thread of the driver, in spite of its contract.
#[derive(Debug, Default)]
struct Broken(Arc<AtomicBool>);

impl Clock for Broken {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn system_time(&self) -> SystemTime {
        if self.0.load(SeqCst) && thread::current().name() == Some("delaywheel-driver") {
            // Without a message on standard error.
            std::panic::resume_unwind(Box::new("the clock fails"));
        }
        SystemTime::now()
    }
}

#[test]
fn a_timer_whose_thread_panics_refuses_timeouts() {
    let clock = Broken::default();
    let is_broken = Arc::clone(&clock.0);
    let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock);
    let timer = builder.build_blocking(|_| Ok(())).expect("start");
    let schedule = || timer.schedule("a", DAY, b"").wait();
    schedule().expect("schedule");
    is_broken.store(true, SeqCst);
    until(|| matches!(schedule(), Err(DurableError::ShutDown)));
    assert!(timer.finish(300 * SECOND).wait().expect("finish"));
}

#[test]
fn changes_of_one_caller_take_effect_in_their_order() {
    let timer = DurableTimer::builder(SqliteStore::in_memory()).build_with(|_| ()).expect("start");
    for _ in 0..2_000 {
        let receipts = [timer.resume(""), timer.pause("")];
        // It is not delivered: the queue is paused.
        let scheduled = timer.schedule("a", Duration::ZERO, b"");
        for receipt in receipts {
            receipt.wait().expect("pause");
        }
        assert_eq!(scheduled.wait().expect("schedule"), Scheduled::Created);
        assert!(timer.queues().wait().expect("queues")[0].is_paused);
        assert_eq!(timer.cancel("a").wait().expect("cancel"), Cancelled::Cancelled);
    }
}

/// Returns a store whose calls of a kind wait, a number that counts these, and a sender that lets
/// one of them go on, or all if it is dropped.
pub(crate) fn slow(
    memory: &SqliteStore,
    is_slow: fn(&Call<'_>) -> bool,
) -> (RemoteStore, Arc<AtomicUsize>, mpsc::Sender<()>) {
    let (go, waits) = mpsc::channel();
    let (waits, calls) = (Mutex::new(waits), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&calls);
    let store = RemoteStore::hooked(memory, move |call| {
        if is_slow(&call) {
            counter.fetch_add(1, SeqCst);
            let waited = waits.lock().expect("not poisoned").recv_timeout(20 * SECOND);
            if waited == Err(mpsc::RecvTimeoutError::Timeout) {
                return Err(StoreError::new(StoreErrorReason::Unavailable));
            }
        }
        Ok(())
    });
    (store, calls, go)
}

pub(crate) fn is_other(call: &Call<'_>) -> bool {
    matches!(call, Call::Other)
}

pub(crate) fn wait_for_calls(calls: &AtomicUsize) {
    while calls.load(SeqCst) == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_timer_that_has_finished_has_made_its_changes() {
    let memory = SqliteStore::in_memory();
    let (store, _, go) = slow(&memory, is_other);
    let timer = DurableTimer::builder(store).build().expect("start");
    drop(timer.pause("q"));
    assert!(!timer.finish(SECOND / 10).wait().expect("finish"), "the pause is under way");
    go.send(()).expect("the store waits");
    assert!(timer.finish(20 * SECOND).wait().expect("finish"));
    let queues = memory.queues().block_on().expect("queues");
    assert!(queues.iter().any(|queue| queue.is_paused));
}

#[test]
fn a_timer_finishes_though_its_handles_and_the_receipt_are_gone() {
    for _ in 0..9 {
        let (sender, seen) = mpsc::channel();
        let builder = DurableTimer::builder(SqliteStore::in_memory());
        let timer = builder.build_blocking(move |_| Ok(sender.send(())?)).expect("start");
        drop(timer.schedule("a", Duration::ZERO, b""));
        drop(timer.finish(60 * SECOND));
        drop(timer);
        seen.recv_timeout(60 * SECOND).expect("delivery");
    }
}

/// The driver waits for the answer.
#[test]
fn statistics_and_finish_do_not_wait_for_a_store_that_is_silent() {
    let (store, calls, go) = slow(&SqliteStore::in_memory(), |call| matches!(call, Call::Begin));
    let timer = DurableTimer::builder(store).build_blocking(|_| Ok(())).expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    wait_for_calls(&calls);
    let start = Instant::now();
    assert_eq!(timer.stats().acknowledged, 0);
    assert!(!timer.finish(SECOND / 10).wait().expect("finish"), "a begin is under way");
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    go.send(()).expect("the store waits");
    assert!(timer.finish(20 * SECOND).wait().expect("finish"));
}

#[test]
fn a_handler_calls_its_timer_while_that_finishes() {
    let own = Arc::new(OnceLock::<DurableTimer>::new());
    let timer = Arc::clone(&own);
    let handler = move |_: &Delivery| {
        let timer = timer.wait();
        timer.pause("q").wait()?;
        assert_eq!(timer.count().wait()?.live, 1);
        Ok(())
    };
    let timer =
        DurableTimer::builder(SqliteStore::in_memory()).build_blocking(handler).expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    thread::scope(|scope| {
        let finished = scope.spawn(|| timer.finish(20 * SECOND).wait().expect("finish"));
        assert!(own.set(timer.clone()).is_ok());
        assert!(finished.join().expect("finish"));
    });
    assert_eq!(timer.stats().acknowledged, 1);
}

#[test]
fn a_pause_after_the_end_is_refused_in_virtual_time_too() {
    for clock in [None, Some(ManualClock::new())] {
        let builder = DurableTimer::builder(SqliteStore::in_memory());
        let builder = clock.into_iter().fold(builder, DurableTimerBuilder::clock);
        let timer = builder.build().expect("start");
        assert!(timer.finish(20 * SECOND).wait().expect("finish"));
        assert!(matches!(timer.pause("").wait(), Err(DurableError::ShutDown)));
    }
}

#[test]
fn a_read_does_not_wait_for_changes() {
    let (store, _, go) = slow(&SqliteStore::in_memory(), |call| matches!(call, Call::Write(_)));
    let timer = DurableTimer::builder(store).build().expect("start");
    let (written, paused) = (timer.schedule("a", DAY, b""), timer.pause(""));
    assert_eq!(timer.count().wait().expect("count").live, 0);
    assert!(!timer.queues().wait().expect("queues")[0].is_paused);
    go.send(()).expect("the store waits");
    written.wait().expect("schedule");
    paused.wait().expect("pause");
}

#[test]
fn a_read_that_waits_is_not_made_once_its_receipt_is_gone() {
    let (store, calls, go) = slow(&SqliteStore::in_memory(), is_other);
    let timer = DurableTimer::builder(store).build().expect("start");
    let first = timer.count();
    wait_for_calls(&calls);
    (0..9).for_each(|_| drop(timer.count()));
    let last = timer.count();
    (0..2).for_each(|_| go.send(()).expect("the store waits"));
    first.wait().and(last.wait()).expect("count");
    assert_eq!(calls.load(SeqCst), 2);
}

#[test]
fn a_thread_waits_for_a_receipt_that_a_task_has_polled() {
    let (store, _, go) = slow(&SqliteStore::in_memory(), is_other);
    let timer = DurableTimer::builder(store).build().expect("start");
    let mut counts = timer.count();
    assert!(Pin::new(&mut counts).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    go.send(()).expect("the store waits");
    assert_eq!(counts.wait().expect("count"), Counts::default());
}

#[test]
fn a_call_of_several_databases_keeps_no_timer_from_its_end() {
    let (store, calls, go) = slow(&SqliteStore::in_memory(), is_other);
    let first = DurableTimer::builder(store).build().expect("start");
    let (sender, handler_is_gone) = mpsc::channel();
    let handler = move |delivery| sender.send(delivery).expect("the test waits");
    let second =
        DurableTimer::builder(SqliteStore::in_memory()).build_with(handler).expect("start");
    let sharded = Sharded::new(vec![first, second]);
    let counts = sharded.count();
    wait_for_calls(&calls);
    drop(sharded);
    let ended = handler_is_gone.recv_timeout(20 * SECOND);
    assert!(matches!(ended, Err(mpsc::RecvTimeoutError::Disconnected)));
    go.send(()).expect("the store waits");
    counts.wait().expect("the call goes on");
}

/// The call looks for its timeout in the old database.
#[test]
fn several_databases_have_not_finished_while_a_change_of_both_is_under_way() {
    for is_shut_down in [false, true] {
        let (store, calls, go) = slow(&SqliteStore::in_memory(), is_other);
        let first = DurableTimer::builder(store).build().expect("start");
        let second = DurableTimer::builder(SqliteStore::in_memory()).build().expect("start");
        let sharded = Sharded::growing(vec![first, second], 1);
        let id = |number| TimeoutId::new(format!("{number}")).expect("valid");
        let id = (0..99).map(id).find(|id| sharded.home(id) == 1).expect("one of two");
        let cancelled = sharded.cancel(&id);
        wait_for_calls(&calls);
        if is_shut_down {
            sharded.shutdown();
        }
        assert!(!sharded.finish(SECOND / 10).wait().expect("finish"), "a cancel is under way");
        go.send(()).expect("the store waits");
        assert_eq!(cancelled.wait().expect("cancel"), Cancelled::NotFound);
        assert!(sharded.finish(20 * SECOND).wait().expect("finish"));
    }
}

#[cfg(feature = "jiff")]
#[test]
fn a_timestamp_of_jiff_is_a_due_time() {
    use delaywheel_durable::{InputError, When};

    let resolve = |time: &str| {
        When::from(time.parse::<jiff::Timestamp>().expect("time")).resolve(WallTime::MIN)
    };
    let now = resolve("2026-03-01T00:00:00Z").expect("in range");
    let due = resolve("2026-03-01T12:30:00.000000001Z").expect("in range");
    assert_eq!(due.since(now), Duration::from_micros(45_000_000_001), "rounded up");
    assert_eq!(resolve("1969-12-31T23:59:59Z"), Err(InputError::Before1970));
}
