//! Embedded stores on files that are damaged.

use std::{
    collections::BTreeMap, fs, ops::Range, path::Path, sync::atomic::Ordering::SeqCst,
    time::Duration,
};

use delaywheel_durable::{
    ClaimRequest, Command, NewTimeout, Query, SqliteStore, Store, StoreResult, WallTime,
};

fn schedule(store: &SqliteStore, numbers: Range<u32>) -> StoreResult<()> {
    let commands = numbers.map(|number| {
        let due = WallTime::from_micros(u64::from(number)).expect("in range");
        let new = NewTimeout::new(format!("{number:04}"), due, payload(number)).expect("valid");
        Command::Schedule(new)
    });
    store.write(WallTime::MIN, &commands.collect::<Vec<_>>()).map(drop)
}

fn payload(number: u32) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; 40]
}

#[cfg(feature = "tracing")]
#[test]
fn a_failed_commit_is_a_warning() {
    use delaywheel_durable::{DurableTimer, ManualWallClock};

    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
    let timer = DurableTimer::builder(SqliteStore::open(&path).expect("open"))
        .clock(ManualWallClock::new())
        .build_blocking(|_| Ok(()))
        .expect("start");
    let other = rusqlite::Connection::open(&path).expect("open");
    other.execute_batch("DROP TABLE records").expect("another program changes the file");
    let warnings = crate::timer::Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        timer.schedule("a", Duration::from_secs(1), b"").wait().expect_err("no table");
    });
    assert_eq!((timer.stats().store_errors, warnings.0.load(SeqCst)), (1, 1));
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
    let records = store.list(&all, 10_000)?;
    let found: BTreeMap<_, _> =
        records.iter().map(|record| (record.id.to_string(), record.payload.to_vec())).collect();
    let times = Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: None };
    store.list(&times, 10_000)?;
    for record in &records {
        store.get(&record.id)?;
    }
    store.count()?;
    let worker = store.enter(WallTime::MIN, Duration::from_secs(1), None)?;
    let request = ClaimRequest { limit: 10, ..ClaimRequest::new(WallTime::MIN, WallTime::MAX) };
    store.claim(worker, request)?;
    schedule(store, COUNT..COUNT + 1)?;
    let expected = (0..COUNT).map(|number| (format!("{number:04}"), payload(number)));
    Ok(found == expected.collect())
}

#[test]
fn a_damaged_file_is_an_error_or_complete_when_it_is_checked() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.db");
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
