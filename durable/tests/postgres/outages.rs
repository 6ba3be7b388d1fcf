//! Machines, rows and answers that are lost, calls that are slow, and clocks that differ or step.

use std::num::NonZeroUsize;

use super::*;

/// The machine fails in the middle of a transaction, which has locked a record and a key.
#[test]
fn a_machine_that_loses_its_power_keeps_no_timeout_and_no_key() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let dead = open(proxy.parameters(), "delaywheel");
    let schedule = |id| {
        let new = NewTimeout::new(id, now, b"").and_then(|new| new.key("k")).expect("valid");
        store.write(now, &[Command::Schedule(new)]).block_on().expect("write");
    };
    schedule("a");
    let first = dead.enter(now, SECOND, None).block_on().expect("enter");
    let held = claim(&dead, first, now);
    proxy.arm("COMMIT", Cut::Power);
    let one = NonZeroUsize::new(1);
    thread::spawn(move || drop(dead.begin(now, &held, one).block_on()));
    let locks = "SELECT count(*) FROM pg_stat_activity
        WHERE state = 'idle in transaction' AND query LIKE '%WITH held%'";
    wait_for(&mut client, locks);
    schedule("b");
    let later = now.saturating_add(LONG);
    let second = store.enter(later, LONG, None).block_on().expect("enter");
    let held = claim(&store, second, now);
    until(|| store.begin(now, &held, one).block_on().expect("begin") == [Begun::Begun]);
    assert!(store.renew(second, later, LONG).block_on().expect("renew"));
    assert_eq!(state(&store, &"a".parse().expect("valid")), State::Pending);
}

/// A balancer forgets its sessions, and its machine acknowledges what is sent to them.
#[test]
fn one_call_without_an_answer_ends_all_connections_that_may_be_silent() {
    let Some((server, other, mut client, now)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let store = open(proxy.parameters(), "delaywheel");
    store.answer_within(SECOND);
    client.batch_execute(STALL_READS).expect("stall");
    let history = || store.history(now, None, None, 1).block_on();
    let queues = || store.queues().block_on();
    let new = NewTimeout::new("a", now, b"").expect("valid");
    let write = || store.write(now, &[Command::Schedule(new.clone())]).block_on();
    // Two calls at once have two connections.
    during(&mut client, history, |_| drop(queues().expect("queues"))).expect("history");
    proxy.forget();
    let begin = Instant::now();
    assert_eq!(reason(queues()), StoreErrorReason::Unavailable);
    assert!(begin.elapsed() >= SECOND);
    history().expect("a new connection");
    write().expect("the statement is known");
    proxy.forget();
    assert_eq!(reason(write()), StoreErrorReason::OutcomeUnknown);
    write().expect("a new connection");

    let (timer, seen) = telling(DurableTimer::builder(store.clone()).recheck(None));
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("a"));
    until(|| timer.count().wait().expect("count").live == 0);
    proxy.forget();
    // This call may succeed: a claim may have the connection that is silent.
    let _ = timer.schedule("far", 3_000 * SECOND, b"").wait();
    until(|| timer.stats().store_errors > 0);
    deliver(&timer, &seen, "b");
    put(&other, "c", other.now());
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("c"), "it listens again");
}

/// It accepts connections, and answers nothing.
#[test]
fn a_silent_server_does_not_hide_the_next_one_of_the_parameters() {
    let Some((server, ..)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let first = proxy.parameters().replacen("host=127.0.0.1", "host=127.0.0.1,127.0.0.1", 1);
    let both = first.replacen(" user", &format!(",{} user", server.port), 1);
    let store = open(&both, "delaywheel");
    store.answer_within(SECOND);
    // In this order, until one is silent.
    proxy.arm("s", Cut::Power);
    store.count().block_on().expect_err("it is silent");
    until(|| store.count().block_on().is_ok());
}

/// The store closes a connection that gets no answer. The server then ends the statement and the
/// session.
#[test]
fn a_statement_that_takes_too_long_keeps_no_lock_and_no_session() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    store.answer_within(SECOND);
    client.batch_execute(STALL_READS).expect("stall");
    let failed = reason(store.history(now, None, None, 1).block_on());
    assert_eq!(failed, StoreErrorReason::Unavailable);
    until(|| integer(&mut client, STALLED) == 0);
}

/// A process of the server hangs in a claim, which has locked its worker.
#[test]
fn a_claim_of_unknown_outcome_that_does_not_end_stops_no_other_delivery() {
    let Some((server, other, mut client, _)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let (timer, seen) = listening(proxy.parameters());
    deliver(&timer, &seen, "before");
    until(|| timer.count().wait().expect("count").live == 0);
    let mut hangs = client.transaction().expect("begin");
    hangs.query("SELECT FROM delaywheel.workers FOR KEY SHARE", &[]).expect("lock");
    proxy.arm("claim", Cut::Row);
    put(&other, "claim", other.now());
    until(|| proxy.has_cut());
    put(&other, "b", other.now());
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("b"));
    hangs.commit().expect("commit");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("claim"));
}

