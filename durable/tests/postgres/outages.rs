//! Machines, rows and answers that are lost, calls that are slow, and clocks that differ or step.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{
    Begun, Claim, ClaimRequest, Command, Name, NewTimeout, PostgresStore, Record, State, Store,
    TimeoutId, WallTime, WorkerId,
};

use crate::{
    LONG, SECOND, client, connect,
    proxy::{Cut, Proxy},
    server::{Server, open},
};

fn schedule(store: &PostgresStore, id: &str, now: WallTime) -> TimeoutId {
    let new = NewTimeout::new(id, now, b"").expect("valid").key("k").expect("valid");
    let id = new.id.clone();
    store.write(now, &[Command::Schedule(new)]).expect("write");
    id
}

fn claim(store: &PostgresStore, worker: WorkerId, now: WallTime) -> Vec<Claim> {
    let request = ClaimRequest::new(now, now.saturating_add(SECOND));
    let batch = store.claim(worker, &request).expect("claim").expect("lease");
    batch.records.iter().map(Record::claim).collect()
}

fn state(store: &PostgresStore, id: &TimeoutId) -> State {
    store.get(id).expect("get").expect("kept").state
}

/// Waits until a query of the server counts one at least.
fn wait_for(client: &mut postgres::Client, count: &str) {
    let deadline = Instant::now() + LONG;
    while client.query_one(count, &[]).expect("count").get::<_, i64>(0) == 0 {
        assert!(Instant::now() < deadline, "{count}");
        thread::yield_now();
    }
}

/// The machine fails in the middle of a transaction, which has locked a record and a key.
#[test]
fn a_machine_that_loses_its_power_keeps_no_timeout_and_no_key() {
    let Some(server) = Server::start() else { return };
    let store = connect(&server);
    let proxy = Proxy::start(&server.parameters());
    let dead = open(proxy.parameters(), "delaywheel");
    let now = store.clock().expect("clock").now();
    let a = schedule(&store, "a", now);
    let first = dead.enter(now, SECOND, None).expect("enter");
    let held = claim(&dead, first, now);
    proxy.arm("COMMIT", Cut::Power);
    let one = NonZeroUsize::new(1);
    thread::spawn(move || drop(dead.begin(now, &held, one)));
    let locks = "SELECT count(*) FROM pg_stat_activity
        WHERE state = 'idle in transaction' AND query LIKE '%WITH held%'";
    wait_for(&mut client(&server), locks);
    schedule(&store, "b", now);
    let later = now.saturating_add(LONG);
    let second = store.enter(later, LONG, None).expect("enter");
    let held = claim(&store, second, now);
    let deadline = Instant::now() + LONG;
    while store.begin(now, &held, one).expect("begin") != [Begun::Begun] {
        assert!(Instant::now() < deadline, "the key is locked");
    }
    assert!(store.renew(second, later, LONG).expect("renew"));
    assert_eq!(state(&store, &a), State::Pending);
}

/// Their networks have different delays.
#[test]
fn workers_whose_clocks_differ_by_milliseconds_keep_to_the_rate() {
    let Some(server) = Server::start() else { return };
    let store = connect(&server);
    let now = store.clock().expect("clock").now();
    let behind = now.saturating_sub(Duration::from_millis(20));
    let rate = NonZeroU32::new(1_000).expect("positive");
    let permits = |now| store.permits(&Name::default(), now, rate, 10_000).expect("permits").0;
    let given: usize = (0..20).map(|_| permits(now) + permits(behind)).sum();
    assert_eq!(given, 100, "those that are kept");
    let back = now.saturating_sub(LONG);
    permits(back);
    assert_eq!(permits(back.saturating_add(SECOND / 100)), 10, "after a step of the clock");
}
