//! A `PgBouncer` in transaction mode between the store and its server.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::{Child, Stdio},
};

use super::*;

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Ends with the test.
struct PgBouncer {
    process: Child,
    parameters: String,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts a pool of a few sessions, each transaction in the one that was not used for longest.
    /// Prints one line and returns `None` if `PgBouncer` is not installed.
    fn start(server: &Server, settings: &str) -> Option<Self> {
        Self::start_before(server, &server.port.to_string(), settings)
    }

    fn start_before(server: &Server, server_port: &str, settings: &str) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            server::say("PgBouncer is not installed: the tests through it did not run");
            return None;
        }
        let folder = tempfile::tempdir().expect("folder");
        // A socket in the folder: another program could take a free port first.
        let place = folder.path().display();
        let text = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={server_port} user=postgres\n\
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
        let Some(pool) = PgBouncer::start(&server, settings) else { return };
        let schemas = std::cell::Cell::new(0);
        let open_next = || {
            schemas.set(schemas.get() + 1);
            open(&pool.parameters, &format!("s{number}_{}", schemas.get()))
        };
        conformance::check(open_next, 60);
    }
}

/// The timer looks only if the store tells it to.
#[test]
fn timeouts_of_others_are_delivered_through_a_pool_by_a_look_each_second() {
    let Some(server) = Server::start() else { return };
    let mut client = client(&server);
    for default in ["synchronous_commit = off", "default_transaction_isolation = serializable"] {
        client.batch_execute(&format!("ALTER DATABASE postgres SET {default}")).expect("default");
    }
    let Some(pool) = PgBouncer::start(&server, "") else { return };
    let (sender, seen) = mpsc::channel();
    let timer = start_without_polls(&pool.parameters, sender);
    let other = connect(&server);
    client.batch_execute(NOTE).expect("trigger");
    for id in ["a", "b", "c"] {
        put(&other, id, other.clock().now());
        assert_eq!(seen.recv_timeout(LONG).expect("delivery"), id);
    }
    let batch = (0..300).map(|number| {
        let due = timer.now().saturating_add(SECOND);
        NewTimeout::new(format!("{number}"), due, b"").expect("valid")
    });
    timer.schedule_batch(batch.collect()).wait().expect("schedule");
    for _ in 0..300 {
        seen.recv_timeout(LONG).expect("delivery");
    }
    timer.schedule("last", Duration::ZERO, b"").wait().expect("schedule");
    assert_eq!(seen.recv_timeout(LONG).expect("delivery"), "last");
    assert!(timer.finish(LONG));
    assert_eq!(noted(&mut client), NOTED);
}

/// The blocking calls are made within the runtime of the pool.
#[cfg(feature = "pool")]
#[test]
fn a_pool_of_the_user_serves_a_timer_and_is_returned() {
    use deadpool_postgres::{Manager, Pool};
    use delaywheel_durable::{DurableTimer, PostgresStore, StoreErrorReason};
    use tokio::runtime::Builder;

    let Some(server) = Server::start() else { return };
    drop(connect(&server));
    let parameters = server.parameters().parse().expect("parameters");
    let manager = Manager::new(parameters, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(4).build().expect("pool");
    let one = Builder::new_current_thread().enable_all().build().expect("runtime");
    let from_one = PostgresStore::from_pool(pool.clone(), "delaywheel", one.handle().clone());
    let error = from_one.block_on();
    assert_eq!(error.expect_err("one thread").reason(), StoreErrorReason::Other);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("runtime");
    let task = runtime.spawn(async move {
        let handle = tokio::runtime::Handle::current();
        let store = PostgresStore::from_pool(pool.clone(), "delaywheel", handle).await;
        let store = store.expect("store");
        let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let timer = DurableTimer::builder(store.clone())
            .recheck(None)
            .build_blocking(move |delivery| Ok(sender.send(delivery.id().to_string())?))
            .expect("start");
        let new = NewTimeout::new("a", timer.now(), b"").expect("valid");
        let mut client = pool.get().await.expect("client");
        let transaction = client.transaction().await.expect("begin");
        store.schedule_in(&*transaction, &new).await.expect("schedule");
        transaction.commit().await.expect("commit");
        drop(client);
        assert_eq!(seen.recv().await.as_deref(), Some("a"));
        timer.schedule("b", Duration::ZERO, b"").await.expect("schedule");
        assert_eq!(seen.recv().await.as_deref(), Some("b"));
        for _ in 0..100 {
            timer.get("none").await.expect("get");
        }
        assert!(timer.finish(LONG));
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

/// The call waits for a row in its transaction, on a connection of the store or of a pool.
#[cfg(feature = "pool")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_leaves_no_transaction() {
    use deadpool_postgres::{Manager, Pool};

    let Some((server, own, now)) = stored() else { return };
    let parameters = server.parameters().parse().expect("parameters");
    let manager = Manager::new(parameters, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(1).build().expect("pool");
    let runtime = tokio::runtime::Handle::current();
    let pooled = PostgresStore::from_pool(pool, "delaywheel", runtime).await.expect("store");
    let (mut client, watcher) = (async_client(&server).await, async_client(&server).await);
    for store in [own, pooled] {
        let worker = store.enter(now, LONG, None).await.expect("enter");
        let lock = client.transaction().await.expect("begin");
        lock.query("SELECT FROM delaywheel.workers FOR UPDATE", &[]).await.expect("lock");
        let waiting = async {
            let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            loop {
                if let Some(row) = watcher.query_opt(waits, &[]).await.expect("waits") {
                    break row.get::<_, i32>(0);
                }
            }
        };
        let session = tokio::select! {
            left = store.leave(worker) => panic!("{left:?}"),
            session = waiting => session,
        };
        lock.commit().await.expect("commit");
        let is_open = "SELECT FROM pg_stat_activity WHERE pid = $1";
        let ends = async {
            while watcher.query_opt(is_open, &[&session]).await.expect("sessions").is_some() {
                // It would use a connection that was returned.
                store.enter(now, LONG, None).await.expect("enter");
            }
        };
        tokio::time::timeout(LONG, ends).await.expect("the server ends the transaction");
        assert!(store.renew(worker, now, LONG).await.expect("renew"), "it has not left");
    }
}

/// The server has committed, and its session ends behind the pool before the answer.
#[test]
fn a_commit_whose_session_ends_behind_a_pool_has_an_unknown_outcome() {
    let Some(server) = Server::start() else { return };
    let proxy = Proxy::start(&server.parameters());
    let (_, rest) = proxy.parameters().split_once("port=").expect("port");
    let port = rest.split(' ').next().expect("port");
    let Some(pool) = PgBouncer::start_before(&server, port, "") else { return };
    let timer = DurableTimer::builder(open(&pool.parameters, "delaywheel")).build().expect("start");
    timer.schedule("before", LONG, b"").wait().expect("schedule");
    // Not the words READ COMMITTED.
    proxy.arm("COMMIT\0", Cut::Answer);
    let answer = timer.schedule("payment", LONG, b"").wait();
    let DurableError::Store(error) = answer.expect_err("the session ended") else { panic!() };
    assert_eq!(error.reason(), StoreErrorReason::OutcomeUnknown);
    let id = TimeoutId::new("payment").expect("valid");
    assert!(connect(&server).get(&id).block_on().expect("get").is_some(), "it took effect");
}
