//! The PostgreSQL store on a private server: conformance, transactions of the user, and what
//! happens when connections, the server or a worker fail.

#![cfg(all(unix, feature = "postgres", feature = "sqlite"))]

mod drops;
mod faults;
mod idle;
mod operate;
mod outages;
mod plans;
mod pooled;
mod proxy;
mod races;
mod server;
mod sharded;
mod tls;

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc, Barrier,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{
    Answer, Begun, Cancelled, Claim, ClaimRequest, Command, Conflict, Delivery, DurableError,
    DurableTimer, DurableTimerBuilder, Name, NewTimeout, NoTls, PostgresStore, Priority, Query,
    Queue, Record, Repeat, Scheduled, Settlement, State, Store, StoreErrorReason, TimeoutId,
    WallTime, WorkerId, conformance,
};
use pollster::FutureExt as _;

use self::{
    proxy::{Cut, Proxy},
    server::{Server, open},
};

const SECOND: Duration = Duration::from_secs(1);

/// Long enough for a machine that is busy.
const LONG: Duration = Duration::from_secs(90);

fn builder(parameters: &str) -> DurableTimerBuilder {
    DurableTimer::builder(open(parameters, "delaywheel")).lease(3 * SECOND)
}

/// Starts a timer that acknowledges everything and tells the ids.
fn telling(builder: DurableTimerBuilder) -> (DurableTimer, Receiver<String>) {
    let (sender, seen) = mpsc::channel();
    let tell = move |delivery: &Delivery| Ok(sender.send(delivery.id().to_string())?);
    (builder.build_blocking(tell).expect("start"), seen)
}

fn start(server: &Server) -> (DurableTimer, Receiver<String>) {
    telling(builder(&server.parameters()))
}

/// Starts a timer that never looks at its store just because some time has passed.
fn listening(parameters: &str) -> (DurableTimer, Receiver<String>) {
    telling(builder(parameters).recheck(None))
}

/// Schedules a timeout that is due, and waits for its delivery.
fn deliver(timer: &DurableTimer, seen: &Receiver<String>, id: &str) {
    timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok(id));
}

/// Returns why the store failed.
#[track_caller]
fn reason<R: Debug>(result: Result<R, impl Into<DurableError>>) -> StoreErrorReason {
    match result.map_err(Into::into) {
        Err(DurableError::Store(error)) => error.reason(),
        other => panic!("{other:?}"),
    }
}

fn connect(server: &Server) -> PostgresStore {
    open(&server.parameters(), "delaywheel")
}

fn client(server: &Server) -> postgres::Client {
    postgres::Client::connect(&server.parameters(), postgres::NoTls).expect("connect")
}

/// Connects a client that the runtime drives.
async fn async_client(server: &Server) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(&server.parameters(), tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("connect");
    tokio::spawn(connection);
    client
}

/// Starts a timer that hands its deliveries over.
fn held(store: PostgresStore) -> (DurableTimer, Receiver<Delivery>) {
    let (sender, deliveries) = mpsc::channel();
    // It hears of timeouts of other processes only by notifications.
    let builder = DurableTimer::builder(store).recheck(None).lease(10 * LONG);
    let timer = builder.build_with(move |delivery| drop(sender.send(delivery)));
    (timer.expect("start"), deliveries)
}

/// Makes what reads whether a queue is paused wait for a lock, which this connection holds.
const STALL: &str = "
    CREATE FUNCTION stall() RETURNS boolean LANGUAGE sql VOLATILE SET lock_timeout = 0
        AS 'SELECT pg_advisory_xact_lock_shared(1) IS NULL';
    ALTER TABLE delaywheel.pauses RENAME TO slow;
    CREATE VIEW delaywheel.pauses AS SELECT name, stall() AS is_paused FROM delaywheel.queues;
    SELECT pg_advisory_lock(1);";

/// The same for reads of the history.
const STALL_READS: &str = "
    CREATE FUNCTION stall() RETURNS boolean LANGUAGE sql VOLATILE SET lock_timeout = 0
        AS 'SELECT pg_advisory_xact_lock_shared(1) IS NULL';
    ALTER TABLE delaywheel.history RENAME TO kept;
    CREATE VIEW delaywheel.history AS SELECT * FROM delaywheel.kept WHERE NOT (SELECT stall());
    SELECT pg_advisory_lock(1);";

