//! What users, other programs and a server that is slow may do, and what must go on meanwhile.

use std::{
    error::Error,
    num::{NonZeroU32, NonZeroUsize},
};

use delaywheel_durable::AttemptEnd;

use super::{operate::column, *};

/// A user's transaction holds three rows, one of a delivery that ends meanwhile. The timer must
/// cancel, deliver and settle others.
#[tokio::test]
async fn a_locked_row_delays_its_own_commands_only() {
    let Some(server) = Server::start() else { return };
    let store = connect(&server);
    let (timer, deliveries) = held(store.clone());
    for id in ["x", "late"] {
        timer.schedule(id, 600 * SECOND, b"").wait().expect("schedule");
    }
    let deliver_50 = |name: &str| {
        let begin = Instant::now();
        for number in 0..50 {
            let id = format!("{name}/{number}");
            timer.schedule(id, Duration::ZERO, b"").wait().expect("schedule");
            deliveries.recv_timeout(LONG).expect("delivery").acknowledge();
        }
        begin.elapsed()
    };
    let alone = deliver_50("alone");
    timer.schedule("ends", Duration::ZERO, b"").wait().expect("schedule");
    let delivery = deliveries.recv_timeout(LONG).expect("delivery");
    let mut client = async_client(&server).await;
    let transaction = client.transaction().await.expect("begin");
    let id = |id| TimeoutId::new(id).expect("valid");
    store.cancel_in(&transaction, &id("x")).await.expect("cancel");
    store.cancel_in(&transaction, &id("late")).await.expect("cancel");
    assert!(store.acknowledge_in(&transaction, delivery.record()).await.expect("acknowledge"));
    delivery.retry("over the limit of its handler");
    let (first, second) = (timer.cancel("x"), timer.schedule("x", SECOND, b""));
    let refused = timer.cancel("late");
    let beside = deliver_50("beside");
    println!("{alone:?} alone, {beside:?} beside the lock");
    assert!(beside < 3 * alone + 5 * SECOND, "{alone:?} alone, {beside:?} beside the lock");
    let delete = "DELETE FROM delaywheel.timeouts WHERE id = 'x'";
    transaction.execute(delete, &[]).await.expect("nothing");
    assert_eq!(reason(refused.wait()), StoreErrorReason::Locked);
    drop((first, second));
    let last = (timer.cancel("x"), timer.schedule("x", Duration::ZERO, b""));
    transaction.commit().await.expect("commit");
    assert!(last.0.wait().expect("answer") != Cancelled::Cancelled || last.1.wait().is_ok());
    assert_eq!(deliveries.recv_timeout(LONG).expect("in order").id().as_str(), "x");
}

/// A transaction of the user has locked a row of each kind.
#[test]
fn locked_rows_keep_no_others_from_a_claim_a_begin_or_the_end_of_a_lease() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let enter = |name| store.enter(now, SECOND, Some(name)).block_on().expect("enter");
    let (worker, locked, lapsed) = (enter("worker"), enter("locked"), enter("lapsed"));
    assert!(store.renew(worker, now, LONG).block_on().expect("renew"));
    let claims = [("a", worker), ("b", worker), ("c", locked), ("d", lapsed), ("e", lapsed)];
    let claims = claims.map(|(id, worker)| {
        put(&store, id, now);
        claim(&store, worker, now).remove(0)
    });
    for id in ["f", "g"] {
        put(&store, id, now);
    }
    let lock = format!(
        "BEGIN; SELECT FROM delaywheel.timeouts WHERE id IN ('a', 'd', 'f') FOR UPDATE;
        SELECT FROM delaywheel.workers WHERE id = {} FOR UPDATE",
        locked.0
    );
    client.batch_execute(&lock).expect("lock");
    let begun = store.begin(now, &claims[..2], None).block_on().expect("begin");
    assert_eq!(begun, [Begun::Locked, Begun::Begun]);
    let later = now.saturating_add(2 * SECOND);
    let renew = |worker| store.renew(worker, later, LONG).block_on().expect("renew");
    assert!(renew(worker) && !renew(lapsed));
    let request = ClaimRequest::new(now, later);
    assert_eq!(store.claim(lapsed, &request).block_on().expect("claim"), None);
    let claimed = claim(&store, worker, now);
    assert!(claimed.iter().map(|claim| claim.id.as_str()).eq(["e", "g"]), "{claimed:?}");
    // The name is free.
    enter("lapsed");
    client.batch_execute("COMMIT").expect("commit");
    assert!(renew(worker));
    assert_eq!([&claims[2], &claims[3]].map(|claim| state(&store, &claim.id)), [State::Pending; 2]);
}

