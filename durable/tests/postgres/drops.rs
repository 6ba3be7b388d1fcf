//! Calls whose futures are dropped, or polled only once, as those in the buffer of a stream are.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use delaywheel_durable::StoreResult;

use super::*;

fn poll_once<R>(call: &mut Pin<Box<dyn Future<Output = StoreResult<R>> + Send + '_>>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn a_read_that_nobody_polls_delays_no_other() {
    let Some((_server, store, _, _)) = stored() else { return };
    let id = TimeoutId::new("a").expect("valid");
    let mut parked = store.get(&id);
    poll_once(&mut parked);
    let (sender, ended) = mpsc::channel();
    let other = store.clone();
    thread::spawn(move || drop(sender.send(other.count().block_on())));
    ended.recv_timeout(LONG).expect("it does not wait").expect("count");
    assert_eq!(parked.block_on().expect("get"), None);
}

/// A table is locked, and readers give up.
#[test]
fn calls_that_are_dropped_leave_no_more_connections_than_lanes() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    client.batch_execute(STALL_READS).expect("stall");
    let mut first = store.history(now, None, None, 1);
    poll_once(&mut first);
    wait_for(&mut client, STALLED);
    drop(first);
    for _ in 0..60 {
        poll_once(&mut store.history(now, None, None, 1));
    }
    // By now, the thread of the connections has seen those calls.
    store.are_current(&[]).block_on().expect("current");
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'delaywheel'";
    let open: i64 = client.query_one(sql, &[]).expect("count").get(0);
    assert!(open <= 2, "{open} connections");
    client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
    store.history(now, None, None, 1).block_on().expect("history");
}

#[test]
fn a_call_that_is_dropped_before_its_turn_is_not_made() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let mut watcher = self::client(&server);
    let mut lock = client.transaction().expect("begin");
    lock.query("SELECT FROM delaywheel.workers FOR UPDATE", &[]).expect("lock");
    let mut leave = store.leave(worker);
    poll_once(&mut leave);
    wait_for(&mut watcher, WAITS);
    drop(leave);
    poll_once(&mut store.enter(now, LONG, Some("dropped")));
    lock.commit().expect("commit");
    store.enter(now, LONG, Some("kept")).block_on().expect("enter");
    let sql = "SELECT string_agg(name, ' ') FROM delaywheel.workers";
    let left: String = watcher.query_one(sql, &[]).expect("workers").get(0);
    assert_eq!(left, "kept");
}

/// The timer drives its reads itself, so nothing but the drop tells of the end of the receipt.
#[test]
fn a_read_whose_receipt_is_dropped_before_its_turn_is_not_made() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let timer = DurableTimer::builder(store.clone()).build_with(|_| ()).expect("start");
    client.batch_execute(STALL_READS).expect("stall");
    let count = "CREATE SEQUENCE made;
        ALTER VIEW delaywheel.history RENAME TO slow;
        CREATE VIEW delaywheel.history AS
            SELECT * FROM delaywheel.slow WHERE (SELECT nextval('made')) > 0;";
    client.batch_execute(count).expect("count");
    let mut first = store.history(now, None, None, 1);
    poll_once(&mut first);
    let dropped = timer.history(None, None, 1);
    // By now, the thread of the connections has seen that call, and then the drop.
    store.are_current(&[]).block_on().expect("current");
    drop(dropped);
    store.are_current(&[]).block_on().expect("current");
    client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
    first.block_on().expect("history");
    timer.history(None, None, 1).wait().expect("history");
    let made: i64 = client.query_one("SELECT last_value FROM made", &[]).expect("made").get(0);
    assert_eq!(made, 2);
}

/// No task of the first queue runs, so the timer asks the store whether that queue is paused.
#[test]
fn a_slow_read_delays_no_delivery_of_another_queue() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let ((spawn, tasks), (sender, seen)) = (mpsc::channel(), mpsc::channel());
    let other = Queue::blocking("q", move |delivery| Ok(sender.send(delivery.id().to_string())?));
    let timer = DurableTimer::builder(store.clone())
        .queue(other)
        .build_async(
            move |task| drop(spawn.send(task)),
            |delivery| std::future::ready((delivery, Ok::<_, String>(()))),
        )
        .expect("start");
    timer.schedule("waits", Duration::ZERO, b"").wait().expect("schedule");
    let _task = tasks.recv_timeout(LONG).expect("a task");
    client.batch_execute(STALL_READS).expect("stall");
    let mut read = store.history(now, None, None, 1);
    poll_once(&mut read);
    wait_for(&mut client, STALLED);
    timer.pause("").wait().expect("pause");
    let new = NewTimeout::new("other", timer.now(), b"").and_then(|new| new.queue("q"));
    timer.schedule_new(new.expect("valid")).wait().expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("other"));
    wait_for(&mut client, STALLED);
    client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
    read.block_on().expect("the read has waited meanwhile");
}

/// The timer does not look by itself, and its own process has sent the notification.
#[test]
fn a_timer_hears_of_a_leave_whose_future_nobody_polls() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let worker = store.enter(now, 600 * SECOND, None).block_on().expect("enter");
    put(&store, "a", now.saturating_sub(SECOND));
    assert_eq!(claim(&store, worker, now).len(), 1);
    let (timer, seen) = telling(DurableTimer::builder(store.clone()).recheck(None));
    deliver(&timer, &seen, "before");
    let mut leave = store.leave(worker);
    poll_once(&mut leave);
    let sql = "SELECT FROM delaywheel.workers WHERE id = $1";
    until(|| client.query(sql, &[&worker.0.cast_signed()]).expect("query").is_empty());
    drop(leave);
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("a"));
}

/// The same if the call panics: the server has committed, and the store cannot read the answer.
#[test]
fn a_timer_hears_of_a_change_whose_call_panics() {
    let Some((_server, store, mut client, _)) = stored() else { return };
    let (timer, seen) = telling(DurableTimer::builder(store).recheck(None));
    client.batch_execute("SELECT delaywheel.schedule('before', now(), '')").expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("before"));
    let other_type = "DROP TRIGGER told_replaced ON delaywheel.timeouts;
        ALTER TABLE delaywheel.timeouts ALTER previous TYPE integer";
    client.batch_execute(other_type).expect("another type");
    timer.schedule("a", Duration::ZERO, b"").wait().expect_err("it panics");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("a"));
}
