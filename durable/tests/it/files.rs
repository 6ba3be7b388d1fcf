//! Embedded stores on read-only files, and on files that are damaged.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use delaywheel_durable::{
    ClaimRequest, Command, NewTimeout, Query, RedbStore, Store, StoreError, StoreErrorReason,
    WallTime,
};
use redb::{StorageBackend, backends::InMemoryBackend};

/// A change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Write,
    Sync,
}

/// A file in memory that asks before each change. Clones are the same file.
#[derive(Clone)]
pub(crate) struct Guarded {
    content: Arc<InMemoryBackend>,
    guard: Arc<dyn Fn(Change) -> io::Result<()> + Send + Sync>,
}

impl Guarded {
    pub(crate) fn new(guard: impl Fn(Change) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { content: Arc::default(), guard: Arc::new(guard) }
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl StorageBackend for Guarded {
    fn len(&self) -> io::Result<u64> {
        self.content.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.content.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (self.guard)(Change::Write)?;
        self.content.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        (self.guard)(Change::Sync)?;
        self.content.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        (self.guard)(Change::Write)?;
        self.content.write(offset, data)
    }
}

/// Returns a file, and the switch that makes it read-only.
fn file() -> (Guarded, Arc<AtomicBool>) {
    let is_read_only = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_read_only);
    let file = Guarded::new(move |change| match change {
        Change::Write if is_read_only.load(SeqCst) => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Ok(()),
    });
    (file, switch)
}

fn schedule(store: &RedbStore, numbers: Range<u32>) -> Result<(), StoreError> {
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

#[test]
fn a_file_that_cannot_be_written_is_read_only() {
    let (file, is_read_only) = file();
    is_read_only.store(true, SeqCst);
    let error = RedbStore::open_backend(file.clone()).expect_err("it cannot be created");
    assert_eq!(error.reason(), StoreErrorReason::ReadOnly);
    is_read_only.store(false, SeqCst);
    let store = RedbStore::open_backend(file.clone()).expect("open");
    schedule(&store, 1..2).expect("write");
    is_read_only.store(true, SeqCst);
    let error = schedule(&store, 2..3).expect_err("it cannot be written");
    assert_eq!(
        error.reason(),
        StoreErrorReason::OutcomeUnknown,
        "the store cannot read the outcome"
    );
    drop(store);
    is_read_only.store(false, SeqCst);
    let store = RedbStore::open_backend(file).expect("open again");
    assert_eq!(store.count().expect("count").live, 1);
}

/// No user can create files there, not even root.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_is_read_only() {
    let error = RedbStore::open("/sys/timeouts.redb").expect_err("it cannot be created");
    assert_eq!(error.reason(), StoreErrorReason::ReadOnly);
}

#[cfg(feature = "tracing")]
#[test]
fn a_failed_commit_is_a_warning() {
    use delaywheel_durable::{DurableTimer, ManualWallClock};

    let (file, is_read_only) = file();
    let store = RedbStore::open_backend(file).expect("open");
    let timer = DurableTimer::builder(store)
        .clock(ManualWallClock::new())
        .build_blocking(|_| Ok(()))
        .expect("start");
    is_read_only.store(true, SeqCst);
    let warnings = crate::timer::Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        timer.schedule("a", Duration::from_secs(1), b"").expect_err("read-only");
    });
    assert_eq!((timer.stats().store_errors, warnings.0.load(SeqCst)), (1, 1));
}

const COUNT: u32 = 300;

/// Returns the content of a store with many timeouts.
fn filled(path: &Path) -> Vec<u8> {
    let store = RedbStore::open(path).expect("open");
    for start in (0..COUNT).step_by(100) {
        schedule(&store, start..start + 100).expect("write");
    }
    drop(store);
    fs::read(path).expect("read")
}

/// Reads, claims and writes; returns whether all timeouts were there.
fn use_store(store: &RedbStore) -> Result<bool, StoreError> {
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
    let request = ClaimRequest {
        now: WallTime::MIN,
        from: WallTime::MIN,
        until: WallTime::MAX,
        limit: 10,
        max_bytes: usize::MAX,
        cron: true,
    };
    store.claim(worker, request)?;
    schedule(store, COUNT..COUNT + 1)?;
    let expected = (0..COUNT).map(|number| (format!("{number:04}"), payload(number)));
    Ok(found == expected.collect())
}

#[test]
fn a_damaged_file_is_an_error_or_complete_when_it_is_checked() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("timeouts.redb");
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
    for place in (0..256).step_by(16).chain((4_096..content.len()).step_by(4_096)).take(40) {
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
        let is_complete = RedbStore::open_checked(&path).and_then(|store| use_store(&store));
        match is_complete {
            Ok(true) => complete += 1,
            // An empty file becomes a new store.
            Ok(false) => assert!(content.is_empty(), "{number} has lost timeouts"),
            Err(_) => errors += 1,
        }
        // Without the check, wrong data may be read, but no panic escapes.
        fs::write(&path, content).expect("write");
        drop(RedbStore::open(&path).and_then(|store| use_store(&store)));
    }
    assert!(complete > 0 && errors > 0, "{complete} were complete, {errors} were errors");
}
