//! A process is killed with SIGKILL at random moments, again and again, on one store. Its parent
//! keeps a ledger of the answers that the process got, and compares it with the deliveries. On
//! PostgreSQL, a table is the ledger of handlers that acknowledge within their transaction,
//! processes are paused until their leases are gone, and connections are cut.
//!
//! `CRASH_ROUNDS` sets the number of rounds.

#![cfg(all(unix, feature = "sqlite"))]

#[cfg(feature = "postgres")]
#[path = "postgres/proxy.rs"]
#[expect(dead_code, reason = "the tests of PostgreSQL use the rest")]
mod proxy;
#[cfg(feature = "postgres")]
#[path = "postgres/server.rs"]
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio, exit},
    sync::mpsc,
    thread,
    time::Duration,
};

use delaywheel_durable::{
    Backoff, Cancelled, DurableTimer, DurableTimerBuilder, Scheduled, SqliteStore, Store,
};
use fastrand::Rng;

const CALLERS: u64 = 8;

/// Writes a line that survives the end of this process.
fn tell(line: &str) {
    // One write for a line: lines of several threads do not mix.
    let line = format!("\nledger {line}\n");
    stdout().lock().write_all(line.as_bytes()).and_then(|()| stdout().flush()).expect("ledger");
}

/// The work of the killed process. Not a test by itself.
#[test]
#[ignore = "the crash test runs it as a process"]
fn child() {
    if let Ok(path) = env::var("CRASH_POISONED") {
        run_poisoned(SqliteStore::open(path).expect("open"));
    }
    if let Ok(path) = env::var("CRASH_FILE") {
        run(SqliteStore::open(path).expect("open"));
    }
    #[cfg(feature = "postgres")]
    shared::child();
}

/// The handler of one timeout always ends the process.
fn run_poisoned(store: SqliteStore) {
    let timer = builder(store).backoff(Backoff::default().attempts(3)).build_blocking(|delivery| {
        assert_eq!(delivery.id().as_str(), "poison");
        exit(i32::try_from(delivery.attempt()).expect("small"))
    });
    let timer = timer.expect("start");
    if env::var("CRASH_ROUND").expect("round") == "0" {
        timer.schedule("poison", Duration::ZERO, b"").wait().expect("schedule");
    }
    while timer.count().expect("count").live > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(timer.finish(Duration::from_secs(60)));
}

fn run(store: impl Store) {
    let (sender, drained) = mpsc::channel();
    let timer = builder(store).build_blocking(move |delivery| {
        tell(&format!("delivered {}", delivery.id()));
        Ok(sender.send(())?)
    });
    use_timer(&timer.expect("start"), &drained);
}

/// On a server the records of a killed process are free when its lease ends.
fn builder(store: impl Store) -> DurableTimerBuilder {
    let short = Duration::from_millis(1);
    let backoff = Backoff::new(short).max(50 * short).attempts(u32::MAX);
    DurableTimer::builder(store).lease(Duration::from_secs(1)).backoff(backoff)
}

/// Schedules and cancels until the process is killed. The last process delivers the rest; it gets a
/// message after each delivery.
fn use_timer(timer: &DurableTimer, drained: &mpsc::Receiver<()>) {
    let round: u64 = env::var("CRASH_ROUND").expect("round").parse().expect("a number");
    if env::var("CRASH_LAST").is_ok() {
        while timer.count().expect("count").live > 0 {
            let _ = drained.recv_timeout(Duration::from_secs(1));
        }
        assert!(timer.finish(Duration::from_secs(60)));
        tell("end");
        return;
    }
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            scope.spawn(move || run_caller(timer, round, caller));
        }
    });
}

fn run_caller(timer: &DurableTimer, round: u64, caller: u64) {
    let mut rng = Rng::with_seed(round * CALLERS + caller);
    for number in 0.. {
        let id = format!("{round}/{caller}/{number}");
        let delay = Duration::from_millis(rng.u64(..200));
        match timer.schedule(&id, delay, b"x").wait() {
            Ok(answer) => assert_eq!(answer, Scheduled::Created),
            Err(error) => {
                // Without an answer it may be scheduled or not.
                assert!(may_fail(), "{error}");
                continue;
            }
        }
        tell(&format!("scheduled {id}"));
        if rng.u8(..4) == 0 {
            tell(&format!("cancelling {id}"));
            match timer.cancel(&id).wait() {
                Ok(Cancelled::Cancelled) => tell(&format!("cancelled {id}")),
                Ok(_) => (),
                Err(error) => assert!(may_fail(), "{error}"),
            }
        }
    }
}

