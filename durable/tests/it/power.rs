//! The embedded store when the power fails or the disk is full: writes that were not synced are
//! lost, in part, and in any order.

use std::{
    io,
    sync::{Arc, Mutex},
};

use delaywheel_durable::{
    Command, NewTimeout, RedbStore, Store, StoreErrorReason, TimeoutId, WallTime,
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
    /// Bytes that the disk can hold.
    size: Option<usize>,
    /// Number of syncs before the power fails, with unsynced writes under way, and the content that
    /// remains.
    failure: Option<(u32, Rng)>,
    left: Option<Vec<u8>>,
}

impl Disk {
    /// Makes the power fail at one of the next two syncs, or just after them.
    fn fail_soon(&self, rng: &mut Rng) {
        let mut contents = self.0.lock().expect("not poisoned");
        contents.failure = Some((rng.u32(..3), rng.fork()));
    }

    /// Returns the disk after the power failure.
    fn after_failure(&self) -> Self {
        let contents = &mut *self.0.lock().expect("not poisoned");
        let left = contents.left.take().unwrap_or_else(|| contents.synced.clone());
        let contents = Contents { seen: left.clone(), synced: left, ..Contents::default() };
        Self(Arc::new(Mutex::new(contents)))
    }

    fn limit(&self, size: Option<usize>) {
        self.0.lock().expect("not poisoned").size = size;
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

    fn check_room(&self, end: usize) -> io::Result<()> {
        if self.size.is_some_and(|size| end > size) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
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
        contents.check_room(len)?;
        contents.seen.resize(len, 0);
        // The length of a file is kept by the file system's own log.
        contents.synced.resize(len, 0);
        let end = |offset: u64| usize::try_from(offset).expect("an offset");
        contents.unsynced.retain(|(offset, data)| end(*offset) + data.len() <= len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let contents = &mut *self.0.lock().expect("not poisoned");
        if let Some((syncs, mut rng)) = contents.failure.take() {
            if syncs == 0 {
                contents.left = Some(contents.torn(&mut rng));
            } else {
                contents.failure = Some((syncs - 1, rng));
            }
        }
        contents.synced.clone_from(&contents.seen);
        contents.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let contents = &mut *self.0.lock().expect("not poisoned");
        let start = usize::try_from(offset).expect("an offset");
        contents.seen[start..start + data.len()].copy_from_slice(data);
        contents.unsynced.push((offset, data.to_vec()));
        Ok(())
    }
}

fn schedule(store: &RedbStore, number: u32, size: usize) -> Result<(), StoreErrorReason> {
    let due = WallTime::from_micros(u64::from(number)).expect("in range");
    let new = NewTimeout::new(number.to_string(), due, vec![7; size]).expect("valid");
    store.write(due, &[Command::Schedule(new)]).map(drop).map_err(|error| error.reason())
}

fn check_kept(store: &RedbStore, count: u32) {
    for number in 0..count {
        let id = TimeoutId::new(number.to_string()).expect("valid");
        assert!(store.get(&id).expect("get").is_some(), "{number} of {count} was lost");
    }
}

#[test]
fn redb_keeps_what_it_acknowledged_through_power_failures() {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let disk = Disk::default();
        let store = RedbStore::open_backend(disk.clone()).expect("open");
        let count = rng.u32(1..60);
        for number in 0..count {
            schedule(&store, number, rng.usize(..2_000)).expect("write");
        }
        // The failure comes while the next write is under way, which may be kept or not.
        disk.fail_soon(&mut rng);
        schedule(&store, count, 1_000).expect("write");
        let store = RedbStore::open_backend(disk.after_failure()).expect("open after the failure");
        check_kept(&store, count);
        schedule(&store, count + 1, 10).expect("it goes on");
    }
}

#[test]
fn a_full_disk_is_a_typed_error_and_loses_nothing() {
    let disk = Disk::default();
    let store = RedbStore::open_backend(disk.clone()).expect("open");
    let size = disk.len().expect("a length");
    disk.limit(Some(usize::try_from(size).expect("a length")));
    let mut count = 0;
    let reason = loop {
        match schedule(&store, count, 100_000) {
            Ok(()) => count += 1,
            Err(reason) => break reason,
        }
    };
    assert_eq!(reason, StoreErrorReason::Full);
    drop(store);
    disk.limit(None);
    let store = RedbStore::open_backend(disk).expect("open");
    check_kept(&store, count);
    schedule(&store, count, 100_000).expect("there is room again");
}
