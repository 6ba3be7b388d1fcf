//! What operators use on PostgreSQL: the program, the views, and the list of workers.

#[cfg(feature = "cli")]
use std::process::{Command as Program, Output};

use super::*;

/// Dead `lost`, overdue `held`, `idle` and `late`, of which a worker delivers the first and has
/// claimed the second, and one in two days.
fn fill(store: &PostgresStore, now: WallTime) {
    let claims =
        || claim(store, store.enter(now, LONG, Some("node-1")).block_on().expect("enter"), now);
    let early = now.saturating_sub(7_200 * SECOND);
    put(store, "lost", early);
    let lost = claims();
    store.begin(now, &lost, None).block_on().expect("begin");
    let dead = delaywheel_durable::Settlement::Dead { error: "no route".to_owned() };
    store.write(now, &[Command::Settle(lost[0].clone(), dead)]).block_on().expect("settle");
    put(store, "held", early);
    put(store, "idle", early);
    store.begin(now, &claims()[..1], None).block_on().expect("begin");
    put(store, "late", early);
    put(store, "far", now.saturating_add(172_800 * SECOND));
}

pub(crate) fn column(client: &mut postgres::Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).expect(sql).iter().map(|row| row.get(0)).collect()
}

/// Into the tables that `migrate` has made. Their rows, a version and the default queue, would be
/// in the way.
#[test]
fn a_dump_of_the_data_is_restored_and_its_queues_are_seen() {
    let Some((server, store, mut client, now)) = stored() else { return };
    client.batch_execute("CREATE DATABASE copy").expect("database");
    let new = NewTimeout::new("a", now.saturating_add(LONG), b"").expect("valid");
    let new = new.queue("charges").expect("valid");
    store.write(now, &[Command::Schedule(new)]).block_on().expect("schedule");
    let mut dump = server.command("pg_dump");
    dump.args(["-n", "delaywheel", "--data-only", "--disable-triggers", "-d"]);
    let dump = dump.arg(server.parameters()).output().expect("pg_dump").stdout;
    let parameters = server.parameters().replace("dbname=postgres", "dbname=copy");
    let copy = open(&parameters, "delaywheel");
    let tables =
        ["version", "workers", "timeouts", "queues", "pauses", "permits", "history", "counts"];
    let tables = tables.map(|table| format!("delaywheel.{table}")).join(", ");
    let mut other = postgres::Client::connect(&parameters, postgres::NoTls).expect("connect");
    other.batch_execute(&format!("TRUNCATE {tables}")).expect("as the README says");
    let mut restore = server.command("psql");
    let (stdin, stdout) = (std::process::Stdio::piped(), std::process::Stdio::null());
    let restore = restore.args(["-X", "-d"]).arg(&parameters).stdin(stdin).stdout(stdout);
    let mut restore = restore.spawn().expect("psql");
    let mut input = restore.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, &dump).expect("restore");
    drop(input);
    assert!(restore.wait().expect("psql").success());
    assert_eq!(copy.count().block_on().expect("count").live, 1);
    let times = Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: None };
    assert_eq!(copy.list(&times, 9).block_on().expect("list").len(), 1, "the queue has no row");
}