/// Returns whether the parent ends connections.
fn may_fail() -> bool {
    env::var("CRASH_TABLE").is_ok()
}

/// The entry of a timeout in the parent's ledger.
#[derive(Default)]
struct Entry {
    is_scheduled: bool,
    /// A cancel was asked for; the kill may have come before its answer.
    may_be_cancelled: bool,
    is_cancelled: bool,
    deliveries: u32,
}

/// Starts a child; a variable of its environment says which store it opens.
fn start((variable, place): (&str, &OsStr), round: u64, is_last: bool) -> Child {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(variable, place).env("CRASH_ROUND", round.to_string());
    if is_last {
        command.env("CRASH_LAST", "1");
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("child")
}

type Entries = BTreeMap<String, Entry>;

/// Reads the ledger of a child to its end. Disturbs the child while it reads, and kills it after
/// this many lines.
fn read(
    child: &mut Child,
    kill_after: Option<usize>,
    disturb: &mut dyn FnMut(),
    entries: &mut Entries,
) {
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut count = 0;
    for line in lines {
        let line = line.expect("text");
        let Some((what, id)) = line.strip_prefix("ledger ").and_then(|entry| entry.split_once(' '))
        else {
            continue;
        };
        let entry = entries.entry(id.to_owned()).or_default();
        match what {
            "scheduled" => entry.is_scheduled = true,
            "cancelling" => entry.may_be_cancelled = true,
            "cancelled" => entry.is_cancelled = true,
            _ => {
                assert!(!entry.is_cancelled, "{id} was delivered after it was cancelled");
                entry.deliveries += 1;
            }
        }
        count += 1;
        disturb();
        if kill_after == Some(count) {
            child.kill().expect("kill");
        }
    }
}

/// SQLite does not count the first kill: only a process that follows a killed one is wary.
#[test]
fn a_timeout_that_ends_its_process_dies_after_one_attempt_more_on_sqlite() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    for (round, attempt) in [1, 1, 2, 3, 0].into_iter().enumerate() {
        let mut child = start(("CRASH_POISONED", path.as_os_str()), round as u64, false);
        assert_eq!(child.wait().expect("end").code(), Some(attempt), "round {round}");
    }
    let store = SqliteStore::open(&path).expect("open");
    assert_eq!(store.count().expect("count").dead, 1);
}

#[test]
fn nothing_acknowledged_is_lost_by_sigkill() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    check(("CRASH_FILE", path.as_os_str()), 12);
}

fn check(store: (&str, &OsStr), default_rounds: u64) {
    let entries = crash(store, default_rounds, &mut || ());
    let missing: BTreeSet<_> = entries
        .iter()
        .filter(|(_, entry)| entry.is_scheduled && !entry.may_be_cancelled && entry.deliveries == 0)
        .map(|(id, _)| id)
        .collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
    let delivered = entries.values().filter(|entry| entry.deliveries > 0).count();
    let twice = entries.values().filter(|entry| entry.deliveries > 1).count();
    println!("{} timeouts, {delivered} delivered, {twice} twice", entries.len());
    assert!(delivered > 0);
}

fn rounds(default: u64) -> u64 {
    env::var("CRASH_ROUNDS").map_or(default, |rounds| rounds.parse().expect("a number"))
}

/// Kills one child after the other, lets the last one deliver the rest, and returns the ledger.
fn crash(store: (&str, &OsStr), default_rounds: u64, disturb: &mut dyn FnMut()) -> Entries {
    let rounds = rounds(default_rounds);
    let mut rng = Rng::with_seed(1);
    let mut entries = BTreeMap::new();
    for round in 0..rounds {
        let mut child = start(store, round, false);
        read(&mut child, Some(rng.usize(1..400)), disturb, &mut entries);
        child.wait().expect("killed");
    }
    let mut child = start(store, rounds, true);
    read(&mut child, None, &mut || (), &mut entries);
    assert!(child.wait().expect("end").success());
    println!("{rounds} kills");
    entries
}

