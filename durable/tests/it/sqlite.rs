//! Files of the embedded store: bad, damaged, in use, copied and compacted.

use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
};

use delaywheel_durable::{Sharded, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    (folder, path)
}

fn at(micros: u64) -> WallTime {
    WallTime::from_micros(micros).expect("in range")
}

#[test]
fn a_file_keeps_its_queues_and_a_checksum_covers_those_of_records() {
    let (_folder, path) = file();
    let store = SqliteStore::open(&path).expect("open");
    let new = NewTimeout::new("a", at(0), b"").and_then(|new| new.queue("q")).expect("valid");
    store.pause(&new.queue, true).block_on().expect("pause");
    store.write(at(0), &[Command::Schedule(new)]).block_on().expect("write");
    drop(store);
    let store = SqliteStore::open_checked(&path).expect("it is not damaged");
    assert!(store.queues().block_on().expect("queues")[1].is_paused);
    drop(store);
    // All records can be read, and the number of free pages is not that of its list.
    for free in [9_u32, 0] {
        let mut file = fs::OpenOptions::new().write(true).open(&path).expect("open");
        file.seek(SeekFrom::Start(36)).expect("the header has 100 bytes");
        file.write_all(&free.to_be_bytes()).expect("write");
        assert_eq!(SqliteStore::open_checked(&path).is_ok(), free == 0);
    }
    change(&path, "UPDATE records SET queue = 'r'; UPDATE ids SET queue = 'r'");
    let error = SqliteStore::open_checked(&path).expect_err("another queue");
    assert_eq!(error.reason(), StoreErrorReason::Corrupt);
}

fn change(path: &Path, sql: &str) {
    Connection::open(path).and_then(|file| file.execute_batch(sql)).expect("change");
}

fn count(path: &Path, table: &str) -> usize {
    let sql = format!("SELECT count(*) FROM {table}");
    let file = Connection::open(path).expect("open");
    file.query_row(&sql, (), |row| row.get(0)).expect("count")
}

/// Acknowledgements leave rows of ids, which nothing else shows. Each process lives shortly.
#[test]
fn an_id_is_free_after_its_timeout_and_later_commits_remove_its_row() {
    let (_folder, path) = file();
    let store = SqliteStore::open(&path).expect("open");
    let new = |number: u64| {
        let id = format!("{:04}", number * 7_919 % 10_000);
        Command::Schedule(NewTimeout::new(id, at(number), b"").expect("valid"))
    };
    store.write(at(0), &(0..1_000).map(new).collect::<Vec<_>>()).block_on().expect("write");
    let settle = |mut store: SqliteStore, from: u64| {
        for until in (from..from + 500).step_by(100) {
            drop(store);
            store = SqliteStore::open(&path).expect("open");
            crate::settle_all(&store, at(0), at(until + 100), &Settlement::Done);
        }
        store
    };
    // Rows of records are not stale, though these are as old as those that are.
    let same = NewTimeout::new("9500/same", at(499), b"").and_then(|new| new.queue("other"));
    let kept = [new(0), Command::Schedule(same.expect("valid"))];
    store.write(at(0), &kept).block_on().expect("write");
    crate::settle_all(&store, at(0), at(1), &Settlement::Dead { error: String::new() });
    let store = settle(store, 0);
    let cancels = kept.map(|command| Command::Cancel(command.id().clone()));
    let cancelled = store.write(at(0), &cancels).block_on().expect("write");
    assert_eq!(cancelled, [Answer::Cancelled(Cancelled::Cancelled); 2]);
    let left = count(&path, "ids");
    assert!((501..900).contains(&left), "{left} rows of 500 records");
    let live = |store: &SqliteStore| crate::records(store).len();
    assert_eq!((live(&store), count(&path, "records")), (500, 500));
    let answers = store.write(at(0), &[new(3), new(499), new(500)]).block_on().expect("write");
    let created = Answer::Scheduled(Scheduled::Created);
    assert_eq!(answers, [created, created, Answer::Scheduled(Scheduled::Replaced)]);
    assert_eq!(live(&store), 502);
    // Its row is not stale, though it is older than those that are.
    let old = NewTimeout::new("5000/old", at(0), b"").and_then(|new| new.queue("other"));
    let old = old.expect("valid");
    let cancel = Command::Cancel(old.id.clone());
    store.write(at(0), &[Command::Schedule(old)]).block_on().expect("write");
    let store = settle(store, 500);
    let cancelled = store.write(at(0), &[cancel]).block_on().expect("write");
    assert_eq!(cancelled, [Answer::Cancelled(Cancelled::Cancelled)]);
    let left = count(&path, "ids");
    assert!(left < 500, "{left} rows of none");
    store.compact().expect("compact");
    assert_eq!(count(&path, "ids"), 0);
    let cancel = Command::Cancel(new(3).id().clone());
    store.write(at(0), &[new(1), new(2), new(3), cancel]).block_on().expect("write");
    assert_eq!(count(&path, "ids"), 2);
    drop(store);
    drop(SqliteStore::open_checked(&path).expect("it is not damaged"));
    change(&path, "DELETE FROM ids WHERE next = 2");
    let error = SqliteStore::open_checked(&path).expect_err("nothing finds the record");
    assert_eq!(error.reason(), StoreErrorReason::Corrupt);
}