#[test]
fn views_show_what_is_due_dead_claimed_and_by_the_hour() {
    let Some((_server, store, mut client, now)) = stored() else { return };
    fill(&store, now);
    let due = "SELECT concat_ws(' ', id, state, attempt, late > '2 hours', worker IS NULL)
        FROM delaywheel.due ORDER BY id";
    let rows = ["held delivering 1 t f", "idle claimed 0 t f", "late pending 0 t t"];
    assert_eq!(column(&mut client, due), rows);
    let dead = "SELECT concat_ws(' ', id, attempts, error, payload_bytes) FROM delaywheel.dead";
    assert_eq!(column(&mut client, dead), ["lost 1 no route 0"]);
    let hours = "SELECT concat_ws(' ', hour = date_trunc('hour', next_at), pending)
        FROM delaywheel.by_hour, delaywheel.timeouts WHERE id = CASE WHEN hour < now()
        THEN 'late' ELSE 'far' END ORDER BY hour";
    assert_eq!(column(&mut client, hours), ["t 1", "t 1"]);
    let leases = "SELECT concat_ws(' ', name, is_valid, held, delivering) FROM delaywheel.leases";
    assert_eq!(column(&mut client, leases), ["node-1 t 2 1"]);
    let queues = "SELECT concat_ws(' ', queue, is_paused, pending, due, late > '2 hours')
        FROM delaywheel.queue_states";
    assert_eq!(column(&mut client, queues), [" f 2 1 t"]);
    let seen = store.overview(now, 9, 9).block_on().expect("overview").remove(0);
    let counts = [seen.live, seen.due, seen.delivering, seen.dead];
    let early = now.saturating_sub(7_200 * SECOND);
    assert_eq!((counts, seen.oldest_waiting), ([4, 3, 1, 1], Some(early)));
    // The first rows need no scan of the table.
    client.batch_execute("SET enable_seqscan = off").expect("set");
    for (view, index) in [("due", "timeouts_pending"), ("dead", "timeouts_dead")] {
        let plan = column(&mut client, &format!("EXPLAIN SELECT * FROM delaywheel.{view} LIMIT 9"));
        assert!(plan.iter().any(|line| line.contains(index)), "{plan:#?}");
    }
}

/// Runs the program.
#[cfg(feature = "cli")]
fn run(server: &Server, arguments: &[&str]) -> Output {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let mut program = Program::new(env!("CARGO_BIN_EXE_delaywheel-durable"));
    program.args(arguments).env("DELAYWHEEL_STORE", url).output().expect("it starts")
}

#[cfg(feature = "cli")]
#[test]
fn the_program_waits_for_a_row_that_is_locked() {
    let Some((server, store, mut client, now)) = stored() else { return };
    fill(&store, now);
    store.pause(&Name::default(), true).block_on().expect("pause");
    for (locked, arguments, tried) in [
        ("timeouts WHERE id = 'far'", ["cancel", "far"], "%WITH new%"),
        ("timeouts WHERE id = 'lost'", ["requeue", "lost"], "%WITH new%"),
        ("pauses", ["resume", ""], "ROLLBACK"),
    ] {
        let mut lock = client.transaction().expect("begin");
        lock.query(&format!("SELECT FROM delaywheel.{locked} FOR UPDATE"), &[]).expect("lock");
        thread::scope(|scope| {
            let ended = scope.spawn(|| run(&server, &arguments));
            // It has tried, and found the lock.
            let mut watcher = self::client(&server);
            let tries = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name = 'delaywheel' AND query LIKE $2
                    AND state = 'idle' AND state_change > $1";
            let begin: std::time::SystemTime =
                watcher.query_one("SELECT now()", &[]).expect("now").get(0);
            until(|| {
                let found = watcher.query_one(tries, &[&begin, &tried]).expect("count");
                found.get::<_, i64>(0) > 0 || ended.is_finished()
            });
            lock.rollback().expect("rollback");
            let output = ended.join().expect("no panic");
            assert!(output.status.success(), "{output:?}");
        });
    }
}

/// A worker makes it dead again before the program reads the next page.
#[cfg(feature = "cli")]
#[test]
fn the_program_requeues_once_what_dies_at_once() {
    let Some((server, store, mut client, now)) = stored() else { return };
    fill(&store, now);
    let die = "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN NEW.state := 3; RETURN NEW; END';
        CREATE TRIGGER die BEFORE UPDATE ON delaywheel.timeouts FOR EACH ROW
            WHEN (OLD.state = 3 AND NEW.state = 0) EXECUTE FUNCTION die();";
    client.batch_execute(die).expect("trigger");
    for at in ["--at=-1h", "--at=0s"] {
        let output = run(&server, &["requeue", "--all", "--json", at]);
        assert_eq!(output.stdout, b"{\"dry_run\":false,\"requeued\":1}\n", "{output:?}");
    }
}