/// Lets a function with this body begin each reading of the clock of the server.
fn clock(client: &mut postgres::Client, body: &str) {
    let sql = format!(
        "CREATE SCHEMA IF NOT EXISTS ahead;
        ALTER DATABASE postgres SET search_path = ahead, pg_catalog;
        CREATE OR REPLACE FUNCTION ahead.clock_timestamp() RETURNS timestamptz
            LANGUAGE plpgsql AS $$ BEGIN {body} RETURN pg_catalog.clock_timestamp(); END $$"
    );
    client.batch_execute(&sql).expect("clock");
}

/// Counts the calls that wait for that lock.
const STALLED: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'";

/// Counts the calls that wait for a lock.
const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Waits for a condition.
#[track_caller]
fn until(mut is_met: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_met() {
        assert!(Instant::now() < deadline, "it takes too long");
        thread::yield_now();
    }
}

/// Starts a server, and connects a store and a client to it. Also returns the time there.
fn stored() -> Option<(Server, PostgresStore, postgres::Client, WallTime)> {
    let server = Server::start()?;
    let (store, client) = (connect(&server), client(&server));
    let now = store.now();
    Some((server, store, client, now))
}

/// Schedules a timeout in a store.
fn put(store: &PostgresStore, id: &str, due: WallTime) -> TimeoutId {
    let new = NewTimeout::new(id, due, b"").expect("valid");
    let id = new.id.clone();
    store.write(due, &[Command::Schedule(new)]).block_on().expect("write");
    id
}

/// Claims all records that are due within a second.
fn claim(store: &PostgresStore, worker: WorkerId, now: WallTime) -> Vec<Claim> {
    let request = ClaimRequest::new(now, now.saturating_add(SECOND));
    let batch = store.claim(worker, &request).block_on().expect("claim").expect("lease");
    batch.records.iter().map(Record::claim).collect()
}

fn state(store: &PostgresStore, id: &TimeoutId) -> State {
    store.get(id).block_on().expect("get").expect("kept").state
}

/// Waits until a query does not count zero.
fn wait_for(client: &mut postgres::Client, count: &str) {
    until(|| integer(client, count) > 0);
}

fn integer(client: &mut postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).expect(sql).get(0)
}

/// Makes a call that stalls until something else was done. `client` holds the lock.
fn during<R: Send>(
    client: &mut postgres::Client,
    call: impl FnOnce() -> R + Send,
    meanwhile: impl FnOnce(&mut postgres::Client),
) -> R {
    thread::scope(|scope| {
        let call = scope.spawn(call);
        wait_for(client, STALLED);
        meanwhile(client);
        client.batch_execute("SELECT pg_advisory_unlock(1)").expect("go on");
        call.join().expect("no panic")
    })
}

#[test]
fn postgres_conforms() {
    let Some(server) = Server::start() else { return };
    let number = std::cell::Cell::new(0);
    let open_next = || {
        number.set(number.get() + 1);
        open(&server.parameters(), &format!("s{}", number.get()))
    };
    conformance::check(open_next, 1_000);
}

#[test]
fn postgres_refuses_odd_names_and_a_server_that_is_gone() {
    let Some(server) = Server::start() else { return };
    let parameters = server.parameters();
    let refused = |name| reason(PostgresStore::connect_blocking(&parameters, name, NoTls));
    let may_have = |length| PostgresStore::migrations(&"a".repeat(length)).is_ok();
    assert!(may_have(48) && !may_have(49));
    for name in ["", "Caps", "a-b", "1a", "a\"b", "pg_a"] {
        assert_eq!(refused(name), StoreErrorReason::Other);
    }
    drop(server);
    assert_eq!(refused("delaywheel"), StoreErrorReason::Unavailable);
}

#[test]
fn the_name_of_a_schema_may_be_a_word_of_sql() {
    let Some(server) = Server::start() else { return };
    let store = || open(&server.parameters(), "user");
    let (timer, seen) = telling(DurableTimer::builder(store()).recheck(None));
    deliver(&timer, &seen, "a");
    put(&store(), "b", timer.now());
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("b"));
}

