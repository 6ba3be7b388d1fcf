//! Timers on real threads that have more to do than they can: what waits is not begun.

use delaywheel_durable::DurableError;

use super::*;

const MILLI: Duration = Duration::from_millis(1);
/// Limit of waits that end soon unless there is a fault.
const LONG: Duration = Duration::from_secs(300);

/// Writes timeouts that are due one microsecond apart, the last one now.
fn fill(store: &SqliteStore, count: u32) {
    let now = store.now();
    let new = |number| {
        let due = now.saturating_sub(Duration::from_micros(1) * (count - number));
        Command::Schedule(NewTimeout::new(format!("{number:04}"), due, b"").expect("valid"))
    };
    store.write(now, &(0..count).map(new).collect::<Vec<_>>()).block_on().expect("write");
}

/// The work takes 3 s, and each delivery may take 2 s. A timer that has too much to do is late with
/// all timeouts alike.
#[test]
fn timeouts_that_wait_for_a_thread_use_no_attempt_and_begin_in_order() {
    let (sender, begun) = mpsc::channel();
    let builder = DurableTimer::builder(SqliteStore::in_memory()).threads(1);
    let builder = builder.handler_limit(Some(2_000 * MILLI));
    let builder = builder.backoff(Backoff::new(MILLI).attempts(4));
    let timer = builder.build_blocking(move |delivery| {
        assert_eq!(delivery.attempt(), 1);
        sender.send(delivery.due())?;
        thread::sleep(30 * MILLI);
        Ok(())
    });
    let timer = timer.expect("start");
    // What is due before its start is another lane.
    timer.schedule("first", Duration::ZERO, b"").wait().expect("schedule");
    begun.recv_timeout(LONG).expect("delivery");
    for number in 0..100 {
        timer.schedule(format!("{number}"), Duration::ZERO, b"").wait().expect("schedule");
    }
    assert!(timer.finish(LONG).wait().expect("finish"));
    let order: Vec<_> = begun.try_iter().collect();
    assert!(order.is_sorted() && order.len() == 100, "{order:?}");
    let stats = timer.stats();
    assert_eq!((stats.deliveries, stats.acknowledged), (101, 101));
    assert_eq!((stats.overruns, stats.retries, stats.dead), (0, 0, 0));
}

#[test]
fn a_shutdown_begins_no_delivery_and_those_that_wait_go_back() {
    let store = SqliteStore::in_memory();
    fill(&store, 400);
    let (sender, begun) = mpsc::channel();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(parking_lot::Mutex::new(gate));
    let timer = DurableTimer::builder(store.clone()).threads(4).build_blocking(move |delivery| {
        sender.send(delivery.id().to_string())?;
        let _ = gate.lock().recv();
        Ok(())
    });
    let timer = timer.expect("start");
    let first: Vec<_> = (0..4).map(|_| begun.recv_timeout(LONG).expect("delivery")).collect();
    let start = Instant::now();
    assert!(!timer.finish(50 * MILLI).wait().expect("finish"), "four handlers run");
    assert!(start.elapsed() < LONG / 6, "it returns in time");
    assert!(matches!(timer.schedule("a", LONG, b"").wait(), Err(DurableError::ShutDown)));
    drop(release);
    assert!(timer.finish(LONG).wait().expect("finish"));
    assert_eq!(begun.try_iter().count(), 0, "after {first:?}");
    let records = records(&store);
    assert_eq!(records.len(), 396);
    assert!(records.iter().all(|record| record.state == State::Pending && record.attempt == 0));
}