/// The last one of 101 cannot be requeued.
#[cfg(feature = "cli")]
#[test]
fn a_change_of_many_that_fails_says_how_many_it_has_changed() {
    let Some((server, _store, mut client, _)) = stored() else { return };
    let refuse = "
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''refused''; END';
        CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON delaywheel.timeouts FOR EACH ROW
            WHEN (OLD.id = '100') EXECUTE FUNCTION refuse();";
    client.batch_execute(refuse).expect("trigger");
    for (what, arguments) in
        [("requeued", &["requeue", "--all"][..]), ("cancelled", &["cancel", "--dead", "--all"])]
    {
        let dead = "TRUNCATE delaywheel.timeouts;
            INSERT INTO delaywheel.timeouts (id, due, next_at, payload, state)
            SELECT to_char(number, 'FM000'), now(), now(), '', 3 FROM generate_series(0, 100) number";
        client.batch_execute(dead).expect("dead");
        let output = run(&server, arguments);
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(3), "{error}");
        let partly = format!("delaywheel-durable: 100 timeouts were {what}, then: ");
        assert!(error.starts_with(&partly), "{error}");
    }
}

/// A worker requeues them, between the read of the program and its change.
#[cfg(feature = "cli")]
#[test]
fn a_cancel_of_dead_timeouts_takes_none_that_is_requeued_meanwhile() {
    let Some((server, store, mut client, now)) = stored() else { return };
    fill(&store, now);
    // A group waits longer for a lock than a single command.
    let dead = "INSERT INTO delaywheel.timeouts (id, due, next_at, payload, state)
        VALUES ('dead', now(), now(), '', 3)";
    client.batch_execute(dead).expect("dead");
    let mut other = client.transaction().expect("begin");
    let requeue = "UPDATE delaywheel.timeouts SET state = 0 WHERE id = 'lost'";
    other.execute(requeue, &[]).expect("requeue");
    thread::scope(|scope| {
        let ended = scope.spawn(|| run(&server, &["cancel", "--dead", "--all", "--json"]));
        let mut watcher = self::client(&server);
        until(|| watcher.query_one(WAITS, &[]).expect("count").get::<_, i64>(0) > 0);
        other.commit().expect("commit");
        let output = ended.join().expect("no panic");
        assert_eq!(output.stdout, b"{\"cancelled\":1,\"dry_run\":false}\n", "{output:?}");
    });
    assert!(store.get(&"lost".parse().expect("valid")).block_on().expect("get").is_some());
}

#[cfg(feature = "cli")]
#[test]
fn the_program_migrates_and_requeues_for_workers_that_only_listen() {
    let Some(server) = Server::start() else { return };
    let run = |arguments: &[&str]| {
        let output = run(&server, arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, error) = run(&["stats"]);
    assert_eq!(code, Some(3));
    assert!(error.contains("have version 0 and need"), "{error}");
    let mut client = client(&server);
    let schemas = "SELECT nspname::text FROM pg_namespace WHERE nspname = 'delaywheel'";
    assert!(column(&mut client, schemas).is_empty(), "only `migrate` makes tables");
    let migrations = PostgresStore::migrations("other").expect("a name");
    let sql = migrations.concat();
    assert_eq!(run(&["migrate", "--print", "--schema", "other"]), (Some(0), sql, String::new()));
    assert_eq!(run(&["backup", "copy.db"]).0, Some(2));
    let version = migrations.len();
    let migrated = format!("{{\"schema\":\"delaywheel\",\"version\":{version}}}\n");
    for _ in 0..2 {
        assert_eq!(run(&["migrate", "--json"]), (Some(0), migrated.clone(), String::new()));
    }
    let (sender, seen) = mpsc::channel();
    let timer = DurableTimer::builder(connect(&server))
        .recheck(None)
        .backoff(delaywheel_durable::Backoff::new(SECOND).attempts(1))
        .build_blocking(move |delivery| {
            sender.send(delivery.id().to_string())?;
            Err("no route".into())
        })
        .expect("start");
    timer.schedule("mail", Duration::ZERO, b"").wait().expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "mail");
    until(|| timer.count().wait().expect("count").dead > 0);
    assert!(run(&["dead"]).1.contains("mail  no route"));
    assert_eq!(
        run(&["requeue", "--prefix", "ma"]),
        (Some(0), "dry_run        false\nrequeued       1\n".to_owned(), String::new())
    );
    assert_eq!(seen.recv_timeout(LONG).expect("a notification"), "mail");
    assert!(timer.finish(LONG).wait().expect("finish"));
}