#[cfg(feature = "postgres")]
mod shared {
    use std::{
        collections::BTreeMap,
        env,
        io::{BufRead, BufReader, Write, stdin},
        process::{Child, Command},
        sync::{Arc, Mutex, mpsc},
        thread,
        time::Duration,
    };

    use delaywheel_durable::{
        Answer, Command as Change, Delivery, DurableTimer, NewTimeout, PostgresStore, Settlement,
        State, Store, TimeoutId,
    };
    use fastrand::Rng;
    use tokio::runtime::Runtime;
    use tokio_postgres::{Client, Error, NoTls};

    use super::{
        Entries, Entry, builder, check, crash,
        proxy::{Cut, Proxy},
        read, rounds, run,
        server::{Server, open},
        start, tell, use_timer,
    };

    const LONG: Duration = Duration::from_secs(90);

    /// Long before a timeout is due, although a worker has claimed it.
    const LONG_AHEAD: Duration = Duration::from_secs(3_000);

    pub(super) fn child() {
        let [plain, table, pause] =
            ["CRASH_SERVER", "CRASH_TABLE", "CRASH_PAUSE"].map(|name| env::var(name).ok());
        // The parent may cut the connection.
        let open = |parameters: &String| loop {
            let migrated = PostgresStore::migrate(parameters, "delaywheel", NoTls);
            let connect = |()| PostgresStore::connect(parameters, "delaywheel", NoTls);
            if let Ok(store) = migrated.and_then(connect) {
                return store;
            }
        };
        if let Some(parameters) = plain {
            run(open(&parameters));
        } else if let Some(parameters) = table {
            run_with_table(&open(&parameters), &parameters);
        } else if let Some(parameters) = pause {
            run_paused(&open(&parameters), &parameters);
        }
    }

    /// Connects; tries again if the parent ends the new connection.
    async fn connect(parameters: &str) -> Client {
        loop {
            if let Ok((client, connection)) = tokio_postgres::connect(parameters, NoTls).await {
                tokio::spawn(connection);
                return client;
            }
        }
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime")
    }

    #[test]
    fn nothing_acknowledged_is_lost_by_sigkill_of_a_client_of_postgres() {
        let Some(server) = Server::start() else { return };
        check(("CRASH_SERVER", server.parameters().as_ref()), 6);
    }

    /// The table has no key, so it shows each handler that took effect twice.
    #[test]
    fn a_handler_that_acknowledges_in_its_transaction_takes_effect_once() {
        let Some(server) = Server::start() else { return };
        let mut client = client_with_ledger(&server);
        let mut rng = Rng::with_seed(2);
        let mut disturb = || {
            if rng.u8(..50) == 0 {
                end_connections(&mut client);
            }
        };
        let entries = crash(("CRASH_TABLE", server.parameters().as_ref()), 8, &mut disturb);
        check_effects(&mut client, &entries);
    }