/// `conformance::check` tests this for records that no other transaction has locked.
#[test]
fn a_worker_gives_back_what_it_does_not_know_and_locked_rows_later() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let ids = ["a", "b"].map(|id| put(&store, id, now));
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    assert_eq!(claim(&store, worker, now).len(), 2);
    let mut lock = client.transaction().expect("begin");
    let row = "SELECT FROM delaywheel.timeouts WHERE id = 'b' FOR UPDATE";
    lock.query(row, &[]).expect("lock");
    let found = store.locked(&ids.each_ref()).block_on().expect("locked");
    assert_eq!(found, ids[1..]);
    let states = || ids.each_ref().map(|id| state(&store, id));
    assert_eq!(store.keep_only(worker, &[]).block_on().expect("keep"), 1);
    assert_eq!(states(), [State::Pending, State::Claimed]);
    lock.commit().expect("commit");
    assert_eq!(store.keep_only(worker, &[]).block_on().expect("keep"), 1);
    assert_eq!(states(), [State::Pending; 2]);
}

/// A claim takes long, and another transaction keeps the table from changes, as CREATE INDEX does.
#[test]
fn a_lease_is_renewed_during_a_slow_claim_and_while_the_timeouts_are_locked() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let later = now.saturating_add(LONG);
    let a = put(&store, "a", now);
    let lapsed = store.enter(now, SECOND, None).block_on().expect("enter");
    claim(&store, lapsed, now);
    let worker = store.enter(later, LONG, None).block_on().expect("enter");
    client.batch_execute(STALL).expect("stall");
    let claim_all = || claim(&store, worker, now);
    during(&mut client, claim_all, |client| {
        assert!(store.renew(worker, later, LONG).block_on().expect("renew"));
        wait_for(client, STALLED);
    });
    put(&store, "b", now);
    let lapsed = store.enter(now, SECOND, None).block_on().expect("enter");
    assert_eq!(claim(&store, lapsed, now).len(), 2, "the lease of the first one had lapsed");
    let mut index = client.transaction().expect("begin");
    index.batch_execute("LOCK TABLE delaywheel.timeouts IN SHARE MODE").expect("lock");
    assert!(store.renew(worker, later, LONG).block_on().expect("renew"));
    assert_eq!(state(&store, &a), State::Claimed);
    index.commit().expect("commit");
    assert!(store.renew(worker, later, LONG).block_on().expect("renew"));
    assert_eq!(state(&store, &a), State::Pending);
}

#[test]
fn a_process_that_only_schedules_hears_of_a_step_of_the_clock() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    clock(&mut client, "");
    let timer = DurableTimer::builder(connect(&server)).build().expect("start");
    let ahead = timer.now().saturating_add(3_000 * SECOND);
    clock(&mut client, "RETURN pg_catalog.clock_timestamp() + interval '1 hour';");
    until(|| timer.now() >= ahead);
}

/// One worker delivers, and the other one has just entered.
#[test]
fn a_step_forward_of_the_clock_ends_no_lease_before_a_worker_can_renew_it() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    clock(&mut client, "");
    let (busy, store, lease) = (connect(&server), connect(&server), 3 * SECOND);
    let now = busy.now();
    let id = put(&busy, "a", now);
    let worker = busy.enter(now, lease, None).block_on().expect("enter");
    assert_eq!(claim(&busy, worker, now).len(), 1);
    let ahead = now.saturating_add(3_000 * SECOND);
    clock(&mut client, "RETURN pg_catalog.clock_timestamp() + interval '1 hour';");
    let begin = Instant::now();
    let other = store.enter(now, lease, None).block_on().expect("enter");
    claim(&store, other, now);
    assert!(store.now() >= ahead, "a claim tells of the step");
    let renew = |store: &PostgresStore, worker| {
        assert!(store.renew(worker, store.now(), lease).block_on().expect("renew"));
        assert!(store.now() >= ahead, "it hears of the step");
    };
    while begin.elapsed() < lease / 2 {
        renew(&store, other);
        assert_eq!(state(&store, &id), State::Claimed);
    }
    // The first time, it learns the time.
    renew(&busy, worker);
    while begin.elapsed() < lease + lease / 4 {
        renew(&busy, worker);
        renew(&store, other);
        assert_eq!(state(&store, &id), State::Claimed);
    }
    // Now it is dead.
    until(|| {
        renew(&store, other);
        state(&store, &id) == State::Pending
    });
}