/// A user's transaction is the first to use a queue, and does not add it in the end.
#[test]
fn a_queue_that_an_open_transaction_adds_is_used_and_paused_by_others() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let timer = DurableTimer::builder(store.clone()).build().expect("start");
    let mut open = client.transaction().expect("begin");
    let first = "SELECT delaywheel.schedule('open', now(), '', NULL, 'q')";
    open.execute(first, &[]).expect("schedule");
    let schedule = |id: &str| {
        let new = NewTimeout::new(id, now, b"").and_then(|new| new.queue("q")).expect("valid");
        timer.schedule_new(new).wait().expect("schedule");
    };
    schedule("other");
    timer.pause("q").wait().expect("pause");
    let is_paused = || {
        let queues = store.queues().block_on().expect("queues");
        queues.iter().find(|queue| queue.name.as_str() == "q").map(|queue| queue.is_paused)
    };
    assert_eq!(is_paused(), Some(true));
    open.rollback().expect("rollback");
    schedule("later");
    assert_eq!(is_paused(), Some(true));
    timer.resume("q").wait().expect("resume");
    assert_eq!(is_paused(), Some(false));
}

/// A table of the user has a rule that the crate does not know, and pages of it cannot be read.
#[test]
fn a_refused_command_fails_alone_and_a_refused_text_is_left_out() {
    let Some((server, store, mut client, _)) = stored() else { return };
    let (timer, deliveries) = held(store);
    let rules = "
        ALTER TABLE delaywheel.timeouts ADD CHECK (id <> 'bad'), ADD CHECK (error <> 'bad');
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE EXCEPTION USING ERRCODE = NEW.id; END';
        CREATE TRIGGER fail BEFORE INSERT ON delaywheel.timeouts FOR EACH ROW
            WHEN (length(NEW.id) = 5) EXECUTE FUNCTION fail();";
    client.batch_execute(rules).expect("rules");
    let schedule = |id| timer.schedule(id, Duration::ZERO, b"");
    let ids = ["a", "bad", "XX001", "b", "58030", "c"];
    for (id, receipt) in ids.into_iter().zip(ids.map(schedule)) {
        let answer = receipt.wait();
        match id {
            "bad" => assert_eq!(reason(answer), StoreErrorReason::Refused),
            "XX001" | "58030" => assert_eq!(reason(answer), StoreErrorReason::Corrupt),
            _ => drop(answer.expect(id)),
        }
    }
    assert_eq!(reason(schedule("XX000").wait()), StoreErrorReason::Other);
    for _ in 0..3 {
        deliveries.recv_timeout(LONG).expect("delivery").dead("bad");
    }
    assert!(timer.finish(LONG).wait().expect("finish"));
    let record = timer.get("a").wait().expect("get").expect("kept");
    assert_eq!(record.state, State::Dead);
    assert_eq!(record.error.as_deref(), Some("the store refused the text of the error"));
    client
        .batch_execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        .expect("database");
    let latin = server.parameters().replace("dbname=postgres", "dbname=latin");
    let connected = PostgresStore::connect_blocking(&latin, "delaywheel", NoTls);
    assert_eq!(reason(connected), StoreErrorReason::Other);
}

/// Workers that know no zones pass it over. If a transaction acknowledges it, an operator sees it.
#[tokio::test]
async fn a_timeout_of_an_unknown_zone_is_left_to_others_or_dead() {
    let Some(server) = Server::start() else { return };
    let store = connect(&server);
    let now = store.now();
    store.keep_history(LONG);
    let repeat = Repeat::from_text("once cron Nowhere/Town 0 9 * * *").expect("text");
    let new = NewTimeout::new("a", now, b"").expect("valid").repeat(repeat);
    store.write(now, &[Command::Schedule(new.clone())]).await.expect("write");
    let worker = store.enter(now, LONG, None).await.expect("enter");
    let request = ClaimRequest { cron: false, ..ClaimRequest::new(now, WallTime::MAX) };
    let left = store.claim(worker, &request).await.expect("claim").expect("lease");
    assert_eq!((left.records.len(), left.next), (0, None));
    let claims = claim(&store, worker, now);
    assert_eq!(store.begin(now, &claims, None).await.expect("begin"), [Begun::Begun]);
    let record = store.get(&new.id).await.expect("get").expect("kept");
    let client = async_client(&server).await;
    assert!(store.acknowledge_in(&client, &record).await.expect("acknowledge"));
    let record = store.get(&new.id).await.expect("get").expect("kept");
    assert_eq!((record.state, record.attempt), (State::Dead, 1));
    assert!(record.error.is_some());
    let history = store.history(now, None, None, 9).await.expect("history");
    assert_eq!(history[0].end, AttemptEnd::Dead);
}

