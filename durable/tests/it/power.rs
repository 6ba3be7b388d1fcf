//! The embedded store when the power fails or the disk is full: writes that were not synced are
//! lost, in part, and in any order.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use delaywheel_durable::{
    Claim, ClaimRequest, Command, NewTimeout, Query, Record, RedbStore, Settlement, State, Store,
    StoreErrorReason, TimeoutId, WallTime,
};
use fastrand::Rng;
use redb::StorageBackend;

/// A disk whose writes reach the plate at a sync.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    /// The content that reads see: all writes.
    seen: Vec<u8>,
    /// The content that a power failure leaves in any case.
    synced: Vec<u8>,
    /// Writes since the last sync.
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Number of changes of the file before the fault.
    fault: Option<(u32, Fault)>,
    /// The content that a power failure has left.
    left: Option<Vec<u8>>,
}

/// A fault at a write, at a sync, or at a change of the file's length.
#[derive(Debug, Clone)]
enum Fault {
    /// The power fails; a part of the unsynced sectors remains.
    Power(Rng),
    /// The disk is full from then on.
    Full,
}

impl Disk {
    fn fail_after(&self, changes: u32, fault: Fault) {
        self.0.lock().expect("not poisoned").fault = Some((changes, fault));
    }

    /// Returns whether the fault is still to come.
    fn is_fault_pending(&self) -> bool {
        matches!(self.0.lock().expect("not poisoned").fault, Some((1.., _)))
    }

    /// Returns the disk after the end of the process.
    fn after_kill(&self) -> Self {
        let seen = self.0.lock().expect("not poisoned").seen.clone();
        let contents = Contents { seen: seen.clone(), synced: seen, ..Contents::default() };
        Self(Arc::new(Mutex::new(contents)))
    }

    /// Returns the disk after the power failure.
    fn after_failure(&self) -> Self {
        let contents = &mut *self.0.lock().expect("not poisoned");
        let left = contents.left.take().unwrap_or_else(|| contents.synced.clone());
        let contents = Contents { seen: left.clone(), synced: left, ..Contents::default() };
        Self(Arc::new(Mutex::new(contents)))
    }
}