#[tokio::test]
async fn a_transaction_of_the_user_decides() {
    let Some(server) = Server::start() else { return };
    let store = connect(&server);
    let (timer, deliveries) = held(store.clone());
    let mut client = async_client(&server).await;
    client.batch_execute("CREATE TABLE paid (id text PRIMARY KEY)").await.expect("table");
    let new = |id: &str| NewTimeout::new(id, timer.now(), b"x").expect("valid");

    let transaction = client.transaction().await.expect("begin");
    store.schedule_in(&transaction, &new("undone")).await.expect("schedule");
    transaction.rollback().await.expect("rollback");
    let transaction = client.transaction().await.expect("begin");
    let answer = store.schedule_in(&transaction, &new("a")).await.expect("schedule");
    assert_eq!(answer, Scheduled::Created);
    transaction.commit().await.expect("commit");
    let delivery = deliveries.recv_timeout(LONG).expect("delivery");
    assert_eq!(delivery.id().as_str(), "a");
    assert_eq!(timer.get("undone").wait().expect("get"), None);

    // The handler's row, the acknowledgement and the history, or none.
    store.keep_history(LONG);
    for commits in [false, true] {
        let transaction = client.transaction().await.expect("begin");
        transaction
            .execute("INSERT INTO paid VALUES ($1)", &[&delivery.id().as_str()])
            .await
            .expect("row");
        assert!(store.acknowledge_in(&transaction, delivery.record()).await.expect("acknowledge"));
        if commits {
            transaction.commit().await.expect("commit");
        }
    }
    delivery.acknowledged_in_transaction();
    drop(delivery);
    assert_eq!(store.history(timer.now(), None, None, 9).block_on().expect("history").len(), 1);
    assert_eq!(timer.count().wait().expect("count").live, 0);
    let paid: i64 = client.query_one("SELECT count(*) FROM paid", &[]).await.expect("count").get(0);
    assert_eq!(paid, 1);

    // Any driver can call the functions.
    let sql = "SELECT delaywheel.schedule('sql', now(), 'x'), delaywheel.cancel('none')";
    let row = client.query_one(sql, &[]).await.expect("functions");
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("created", "not_found"));
    let delivery = deliveries.recv_timeout(LONG).expect("delivery");
    assert_eq!(delivery.id().as_str(), "sql");
    // Neither an earlier token nor that of a timeout that waits is a claim.
    let later = "SELECT delaywheel.schedule('later', now() + interval '1 day', 'x')";
    client.batch_execute(later).await.expect("schedule");
    for rest in ["", ", now()", ", NULL, NULL, 'fault'", ", NULL, now() + interval '1 day'"] {
        let acknowledge = format!("delaywheel.acknowledge(id, token - state{rest})");
        let sql = format!("SELECT {acknowledge} FROM delaywheel.timeouts");
        let rows = client.query(&sql, &[]).await.expect("acknowledge");
        assert!(rows.len() == 2 && rows.iter().all(|row| !row.get::<_, bool>(0)), "{sql}");
    }
    assert_eq!(store.history(timer.now(), None, None, 9).block_on().expect("history").len(), 1);
    delivery.acknowledge();
    assert!(timer.finish(LONG).wait().expect("finish"));
}