/// A role that may only read and write uses tables that another one has made.
#[test]
fn a_role_without_ddl_suffices_for_tables_that_exist_and_a_compatible_version_is_used() {
    let Some(server) = Server::start() else { return };
    let error = PostgresStore::connect_blocking(&server.parameters(), "delaywheel", NoTls)
        .expect_err("no tables");
    assert_eq!(error.reason(), StoreErrorReason::NotMigrated);
    assert!(error.source().is_some_and(|text| text.to_string().contains("call `migrate`")));
    let mut client = client(&server);
    for migration in PostgresStore::migrations("delaywheel").expect("a name") {
        client.batch_execute(&migration).expect("migrate");
    }
    let rights = "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA delaywheel TO app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA delaywheel TO app;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA delaywheel TO app;
        REVOKE CREATE ON DATABASE postgres FROM PUBLIC; CREATE SCHEMA own AUTHORIZATION app";
    client.batch_execute(rights).expect("rights");
    let app = server.parameters().replace("user=postgres", "user=app");
    // These run with the rights of the owner, so a trigger of others would empty the tables.
    for function in ["count_changes", "trim_history"] {
        let trigger = format!(
            "CREATE TEMP TABLE others (); CREATE TRIGGER others AFTER TRUNCATE ON others
            EXECUTE FUNCTION delaywheel.{function}()"
        );
        let mut other = postgres::Client::connect(&app, postgres::NoTls).expect("connect");
        let refused = other.batch_execute(&trigger).expect_err(function);
        let denied = postgres::error::SqlState::INSUFFICIENT_PRIVILEGE;
        assert_eq!(refused.code(), Some(&denied), "{function}");
    }
    let store = PostgresStore::connect_blocking(&app, "delaywheel", NoTls).expect("connect");
    let timer = DurableTimer::builder(store).build_blocking(|_| Ok(())).expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    assert!(timer.finish(LONG).wait().expect("finish"));
    assert_eq!(timer.stats().acknowledged, 1);
    PostgresStore::migrate_blocking(&app, "delaywheel", NoTls).expect("nothing is missing");
    PostgresStore::migrate_blocking(&app, "other", NoTls).expect_err("it may not make tables");
    PostgresStore::migrate_blocking(&app, "own", NoTls).expect("it may make tables there");
    // A newer version that still works with this one, so a deploy can be rolled back.
    client.batch_execute("INSERT INTO delaywheel.version VALUES (1001, 1)").expect("version");
    PostgresStore::connect_blocking(&app, "delaywheel", NoTls).expect("compatible");
    client.batch_execute("INSERT INTO delaywheel.version VALUES (1002, 1001)").expect("version");
    let connected = PostgresStore::connect_blocking(&app, "delaywheel", NoTls);
    assert_eq!(reason(connected), StoreErrorReason::NewerVersion);
}