    /// Three workers are killed and started again at once, paused for longer than their lease, and
    /// lose their connections, also in the middle of a commit.
    #[test]
    fn three_workers_in_chaos_lose_no_timeout_and_each_takes_effect_once() {
        let Some(server) = Server::start() else { return };
        let mut client = client_with_ledger(&server);
        let proxy = Proxy::start(&server.parameters());
        let place = ("CRASH_TABLE", proxy.parameters().as_ref());
        let mut entries = Entries::new();
        thread::scope(|scope| {
            let run = |worker| {
                let (mut entries, mut rng) = (Entries::new(), Rng::with_seed(worker));
                let mut client = connect_to(&server);
                for round in 0..rounds(2) {
                    let mut child = start(place, worker << 32 | round, false);
                    let (pid, kill_after) = (child.id(), Some(rng.usize(1..1_000)));
                    let mut disturb = || match rng.u16(..1_000) {
                        0..10 => end_connections(&mut client),
                        10..20 => proxy.arm("COMMIT", Cut::Request),
                        20..30 => proxy.arm("COMMIT", Cut::Answer),
                        30..33 => {
                            signal(pid, "STOP");
                            // Longer than its lease.
                            thread::sleep(Duration::from_secs(5));
                            signal(pid, "CONT");
                        }
                        _ => (),
                    };
                    read(&mut child, kill_after, &mut disturb, &mut entries);
                    child.wait().expect("killed");
                }
                entries
            };
            let workers: Vec<_> = (1..=3).map(|worker| scope.spawn(move || run(worker))).collect();
            for (id, of_worker) in workers.into_iter().flat_map(|run| run.join().expect("ledger")) {
                let entry: &mut Entry = entries.entry(id).or_default();
                entry.is_scheduled |= of_worker.is_scheduled;
                entry.may_be_cancelled |= of_worker.may_be_cancelled;
                entry.is_cancelled |= of_worker.is_cancelled;
                entry.deliveries += of_worker.deliveries;
            }
        });
        let mut last = start(("CRASH_TABLE", server.parameters().as_ref()), 0, true);
        read(&mut last, None, &mut || (), &mut entries);
        assert!(last.wait().expect("end").success());
        check_effects(&mut client, &entries);
    }

    fn connect_to(server: &Server) -> postgres::Client {
        let parameters = format!("{} application_name=parent", server.parameters());
        postgres::Client::connect(&parameters, postgres::NoTls).expect("connect")
    }

    fn client_with_ledger(server: &Server) -> postgres::Client {
        let mut client = connect_to(server);
        client.batch_execute("CREATE TABLE ledger (id text)").expect("table");
        client
    }

