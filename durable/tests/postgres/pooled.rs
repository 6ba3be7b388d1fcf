//! A `PgBouncer` in transaction mode between the store and its server.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use super::*;

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Notes the settings of each transaction that adds or removes timeouts, and after `t` those of
/// each that begins deliveries of its claims.
const NOTE: &str = "
    CREATE TABLE noted (setting text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO noted VALUES (concat_ws(' ', TG_OP = 'UPDATE',
            current_setting('synchronous_commit'), current_setting('transaction_isolation'),
            current_setting('lock_timeout') <> '0', current_setting('statement_timeout'),
            current_setting('idle_in_transaction_session_timeout')));
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR DELETE ON delaywheel.timeouts EXECUTE FUNCTION note();
    CREATE TRIGGER begun AFTER UPDATE ON delaywheel.timeouts FOR EACH ROW
        WHEN (OLD.worker IS NOT NULL AND NEW.begun) EXECUTE FUNCTION note();";

/// The settings of all transactions of the store. A begin does not wait for the disk.
const NOTED: &str = "f on read committed t 30s 10s, t off read committed t 30s 10s";

fn noted(client: &mut postgres::Client) -> String {
    let sql = "WITH old AS (DELETE FROM noted RETURNING setting)
        SELECT string_agg(DISTINCT setting, ', ') FROM old";
    client.query_one(sql, &[]).expect("noted").get(0)
}

/// Ends with the test.
struct PgBouncer {
    process: Child,
    parameters: String,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts a pool of a few sessions, each transaction in the one that was not used for longest.
    /// Prints one line and returns `None` if `PgBouncer` is not installed.
    fn start(server: &Server, parameters: &str, settings: &str) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            server::say("PgBouncer is not installed: the tests through it did not run");
            return None;
        }
        let folder = tempfile::tempdir().expect("folder");
        // A socket in the folder: another program could take a free port first.
        let place = folder.path().display();
        let text = format!(
            "[databases]\n\
             postgres = {parameters}\n\
             [pgbouncer]\n\
             listen_addr =\nlisten_port = 6432\nunix_socket_dir = {place}\n\
             auth_type = any\npool_mode = transaction\nmin_pool_size = 3\n\
             default_pool_size = 8\nserver_round_robin = 1\n{settings}\n"
        );
        let parameters = format!("host={place} port=6432 user=postgres dbname=postgres");
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, text).expect("settings");
        // Another user uses it.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("permissions");
        let mut command = server.command(PROGRAM);
        let process = command.arg(file).stderr(Stdio::null()).spawn().expect("pgbouncer");
        until(|| UnixStream::connect(folder.path().join(".s.PGSQL.6432")).is_ok());
        Some(Self { process, parameters, _folder: folder })
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// It refuses the settings of a session, or drops them.
#[test]
fn the_store_conforms_through_a_pool_of_transactions() {
    let Some(server) = Server::start() else { return };
    for (number, settings) in ["", "ignore_startup_parameters = options"].iter().enumerate() {
        let Some(pool) = PgBouncer::start(&server, &server.parameters(), settings) else { return };
        let schemas = std::cell::Cell::new(0);
        let open_next = || {
            schemas.set(schemas.get() + 1);
            open(&pool.parameters, &format!("s{number}_{}", schemas.get()))
        };
        conformance::check(open_next, 60);
    }
}

/// Refuses options as the proxy of Amazon RDS does.
#[test]
fn a_pool_may_refuse_options_in_any_way() {
    let Some(server) = Server::start() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let to = server.port;
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("accept");
            let mut length = [0; 4];
            client.read_exact(&mut length).expect("length");
            let mut start = vec![0; u32::from_be_bytes(length) as usize - 4];
            client.read_exact(&mut start).expect("start");
            if start.windows(8).any(|part| part == b"options\0") {
                let text = b"SFATAL\0C0A000\0MFeature not supported\0\0";
                let length = u32::try_from(text.len() + 4).expect("short").to_be_bytes();
                let message = [b"E", &length[..], text].concat();
                client.write_all(&message).expect("answer");
                continue;
            }
            let mut server = TcpStream::connect(("127.0.0.1", to)).expect("connect");
            server.write_all(&[&length[..], &start].concat()).expect("start");
            let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
            let (mut from, mut back) = (copy(&client), copy(&server));
            thread::spawn(move || drop(io::copy(&mut from, &mut server)));
            thread::spawn(move || drop(io::copy(&mut back, &mut client)));
        }
    });
    let parameters = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let timer = DurableTimer::builder(open(&parameters, "delaywheel")).build().expect("start");
    timer.schedule("a", LONG, b"").wait().expect("schedule");
    assert_eq!(timer.count().wait().expect("count").live, 1);
}