/// Functions whose arguments fit better than those of the server, in a schema of the search path.
/// Before version 15, any role may create some in `public`.
#[test]
fn functions_of_other_roles_are_not_called() {
    let Some((server, store, mut client, _)) = stored() else { return };
    let others = "GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE ROLE other; SET ROLE other;
        CREATE FUNCTION public.called() RETURNS bigint LANGUAGE plpgsql
            AS $$ BEGIN RAISE 'as %', current_user; END $$;
        CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE sql
            AS 'SELECT public.called()';
        CREATE FUNCTION public.to_timestamp(integer) RETURNS timestamptz LANGUAGE sql
            AS 'SELECT now() FROM public.called()';
        CREATE FUNCTION public.concat(bigint, text, text) RETURNS text LANGUAGE sql
            AS 'SELECT public.called()::text'; RESET ROLE";
    client.batch_execute(others).expect("functions");
    let timer = DurableTimer::builder(store).build_blocking(|_| Ok(())).expect("start");
    timer.schedule("a", Duration::ZERO, b"").wait().expect("schedule");
    assert!(timer.finish(LONG).wait().expect("finish"));
    assert_eq!(timer.stats().acknowledged, 1);
    let schedule = "SELECT delaywheel.schedule('b', now(), ''), delaywheel.reschedule('b', now())";
    client.batch_execute(schedule).expect("in a transaction of the user");
    // The default of the tokens keeps what it found when the tables were made.
    PostgresStore::migrate_blocking(&server.parameters(), "later", NoTls).expect("migrate");
    let copy =
        "INSERT INTO later.timeouts (id, due, next_at, payload) VALUES ('c', now(), now(), '')";
    client.batch_execute(copy).expect("as COPY does");
}

/// Functions and operators of which the server has a polymorphic or variadic one, or one that
/// converts an argument. Those for the exact types fit better.
#[test]
fn neither_polymorphic_functions_nor_operators_of_other_roles_are_called() {
    let mut called = Vec::new();
    for other in [
        "FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql
            AS 'SELECT public.called()::text'",
        "FUNCTION public.unnest(smallint[]) RETURNS SETOF smallint LANGUAGE sql
            AS 'SELECT public.called()::smallint'",
        "FUNCTION public.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql
            AS 'SELECT public.called()'",
        "FUNCTION public.pg_relation_size(text) RETURNS bigint LANGUAGE sql
            AS 'SELECT public.called()'",
        "FUNCTION public.format(text, bigint) RETURNS text LANGUAGE sql
            AS 'SELECT public.called()::text'",
        "FUNCTION public.joined(bigint, text) RETURNS text LANGUAGE sql
            AS 'SELECT public.called()::text';
            CREATE OPERATOR public.|| (FUNCTION = public.joined, LEFTARG = bigint, RIGHTARG = text)",
        "FUNCTION public.times(float8, bigint) RETURNS float8 LANGUAGE sql
            AS 'SELECT public.called()::float8';
            CREATE OPERATOR public.* (FUNCTION = public.times, LEFTARG = float8, RIGHTARG = bigint)",
    ] {
        let Some((server, store, mut client, now)) = stored() else { return };
        let others = format!(
            "INSERT INTO delaywheel.history (id, queue, due, attempt, ended, ended_as, until)
                VALUES ('old', '', now(), 1, now(), 0, to_timestamp(1000000));
            GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE ROLE other; SET ROLE other;
            CREATE FUNCTION public.called() RETURNS bigint LANGUAGE plpgsql
                AS $$ BEGIN RAISE 'called as %', current_user; END $$;
            CREATE {other}; RESET ROLE"
        );
        client.batch_execute(&others).expect("functions");
        let schedule = "SELECT delaywheel.schedule('b', now(), ''), delaywheel.cancel('b')";
        let _ = client.batch_execute(schedule);
        let worker = store.enter(now, LONG, None).block_on().expect("enter");
        assert!(store.renew(worker, now, LONG).block_on().expect("renew"));
        let queue = Queue::blocking("q", |_| Ok(())).key_limit(NonZeroUsize::MIN);
        let timer = DurableTimer::builder(store).queue(queue).build().expect("start");
        let new = NewTimeout::new("a", timer.now(), b"").and_then(|new| new.key("k"));
        let new = new.and_then(|new| new.queue("q"));
        let _ = timer.schedule_new(new.expect("valid")).wait();
        timer.finish(5 * SECOND).wait().expect("finish");
        // The renewal removes old attempts.
        let count = "SELECT count(*)::text FROM delaywheel.history";
        let is_called = || server.log().contains("called as postgres");
        until(|| is_called() || column(&mut client, count) == ["0"]);
        called.extend(is_called().then_some(other));
    }
    assert_eq!(called, [""; 0]);
}

/// Tools for migrations run the text in a transaction, and note its version in a table of their
/// own after that.
#[test]
fn the_text_of_a_migration_leaves_the_search_path_of_its_session() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    client.batch_execute("CREATE TABLE applied (name text)").expect("table of the tool");
    let mut transaction = client.transaction().expect("begin");
    for migration in PostgresStore::migrations("delaywheel").expect("a name") {
        transaction.batch_execute(&migration).expect("migrate");
    }
    transaction.execute("INSERT INTO applied VALUES ('delaywheel')", &[]).expect("its own table");
    transaction.commit().expect("commit");
}

