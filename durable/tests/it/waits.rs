//! A timer that waits does nothing and blocks nobody, and times of the crate `jiff`.

use std::sync::Mutex;

use super::{
    simulation::{Call, RemoteStore},
    *,
};

/// Half a window before the timeout is due, the timer takes it into memory.
fn waits_without_a_turn(store: impl Store) {
    let clock = ManualWallClock::new();
    let timer = acknowledging(store, &clock);
    timer.schedule("far", 300 * DAY, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let due = clock.now().saturating_add(300 * DAY);
    let looks_at = due.saturating_sub(30 * SECOND);
    let before = timer.stats();
    for _ in 0..299 {
        assert_eq!(clock.next_turn(), Some(looks_at), "no turn before it is needed");
        clock.advance(DAY);
    }
    let after = timer.stats();
    assert_eq!((after.claims, after.commits), (before.claims, before.commits));
    clock.advance(DAY);
    assert_eq!((timer.stats().acknowledged, timer.stats().lateness.max), (1, Duration::ZERO));
    assert_eq!(clock.next_turn(), None, "the store is empty");
}

#[test]
fn a_timer_that_waits_for_a_far_timeout_does_nothing() {
    waits_without_a_turn(MemoryStore::new());
    #[cfg(feature = "sqlite")]
    {
        let folder = tempfile::tempdir().expect("folder");
        let store = delaywheel_durable::SqliteStore::open(folder.path().join("timeouts.db"));
        waits_without_a_turn(store.expect("open"));
    }
}

#[test]
fn a_timer_that_rechecks_claims_once_in_each_lane_and_writes_nothing() {
    let clock = ManualWallClock::new();
    let builder = DurableTimer::builder(MemoryStore::new()).clock(clock.clone());
    let timer = builder.recheck(Some(60 * SECOND)).build_blocking(|_| Ok(())).expect("start");
    timer.schedule("far", 300 * DAY, b"").wait().expect("schedule");
    clock.advance(Duration::ZERO);
    let before = timer.stats();
    clock.advance(3_600 * SECOND);
    let after = timer.stats();
    assert_eq!((after.claims, after.commits), (before.claims + 2 * 60, before.commits));
}

/// The store answers when another task of the same thread has run.
#[tokio::test(flavor = "current_thread")]
async fn a_task_that_waits_for_the_store_lets_other_tasks_run() {
    let (answer, answers) = mpsc::channel();
    let answers = Mutex::new(answers);
    let slow = RemoteStore::hooked(&MemoryStore::new(), move |call| match call {
        Call::Other => {
            let answer = answers.lock().expect("not poisoned").recv_timeout(10 * SECOND);
            answer.map_err(|_| StoreError::new(StoreErrorReason::Unavailable))
        }
        _ => Ok(()),
    });
    let timer = DurableTimer::builder(slow).build().expect("start");
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
    let store = RemoteStore::hooked(&MemoryStore::new(), |call| match call {
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

#[cfg(feature = "jiff")]
#[test]
fn a_timestamp_of_jiff_is_a_due_time() {
    use delaywheel_durable::InputError;

    let now: jiff::Timestamp = "2026-03-01T00:00:00Z".parse().expect("time");
    let clock = ManualWallClock::at(WallTime::try_from(now).expect("in range"));
    let timer = acknowledging(MemoryStore::new(), &clock);
    let due: jiff::Timestamp = "2026-03-01T12:30:00.000000001Z".parse().expect("time");
    timer.schedule("a", due, b"").wait().expect("schedule");
    let record = timer.get("a").wait().expect("get").expect("pending");
    assert_eq!(record.due.since(clock.now()), Duration::from_micros(45_000_000_001), "rounded up");
    clock.advance(45_000 * SECOND);
    assert_eq!(timer.stats().acknowledged, 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(timer.stats().acknowledged, 1);
    let early: jiff::Timestamp = "1969-12-31T23:59:59Z".parse().expect("time");
    let refused = timer.schedule("b", early, b"").wait();
    assert!(matches!(refused, Err(DurableError::Input(InputError::Before1970))), "{refused:?}");
}