impl Contents {
    /// Returns the content that a power failure would leave now: each unsynced sector is old or
    /// new.
    fn torn(&self, rng: &mut Rng) -> Vec<u8> {
        let mut left = self.synced.clone();
        for (offset, data) in &self.unsynced {
            for (number, sector) in data.chunks(512).enumerate() {
                let start = usize::try_from(*offset).expect("an offset") + number * 512;
                if rng.bool() {
                    left[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
        left
    }

    /// Counts a change of the file. Returns an error if the disk is full.
    fn change(&mut self) -> io::Result<()> {
        match &mut self.fault {
            None => Ok(()),
            Some((changes @ 1.., _)) => {
                *changes -= 1;
                Ok(())
            }
            Some((0, Fault::Full)) => Err(io::ErrorKind::StorageFull.into()),
            Some((0, Fault::Power(rng))) => {
                let mut rng = rng.fork();
                self.fault = None;
                self.left = Some(self.torn(&mut rng));
                Ok(())
            }
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("not poisoned").seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let contents = self.0.lock().expect("not poisoned");
        let start = usize::try_from(offset).expect("an offset");
        out.copy_from_slice(&contents.seen[start..start + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut contents = self.0.lock().expect("not poisoned");
        let len = usize::try_from(len).expect("a length");
        contents.change()?;
        contents.seen.resize(len, 0);
        // The length of a file is kept by the file system's own log.
        contents.synced.resize(len, 0);
        let end = |offset: u64| usize::try_from(offset).expect("an offset");
        contents.unsynced.retain(|(offset, data)| end(*offset) + data.len() <= len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let contents = &mut *self.0.lock().expect("not poisoned");
        contents.change()?;
        contents.synced.clone_from(&contents.seen);
        contents.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let contents = &mut *self.0.lock().expect("not poisoned");
        let start = usize::try_from(offset).expect("an offset");
        contents.seen[start..start + data.len()].copy_from_slice(data);
        contents.unsynced.push((offset, data.to_vec()));
        contents.change()
    }
}

fn id(number: u32) -> TimeoutId {
    TimeoutId::new(number.to_string()).expect("valid")
}

fn at(micros: u32) -> WallTime {
    WallTime::from_micros(u64::from(micros)).expect("in range")
}

fn schedule(number: u32, size: usize) -> Command {
    Command::Schedule(NewTimeout::new(id(number), at(number), vec![7; size]).expect("valid"))
}

/// Returns all records, and their ids in the order of times.
fn content(store: &RedbStore) -> (Vec<Record>, Vec<TimeoutId>) {
    let all = Query::Prefix { prefix: String::new(), after: None };
    let times = Query::Times { from: WallTime::MIN, until: WallTime::MAX, after: None };
    let records = store.list(&all, 10_000).expect("list").into_iter();
    let records = records.map(|record| Record { token: 0, state: State::Pending, ..record });
    let times = store.list(&times, 10_000).expect("list").into_iter();
    (records.collect(), times.map(|record| record.id).collect())
}

/// Returns transactions of each kind, for a store with the timeouts 0 to 39 and claims of 0 to 9.
fn transactions(claims: &[Claim]) -> [Vec<Command>; 5] {
    let settle = |settlement: &dyn Fn(usize) -> Settlement| {
        let claims = claims.iter().enumerate();
        claims.map(|(number, claim)| Command::Settle(claim.clone(), settlement(number))).collect()
    };
    let error = || "error".repeat(50);
    [
        (40..80).map(|number| schedule(number, 30 * number as usize)).collect(),
        (20..40).map(|number| Command::Cancel(id(number))).collect(),
        (10..30).map(|number| Command::Reschedule(id(number), at(1_000 - number))).collect(),
        settle(&|_| Settlement::Done),
        settle(&|number| match number % 2 {
            0 => Settlement::Retry { at: at(500), error: error() },
            _ => Settlement::Dead { error: error() },
        }),
    ]
}

/// Opens a store with 40 timeouts, of which 10 are claimed.
fn filled() -> (Disk, RedbStore, Vec<Claim>) {
    let disk = Disk::default();
    let store = RedbStore::open_backend(disk.clone()).expect("open");
    let commands: Vec<_> = (0..40).map(|number| schedule(number, 50)).collect();
    store.write(WallTime::MIN, &commands).expect("write");
    let worker = store.enter(WallTime::MIN, Duration::MAX).expect("enter");
    let (from, until) = (WallTime::MIN, at(10));
    let request =
        ClaimRequest { now: from, from, until, limit: 99, max_bytes: 9_999, begin: false };
    let batch = store.claim(worker, request).expect("claim").expect("lease");
    (disk, store, batch.records.iter().map(Record::claim).collect())
}

/// Causes a fault at each change of the file, in transactions of each kind. `check` gets the answer
/// and the disk, and passes on the disks that remain.
fn fail_at_each_change(fault: impl Fn(u32) -> Fault, check: impl Fn(Answer, &Disk, Check<'_>)) {
    for kind in 0..5 {
        let (_, store, claims) = filled();
        let before = content(&store);
        store.write(WallTime::MIN, &transactions(&claims)[kind]).expect("write");
        let after = content(&store);
        assert_ne!(before, after);
        for changes in 0.. {
            let (disk, store, claims) = filled();
            disk.fail_after(changes, fault(changes));
            let answer = store.write(WallTime::MIN, &transactions(&claims)[kind]);
            if disk.is_fault_pending() {
                assert!(changes > 3, "the transaction changes the file less often");
                break;
            }
            let answer = answer.map(drop).map_err(|error| error.reason());
            check(answer, &disk, &|disk, expected| {
                let store = RedbStore::open_backend(disk).expect("open again");
                let content = content(&store);
                let is_before = content == before;
                assert!(is_before || content == after, "{kind}, {changes}: a part is left");
                assert!(expected.is_none_or(|is_after| is_after != is_before), "{kind}, {changes}");
                store.write(WallTime::MIN, &[schedule(99, 1_000)]).expect("it goes on");
            });
        }
    }
}

/// Whether the transaction took effect; `None` if that is unknown.
type Expected = Option<bool>;

type Answer = Result<(), StoreErrorReason>;

/// Checks what a disk holds.
type Check<'a> = &'a dyn Fn(Disk, Expected);

#[test]
fn a_power_failure_leaves_the_whole_transaction_or_nothing_of_it() {
    for seed in 0..2 {
        let fault = |changes| Fault::Power(Rng::with_seed(seed << 32 | u64::from(changes)));
        fail_at_each_change(fault, |_, disk, check| check(disk.after_failure(), None));
    }
}

#[test]
fn a_transaction_on_a_full_disk_has_a_true_answer() {
    fail_at_each_change(
        |_| Fault::Full,
        |answer, disk, check| {
            let expected = match answer {
                Ok(()) => Some(true),
                Err(StoreErrorReason::OutcomeUnknown) => None,
                Err(reason) => {
                    assert_eq!(reason, StoreErrorReason::Full);
                    Some(false)
                }
            };
            check(disk.after_kill(), expected);
            check(disk.after_failure(), expected);
        },
    );
}