/// After a failover, the address leads to another server. Or the server refuses the plan of a
/// prepared statement whose result has other types by now, or ends the session.
#[test]
fn a_store_keeps_no_connection_that_was_open_before_a_failover_or_a_change_of_a_table() {
    let Some(server) = Server::start() else { return };
    drop(connect(&server));
    let mut client = client(&server);
    let standby = "ALTER DATABASE postgres SET default_transaction_read_only = on;";
    client.batch_execute(&format!("{standby} {STALL_READS}")).expect("a standby");
    let store = connect(&server);
    let now = store.now();
    // Two calls at once have two connections. The later end is used first.
    let history = || store.history(now, None, None, 1).block_on();
    let queues = || store.queues().block_on();
    during(&mut client, history, |_| drop(queues().expect("queues"))).expect("history");
    let new = NewTimeout::new("a", now, b"").expect("valid");
    let write = || store.write(new.due, &[Command::Schedule(new.clone())]).block_on();
    assert_eq!(reason(write()), StoreErrorReason::ReadOnly);
    let primary = "ALTER DATABASE postgres RESET default_transaction_read_only";
    client.batch_execute(primary).expect("the primary");
    write().expect("a new connection");

    client.batch_execute("SELECT pg_advisory_lock(1)").expect("lock");
    during(&mut client, history, |_| drop(queues().expect("queues"))).expect("history");
    let before = queues().expect("queues");
    let change = "ALTER TABLE delaywheel.queues RENAME TO old;
        ALTER TABLE delaywheel.pauses RENAME TO paused;
        CREATE VIEW delaywheel.queues AS SELECT name::varchar FROM delaywheel.old;
        CREATE VIEW delaywheel.pauses AS SELECT name::varchar, is_paused FROM delaywheel.paused";
    client.batch_execute(change).expect("change");
    queues().expect_err("another type");
    assert_eq!(queues().expect("a new session"), before);

    // The server ends the session, and says so a moment before it closes the connection.
    let end = "ALTER TABLE delaywheel.timeouts
        ADD CHECK (pg_terminate_backend(pg_backend_pid())) NOT VALID";
    client.batch_execute(end).expect("rule");
    for _ in 0..9 {
        assert_eq!(reason(write()), StoreErrorReason::OutcomeUnknown);
        queues().expect("a new connection");
    }
}

/// After a failover, the first address leads to a server that is a standby by now.
#[test]
fn a_store_with_several_addresses_finds_the_primary_behind_a_standby() {
    let (Some(old), Some(new)) = (Server::start(), Server::start()) else { return };
    drop((connect(&old), connect(&new)));
    let standby = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    client(&old).batch_execute(standby).expect("a standby");
    let both = new.parameters().replacen("host=", "host=127.0.0.1,", 1);
    let store = open(&both.replacen("port=", &format!("port={},", old.port), 1), "delaywheel");
    let new = NewTimeout::new("a", store.now(), b"").expect("valid");
    let write = || store.write(new.due, &[Command::Schedule(new.clone())]).block_on();
    assert_eq!(reason(write()), StoreErrorReason::ReadOnly);
    write().expect("the primary");
}

/// Change data capture publishes all tables. Rarely, a change of a timeout removes rows of counts.
#[test]
fn a_publication_of_all_tables_refuses_no_change() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    store.keep_history(LONG);
    client.batch_execute("CREATE PUBLICATION changes FOR ALL TABLES").expect("publication");
    let id = put(&store, "a", now);
    store.write(now, &[Command::Cancel(id)]).block_on().expect("cancel");
    let refused = "SELECT count(*) FROM pg_class WHERE relnamespace = 'delaywheel'::regnamespace
        AND relkind = 'r' AND relname <> 'version' AND relreplident <> 'f' AND NOT EXISTS (
            SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)";
    assert_eq!(integer(&mut client, refused), 0, "of version, no row changes");
    client.batch_execute("DELETE FROM delaywheel.counts").expect("delete");
    // With a sequence that is behind, no row of its table fits: the README names each of them.
    let sql = "SELECT sequencename::text FROM pg_sequences WHERE schemaname = 'delaywheel'";
    let rows = client.query(sql, &[]).expect("sequences");
    assert_eq!(rows.len(), 2);
    for name in rows.iter().map(|row| row.get::<_, String>(0)) {
        assert!(include_str!("../../README.md").contains(&format!("`{name}`")), "{name}");
    }
}