/// Of a timeout that has failed once, and then waits, is being delivered, dead or gone.
#[tokio::test]
async fn a_transaction_of_the_user_does_what_a_command_does() {
    let Some(server) = Server::start() else { return };
    let (store, client) = (connect(&server), async_client(&server).await);
    let (now, hour) = (store.now(), 3_600 * SECOND);
    let later = now.saturating_add(hour);
    let worker = store.enter(now, LONG, None).await.expect("enter");
    store.keep_history(hour);
    let write = |command| store.write(now, &[command]).block_on().expect("write")[0];
    let attempt = |end: Option<Settlement>| {
        let claims = claim(&store, worker, now);
        store.begin(now, &claims, None).block_on().expect("begin");
        let settle = |claim| Some(Command::Settle(claim, end.clone()?));
        let ends = claims.into_iter().filter_map(settle);
        store.write(now, &ends.collect::<Vec<_>>()).block_on().expect("write");
    };
    let error = "failed".to_owned();
    let calls = ["schedule", "keep", "change", "same", "cancel", "reschedule", "acknowledge"];
    let states = ["waits", "delivering", "dead", "gone"];
    for (call, state) in calls.into_iter().flat_map(|call| states.map(|state| (call, state))) {
        let new = |id: &TimeoutId, due, period, key| {
            let repeat = Repeat::every(period).expect("valid");
            NewTimeout::new(id, due, key)
                .and_then(|new| new.key(key))
                .expect("valid")
                .repeat(repeat)
        };
        let ids = ["sql", "command"].map(|id| TimeoutId::new(id).expect("valid"));
        for id in &ids {
            write(Command::Schedule(new(id, now, hour, "old")));
        }
        attempt(Some(Settlement::Retry { at: now, error: error.clone() }));
        match state {
            "delivering" => attempt(None),
            "dead" => attempt(Some(Settlement::Dead { error: error.clone() })),
            _ => (),
        }
        let get = |id| store.get(id).block_on().expect("get");
        let [sql, command] = ids.each_ref().map(|id| get(id).expect("kept"));
        for id in ids.iter().filter(|_| state == "gone") {
            write(Command::Cancel(id.clone()));
        }
        let next = new(&command.id, later, 2 * hour, "new").priority(Priority::High);
        let next = next.queue("q").expect("valid");
        let (answer, same) = match call {
            "schedule" | "keep" | "change" | "same" => {
                let next = match call {
                    "keep" => next.conflict(Conflict::Keep),
                    "change" => next.conflict(Conflict::ReplaceChanged),
                    "same" => {
                        new(&command.id, later, hour, "old").conflict(Conflict::ReplaceChanged)
                    }
                    _ => next,
                };
                let new = NewTimeout { id: sql.id.clone(), ..next.clone() };
                let answer = store.schedule_in(&client, &new).await.expect(call);
                (format!("Scheduled({answer:?})"), Command::Schedule(next))
            }
            "cancel" => {
                let answer = store.cancel_in(&client, &sql.id).await.expect(call);
                (format!("Cancelled({answer:?})"), Command::Cancel(command.id.clone()))
            }
            "reschedule" => {
                let sql = "SELECT replace(delaywheel.reschedule('sql', $1), '_', '')";
                let row = client.query_one(sql, &[&later.to_system_time()]).await.expect(call);
                let answer = format!("Rescheduled({})", row.get::<_, &str>(0));
                (answer, Command::Reschedule(command.id.clone(), later))
            }
            _ => {
                let answer = store.acknowledge_in(&client, &sql).await.expect(call);
                let again = Command::Settle(command.claim(), Settlement::Again(later));
                (format!("Settled({answer})"), again)
            }
        };
        assert_eq!(answer.to_lowercase(), format!("{:?}", write(same)).to_lowercase(), "{state}");
        let after = [&sql, &command].map(|old| {
            let id = command.id.clone();
            let token = |found: &Record| u64::from(found.token != old.token);
            let found = get(&old.id).map(|found| Record { id, token: token(&found), ..found });
            let history = store.history(now, Some(&old.id), None, 99).block_on().expect("history");
            let ends = history.into_iter().map(|attempt| (attempt.attempt, attempt.end));
            (found, ends.collect::<Vec<_>>())
        });
        assert_eq!(after[0], after[1], "{call}, {state}");
        let cancelled = [sql, command].map(|old| write(Command::Cancel(old.id)));
        assert_eq!(cancelled[0], cancelled[1], "{call}, {state}");
    }
}

#[test]
fn a_worker_that_listens_again_looks_at_the_store_at_once() {
    let Some((server, other, mut client, now)) = stored() else { return };
    let (timer, seen) = listening(&server.parameters());
    deliver(&timer, &seen, "before");
    // The timer has no connection, and gets none, when this is scheduled.
    let own: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("own").get(0);
    let control = server.parameters().replace("dbname=postgres", "dbname=template1");
    let mut control = postgres::Client::connect(&control, postgres::NoTls).expect("connect");
    let connections = |control: &mut postgres::Client, are_allowed: bool| {
        let sql = format!("ALTER DATABASE postgres ALLOW_CONNECTIONS {are_allowed}");
        control.batch_execute(&sql).expect("connections");
    };
    connections(&mut control, false);
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid <> $1 AND datname = 'postgres' AND backend_type = 'client backend'";
    client.query(end, &[&own]).expect("terminate");
    client.batch_execute("SELECT delaywheel.schedule('away', now(), '')").expect("schedule");
    connections(&mut control, true);
    assert_eq!(seen.recv_timeout(LONG).expect("a look"), "away");
    put(&other, "after", now);
    assert_eq!(seen.recv_timeout(LONG).expect("a notification"), "after");
    assert!(timer.finish(LONG).wait().expect("finish"));
}