    /// Ends the connections of the children, whose tables are those of the schema.
    fn end_connections(client: &mut postgres::Client) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name <> 'parent' AND backend_type = 'client backend'";
        client.query(sql, &[]).expect("terminate");
    }

    fn signal(pid: u32, name: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(kill.expect("sh").success());
    }

    /// Compares the ledger of the children with the effects of their transactions.
    fn check_effects(client: &mut postgres::Client, entries: &Entries) {
        let rows = client.query("SELECT id, count(*) FROM ledger GROUP BY id", &[]).expect("rows");
        let effects: BTreeMap<String, i64> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let twice: Vec<_> = effects.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "more than once: {twice:?}");
        for (id, entry) in entries {
            let has_effect = effects.contains_key(id);
            if entry.is_cancelled {
                assert!(!has_effect, "{id} took effect and was cancelled");
            } else if entry.is_scheduled && !entry.may_be_cancelled {
                assert!(has_effect, "{id} was lost");
            }
        }
        let deliveries: u32 = entries.values().map(|entry| entry.deliveries).sum();
        println!("{} effects of {deliveries} deliveries", effects.len());
        assert!(!effects.is_empty());
    }

    fn run_with_table(store: &PostgresStore, parameters: &str) {
        let (sender, deliveries) = mpsc::channel();
        let timer = builder(store.clone()).build_with(move |delivery| drop(sender.send(delivery)));
        let timer = timer.expect("start");
        let deliveries = Arc::new(Mutex::new(deliveries));
        let (sender, drained) = mpsc::channel();
        for _ in 0..4 {
            let (store, parameters) = (store.clone(), parameters.to_owned());
            let (deliveries, sender) = (Arc::clone(&deliveries), sender.clone());
            thread::spawn(move || {
                let runtime = runtime();
                let mut client = runtime.block_on(connect(&parameters));
                let next = || deliveries.lock().expect("not poisoned").recv();
                while let Ok(delivery) = next() {
                    if !delivery.is_current() {
                        continue;
                    }
                    tell(&format!("delivered {}", delivery.id()));
                    runtime.block_on(async {
                        if take_effect(&mut client, &store, delivery).await.is_err() {
                            client = connect(&parameters).await;
                        }
                    });
                    let _ = sender.send(());
                }
            });
        }
        use_timer(&timer, &drained);
    }

    /// A delivery that is dropped counts as failed, unless the transaction has acknowledged it.
    async fn take_effect(
        client: &mut Client,
        store: &PostgresStore,
        delivery: Delivery,
    ) -> Result<(), Error> {
        let transaction = client.transaction().await?;
        // Long enough to be paused, killed and cut in its middle.
        let insert = "INSERT INTO ledger SELECT $1 FROM pg_sleep(random() / 50)";
        transaction.execute(insert, &[&delivery.id().as_str()]).await?;
        let is_valid = store.acknowledge_in(&transaction, delivery.record()).await;
        if is_valid.is_ok_and(|is_valid| is_valid) {
            transaction.commit().await?;
            delivery.acknowledged_in_transaction();
        }
        Ok(())
    }

    /// A child that ends with the test.
    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
        }
    }

    #[test]
    fn a_process_that_wakes_after_its_lease_is_gone_cannot_acknowledge() {
        let Some(server) = Server::start() else { return };
        let parameters = server.parameters();
        let store = open(&parameters, "delaywheel");
        let now = store.clock().now();
        let schedule = |id: &str, delay| {
            let new = NewTimeout::new(id, now.saturating_add(delay), b"").expect("valid");
            store.write(now, &[Change::Schedule(new)]).expect("schedule");
        };
        schedule("begun", Duration::ZERO);
        schedule("claimed", LONG_AHEAD);
        let mut child = Ends(start(("CRASH_PAUSE", parameters.as_ref()), 0, false));
        let mut go = child.0.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines();
        let mut told = lines.filter_map(|line| line.ok()?.strip_prefix("ledger ").map(Into::into));
        assert_eq!(told.next(), Some("delivered begun".to_owned()));
        let claimed = TimeoutId::new("claimed").expect("valid");
        let state = || store.get(&claimed).expect("get").expect("a record").state;
        while state() != State::Claimed {
            thread::yield_now();
        }
        let pid = child.0.id();
        signal(pid, "STOP");
        let (sender, taken_over) = mpsc::channel();
        let timer = DurableTimer::builder(store.clone())
            .build_with(move |delivery| drop(sender.send(delivery)))
            .expect("start");
        let begun = taken_over.recv_timeout(LONG).expect("taken over");
        timer.reschedule(&claimed, Duration::ZERO).wait().expect("reschedule");
        let claimed = taken_over.recv_timeout(LONG).expect("taken over");
        signal(pid, "CONT");
        go.write_all(b"go\n").expect("go");
        assert_eq!(told.next(), Some("refused begun".to_owned()));
        for (delivery, id) in [(begun, "begun"), (claimed, "claimed")] {
            assert_eq!(delivery.id().as_str(), id);
            delivery.acknowledge();
        }
        assert!(timer.finish(LONG));
        assert_eq!(timer.stats().acknowledged, 2);
        // The child is another worker now, and delivers again.
        schedule("after", Duration::ZERO);
        assert_eq!(told.next(), Some("delivered after".to_owned()));
        assert_eq!(told.next(), Some("end 1".to_owned()));
        assert!(child.0.wait().expect("end").success());
        assert_eq!(store.count().expect("count").live, 0);
    }

    fn run_paused(store: &PostgresStore, parameters: &str) {
        let (sender, deliveries) = mpsc::channel();
        let timer = builder(store.clone())
            .window(2 * LONG_AHEAD)
            .build_with(move |delivery| drop(sender.send(delivery)))
            .expect("start");
        let next = || -> Delivery {
            let delivery: Delivery = deliveries.recv_timeout(LONG).expect("delivery");
            tell(&format!("delivered {}", delivery.id()));
            delivery
        };
        let delivery = next();
        stdin().lock().read_line(&mut String::new()).expect("the parent says go");
        let is_valid = runtime().block_on(async {
            let client = connect(parameters).await;
            store.acknowledge_in(&client, delivery.record()).await.expect("answer")
        });
        assert!(!is_valid, "another worker has it");
        let done = Change::Settle(delivery.claim(), Settlement::Done);
        assert_eq!(store.write(timer.now(), &[done]).expect("answer"), [Answer::Settled(false)]);
        tell(&format!("refused {}", delivery.id()));
        delivery.acknowledge();
        next().acknowledge();
        assert!(timer.finish(LONG));
        let stats = timer.stats();
        assert!(stats.fenced >= 1 && stats.lost_leases >= 1, "{stats:?}");
        tell(&format!("end {}", stats.acknowledged));
    }
}