/// Each version of a row stays as long as an old transaction may read it.
#[test]
fn permits_change_no_row_that_claims_read_and_none_if_there_are_none() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let (queue, rate) = (Name::new("q").expect("valid"), NonZeroU32::new(10).expect("positive"));
    let new = NewTimeout::new("a", now, b"").expect("valid").queue("q").expect("valid");
    store.write(now, &[Command::Schedule(new)]).block_on().expect("write");
    let mut rows = |table: &str| {
        let sql = format!("SELECT string_agg(ctid::text, '') FROM delaywheel.{table}");
        client.query_one(&sql, &[]).expect("rows").get::<_, String>(0)
    };
    let before = rows("queues");
    while store.permits(&queue, now, rate, 9).block_on().expect("permits").0 > 0 {}
    assert_eq!(rows("queues"), before);
    let before = rows("permits");
    assert_eq!(store.permits(&queue, now, rate, 9).block_on().expect("permits").0, 0);
    assert_eq!(rows("permits"), before);
    // Another worker is about to take those of the next hour, which this one has seen.
    let later = now.saturating_add(3_600 * SECOND);
    let (mut other, micros) = (self::client(&server), later.as_micros().cast_signed());
    let mut other = other.transaction().expect("begin");
    other.execute("UPDATE delaywheel.permits SET allowed = $1", &[&micros]).expect("take");
    let permits = || loop {
        match store.permits(&queue, later, rate, 9).block_on() {
            Ok((count, _)) => break count,
            Err(error) => assert_eq!(error.reason(), StoreErrorReason::Locked),
        }
    };
    thread::scope(|scope| {
        let left = scope.spawn(permits);
        wait_for(&mut client, WAITS);
        other.commit().expect("commit");
        assert_eq!(left.join().expect("no panic"), 0);
    });
    // An operator deleted the row, or a failover lost it.
    client.batch_execute("DELETE FROM delaywheel.permits").expect("row");
    assert_eq!(store.permits(&queue, later, rate, 1).block_on().expect("permits").0, 1);
}

/// The server cannot remove rows that an old transaction may read.
#[test]
fn counts_and_the_history_read_few_rows_while_an_old_transaction_is_open() {
    let Some((server, _store, mut client, _)) = stored() else { return };
    let mut old = self::client(&server);
    let mut old = old.transaction().expect("begin");
    old.batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1").expect("old");
    let attempt = |until| {
        format!(
            "INSERT INTO delaywheel.history (id, queue, due, attempt, ended, ended_as, until)
            SELECT 'a', '', now(), 1, now(), 0, {until} FROM generate_series(1, "
        )
    };
    let (expired, kept) = (attempt("now() - interval '1 hour'"), attempt("'infinity'"));
    let many = format!(
        "INSERT INTO delaywheel.counts SELECT 1, 0 FROM generate_series(1, 500000);
        DELETE FROM delaywheel.counts; SET session_replication_role = replica; {expired} 100000);
        DELETE FROM delaywheel.history; RESET session_replication_role"
    );
    client.batch_execute(&many).expect("dead rows");
    let mut own = client.transaction().expect("begin");
    let changes = format!(
        "SELECT setseed(0); {kept} 2000); DO $$ BEGIN FOR number IN 1..2000 LOOP
        PERFORM delaywheel.schedule(number::text, now() + interval '1 year', '');
        END LOOP; END $$"
    );
    // The figures of earlier transactions may not have been reported yet.
    let blocks = |own: &mut postgres::Transaction<'_>| {
        ["counts", "history", "history_until"].map(|name| -> i64 {
            let sql = "SELECT pg_stat_get_xact_blocks_fetched($1::text::regclass)";
            own.query_one(sql, &[&format!("delaywheel.{name}")]).expect("blocks").get(0)
        })
    };
    let before = blocks(&mut own);
    own.batch_execute(&changes).expect("changes");
    for (before, after) in before.into_iter().zip(blocks(&mut own)) {
        let blocks = after - before;
        assert!(blocks < 10_000, "{blocks} blocks for 2,000 changes");
    }
}