/// The store cannot tell whether the command, claim or begin took effect, as it gets no answer.
#[test]
fn a_worker_looks_for_timeouts_whose_state_it_does_not_know() {
    let Some((server, other, ..)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let (timer, seen) = listening(proxy.parameters());
    deliver(&timer, &seen, "before");
    // The acknowledgement would share the transaction of the next command.
    until(|| timer.count().wait().expect("count").live == 0);
    proxy.arm("command", Cut::Answer);
    let cut = timer.schedule("command", Duration::ZERO, b"").wait();
    assert_eq!(reason(cut), StoreErrorReason::OutcomeUnknown);
    assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "command");
    // Another store schedules, so that the claim is the first to have an answer with the id.
    proxy.arm("claim", Cut::Row);
    put(&other, "claim", other.now());
    assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "claim");
    assert!(proxy.has_cut());
    // If it is claimed ahead of time, the begin is the first request with the id. On a busy
    // machine, this may be the acknowledgement.
    for cut in [Cut::Request, Cut::Answer] {
        // An acknowledgement under way would keep the row locked.
        until(|| timer.count().wait().expect("count").live == 0);
        proxy.arm("begin", cut);
        put(&other, "begin", timer.now().saturating_add(SECOND));
        assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "begin");
        until(|| proxy.has_cut());
    }
    assert!(timer.finish(LONG).wait().expect("finish"));
}

/// The server still carries out a claim of a process that is gone, and the worker leaves. The
/// default of the database is a stricter isolation.
#[test]
fn a_worker_that_leaves_or_lapses_keeps_no_record_of_a_claim_under_way() {
    let Some((server, gone, mut client, now)) = stored() else { return };
    let isolation = r"options='-c default_transaction_isolation=repeatable\\ read'";
    let parameters = format!("{} {isolation}", server.parameters());
    let store = open(&parameters, "delaywheel");
    let other = store.enter(now, 600 * SECOND, None).block_on().expect("enter");
    for (lapses, stall) in [(false, STALL), (true, "SELECT pg_advisory_lock(1)")] {
        let id = put(&store, &lapses.to_string(), now);
        let worker = store.enter(now, SECOND, None).block_on().expect("enter");
        client.batch_execute(stall).expect("stall");
        let later = now.saturating_add(2 * SECOND);
        let renew = || assert!(store.renew(other, later, SECOND).block_on().expect("renew"));
        thread::scope(|scope| {
            let request = ClaimRequest::new(now, later);
            let claim = || gone.claim(worker, &request).block_on().map(drop).expect("claim");
            during(&mut client, claim, |client| {
                if lapses {
                    // This does not wait for the claim.
                    return renew();
                }
                // Nor may it go on, as if the claim had not been made.
                let kept = reason(store.keep_only(worker, &[]).block_on());
                assert_eq!(kept, StoreErrorReason::Locked);
                let end = scope.spawn(|| store.leave(worker).block_on().expect("leave"));
                let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                    AND wait_event <> 'advisory' AND query_start < now() - interval '200 ms'";
                until(|| end.is_finished() || integer(client, waits) > 0);
            });
        });
        if lapses {
            renew();
        }
        assert_eq!(state(&store, &id), State::Pending, "after a lapse: {lapses}");
    }
}