#[test]
fn sqlite_is_copied_while_it_changes_is_compacted_and_repeats_no_token() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name);
    let store = SqliteStore::open(path("store")).expect("open");
    let command = |number: u64, payload: &[u8]| {
        let new = NewTimeout::new(format!("{}", number * 7_919 % 2_000), at(number), payload);
        Command::Schedule(new.expect("valid"))
    };
    let fill: Vec<_> = (0..2_000).map(|number| command(number, &[7; 2_000])).collect();
    store.write(at(0), &fill).block_on().expect("write");
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for number in 0..50 {
                let pair = [command(number, b"1"), command(number + 1_000, b"1")];
                store.write(at(0), &pair).block_on().expect("write");
            }
        });
        for number in 0..3 {
            store.backup(path(&format!("copy-{number}"))).expect("backup");
        }
        changes.join().expect("changes");
    });
    store.backup(path("copy-0")).expect_err("it exists");
    for number in 0..3 {
        let copy = SqliteStore::open_checked(path(&format!("copy-{number}"))).expect("open");
        let records = crate::records(&copy);
        let changed = records.iter().filter(|record| record.payload.len() == 1).count();
        assert_eq!((records.len(), changed % 2), (2_000, 0), "one moment");
    }
    let cancel = |number: u64| Command::Cancel(TimeoutId::new(number.to_string()).expect("id"));
    store.write(at(0), &(10..2_000).map(cancel).collect::<Vec<_>>()).block_on().expect("write");
    let length = || {
        let size = |name| fs::metadata(path(name)).expect("file").len();
        size("store") + size("store-wal")
    };
    let before = length();
    assert!(store.compact().expect("compact"));
    assert!(length() < before / 4, "{before} and {}", length());
    let token = |store: &SqliteStore| {
        let worker = store.enter(at(0), Duration::MAX, None).block_on().expect("enter");
        let request = ClaimRequest { limit: 1, ..ClaimRequest::new(at(0), WallTime::MAX) };
        store.claim(worker, &request).block_on().expect("claim").expect("lease").records[0].token
    };
    let first = token(&store);
    store.backup(path("copy-3")).expect("backup");
    drop(store);
    let second = token(&SqliteStore::open(path("store")).expect("open"));
    let restored = token(&SqliteStore::open(path("copy-3")).expect("open"));
    assert!(first < second && second < restored, "{first}, {second}, {restored}");
}

/// The process was killed, so its log is beside the file that the copy replaces.
#[test]
fn a_copy_takes_the_place_of_a_file_and_not_its_log() {
    let folder = tempfile::tempdir().expect("folder");
    // Windows has no file with a question mark in its name.
    let mark = if cfg!(windows) { "" } else { "?" };
    let path = |name: &str| folder.path().join(name.replace('?', mark));
    let store = SqliteStore::open(path("killed?#%.db")).expect("open");
    schedule(&store, 0..100).expect("write");
    store.backup(path("copy")).expect("backup");
    schedule(&store, 100..900).expect("write");
    let restore = |copy: &str| {
        fs::copy(path("killed?#%.db-wal"), path("new?#%.db-wal")).expect("copy");
        fs::copy(path(copy), path("new?#%.db")).expect("copy");
    };
    let live = |store: &SqliteStore| crate::records(store).len();
    restore("copy");
    let error = SqliteStore::open_read_only(path("new?#%.db")).expect_err("the log of another");
    assert_eq!(error.reason(), StoreErrorReason::Corrupt);
    for count in [100, 150] {
        let store = SqliteStore::open_checked(path("new?#%.db")).expect("open");
        assert_eq!(live(&store), count);
        schedule(&store, 100..150).expect("write");
    }
    assert_eq!(live(&SqliteStore::open_read_only(path("copy")).expect("a copy")), 100);
    // It is a file of its own now, whose log a kill leaves.
    let store = SqliteStore::open(path("new?#%.db")).expect("open");
    schedule(&store, 200..300).expect("write");
    for ending in ["", "-wal"] {
        let name = |store: &str| path(&format!("{store}?#%.db{ending}"));
        fs::copy(name("new"), name("later")).expect("copy");
    }
    assert_eq!(live(&SqliteStore::open_checked(path("later?#%.db")).expect("open")), 250);
}

