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
#[expect(dead_code, reason = "the tests of PostgreSQL use the rest")]
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader, Write, stdout},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use delaywheel_durable::{
    Backoff, Cancelled, DurableError, DurableTimer, DurableTimerBuilder, Scheduled, SqliteStore,
    Store, StoreErrorReason,
};
use fastrand::Rng;
use tempfile::TempDir;

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
    let Ok(kind) = env::var("CRASH_STORE") else { return };
    let place = variable("CRASH_PLACE");
    match kind.as_str() {
        "file" => run(SqliteStore::open(place).expect("open")),
        "disk" => run(loop {
            match SqliteStore::open(&place) {
                Ok(store) => break store,
                Err(error) => refused(&error.into(), "open"),
            }
        }),
        #[cfg(feature = "postgres")]
        kind => shared::child(kind, &place),
        #[cfg(not(feature = "postgres"))]
        kind => panic!("{kind}"),
    }
}

fn variable(name: &str) -> String {
    env::var(name).expect(name)
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
    let round: u64 = variable("CRASH_ROUND").parse().expect("a number");
    if env::var("CRASH_LAST").is_ok() {
        while timer.count().wait().expect("count").live > 0 {
            let _ = drained.recv_timeout(Duration::from_secs(1));
        }
        assert!(timer.finish(Duration::from_secs(60)).wait().expect("finish"));
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
                refused(&error, &id);
                continue;
            }
        }
        tell(&format!("scheduled {id}"));
        if rng.u8(..4) == 0 {
            tell(&format!("cancelling {id}"));
            match timer.cancel(&id).wait() {
                Ok(Cancelled::Cancelled) => tell(&format!("cancelled {id}")),
                Ok(_) => (),
                Err(error) => refused(&error, &id),
            }
        }
    }
}

/// The parent may end connections, or fill the disk.
fn refused(error: &DurableError, id: &str) {
    let DurableError::Store(error) = error else { panic!("{error}") };
    let is_expected = match (variable("CRASH_STORE").as_str(), error.reason()) {
        ("table", _) | ("disk" | "disk server", StoreErrorReason::Full) => true,
        // A server without room for its log ends.
        ("disk server", reason) => {
            matches!(reason, StoreErrorReason::Unavailable | StoreErrorReason::OutcomeUnknown)
        }
        _ => false,
    };
    assert!(is_expected, "{error:?}");
    tell(&format!("refused {id}"));
}

/// The entry of a timeout in the parent's ledger.
#[derive(Default)]
struct Entry {
    is_scheduled: bool,
    /// A cancel was asked for; the kill may have come before its answer.
    may_be_cancelled: bool,
    is_cancelled: bool,
    refusals: u32,
    deliveries: u32,
}

/// Starts a child; its environment says which kind of store it opens, and where.
fn start((kind, place): (&str, &OsStr), round: u64, is_last: bool) -> Child {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("CRASH_STORE", kind).env("CRASH_PLACE", place);
    command.env("CRASH_ROUND", round.to_string());
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
            "refused" => entry.refusals += 1,
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

#[test]
fn nothing_acknowledged_is_lost_by_sigkill() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    check(("file", path.as_os_str()), 12, &mut drop);
}

/// A file system in memory, which is full again and again.
struct Disk {
    folder: TempDir,
    lines: u32,
    is_full: bool,
}