/// The statements of a commit differ: commands of one id are a transaction of two statements, and
/// many new timeouts are a COPY, with a notification or alone.
#[test]
fn a_commit_that_is_cut_has_an_unknown_outcome_and_all_or_no_changes() {
    const COUNT: usize = 300;
    let Some((server, direct, mut client, now)) = stored() else { return };
    let proxy = Proxy::start(&server.parameters());
    let store = open(proxy.parameters(), "delaywheel");
    let new = |id: &str, delay| {
        let new = NewTimeout::new(id, now.saturating_add(delay), b"").expect("valid");
        Command::Schedule(new)
    };
    let (near, far) = (60 * SECOND, 86_400 * SECOND);
    let batch = |delay| -> Vec<_> {
        (0..COUNT).map(|number| new(&format!("number-{number:03}"), delay)).collect()
    };
    let cancel = Command::Cancel(TimeoutId::new("number-000").expect("valid"));
    let mixed = vec![cancel, new("number-000", near)];
    let all = Query::Prefix { prefix: "number".to_owned(), after: None };
    let open = "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL
        AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    for (commands, text, is_commit) in [
        (&mixed, "BEGIN", false),
        (&mixed, "number-000", false),
        (&mixed, "COMMIT", true),
        (&batch(near), "number-299", false),
        (&batch(near), "COMMIT", true),
        (&batch(far), "number-000", true),
        (&batch(far), "number-299", true),
    ] {
        for cut in [Cut::Request, Cut::Answer] {
            proxy.arm(text, cut);
            let failed = reason(store.write(now, commands).block_on());
            assert!(proxy.has_cut());
            let expected = if is_commit {
                StoreErrorReason::OutcomeUnknown
            } else {
                StoreErrorReason::Unavailable
            };
            assert_eq!(failed, expected, "{text}, {cut:?}");
            let found = direct.list(&all, 2 * COUNT).block_on().expect("list");
            let is_done = is_commit && cut == Cut::Answer;
            let is_new = |command: &&Command| matches!(command, Command::Schedule(_));
            let expected = if is_done { commands.iter().filter(is_new).count() } else { 0 };
            assert_eq!(found.len(), expected, "{text}, {cut:?}");
            for record in found {
                direct.write(now, &[Command::Cancel(record.id)]).block_on().expect("cancel");
            }
            // The server may notice later that a connection is cut, and keeps its locks until then.
            until(|| integer(&mut client, open) == 0);
        }
    }
    // A COPY that finds a known id is undone, and a statement follows.
    put(&direct, "number-000", now);
    proxy.arm("number-150", Cut::Row);
    assert_eq!(reason(store.write(now, &batch(near)).block_on()), StoreErrorReason::OutcomeUnknown);
}

#[test]
fn large_batches_of_new_timeouts_and_of_known_ones_get_true_answers() {
    let Some((_server, store, _, now)) = stored() else { return };
    let write = |from: usize, conflict: Conflict, delay: Duration| {
        let new = |number: usize| {
            let due = now.saturating_add(delay);
            let new = NewTimeout::new(format!("{number:04}"), due, b"payload").expect("valid");
            Command::Schedule(NewTimeout { conflict, ..new })
        };
        let commands: Vec<_> = (from..from + 200).map(new).collect();
        store.write(now, &commands).block_on().expect("write")
    };
    let created = Answer::Scheduled(Scheduled::Created);
    // The first is due soon, so the store notifies other processes.
    assert_eq!(write(0, Conflict::Refuse, SECOND), [created; 200]);
    assert_eq!(write(200, Conflict::Replace, 10_000 * SECOND), [created; 200]);
    for (from, conflict, known) in [
        (399, Conflict::Replace, Scheduled::Replaced),
        (598, Conflict::Keep, Scheduled::Kept),
        (797, Conflict::Refuse, Scheduled::Kept),
    ] {
        let mut expected = [created; 200];
        expected[0] = Answer::Scheduled(known);
        assert_eq!(write(from, conflict, SECOND), expected);
    }
    let all = Query::Prefix { prefix: String::new(), after: None };
    let records = store.list(&all, 2_000).block_on().expect("list");
    let tokens: BTreeSet<_> = records.iter().map(|record| record.token).collect();
    assert_eq!((records.len(), tokens.len()), (997, 997), "each has a token of its own");
}

#[test]
fn rows_that_sql_writes_have_the_limits_of_the_crate() {
    let Some(server) = Server::start() else { return };
    let (timer, seen) = start(&server);
    let mut client = client(&server);
    for bad in [
        "'', now(), ''",
        "repeat('x', 256), now(), ''",
        "'a', '1969-12-31 23:59:59+00', ''",
        "'a', 'infinity', ''",
        "'a', now(), convert_to(repeat('x', 1048577), 'UTF8')",
        "'a', now(), '', 'daily'",
        "'a', now(), '', 'once every 253402300800000000'",
    ] {
        let sql = format!("SELECT delaywheel.schedule({bad})");
        let error = client.query_one(&sql, &[]).expect_err("refused");
        assert_eq!(error.code(), Some(&postgres::error::SqlState::CHECK_VIOLATION), "{bad}");
    }
    let good = "SELECT delaywheel.schedule('good', now(), '', 'once every 253402300799999999')";
    client.batch_execute(good).expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "good");
    assert!(timer.finish(LONG).wait().expect("finish"));
}

