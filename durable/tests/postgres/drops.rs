//! Calls whose futures are dropped, or polled only once, as those in the buffer of a stream are.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use delaywheel_durable::StoreResult;

use super::*;

/// The store panics when it reads the answer to a schedule.
const OTHER_TYPE: &str = "DROP TRIGGER told_replaced ON delaywheel.timeouts;
    ALTER TABLE delaywheel.timeouts ALTER previous TYPE integer";

fn poll_once<R>(call: &mut Pin<Box<dyn Future<Output = StoreResult<R>> + Send + '_>>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// They wait for a read that stalls. The timer drives its reads itself, so nothing but the drop
/// tells of the end of a receipt.
#[test]
fn calls_that_are_dropped_before_their_turn_are_not_made() {
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
    wait_for(&mut client, STALLED);
    for _ in 0..60 {
        poll_once(&mut store.history(now, None, None, 1));
    }
    let dropped = timer.history(None, None, 1);
    // By now, the thread of the connections has seen those calls, and then the drop.
    store.are_current(&[]).block_on().expect("current");
    drop(dropped);
    store.are_current(&[]).block_on().expect("current");
    client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
    timer.history(None, None, 1).wait().expect("no task polls the earlier read");
    first.block_on().expect("history");
    assert_eq!(integer(&mut client, "SELECT last_value FROM made"), 2);
}

/// The server writes it after the caller has dropped the call. The timer does not look by itself.
#[test]
fn a_timeout_whose_call_was_dropped_is_delivered() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let (_timer, seen) = telling(DurableTimer::builder(store.clone()).recheck(None));
    let stall = "CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0
            AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
        CREATE TRIGGER stall BEFORE INSERT ON delaywheel.timeouts
            FOR EACH ROW EXECUTE FUNCTION stall();
        SELECT pg_advisory_lock(1)";
    client.batch_execute(stall).expect("stall");
    let commands = [Command::Schedule(NewTimeout::new("a", now, b"").expect("valid"))];
    let mut call = store.write(now, &commands);
    poll_once(&mut call);
    wait_for(&mut client, STALLED);
    drop(call);
    client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("a"));
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

/// The server has committed, and the store cannot read the answer. The timer does not look by
/// itself.
#[test]
fn a_timer_hears_of_a_change_whose_call_panics() {
    let Some((_server, store, mut client, _)) = stored() else { return };
    let (timer, seen) = telling(DurableTimer::builder(store).recheck(None));
    client.batch_execute("SELECT delaywheel.schedule('before', now(), '')").expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("before"));
    client.batch_execute(OTHER_TYPE).expect("another type");
    timer.schedule("a", Duration::ZERO, b"").wait().expect_err("it panics");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("a"));
}

/// A panic within the transaction of two statements of one id, of which the server has made one.
#[test]
fn a_call_that_panics_leaves_no_transaction_to_a_later_one() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    client.batch_execute(OTHER_TYPE).expect("another type");
    let new = NewTimeout::new("id", now.saturating_add(SECOND), b"").expect("valid");
    let schedules = [new.clone(), new].map(Command::Schedule);
    store.write(now, &schedules).block_on().expect_err("it panics");
    let cancels = ["none"; 2].map(|id| Command::Cancel(id.parse().expect("valid")));
    store.write(now, &cancels).block_on().expect("a transaction of two statements");
    let left = client.query("SELECT id FROM delaywheel.timeouts", &[]).expect("query");
    assert!(left.is_empty(), "{left:?}");
}