#[test]
fn sqlite_refuses_what_it_cannot_use_and_leaves_it_as_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name);
    let notes = "these are notes\n".repeat(1_000);
    fs::write(path("notes"), &notes).expect("write");
    drop(SqliteStore::open(path("newer")).expect("open"));
    change(&path("newer"), "PRAGMA user_version = 9");
    change(&path("other"), "CREATE TABLE records (id)");
    drop(SqliteStore::open(path("earlier")).expect("open"));
    change(&path("earlier"), "PRAGMA application_id = 0x64776c64");
    let in_use = SqliteStore::open(path("in use")).expect("open");
    let mut cases = vec![
        ("notes", StoreErrorReason::Corrupt),
        ("newer", StoreErrorReason::NewerVersion),
        ("other", StoreErrorReason::Corrupt),
        ("earlier", StoreErrorReason::Corrupt),
        ("in use", StoreErrorReason::InUse),
        ("no folder/timeouts.db", StoreErrorReason::Other),
    ];
    #[cfg(unix)]
    for (target, link) in
        [("in use", "link"), ("none yet", "early"), ("early", "new"), ("loop", "loop")]
    {
        std::os::unix::fs::symlink(target, path(link)).expect("link");
    }
    let through_link = cfg!(unix).then(|| SqliteStore::open(path("new")).expect("a new file"));
    let links = [
        ("link", StoreErrorReason::InUse),
        ("new", StoreErrorReason::InUse),
        ("none yet", StoreErrorReason::InUse),
        ("loop", StoreErrorReason::Other),
    ];
    cases.extend(links.into_iter().filter(|_| through_link.is_some()));
    // No user can create files there, not even root.
    let read_only = ("/sys/timeouts.db", StoreErrorReason::ReadOnly);
    cases.extend(cfg!(target_os = "linux").then_some(read_only));
    for (name, reason) in cases {
        let refused = SqliteStore::open(path(name)).expect_err(name);
        assert_eq!(refused.reason(), reason, "{name}");
    }
    assert_eq!(fs::read(path("notes")).expect("read"), notes.as_bytes());
    let mode = Connection::open(path("other")).and_then(|file| {
        file.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))
    });
    assert_eq!(mode.expect("mode"), "delete");
    SqliteStore::open_read_only(path("missing")).expect_err("there is no file");
    let read = SqliteStore::open_read_only(path("in use")).expect("open");
    let enter = read.enter(WallTime::MIN, Duration::MAX, None).block_on().map(drop);
    for refused in [enter, schedule(&read, 0..1)] {
        assert_eq!(refused.expect_err("a change").reason(), StoreErrorReason::ReadOnly);
    }
    assert_eq!(read.workers(9).block_on().expect("read"), None);
    drop((in_use, read));
    SqliteStore::open(path("in use")).expect("it is free");
}

fn schedule(store: &SqliteStore, numbers: Range<u32>) -> StoreResult<()> {
    let commands = numbers.map(|number| {
        let due = at(number.into());
        let new = NewTimeout::new(format!("{number:04}"), due, payload(number)).expect("valid");
        Command::Schedule(new)
    });
    store.write(WallTime::MIN, &commands.collect::<Vec<_>>()).block_on().map(drop)
}

fn payload(number: u32) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; 40]
}

#[cfg(feature = "tracing")]
#[test]
fn a_damaged_timeout_and_a_commit_and_a_claim_that_fail_are_warnings() {
    let (_folder, path) = file();
    let clock = ManualClock::new();
    let timer = acknowledging(SqliteStore::open(&path).expect("open"), &clock);
    for days in 1..3 {
        timer.schedule(days.to_string(), DAY * days, b"").wait().expect("schedule");
    }
    let other = Connection::open(&path).expect("open");
    let change = |sql| other.execute_batch(sql).expect("another program changes the file");
    change("UPDATE records SET payload = x'00' WHERE id = '1'");
    assert_ne!(crate::timer::warnings(|| clock.advance(DAY)), 0);
    change("DROP TABLE records");
    let warnings = crate::timer::warnings(|| {
        timer.schedule("a", SECOND, b"").wait().expect_err("no table");
    });
    assert_eq!((timer.stats().store_errors, warnings), (1, 1));
    assert_ne!(crate::timer::warnings(|| clock.advance(DAY)), 0);
}

#[test]
fn a_pause_has_an_unknown_outcome_only_if_a_database_may_have_changed() {
    let (_folder, path) = file();
    drop(SqliteStore::open(&path).expect("open"));
    let clock = ManualClock::new();
    let read_only = || acknowledging(SqliteStore::open_read_only(&path).expect("open"), &clock);
    let pause = |first| match Sharded::new(vec![first, read_only()]).pause("").wait() {
        Err(DurableError::Store(error)) => error.reason(),
        other => panic!("{other:?}"),
    };
    assert_eq!(pause(read_only()), StoreErrorReason::ReadOnly);
    let other = acknowledging(SqliteStore::in_memory(), &clock);
    assert_eq!(pause(other), StoreErrorReason::OutcomeUnknown);
}

