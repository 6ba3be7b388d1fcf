//! Every store passes the conformance suite, and the embedded one refuses bad files.

use delaywheel_durable::{MemoryStore, conformance};

#[test]
fn memory_conforms() {
    conformance::check(MemoryStore::new, 20_000);
}

#[cfg(feature = "redb")]
mod embedded {
    use std::fs;

    use delaywheel_durable::{RedbStore, Store, StoreErrorReason, conformance};
    use redb::backends::InMemoryBackend;

    #[test]
    fn redb_conforms() {
        let open = || RedbStore::open_backend(InMemoryBackend::new()).expect("open");
        conformance::check(open, 6_000);
    }

    #[test]
    fn redb_refuses_a_second_user_of_the_file() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        let store = RedbStore::open(&path).expect("open");
        let error = RedbStore::open(&path).expect_err("in use");
        assert_eq!(error.reason(), StoreErrorReason::InUse);
        drop(store);
        RedbStore::open(&path).expect("free again");
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
    fn redb_refuses_the_database_of_another_program() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("other.redb");
        let database = redb::Database::create(&path).expect("create");
        let transaction = database.begin_write().expect("begin");
        let other = redb::TableDefinition::<u64, u64>::new("other");
        transaction.open_table(other).expect("table");
        transaction.commit().expect("commit");
        drop(database);
        let error = RedbStore::open(&path).expect_err("foreign");
        assert_eq!(error.reason(), StoreErrorReason::Corrupt);
    }

    #[test]
    fn redb_refuses_a_newer_version() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        drop(RedbStore::open(&path).expect("open"));
        let database = redb::Database::open(&path).expect("open");
        let transaction = database.begin_write().expect("begin");
        let meta = redb::TableDefinition::<&str, u64>::new("delaywheel");
        transaction.open_table(meta).expect("table").insert("version", 2).expect("insert");
        transaction.commit().expect("commit");
        drop(database);
        let error = RedbStore::open(&path).expect_err("newer");
        assert_eq!(error.reason(), StoreErrorReason::NewerVersion);
    }

    #[test]
    fn redb_reports_a_folder_that_is_missing() {
        let folder = tempfile::tempdir().expect("folder");
        let error = RedbStore::open(folder.path().join("none/timeouts.redb")).expect_err("missing");
        assert_eq!(error.reason(), StoreErrorReason::Other);
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn redb_keeps_records_and_forgets_claims() {
        use delaywheel_durable::{Command, Conflict, NewTimeout, State, TimeoutId, WallTime};

        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        let store = RedbStore::open(&path).expect("open");
        let id = TimeoutId::new("a").expect("valid");
        let new = NewTimeout {
            id: id.clone(),
            due: WallTime::from_micros(5).expect("valid"),
            payload: b"x"[..].into(),
            repeat: None,
            conflict: Conflict::Replace,
        };
        store.write(WallTime::MIN, &[Command::Schedule(new)]).expect("write");
        let worker = store.enter(WallTime::MIN, std::time::Duration::MAX).expect("enter");
        let request = delaywheel_durable::ClaimRequest {
            now: WallTime::MAX,
            from: WallTime::MIN,
            until: WallTime::MAX,
            limit: 1,
            max_bytes: 1,
            begin: true,
        };
        assert_eq!(store.claim(worker, request).expect("claim").expect("lease").records.len(), 1);
        assert_eq!(store.get(&id).expect("get").expect("kept").state, State::Delivering);
        drop(store);
        let store = RedbStore::open(&path).expect("open");
        assert_eq!(store.get(&id).expect("get").expect("kept").state, State::Pending);
    }
}