impl Disk {
    /// Prints one line and returns `None` if this process may not mount it.
    fn mount(megabytes: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("folder");
        let size = format!("size={megabytes}m,mode=755");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path());
        if mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Some(Self { folder, lines: 0, is_full: false });
        }
        println!("no file system of limited size can be mounted: the test did not run");
        None
    }

    /// Fills or frees the disk each 150 lines of the ledger. Returns whether it has become free.
    fn count_line(&mut self) -> bool {
        self.lines += 1;
        let is_time = self.lines.is_multiple_of(150);
        if is_time && !self.is_full {
            self.is_full = true;
            let mut ballast = File::create(self.folder.path().join("ballast")).expect("create");
            for size in [1 << 16, 1 << 9] {
                while ballast.write_all(&vec![0; size]).is_ok() {}
            }
            return false;
        }
        is_time && self.free()
    }

    fn free(&mut self) -> bool {
        if self.is_full {
            fs::remove_file(self.folder.path().join("ballast")).expect("remove");
        }
        std::mem::take(&mut self.is_full)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// The disk is full for a while, again and again, also when the process is killed and started.
#[test]
fn nothing_acknowledged_is_lost_by_a_full_disk_and_sigkill() {
    let Some(mut disk) = Disk::mount(4) else { return };
    let path = disk.folder.path().join("timeouts.db");
    let place = ("disk", path.as_os_str());
    // So many that their logs together would fill the disk.
    let refusals = check(place, 50, &mut |is_over| {
        let _ = if is_over { disk.free() } else { disk.count_line() };
    });
    assert!(refusals > 0);
}

/// Kills one child after the other, and lets a last one deliver the rest. Calls a function after
/// each line of the ledgers, and once more before the last child. Returns how many calls the store
/// refused.
fn check(store: (&str, &OsStr), default_rounds: u64, disturb: &mut dyn FnMut(bool)) -> u32 {
    let (rounds, mut rng, mut entries) =
        (rounds(default_rounds), Rng::with_seed(1), Entries::new());
    for round in 0..rounds {
        let mut child = start(store, round, false);
        read(&mut child, Some(rng.usize(1..400)), &mut || disturb(false), &mut entries);
        child.wait().expect("killed");
    }
    disturb(true);
    deliver_rest(store, &mut entries);
    let missing: BTreeSet<_> = entries
        .iter()
        .filter(|(_, entry)| entry.is_scheduled && !entry.may_be_cancelled && entry.deliveries == 0)
        .map(|(id, _)| id)
        .collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
    let delivered = entries.values().filter(|entry| entry.deliveries > 0).count();
    let twice = entries.values().filter(|entry| entry.deliveries > 1).count();
    let refusals = entries.values().map(|entry| entry.refusals).sum();
    let count = entries.len();
    println!(
        "{rounds} kills, {count} timeouts, {delivered} delivered, {twice} twice, {refusals} refused"
    );
    assert!(delivered > 0);
    refusals
}

fn rounds(default: u64) -> u64 {
    env::var("CRASH_ROUNDS").map_or(default, |rounds| rounds.parse().expect("a number"))
}

fn deliver_rest(store: (&str, &OsStr), entries: &mut Entries) {
    let mut child = start(store, u64::MAX, true);
    read(&mut child, None, &mut || (), entries);
    assert!(child.wait().expect("end").success());
}

#[cfg(feature = "postgres")]
mod shared {
    use std::{
        collections::BTreeMap,
        process::Command,
        sync::{Arc, Mutex, mpsc},
        thread,
        time::Duration,
    };

    use delaywheel_durable::{Delivery, PostgresStore};
    use fastrand::Rng;
    use tokio_postgres::{Client, Error, NoTls};

    use super::{
        Disk, Entries, Entry, builder, check, deliver_rest,
        proxy::{Cut, Proxy},
        read, refused, rounds, run,
        server::Server,
        start, tell, use_timer,
    };

    pub(super) fn child(kind: &str, parameters: &str) {
        // The parent may cut the connection.
        let store = loop {
            let migrated = PostgresStore::migrate_blocking(parameters, "delaywheel", NoTls);
            let connect = |()| PostgresStore::connect_blocking(parameters, "delaywheel", NoTls);
            match migrated.and_then(connect) {
                Ok(store) => break store,
                Err(error) => refused(&error.into(), "open"),
            }
        };
        match kind {
            "table" => run_with_table(&store, parameters),
            _ => run(store),
        }
    }

    async fn connect(parameters: &str) -> Client {
        loop {
            if let Ok((client, connection)) = tokio_postgres::connect(parameters, NoTls).await {
                tokio::spawn(connection);
                return client;
            }
        }
    }

    #[test]
    fn nothing_acknowledged_is_lost_by_sigkill_of_a_client_of_postgres() {
        let Some(server) = Server::start() else { return };
        check(("server", server.parameters().as_ref()), 6, &mut drop);
    }

    /// A server that has no room for its log ends, and is started again.
    #[test]
    fn nothing_acknowledged_is_lost_by_a_full_disk_of_postgres_and_sigkill() {
        let Some(mut disk) = Disk::mount(160) else { return };
        let folder = tempfile::tempdir_in(disk.folder.path()).expect("folder");
        let Some(mut server) = Server::start_in(folder) else { return };
        let parameters = server.parameters();
        let place = ("disk server", parameters.as_ref());
        let refusals = check(place, 12, &mut |is_over| {
            if is_over {
                disk.free();
            }
            if is_over || disk.count_line() {
                server.resume();
            }
        });
        assert!(refusals > 0);
    }

    /// Three workers are killed and started again at once, paused for longer than their lease, and
    /// lose their connections, also in the middle of a commit. Handlers acknowledge in their
    /// transactions. The table has no key, so it shows each handler that took effect twice.
    #[test]
    fn three_workers_in_chaos_lose_no_timeout_and_each_takes_effect_once() {
        let Some(server) = Server::start() else { return };
        let mut client = connect_to(&server);
        client.batch_execute("CREATE TABLE ledger (id text)").expect("table");
        let proxy = Proxy::start(&server.parameters());
        let place = ("table", proxy.parameters().as_ref());
        let mut entries = Entries::new();
        thread::scope(|scope| {
            let run = |worker| {
                let (mut entries, mut rng) = (Entries::new(), Rng::with_seed(worker));
                let mut client = connect_to(&server);
                for round in 0..rounds(2) {
                    let mut child = start(place, worker << 32 | round, false);
                    let (pid, kill_after) = (child.id(), rng.usize(2..1_000));
                    let mut lines = 0;
                    let mut disturb = || {
                        lines += 1;
                        // Each worker is paused once at least.
                        let must_pause = round == 0 && lines == kill_after / 2;
                        match if must_pause { 30 } else { rng.u16(..1_000) } {
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
                        }
                    };
                    read(&mut child, Some(kill_after), &mut disturb, &mut entries);
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
        deliver_rest(("table", server.parameters().as_ref()), &mut entries);
        check_effects(&mut client, &entries);
    }

    fn connect_to(server: &Server) -> postgres::Client {
        let parameters = format!("{} application_name=parent", server.parameters());
        postgres::Client::connect(&parameters, postgres::NoTls).expect("connect")
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
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("runtime");
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
}