/// Each store has a session of its own, as another process has.
#[test]
fn stores_that_connect_at_once_migrate_a_schema_once() {
    let Some(server) = Server::start() else { return };
    let connect_all = |schema: &str| {
        let barrier = Barrier::new(6);
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    barrier.wait();
                    open(&server.parameters(), schema);
                });
            }
        });
        let sql = format!("SELECT version FROM {schema}.version ORDER BY version");
        let rows = client(&server).query(&sql, &[]).expect("versions");
        rows.iter().map(|row| row.get::<_, i32>(0).cast_unsigned() as usize).collect::<Vec<_>>()
    };
    for round in 0..4 {
        let schema = format!("round_{round}");
        let versions = connect_all(&schema);
        let newest = PostgresStore::migrations(&schema).expect("a name").len();
        assert_eq!(versions, (1..=newest).collect::<Vec<_>>());
    }
}

/// Otherwise the workers of all queues would claim for each timeout that a transaction schedules.
#[test]
fn notices_of_other_processes_tell_the_queue() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let (sender, notices) = mpsc::channel();
    let other = connect(&server);
    let notice = Arc::new(move |queue: Option<&Name>, due| {
        sender.send((queue.cloned(), due)).expect("a test");
    });
    let weak = Arc::downgrade(&notice);
    other.listen(weak);
    let heard = || notices.recv_timeout(LONG).expect("a notice");
    assert_eq!(heard(), (None, WallTime::MIN), "it listens from now on");
    let queue = |name| Name::new(name).expect("valid");
    for (sql, is_noticed) in [
        ("SELECT delaywheel.schedule('a', now() + interval '2 hours', '', NULL, 'q')", false),
        ("SELECT delaywheel.schedule('a', now(), '', NULL, 'q')", true),
        ("SELECT delaywheel.reschedule('a', now())", true),
        ("UPDATE delaywheel.timeouts SET state = 1", false),
        ("SELECT delaywheel.acknowledge(id, token, now()) FROM delaywheel.timeouts", true),
    ] {
        client.batch_execute(sql).expect(sql);
        if is_noticed {
            assert_eq!(heard().0, Some(queue("q")), "{sql}");
        }
    }
    // The handlers of these must stop: another process has them.
    for change in ["cancel('a')", "schedule('a', now() + interval '1 day', '')", "command"] {
        let sql = "SELECT delaywheel.schedule('a', now() + interval '1 day', '');
            UPDATE delaywheel.timeouts SET state = 1, begun = true";
        client.batch_execute(sql).expect(sql);
        if change == "command" {
            let cancel = Command::Cancel("a".parse().expect("valid"));
            store.write(now, &[cancel]).block_on().expect("cancel");
        } else {
            client.batch_execute(&format!("SELECT delaywheel.{change}")).expect(change);
        }
        assert_eq!(heard(), (None, WallTime::MIN), "{change}");
    }
    for is_paused in [true, false] {
        store.pause(&queue("q"), is_paused).block_on().expect("pause");
        assert_eq!(heard(), (Some(queue("q")), WallTime::MIN));
    }
    assert_eq!(store.queues().block_on().expect("queues")[1].name, queue("q"));
    let new = |name, due| {
        let new = NewTimeout::new(name, due, b"").expect("valid");
        Command::Schedule(NewTimeout { queue: queue(name), ..new })
    };
    store.write(now, &[new("b", WallTime::MIN), new("c", now)]).block_on().expect("write");
    assert_eq!(heard(), (Some(queue("b")), WallTime::MIN));
    assert_eq!(heard(), (Some(queue("c")), now));
    // Many are a COPY, and two of one id a transaction.
    let copied = (0..200).map(|number| {
        let new = NewTimeout::new(number.to_string(), now, b"").and_then(|new| new.queue("d"));
        Command::Schedule(new.expect("valid"))
    });
    let pair = vec![new("e", now), new("e", now)];
    for (queue, commands) in [("d", copied.collect()), ("e", pair)] {
        store.write(now, &commands).block_on().expect("write");
        assert_eq!(heard(), (Name::new(queue).ok(), now));
    }
}