const COUNT: u32 = 300;

/// Returns the content of a store with many timeouts.
fn filled(path: &Path) -> Vec<u8> {
    let store = SqliteStore::open(path).expect("open");
    for start in (0..COUNT).step_by(100) {
        schedule(&store, start..start + 100).expect("write");
    }
    drop(store);
    fs::read(path).expect("read")
}

/// Reads, claims and writes; returns whether all timeouts were there.
fn use_store(store: &SqliteStore) -> StoreResult<bool> {
    let all = Query::Prefix { prefix: String::new(), after: None };
    let records = store.list(&all, 10_000).block_on()?;
    let found = records.iter().map(|record| (record.id.to_string(), record.payload.to_vec()));
    let times = Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: None };
    store.list(&times, 10_000).block_on()?;
    for record in &records {
        store.get(&record.id).block_on()?;
    }
    store.count().block_on()?;
    let worker = store.enter(WallTime::MIN, Duration::from_secs(1), None).block_on()?;
    let request = ClaimRequest { limit: 10, ..ClaimRequest::new(WallTime::MIN, WallTime::MAX) };
    store.claim(worker, &request).block_on()?;
    schedule(store, COUNT..COUNT + 1)?;
    let expected = (0..COUNT).map(|number| (format!("{number:04}"), payload(number)));
    Ok(found.eq(expected))
}

#[test]
fn a_damaged_file_is_an_error_or_complete_when_it_is_checked() {
    let (_folder, path) = file();
    let content = filled(&path);
    let mut damaged = Vec::new();
    let mut rng = fastrand::Rng::with_seed(18);
    for _ in 0..20 {
        let mut flipped = content.clone();
        let place = rng.usize(..flipped.len());
        flipped[place] ^= 1 << rng.u32(..8);
        damaged.push(flipped);
    }
    // The header, and the first bytes of pages, say how to read the others.
    for place in (0..256).step_by(16).chain((1_024..content.len()).step_by(1_024)).take(40) {
        let mut flipped = content.clone();
        flipped[place] ^= 0x11;
        damaged.push(flipped);
    }
    for part in 0..10 {
        damaged.push(content[..content.len() * part / 10 + part % 3].to_vec());
    }
    let (mut complete, mut errors) = (0, 0);
    for (number, content) in damaged.iter().enumerate() {
        fs::write(&path, content).expect("write");
        let is_complete = SqliteStore::open_checked(&path).and_then(|store| use_store(&store));
        match is_complete {
            Ok(true) => complete += 1,
            // An empty file becomes a new store.
            Ok(false) => assert!(content.is_empty(), "{number} has lost timeouts"),
            Err(_) => errors += 1,
        }
        // Without the check, wrong data may be read, but no panic escapes.
        fs::write(&path, content).expect("write");
        drop(SqliteStore::open(&path).and_then(|store| use_store(&store)));
    }
    assert!(complete > 0 && errors > 0, "{complete} were complete, {errors} were errors");
}

/// Claims pass over it, it can be cancelled, and commands that are written with that one succeed.
#[test]
fn a_damaged_record_stops_no_others_and_can_be_cancelled() {
    let (_folder, path) = file();
    let store = SqliteStore::open(&path).expect("open");
    let schedule = |id| {
        let priority = if id == "bad" { Priority::High } else { Priority::Low };
        Command::Schedule(NewTimeout::new(id, at(0), b"a").expect("valid").priority(priority))
    };
    store.write(at(0), &["bad", "good"].map(schedule)).block_on().expect("write");
    drop(store);
    change(&path, "UPDATE records SET payload = x'00' WHERE id = 'bad'");
    let (sender, seen) = mpsc::channel();
    let timer = DurableTimer::builder(SqliteStore::open(&path).expect("open"))
        .build_blocking(move |delivery| Ok(sender.send(delivery.id().to_string())?))
        .expect("start");
    assert_eq!(seen.recv_timeout(60 * SECOND).expect("delivery"), "good");
    let error = timer.get("bad").wait().expect_err("it is damaged");
    assert!(format!("{error:?}").contains("bad"), "an operator has to know the id: {error:?}");
    let kept = NewTimeout::new("bad", at(0), b"").expect("valid").conflict(Conflict::Keep);
    timer.schedule_new(kept).wait().expect_err("it would never be delivered");
    let moved = timer.reschedule("bad", DAY);
    timer.schedule("other", DAY, b"").wait().expect("it is not damaged");
    moved.wait().expect_err("it is damaged");
    assert_eq!(timer.cancel("bad").wait().expect("cancel"), Cancelled::Cancelled);
    assert_eq!(timer.count().wait().expect("count").live, 1);
}