/// Also through a pool, where the timer looks only if the store tells it to, and hears of timeouts
/// of others.
#[test]
fn commits_are_durable_whatever_the_defaults_of_the_database() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    // The last one is an option of the store, which each session of a pool then has as well.
    for default in [
        "synchronous_commit = off",
        "default_transaction_isolation = serializable",
        "plan_cache_mode = force_generic_plan",
    ] {
        client.batch_execute(&format!("ALTER DATABASE postgres SET {default}")).expect("default");
    }
    let other = connect(&server);
    client.batch_execute(NOTE).expect("trigger");
    let (timer, seen) = start(&server);
    // A claim begins no delivery with a key.
    let keyed = |id: &str, due| NewTimeout::new(id, due, b"").and_then(|new| new.key("k"));
    let new = keyed("without a pool", timer.now()).expect("valid");
    timer.schedule_new(new).wait().expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).as_deref(), Ok("without a pool"));
    assert!(timer.finish(LONG).wait().expect("finish"));
    assert_eq!(noted(&mut client), NOTED);

    for settings in ["", "ignore_startup_parameters = options"] {
        let Some(pool) = PgBouncer::start(&server, &server.parameters(), settings) else { return };
        let (timer, seen) = listening(&pool.parameters);
        for id in ["a", "b", "c"] {
            put(&other, id, other.now());
            assert_eq!(seen.recv_timeout(LONG).expect("delivery"), id);
        }
        let batch = (0..300).map(|number| {
            let due = timer.now().saturating_add(SECOND);
            keyed(&number.to_string(), due).expect("valid")
        });
        timer.schedule_batch(batch.collect()).wait().expect("schedule");
        for _ in 0..300 {
            seen.recv_timeout(LONG).expect("delivery");
        }
        deliver(&timer, &seen, "last");
        assert!(timer.finish(LONG).wait().expect("finish"));
        assert_eq!(noted(&mut client), NOTED);
    }
}

fn pool(server: &Server, size: usize) -> deadpool_postgres::PoolBuilder {
    let parameters = server.parameters().parse().expect("parameters");
    let manager = deadpool_postgres::Manager::new(parameters, tokio_postgres::NoTls);
    deadpool_postgres::Pool::builder(manager).max_size(size)
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().expect("runtime")
}

/// Starts a server, and a store with connections of a pool on a runtime.
fn pooled(
    size: usize,
    workers: usize,
) -> Option<(Server, deadpool_postgres::Pool, tokio::runtime::Runtime, PostgresStore)> {
    let (server, ..) = stored()?;
    let (pool, runtime) = (pool(&server, size).build().expect("pool"), runtime(workers));
    let store = PostgresStore::from_pool(pool.clone(), "delaywheel", runtime.handle().clone());
    let store = store.block_on().expect("store");
    Some((server, pool, runtime, store))
}

/// The blocking calls are made within the runtime of the pool.
#[test]
fn a_pool_of_the_user_serves_a_timer_and_is_returned() {
    let Some((_server, pool, runtime, store)) = pooled(4, 2) else { return };
    let current = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    for one in [current, self::runtime(1)] {
        let from_one = PostgresStore::from_pool(pool.clone(), "delaywheel", one.handle().clone());
        assert_eq!(reason(from_one.block_on()), StoreErrorReason::Other);
    }
    let odd_name = PostgresStore::from_pool(pool.clone(), "a-b", runtime.handle().clone());
    assert_eq!(reason(odd_name.block_on()), StoreErrorReason::Other);
    let task = runtime.spawn(async move {
        let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let timer = DurableTimer::builder(store.clone())
            .recheck(None)
            .build_blocking(move |delivery| Ok(sender.send(delivery.id().to_string())?))
            .expect("start");
        timer.schedule("b", Duration::ZERO, b"").await.expect("schedule");
        assert_eq!(seen.recv().await.as_deref(), Some("b"));
        // The timer has no reason to look any more.
        until(|| timer.stats().empty_claims > 1);
        let new = NewTimeout::new("a", timer.now(), b"").expect("valid");
        let mut client = pool.get().await.expect("client");
        let transaction = client.transaction().await.expect("begin");
        store.schedule_in(&*transaction, &new).await.expect("schedule");
        transaction.commit().await.expect("commit");
        drop(client);
        assert_eq!(seen.recv().await.as_deref(), Some("a"));
        for _ in 0..100 {
            timer.get("none").await.expect("get");
        }
        assert!(timer.finish(LONG).wait().expect("finish"));
        assert_eq!(timer.count().await.expect("count").live, 0);
        let status = pool.status();
        assert_eq!(status.available, status.size, "all are returned");
        let sql = "SELECT count(*) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND application_name <> 'delaywheel'";
        let row = pool.get().await.expect("client").query_one(sql, &[]).await.expect("count");
        assert!((1..=4).contains(&row.get::<_, i64>(0)), "no others than those of the pool");
    });
    runtime.block_on(task).expect("task");
}