/// A driver of another language knows no rules. Its timeout must not end for good by mistake.
#[tokio::test]
async fn an_acknowledgement_of_a_recurring_timeout_gives_its_next_time_or_is_the_last() {
    let Some(server) = Server::start() else { return };
    let (store, client) = (connect(&server), async_client(&server).await);
    let now = store.now();
    for (id, due) in [("a", now), ("z", WallTime::MAX.saturating_sub(SECOND))] {
        let new = NewTimeout::new(id, due, b"").expect("valid");
        let new = new.repeat(Repeat::every(3_600 * SECOND).expect("valid"));
        store.write(now, &[Command::Schedule(new)]).await.expect("write");
    }
    let worker = store.enter(now, LONG, None).await.expect("enter");
    let request = ClaimRequest::new(now, WallTime::MAX);
    let records = store.claim(worker, &request).await.expect("claim").expect("lease").records;
    let token = records[0].token.cast_signed();
    let acknowledge = async |token: i64, rest: &str| {
        let sql = format!("SELECT delaywheel.acknowledge('a', $1{rest})");
        let answer = client.query_one(&sql, &[&token]).await;
        answer.map(|row| row.get::<_, bool>(0)).map_err(|error| format!("{error:?}"))
    };
    for rest in ["", ", keep_until => now() + interval '1 day'"] {
        let error = acknowledge(token, rest).await.expect_err("no next time");
        assert!(error.contains("timeout a recurs"), "{error}");
    }
    assert_eq!(acknowledge(token - 1, "").await, Ok(false));
    assert_eq!(acknowledge(token, ", is_last => true").await, Ok(true));
    // The rule of the other one has no later time.
    assert!(store.acknowledge_in(&client, &records[1]).await.expect("acknowledge"));
    assert_eq!(store.count().await.expect("count").live, 0);
}

/// Triggers remove attempts and add up counts, and not in such a transaction.
#[test]
fn transactions_of_a_stricter_isolation_leave_few_rows() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let ends = "BEGIN ISOLATION LEVEL SERIALIZABLE;
        SELECT delaywheel.schedule(number::text, now(), '') FROM generate_series(1, 99) number;
        UPDATE delaywheel.timeouts SET state = 1;
        SELECT delaywheel.acknowledge(id, token, NULL, now()) FROM delaywheel.timeouts LIMIT 98;
        COMMIT";
    client.batch_execute(ends).expect("transaction");
    assert!(store.renew(worker, now.saturating_add(SECOND), LONG).block_on().expect("renew"));
    let mut rows =
        |table| integer(&mut client, &format!("SELECT count(*) FROM delaywheel.{table}"));
    until(|| ["counts", "history"].map(&mut rows) == [1, 0]);
    assert_eq!(store.count().block_on().expect("count").live, 1);
}

/// A user's transaction has locked an old attempt, as one that removes others does until it is
/// rolled back. Meanwhile a worker passes it over.
#[test]
fn an_old_attempt_that_a_worker_has_passed_over_is_removed_later() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let attempts = "
        INSERT INTO delaywheel.history (id, queue, due, attempt, ended, ended_as, until)
        SELECT 'a', '', now(), 1, now(), 0, now() - ago * interval '1 minute'
        FROM generate_series(1, 2) ago";
    client.batch_execute(attempts).expect("attempts");
    let mut other = self::client(&server);
    let mut other = other.transaction().expect("begin");
    other.batch_execute("DELETE FROM delaywheel.history WHERE number = 2").expect("lock");
    let mut renew = |left: i64| {
        until(|| {
            assert!(store.renew(worker, store.now(), LONG).block_on().expect("renew"));
            integer(&mut client, "SELECT count(*) FROM delaywheel.history") == left
        });
    };
    renew(1);
    other.rollback().expect("rollback");
    renew(0);
}

/// A user empties the table in one statement, alone or with that of the counts, while a worker may
/// add up counts.
#[test]
fn the_counts_of_a_table_that_was_truncated_are_zero() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    for truncate in
        ["TRUNCATE delaywheel.timeouts", "TRUNCATE delaywheel.timeouts, delaywheel.counts"]
    {
        put(&store, "a", now);
        client.batch_execute(truncate).expect("truncate");
        assert_eq!(store.count().block_on().expect("count").live, 0);
        put(&store, "a", now);
        assert_eq!(store.count().block_on().expect("count").live, 1);
    }
}

