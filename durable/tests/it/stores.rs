//! Every store passes the conformance suite, and the embedded one refuses bad files.

use delaywheel_durable::{MemoryStore, conformance};

#[test]
fn memory_conforms() {
    conformance::check(MemoryStore::new, 20_000);
}

#[cfg(feature = "redb")]
mod embedded {
    use std::{
        fs,
        sync::{
            Arc, Mutex,
            mpsc::{self, Receiver, Sender},
        },
        thread,
        time::Duration,
    };

    use delaywheel_durable::{
        Begun, ClaimRequest, Command, Conflict, NewTimeout, Query, Record, RedbStore, Store,
        StoreErrorReason, TimeoutId, WallTime, WorkerId, conformance,
    };
    use redb::backends::InMemoryBackend;

    use crate::files::{Change, Guarded};

    #[test]
    fn redb_conforms() {
        let open = || RedbStore::open_backend(InMemoryBackend::new()).expect("open");
        conformance::check(open, 4_000);
    }

    #[test]
    fn redb_is_copied_while_it_changes_is_compacted_and_repeats_no_token() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        let at = |micros| WallTime::from_micros(micros).expect("in range");
        let store = RedbStore::open(path("store")).expect("open");
        let command = |number: u64, payload: &[u8]| {
            let new = NewTimeout::new(format!("{}", number * 7_919 % 2_000), at(number), payload);
            Command::Schedule(new.expect("valid"))
        };
        let fill: Vec<_> = (0..2_000).map(|number| command(number, &[7; 2_000])).collect();
        store.write(at(0), &fill).expect("write");
        thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for number in 0..50 {
                    let pair = [command(number, b"1"), command(number + 1_000, b"1")];
                    store.write(at(0), &pair).expect("write");
                }
            });
            for number in 0..3 {
                store.backup(path(&format!("copy-{number}"))).expect("backup");
            }
            changes.join().expect("changes");
        });
        store.backup(path("copy-0")).expect_err("it exists");
        for number in 0..3 {
            let copy = RedbStore::open_checked(path(&format!("copy-{number}"))).expect("open");
            let records = copy.list(&all(), 9_999).expect("list");
            let changed = records.iter().filter(|record| record.payload.len() == 1).count();
            assert_eq!((records.len(), changed % 2), (2_000, 0), "one moment");
        }
        let cancel = |number: u64| Command::Cancel(TimeoutId::new(number.to_string()).expect("id"));
        store.write(at(0), &(10..2_000).map(cancel).collect::<Vec<_>>()).expect("write");
        let length = || fs::metadata(path("store")).expect("file").len();
        let before = length();
        assert!(store.compact().expect("compact"));
        assert!(length() < before / 4, "{before} and {}", length());
        let token = |store: &RedbStore| {
            let worker = store.enter(at(0), Duration::MAX, None).expect("enter");
            let (from, until) = (at(0), WallTime::MAX);
            let request =
                ClaimRequest { now: at(0), from, until, limit: 1, max_bytes: 9, cron: true };
            store.claim(worker, request).expect("claim").expect("lease").records[0].token
        };
        let first = token(&store);
        drop(store);
        let store = RedbStore::open(path("store")).expect("open");
        assert!(token(&store) > first);
    }

    fn all() -> Query {
        Query::Prefix { prefix: String::new(), after: None }
    }

    #[test]
    fn redb_refuses_a_foreign_file() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("notes.txt");
        fs::write(&path, "these are notes\n".repeat(1_000)).expect("write");
        let error = RedbStore::open(&path).expect_err("foreign");
        assert_eq!(error.reason(), StoreErrorReason::Corrupt);
        assert_eq!(fs::read(&path).expect("read"), "these are notes\n".repeat(1_000).as_bytes());
    }

    #[test]
    fn redb_refuses_the_database_of_another_program_and_a_newer_version() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        for (table, reason) in
            [("other", StoreErrorReason::Corrupt), ("delaywheel", StoreErrorReason::NewerVersion)]
        {
            let database = redb::Database::create(&path).expect("create");
            let transaction = database.begin_write().expect("begin");
            let table = redb::TableDefinition::<&str, u64>::new(table);
            transaction.open_table(table).expect("table").insert("version", 3).expect("insert");
            transaction.commit().expect("commit");
            drop(database);
            assert_eq!(RedbStore::open(&path).expect_err("refused").reason(), reason);
        }
    }

    #[test]
    fn redb_reports_a_folder_that_is_missing() {
        let folder = tempfile::tempdir().expect("folder");
        let error = RedbStore::open(folder.path().join("none/timeouts.redb")).expect_err("missing");
        assert_eq!(error.reason(), StoreErrorReason::Other);
        assert!(std::error::Error::source(&error).is_some());
    }

    /// Tells of a sync, and waits for the test. Panics if the test drops its side.
    type Gate = (Sender<()>, Receiver<()>);

    fn at(seconds: u64) -> WallTime {
        WallTime::from_micros(seconds * 1_000_000).expect("in range")
    }

    fn schedule(id: &str, due: WallTime, conflict: Conflict) -> Command {
        let new = NewTimeout::new(id, due, b"").expect("valid");
        Command::Schedule(NewTimeout { conflict, ..new })
    }

    fn claim_minute(store: &RedbStore, worker: WorkerId) -> Vec<Record> {
        let request = ClaimRequest {
            now: at(0),
            from: at(0),
            until: at(60),
            limit: 10,
            max_bytes: 10,
            cron: true,
        };
        store.claim(worker, request).expect("claim").expect("lease").records
    }

    /// Returns a store with the timeout `a` at 10 s, a worker, and the slot for a gate.
    fn gated() -> (RedbStore, WorkerId, Arc<Mutex<Option<Gate>>>) {
        let slot: Arc<Mutex<Option<Gate>>> = Arc::default();
        let gate = Arc::clone(&slot);
        let file = Guarded::new(move |change| {
            let gate = gate.lock().expect("not poisoned").take_if(|_| change == Change::Sync);
            if let Some((reached, go)) = gate {
                reached.send(()).expect("the test waits");
                go.recv().expect("the disk works");
            }
            Ok(())
        });
        let store = RedbStore::open_backend(file).expect("open");
        store.write(at(0), &[schedule("a", at(10), Conflict::Refuse)]).expect("write");
        let worker = store.enter(at(0), Duration::from_secs(600), None).expect("enter");
        (store, worker, slot)
    }

    /// Writes on another thread. Returns it during its sync, and the side that lets it continue.
    fn write_slowly<const N: usize>(
        store: &RedbStore,
        slot: &Mutex<Option<Gate>>,
        commands: [Command; N],
    ) -> (thread::JoinHandle<()>, Sender<()>) {
        let ((reached, sync), (go, gate)) = (mpsc::channel(), mpsc::channel());
        *slot.lock().expect("not poisoned") = Some((reached, gate));
        let store = store.clone();
        let write = move || drop(store.write(at(0), &commands).expect("write"));
        let writer = thread::spawn(write);
        sync.recv().expect("a sync");
        (writer, go)
    }

    /// The transaction leaves a timeout as it is that a claim meanwhile has passed over.
    #[test]
    fn redb_tells_of_a_record_that_a_claim_passed_over() {
        let (store, worker, slot) = gated();
        let (told, notices) = mpsc::channel();
        store.listen(Arc::new(move |due| told.send(due).expect("the test waits")));
        let commands = ["a", "b"].map(|id| schedule(id, at(5000), Conflict::Keep));
        let (writer, go) = write_slowly(&store, &slot, commands);
        assert_eq!(claim_minute(&store, worker), []);
        go.send(()).expect("the writer waits");
        writer.join().expect("the write succeeds");
        assert_eq!(notices.try_iter().min(), Some(at(10)));
        assert_eq!(claim_minute(&store, worker).len(), 1);
    }

    #[test]
    fn a_panic_in_a_transaction_of_redb_delays_no_delivery() {
        let (store, worker, slot) = gated();
        let claims = [claim_minute(&store, worker)[0].claim()];
        let reschedule = Command::Reschedule(TimeoutId::new("a").expect("valid"), at(50));
        let (writer, go) = write_slowly(&store, &slot, [reschedule]);
        drop(go);
        writer.join().expect_err("the backend panics");
        let (sender, begun) = mpsc::channel();
        thread::spawn(move || sender.send(store.begin(at(10), &claims)));
        let begun = begun.recv_timeout(Duration::from_secs(20)).expect("begin has returned");
        assert_eq!(begun.expect("begin"), [Begun::Begun]);
    }
}