/// A worker of the runtime that drives the pool blocks for a call, and in virtual time for a timer.
#[test]
fn a_task_that_blocks_for_a_call_gets_its_answer_through_a_pool_of_its_runtime() {
    let Some((_server, _, runtime, store)) = pooled(4, 4) else { return };
    let (sender, ended) = mpsc::channel();
    runtime.spawn(async move {
        let count = store.count().block_on();
        let clock = delaywheel_durable::ManualClock::new();
        let timer = DurableTimer::builder(store).clock(clock).build_with(|_| ()).expect("start");
        drop(sender.send((count, timer.count().await)));
    });
    let ended = ended.recv_timeout(LONG);
    runtime.shutdown_background();
    let (direct, virtual_time) = ended.expect("it waits for its own thread");
    assert_eq!(direct.expect("count"), virtual_time.expect("count"));
}

/// A panic in a hook of the pool does not.
#[test]
fn the_end_of_a_pool_or_of_its_runtime_closes_the_store() {
    for closes in [false, true] {
        let Some((server, ..)) = stored() else { return };
        let panics = Arc::new(AtomicBool::new(false));
        let must_panic = Arc::clone(&panics);
        let hook = deadpool_postgres::Hook::sync_fn(move |_, _| {
            if must_panic.load(SeqCst) {
                // Without a message on standard error.
                std::panic::resume_unwind(Box::new("the hook fails"));
            }
            Ok(())
        });
        let pool = pool(&server, 1).post_recycle(hook).build().expect("pool");
        let runtime = runtime(2);
        let store = PostgresStore::from_pool(pool.clone(), "delaywheel", runtime.handle().clone());
        let store = store.block_on().expect("store");
        panics.store(true, SeqCst);
        assert_eq!(reason(store.count().block_on()), StoreErrorReason::Unavailable);
        panics.store(false, SeqCst);
        store.count().block_on().expect("count");
        if closes {
            pool.close();
        } else {
            runtime.shutdown_background();
        }
        assert_eq!(reason(store.count().block_on()), StoreErrorReason::Closed, "{closes}");
    }
}

/// The transaction is one of the user that failed. One of the store is in the same state after its
/// BEGIN if a setting fails.
#[test]
fn a_begin_that_fails_leaves_no_transaction_in_a_pool() {
    let Some((_server, pool, runtime, store)) = pooled(1, 2) else { return };
    runtime.block_on(async {
        let client = pool.get().await.expect("client");
        client.batch_execute("BEGIN; SELECT 1 / 0").await.expect_err("it fails");
        drop(client);
        store.count().await.expect_err("the transaction has failed");
        store.count().await.expect("count");
        assert_eq!(pool.status().size, 1, "its connection was returned");
    });
}

/// Each handler waits for a connection of the pool, and then uses it.
#[test]
fn handlers_that_use_up_a_pool_end_no_lease() {
    let Some((_server, pool, runtime, store)) = pooled(4, 2) else { return };
    // Settlements wait for longer than that, behind the handlers.
    store.answer_within(2 * SECOND);
    let (sender, seen) = mpsc::channel();
    let (spawner, pool) = (runtime.handle().clone(), pool.clone());
    let timer = DurableTimer::builder(store)
        .lease(3 * SECOND)
        .build_async(
            move |future| drop(spawner.spawn(future)),
            move |delivery| {
                let (pool, sender) = (pool.clone(), sender.clone());
                async move {
                    let client = pool.get().await.expect("client");
                    client.batch_execute("SELECT pg_sleep(0.3)").await.expect("sleep");
                    sender.send((delivery.is_current(), delivery.attempt())).expect("send");
                    (delivery, Ok::<_, String>(()))
                }
            },
        )
        .expect("start");
    let batch = (0..64).map(|id: u8| NewTimeout::new(id.to_string(), timer.now(), b""));
    timer.schedule_batch(batch.map(Result::unwrap).collect()).wait().expect("schedule");
    let ends: Vec<_> = (0..64).map(|_| seen.recv_timeout(LONG).expect("delivery")).collect();
    assert_eq!(ends, [(true, 1); 64]);
    assert!(timer.finish(LONG).wait().expect("finish"));
    assert_eq!((timer.stats().lost_leases, timer.stats().acknowledged), (0, 64));
}

/// The server has committed, and its session ends behind the pool before the answer.
#[test]
fn a_commit_whose_session_ends_behind_a_pool_has_an_unknown_outcome() {
    let Some(server) = Server::start() else { return };
    let proxy = Proxy::start(&server.parameters());
    let Some(pool) = PgBouncer::start(&server, proxy.parameters(), "") else { return };
    let timer = DurableTimer::builder(open(&pool.parameters, "delaywheel")).build().expect("start");
    timer.schedule("before", LONG, b"").wait().expect("schedule");
    // Not the words READ COMMITTED.
    proxy.arm("COMMIT\0", Cut::Answer);
    let answer = timer.schedule("payment", LONG, b"").wait();
    assert_eq!(reason(answer), StoreErrorReason::OutcomeUnknown);
    let id = TimeoutId::new("payment").expect("valid");
    assert!(connect(&server).get(&id).block_on().expect("get").is_some(), "it took effect");
}