/// A user removes the rows of workers, as of one that has died. No lease of theirs will end.
#[test]
fn the_timeouts_of_a_worker_that_sql_removes_become_pending() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    let (id, other) = (put(&store, "a", now), put(&store, "b", now));
    let enter = || store.enter(now, LONG, None).block_on().expect("enter");
    for remove in ["DELETE FROM delaywheel.workers WHERE id = ", "TRUNCATE delaywheel.workers --"] {
        let worker = enter();
        let claims = claim(&store, worker, now);
        assert_eq!(claims.len(), 2);
        store.begin(now, &claims[..1], None).block_on().expect("begin");
        client.batch_execute(&format!("{remove}{}", worker.0)).expect("remove");
        assert_eq!([&id, &other].map(|id| state(&store, id)), [State::Pending; 2]);
        assert!(!store.renew(worker, now, LONG).block_on().expect("renew"));
        let are_current = store.are_current(&claims).block_on().expect("ask");
        assert_eq!(are_current, [false; 2]);
    }
}

/// The server ends the statement after the claim, or this waits too long for a lock.
#[test]
fn a_claim_whose_later_statement_fails_has_an_unknown_outcome() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    clock(&mut client, "");
    let store = connect(&server);
    let now = store.now();
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    for code in ["57014", "55P03", "40P01"] {
        let id = put(&store, code, now);
        clock(&mut client, &format!("RAISE EXCEPTION USING ERRCODE = '{code}';"));
        let request = ClaimRequest::new(now, now.saturating_add(SECOND));
        let failed = reason(store.claim(worker, &request).block_on());
        assert_eq!(failed, StoreErrorReason::OutcomeUnknown, "{code}");
        clock(&mut client, "");
        assert_eq!(state(&store, &id), State::Claimed, "{code}");
    }
    // After a deadlock or a conflict, the statement is tried again.
    client.batch_execute("CREATE SEQUENCE tries").expect("sequence");
    let fail = "CASE nextval('public.tries') WHEN 1 THEN RAISE deadlock_detected;
        WHEN 2 THEN RAISE serialization_failure; ELSE END CASE;";
    clock(&mut client, fail);
    claim(&store, worker, now);
}

/// The commit of another program waits for a standby, and no other commit with a notification can
/// pass it.
#[test]
fn a_commit_waits_longer_for_a_notification_of_others_than_for_a_row() {
    let Some((server, store, mut client, now)) = stored() else { return };
    let (mut other, beside) = (self::client(&server), connect(&server));
    put(&store, "first", now);
    let worker = store.enter(now, LONG, None).block_on().expect("enter");
    let claims = claim(&store, worker, now);
    assert_eq!(store.begin(now, &claims, None).block_on().expect("begin"), [Begun::Begun]);
    let mut wait_for_standby = |name| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        client.batch_execute(&set).expect("set");
        client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    };
    let (store, mut watcher) = (&store, self::client(&server));
    other.batch_execute("CREATE TABLE others (number integer)").expect("table");
    wait_for_standby("none");
    // Until the server ends.
    thread::spawn(move || {
        while other.batch_execute("INSERT INTO others VALUES (1); NOTIFY others").is_ok() {}
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_for(&mut watcher, waits);
    thread::scope(|scope| {
        let write = |count| {
            let new = |number| NewTimeout::new(format!("{count}/{number}"), now, b"");
            let command = |number| Command::Schedule(new(number).expect("valid"));
            let commands: Vec<_> = (0..count).map(command).collect();
            scope.spawn(move || store.write(now, &commands).block_on().map(drop))
        };
        // It is not due within an hour, and a trigger tells that a delivery has become void.
        let later = NewTimeout::new("first", now.saturating_add(100 * LONG), b"").expect("valid");
        let replace = move || beside.write(now, &[Command::Schedule(later)]).block_on().map(drop);
        let writes = [scope.spawn(replace), write(1), write(2), write(200)];
        until(|| {
            let wait = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                AND query_start < clock_timestamp() - interval '300 ms'";
            integer(&mut watcher, wait) == 4
                || writes.iter().any(thread::ScopedJoinHandle::is_finished)
        });
        wait_for_standby("");
        for write in writes {
            write.join().expect("no panic").expect("write");
        }
    });
}
