//! The embedded store: one redb file, one process.
//!
//! Records and their [order by time](order) are tables of redb. Claims are not written: only this
//! process can hold one, and all of them end with it. So a claim costs no commit, and after a crash
//! every record that was not settled is pending.
//!
//! If a process ends without closing the file, the handler of a record may have killed it. So the
//! next process is *wary* of the records that were due at its start: it writes their attempts
//! before it begins their deliveries. All other attempts are written when they are settled.
//!
//! A claim must not look at the records that are held already. For each range that is claimed from,
//! a [`Frontier`] remembers how far it has been claimed, and which records below are not held.

mod order;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{File, TryLockError},
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use redb::{
    AccessGuard, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageBackend, StorageError, TableDefinition, TableHandle,
    backends::FileBackend,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    error::{InputError, StoreError, StoreErrorReason},
    record::{Claim, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Begun, ClaimRequest, ClaimedBatch, Command, Conflict, Counts, Listeners, Notice,
        Query, Store, WorkerId,
    },
    time::WallTime,
    transition::{Change, apply, pending_record},
};

use order::Order;

/// Due time, next attempt, attempts, whether it is dead, rule, latest error, payload.
type Row<'a> = (u64, u64, u32, bool, Option<&'a str>, Option<&'a str>, &'a [u8]);

const RECORDS: TableDefinition<'static, &str, Row<'static>> = TableDefinition::new("records");
/// Time and id.
type PlaceKey = (u64, &'static str);

/// Time of the last attempt and id, of records that are dead.
const DEAD: TableDefinition<'static, PlaceKey, ()> = TableDefinition::new("dead");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("delaywheel");

/// Version of the tables above.
const VERSION: u64 = 2;

/// Key of [`META`] while a process has the file open.
const IS_OPEN: &str = "is_open";

/// Key of [`META`]: how often the file was opened. Tokens of each time are greater than those
/// before.
const EPOCH: &str = "epoch";

/// Tokens of one epoch.
const TOKENS: u32 = 40;

/// Ranges of claims: overdue records, and the window.
const FRONTIERS: usize = 2;

/// Places that a count reads in one hold of the order.
const COUNTED_AT_ONCE: usize = if cfg!(test) { 6 } else { 1_000 };

/// A store in one file, for one process. Clones are the same store.
///
/// After a failure of the file, the next operation opens it again, which writes to it. So while the
/// disk is full or read-only, reads fail as well. The file stays locked meanwhile.
///
/// # Examples
///
/// ```
/// use delaywheel_durable::{RedbStore, Store};
///
/// let folder = tempfile::tempdir()?;
/// let store = RedbStore::open(folder.path().join("timeouts.redb"))?;
/// assert_eq!(store.count()?.live, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedbStore {
    shared: Arc<Shared>,
}

type OpenAgain = Box<dyn Fn() -> Result<(Database, Opened), StoreError> + Send + Sync>;

struct Shared {
    /// Opens the file again; `None` for a backend of the user.
    open_again: Option<OpenAgain>,
    /// Held for the whole of a transaction, and taken before the others, which are in their order.
    writer: Mutex<()>,
    state: Mutex<Held>,
    /// `None` while the file is opened again, after a failure.
    database: RwLock<Option<Database>>,
    /// Changed after a transaction, while `state` is held.
    order: RwLock<Order>,
    /// Notified when a transaction has ended.
    settled: Condvar,
    /// Timers of this process that use the store.
    listeners: Listeners,
}

/// Claims: known to this process only.
#[derive(Default)]
struct Held {
    /// Who holds a record.
    holds: FxHashMap<TimeoutId, Hold>,
    /// Records that a transaction may change. Their deliveries wait until it has ended, and no
    /// worker claims them. All others continue.
    changing: FxHashSet<TimeoutId>,
    /// Least time of the pending records that claims have passed over because of that.
    passed_over: Option<u64>,
    /// The process before did not close the file, and no worker has entered since.
    was_killed: bool,
    /// Attempts of records that were due by then are written before their deliveries begin.
    wary_until: Option<WallTime>,
    workers: BTreeMap<WorkerId, WallTime>,
    names: BTreeMap<String, WorkerId>,
    frontiers: Vec<Frontier>,
    last_token: u64,
    last_worker: u64,
}

#[derive(Clone, Copy)]
struct Hold {
    /// `None` after the worker lost its lease; then only the number of attempts counts.
    worker: Option<WorkerId>,
    token: u64,
    next: WallTime,
    begun: bool,
    attempt: u32,
}

type Place = (u64, TimeoutId);

/// Every record with a place from `from` up to `to` is either held or in `loose`.
struct Frontier {
    from: u64,
    to: Place,
    loose: BTreeSet<Place>,
}

impl RedbStore {
    /// Opens a file, or creates it with all its tables.
    ///
    /// After a crash, redb verifies the checksums of the file. It trusts a file that was closed in
    /// order. If another program or the disk has changed such a file, reads may return changed
    /// data, and an operation that reads an invalid page fails with `Corrupt`. To verify such a
    /// file as well, use [`open_checked`](Self::open_checked).
    ///
    /// # Errors
    ///
    /// [`StoreError`] with the reason
    /// [`InUse`](StoreErrorReason::InUse) if another process or store has the file open,
    /// [`ReadOnly`](StoreErrorReason::ReadOnly) if it cannot be written,
    /// [`Corrupt`](StoreErrorReason::Corrupt) if it is not a store, and
    /// [`NewerVersion`](StoreErrorReason::NewerVersion) if a newer version of this crate wrote it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_locked(path.as_ref(), false)
    }

    /// Opens a file like [`open`](Self::open), and verifies the checksums of all its pages first,
    /// which reads the whole file. A damaged file is an error.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{RedbStore, StoreErrorReason};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("reminders.redb");
    /// std::fs::write(&path, "not a store")?;
    /// let refused = RedbStore::open_checked(&path).expect_err("damaged");
    /// assert_eq!(refused.reason(), StoreErrorReason::Corrupt);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_checked(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_locked(path.as_ref(), true)
    }

    /// Writes a copy of the store, as it is at one moment, to a new file. Timers go on meanwhile. A
    /// copy of the file by other means is damaged if a timer writes to it.
    ///
    /// To restore, open the copy. Timeouts that were delivered after the backup are delivered
    /// again.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{RedbStore, Store};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let store = RedbStore::open(folder.path().join("timeouts.redb"))?;
    /// store.backup(folder.path().join("backup.redb"))?;
    /// assert_eq!(RedbStore::open(folder.path().join("backup.redb"))?.count()?.live, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`]; also if the file exists. After another error, a part of the copy may be
    /// left.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = LockedFile::new(file.map_err(|error| store_error(error.into()))?)?;
        let (copy, _) = file.database(false)?;
        self.with(|database| {
            let (source, target) = (database.begin_read()?, copy.begin_write()?);
            let mut records = target.open_table(RECORDS)?;
            let (mut dead, mut times) =
                (target.open_table(DEAD)?, target.open_table(order::TIMES)?);
            for row in source.open_table(RECORDS)?.iter()? {
                let (id, row) = row?;
                let (id, row) = (id.value(), row.value());
                records.insert(id, row)?;
                (if row.3 { &mut dead } else { &mut times }).insert((row.1, id), ())?;
            }
            let meta = source.open_table(META)?.get(EPOCH)?.map_or(0, |epoch| epoch.value());
            target.open_table(META)?.insert(EPOCH, meta)?;
            target.open_table(META)?.remove(IS_OPEN)?;
            drop((records, dead, times));
            Ok(target.commit()?)
        })
    }

    /// Makes the file as small as its records allow. All calls wait meanwhile. Returns whether it
    /// has become smaller.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn compact(&self) -> Result<bool, StoreError> {
        let _writer = self.shared.writer.lock();
        self.reopen()?;
        let mut database = self.shared.database.write();
        let database = database.as_mut().ok_or(StoreError::new(StoreErrorReason::Closed))?;
        contain(|| database.compact().map_err(|error| store_error(error.into())))
    }

    fn open_locked(path: &Path, is_checked: bool) -> Result<Self, StoreError> {
        let file = LockedFile::open(path)?;
        let opened = file.database(is_checked)?;
        Ok(Self::new(opened, Some(Box::new(move || file.database(false)))))
    }

    /// Opens a store on a storage backend of redb, such as one that injects faults.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_backend(backend: impl StorageBackend) -> Result<Self, StoreError> {
        let database = Database::builder().create_with_backend(backend).map_err(database_error)?;
        let opened = prepare(&database)?;
        Ok(Self::new((database, opened), None))
    }

    fn new((database, opened): (Database, Opened), open_again: Option<OpenAgain>) -> Self {
        let shared = Shared {
            open_again,
            writer: Mutex::new(()),
            state: Mutex::new(Held {
                was_killed: opened.was_killed,
                last_token: opened.epoch << TOKENS,
                ..Held::default()
            }),
            database: RwLock::new(Some(database)),
            order: RwLock::new(opened.order),
            settled: Condvar::new(),
            listeners: Listeners::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs an operation on the database. A failure of the file makes redb refuse everything that
    /// follows, so the file is opened again before the next operation.
    fn with<R>(
        &self,
        run: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, StoreError> {
        self.reopen()?;
        let database = self.shared.database.read();
        let database = database.as_ref().ok_or(StoreError::new(StoreErrorReason::Closed))?;
        contain(|| run(database).map_err(store_error))
    }

    fn reopen(&self) -> Result<(), StoreError> {
        if self.shared.database.read().is_some() {
            return Ok(());
        }
        let mut database = self.shared.database.write();
        if let (None, Some(open_again)) = (database.as_ref(), &self.shared.open_again) {
            let (file, opened) = open_again()?;
            *self.shared.order.write() = opened.order;
            *database = Some(file);
        }
        Ok(())
    }

    /// Returns whether the file, opened again, shows the changes of a transaction; `None` if it
    /// cannot be opened.
    fn shows_transaction(&self, number: u64) -> Option<bool> {
        let has_file = self.shared.open_again.is_some() && self.reopen().is_ok();
        has_file.then(|| self.shared.order.read().next_number() > number)
    }

    /// Writes attempts before their deliveries begin. The caller holds the lock of the writer.
    fn count_attempts(&self, attempts: &[(&TimeoutId, u32)]) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        let result = self.with(|database| {
            let transaction = database.begin_write()?;
            let (records, dead) = (transaction.open_table(RECORDS)?, transaction.open_table(DEAD)?);
            let mut tables = Tables { records, dead };
            for &(id, attempt) in attempts {
                let row = tables.records.get(id.as_str())?;
                let row = row.map(|row| read_row(id.clone(), &row.value(), None)).transpose()?;
                if let Some(record) = row {
                    tables.put(&Record { attempt, ..record })?;
                }
            }
            drop(tables);
            Ok(transaction.commit()?)
        });
        self.close_if_broken(result)
    }

    /// Runs an operation that only reads. `is_writer` says that the caller has the lock of the
    /// writer.
    fn read<R>(
        &self,
        is_writer: bool,
        run: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, StoreError> {
        let result = self.with(run);
        if is_writer {
            return self.close_if_broken(result);
        }
        match self.shared.writer.try_lock() {
            Some(_writer) => self.close_if_broken(result),
            // The transaction that is under way needs the file, or the next operation closes it.
            None => result,
        }
    }

    /// Closes the file if an operation failed in a way after which redb refuses all others. The
    /// caller holds the lock of the writer.
    fn close_if_broken<R>(&self, result: Result<R, StoreError>) -> Result<R, StoreError> {
        use StoreErrorReason::{Full, Other, OutcomeUnknown, ReadOnly};

        let reason = result.as_ref().err().map(StoreError::reason);
        self.close_if(matches!(reason, Some(Full | Other | OutcomeUnknown | ReadOnly)), result)
    }

    fn close_if<R>(&self, is_broken: bool, result: R) -> R {
        if is_broken && self.shared.open_again.is_some() {
            self.shared.database.write().take();
        }
        result
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let close = |database: &Database| -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            transaction.open_table(META)?.remove(IS_OPEN)?;
            Ok(transaction.commit()?)
        };
        if let Some(database) = self.database.get_mut() {
            // If this fails, the next process is wary.
            let _ = contain(|| close(database).map_err(store_error));
        }
    }
}

impl Store for RedbStore {
    fn write(&self, _now: WallTime, commands: &[Command]) -> Result<Vec<Answer>, StoreError> {
        let writer = self.shared.writer.lock();
        let (mut effects, mut token) = self.shared.state.lock().mark(commands);
        let marks = Marks(&self.shared);
        let mut committing = None;
        let result = self.with(|database| {
            let transaction = database.begin_write()?;
            let answers = {
                let mut tables = Tables {
                    records: transaction.open_table(RECORDS)?,
                    dead: transaction.open_table(DEAD)?,
                };
                let mut answers = Vec::with_capacity(commands.len());
                for command in commands {
                    token += 1;
                    answers.push(tables.apply(command, token, &mut effects)?);
                }
                answers
            };
            if effects.changes.is_empty() {
                transaction.abort()?;
                return Ok((answers, None));
            }
            let order = self.shared.order.read();
            let changes = order.write(&transaction, effects.moves())?;
            committing = Some(order.next_number());
            transaction.commit()?;
            Ok((answers, Some(changes)))
        });
        // The file may show the changes of a commit that failed.
        let is_doubtful = committing.is_some() && result.is_err();
        let result = self.close_if(is_doubtful, self.close_if_broken(result));
        let committing = committing.filter(|_| is_doubtful);
        let is_shown = committing.and_then(|number| self.shows_transaction(number));
        let result = result.map_err(|error| match error.reason() {
            StoreErrorReason::Full | StoreErrorReason::ReadOnly if is_shown == Some(false) => error,
            _ if is_doubtful => StoreError::with_source(StoreErrorReason::OutcomeUnknown, error),
            _ => error,
        });
        let result = result.map(|(answers, changes)| {
            let mut state = self.shared.state.lock();
            if let Some(changes) = changes {
                self.shared.order.write().take_effect(changes);
            }
            state.take_effect(&effects);
            answers
        });
        if is_doubtful {
            let mut state = self.shared.state.lock();
            // New records may lie below the frontiers.
            state.frontiers.clear();
            if self.shared.open_again.is_some() && is_shown != Some(false) {
                // These claims are of records that the file may not have any more.
                for (id, ..) in &effects.changes {
                    state.holds.remove(id);
                }
            }
        }
        drop(marks);
        drop(writer);
        if is_doubtful && is_shown.is_none() {
            // Records of these claims may be pending.
            self.shared.listeners.tell(WallTime::MIN);
        } else if result.is_ok() || is_doubtful {
            self.shared.listeners.tell_of(commands);
        }
        result
    }

    fn get(&self, id: &TimeoutId) -> Result<Option<Record>, StoreError> {
        let state = self.shared.state.lock();
        self.read(false, |database| {
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            let row = records.get(id.as_str())?;
            row.map(|row| read_row(id.clone(), &row.value(), state.holds.get(id))).transpose()
        })
    }

    fn list(&self, query: &Query, limit: usize) -> Result<Vec<Record>, StoreError> {
        // Between the commit of a transaction and its end, the order differs from the records.
        let _writer = self.shared.writer.lock();
        let state = self.shared.state.lock();
        self.read(true, |database| {
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            match query {
                Query::Times { from, until, after } => {
                    let order = self.shared.order.read();
                    let start = start(*from, after.as_ref());
                    let mut places = order.places(&transaction, start)?;
                    let next = || Ok(places.next()?.filter(|place| place.0 < until.as_micros()));
                    list_places(next, after.as_ref(), limit, &records, &state)
                }
                Query::Dead { after } => {
                    let dead = transaction.open_table(DEAD)?;
                    let start = start(WallTime::MIN, after.as_ref());
                    let mut places = dead.range((start.0, start.1.as_str())..)?;
                    let next = || places.next().map(|row| read_place(row?.0.value())).transpose();
                    list_places(next, after.as_ref(), limit, &records, &state)
                }
                Query::Prefix { prefix, after } => {
                    let mut found = Vec::new();
                    let start = after.as_ref().map_or(prefix.as_str(), TimeoutId::as_str);
                    for row in records.range(start.max(prefix.as_str())..)? {
                        let (key, row) = row?;
                        let id = stored_id(key.value())?;
                        if !id.as_str().starts_with(prefix.as_str()) || found.len() == limit {
                            break;
                        }
                        if after.as_ref() != Some(&id) {
                            let hold = state.holds.get(&id);
                            found.push(read_row(id, &row.value(), hold)?);
                        }
                    }
                    Ok(found)
                }
            }
        })
    }

    fn count(&self) -> Result<Counts, StoreError> {
        self.read(false, |database| {
            let transaction = database.begin_read()?;
            let dead = transaction.open_table(DEAD)?.len()?;
            let live = transaction.open_table(RECORDS)?.len()? - dead;
            Ok(Counts { live, dead })
        })
    }

    fn count_due(&self, now: WallTime) -> Result<u64, StoreError> {
        let (mut count, mut next) = (0, Some(order::lowest()));
        while let Some(start) = next.take() {
            // A transaction that ends waits for this lock, and claims wait for the transaction.
            next = self.read(false, |database| {
                let order = self.shared.order.read();
                let mut places = order.places(&database.begin_read()?, start)?;
                for _ in 0..COUNTED_AT_ONCE {
                    if places.next()?.is_none_or(|place| place.0 > now.as_micros()) {
                        return Ok(None);
                    }
                    count += 1;
                }
                places.next()
            })?;
        }
        Ok(count)
    }

    fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> Result<WorkerId, StoreError> {
        let mut state = self.shared.state.lock();
        if mem::take(&mut state.was_killed) {
            state.wary_until = Some(now);
        }
        state.last_worker += 1;
        let worker = WorkerId(state.last_worker);
        state.workers.insert(worker, now.saturating_add(lease));
        let old = name.and_then(|name| state.names.insert(name.to_owned(), worker));
        if let Some(old) = old {
            state.take_from(old);
        }
        Ok(worker)
    }

    fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> Result<bool, StoreError> {
        let mut state = self.shared.state.lock();
        let until = now.saturating_add(lease);
        let known = state.workers.get_mut(&worker).map(|old| *old = until.max(*old)).is_some();
        let lapsed = state.workers.iter().filter(|&(_, &lease)| lease < now);
        let lapsed: Vec<_> = lapsed.map(|(&worker, _)| worker).collect();
        for &worker in &lapsed {
            state.take_from(worker);
        }
        drop(state);
        if !lapsed.is_empty() {
            self.shared.listeners.tell(WallTime::MIN);
        }
        Ok(known)
    }

    fn leave(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.shared.state.lock().take_from(worker);
        self.shared.listeners.tell(WallTime::MIN);
        Ok(())
    }

    fn claim(
        &self,
        worker: WorkerId,
        request: ClaimRequest,
    ) -> Result<Option<ClaimedBatch>, StoreError> {
        let mut state = self.shared.state.lock();
        if !state.workers.contains_key(&worker) {
            return Ok(None);
        }
        let result = self.read(false, |database| {
            let transaction = database.begin_read()?;
            let records = transaction.open_table(RECORDS)?;
            let order = self.shared.order.read();
            let mut batch = ClaimedBatch { lapse: state.lapse(worker), ..ClaimedBatch::default() };
            let mut places = state.places(request.from.as_micros(), &order, &transaction)?;
            let mut bytes = 0;
            while let Some(place) = places.next(&state)? {
                let room = batch.records.len() < request.limit && bytes < request.max_bytes;
                if !room || place.0 >= request.until.as_micros() {
                    batch.next = Some(WallTime::from_micros(place.0).map_err(invalid)?);
                    places.put_back(place);
                    break;
                }
                let Some(row) = records.get(place.1.as_str())? else { return Err(damaged("row")) };
                let hold = state.holds.get(&place.1);
                let record = read_row(place.1, &row.value(), hold)?;
                bytes += record.payload.len();
                batch.records.push(record);
            }
            let free = places.changing.iter().filter(|place| !state.is_held(&place.1));
            state.passed_over = free.map(|place| place.0).chain(state.passed_over).min();
            let frontier = places.finish();
            state.put_frontier(frontier);
            Ok(batch)
        });
        let mut batch = result?;
        if batch.records.is_empty() && request.from == WallTime::MIN && batch.next.is_none() {
            // Those that were due at the start are delivered, or being delivered.
            state.wary_until = state.wary_until.filter(|_| !state.holds.is_empty());
        }
        for record in &mut batch.records {
            state.hold(record, worker);
        }
        Ok(Some(batch))
    }

    fn begin(&self, now: WallTime, claims: &[Claim]) -> Result<Vec<Begun>, StoreError> {
        let is_wary = |state: &Held| {
            let mut holds = claims.iter().filter_map(|claim| state.holds.get(&claim.id));
            holds.any(|hold| state.is_wary(hold.next))
        };
        let (_writer, mut state) = self.shared.lock_for(is_wary);
        while claims.iter().any(|claim| state.changing.contains(&claim.id)) {
            self.shared.settled.wait(&mut state);
        }
        let may_begin = |hold: &Hold, claim: &Claim| {
            let is_held = hold.worker.is_some() && hold.token == claim.token;
            is_held && !hold.begun && hold.next <= now
        };
        if is_wary(&state) {
            let attempts = claims.iter().filter_map(|claim| {
                let hold = state.holds.get(&claim.id).filter(|hold| may_begin(hold, claim))?;
                state.is_wary(hold.next).then_some((&claim.id, hold.attempt + 1))
            });
            self.count_attempts(&attempts.collect::<Vec<_>>())?;
        }
        let begun = claims.iter().map(|claim| {
            let hold = state.holds.get_mut(&claim.id);
            hold.filter(|hold| may_begin(hold, claim)).map_or(Begun::Void, |hold| {
                hold.begun = true;
                hold.attempt += 1;
                Begun::Begun
            })
        });
        Ok(begun.collect())
    }

    fn listen(&self, notice: Notice) {
        self.shared.listeners.add(notice);
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").finish_non_exhaustive()
    }
}

impl Shared {
    /// Locks the claims; before that, the writer, if the operation needs it.
    fn lock_for(
        &self,
        needs_writer: impl Fn(&Held) -> bool,
    ) -> (Option<MutexGuard<'_, ()>>, MutexGuard<'_, Held>) {
        let state = self.state.lock();
        if !needs_writer(&state) {
            return (None, state);
        }
        drop(state);
        let writer = self.writer.lock();
        (Some(writer), self.state.lock())
    }
}

/// The marks of the records that a transaction may change. They end with it, even if it panics.
struct Marks<'s>(&'s Shared);

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.changing.clear();
        let passed_over = state.passed_over.take();
        drop(state);
        self.0.settled.notify_all();
        // The transaction may have left them as they are.
        if let Some(Ok(due)) = passed_over.map(WallTime::from_micros) {
            self.0.listeners.tell(due);
        }
    }
}

/// Changes that a transaction makes to places, to take effect once it has committed.
#[derive(Default)]
struct Effects {
    /// Id, and the new place if the record is pending.
    changes: Vec<(TimeoutId, Option<WallTime>, Option<WallTime>)>,
    /// Holds of the records before the transaction. A change takes the hold away.
    holds: FxHashMap<TimeoutId, Hold>,
}

impl Effects {
    /// Returns the places that change, and whether the record has them from then on.
    fn moves(&self) -> Vec<(Place, bool)> {
        let moves = self.changes.iter().flat_map(|(id, before, after)| {
            let place = |time: WallTime| (time.as_micros(), id.clone());
            let before = before.map(|time| (place(time), false));
            before.into_iter().chain(after.map(|time| (place(time), true)))
        });
        moves.collect()
    }
}

struct Tables<'t> {
    records: redb::Table<'t, &'static str, Row<'static>>,
    dead: redb::Table<'t, PlaceKey, ()>,
}

impl Tables<'_> {
    fn apply(
        &mut self,
        command: &Command,
        token: u64,
        effects: &mut Effects,
    ) -> Result<Answer, redb::Error> {
        let id = command.id();
        let hold = effects.holds.get(id).copied();
        // An insert returns the row that it replaces, so a schedule need not read it first.
        let new = match command {
            Command::Schedule(new) if new.conflict == Conflict::Replace => Some(new),
            _ => None,
        };
        let row = match new {
            Some(new) => self.put(&pending_record(new, token))?,
            None => self.records.get(id.as_str())?,
        };
        let old = row.map(|row| read_row(id.clone(), &row.value(), hold.as_ref())).transpose()?;
        let before = old.as_ref().map(|old| (old.next, old.state == State::Dead));
        let (change, answer) = apply(old, command, token);
        let record = match change {
            Change::Nothing => return Ok(answer),
            Change::Put(record) => Some(record),
            Change::Remove => None,
        };
        let after = record.as_ref().map(|record| (record.next, record.state == State::Dead));
        if let Some((next, true)) = before {
            self.dead.remove((next.as_micros(), id.as_str()))?;
        }
        if let Some((next, true)) = after {
            self.dead.insert((next.as_micros(), id.as_str()), ())?;
        }
        match &record {
            None => drop(self.records.remove(id.as_str())?),
            Some(_) if new.is_some() => (),
            Some(record) => drop(self.put(record)?),
        }
        effects.holds.remove(id);
        let live = |place: Option<(WallTime, bool)>| {
            place.filter(|&(_, dead)| !dead).map(|(next, _)| next)
        };
        effects.changes.push((id.clone(), live(before), live(after)));
        Ok(answer)
    }

    /// Returns the row that the record replaces.
    fn put(
        &mut self,
        record: &Record,
    ) -> Result<Option<AccessGuard<'_, Row<'static>>>, redb::Error> {
        let repeat = record.repeat.as_ref().map(Repeat::to_text);
        let row = (
            record.due.as_micros(),
            record.next.as_micros(),
            record.attempt,
            record.state == State::Dead,
            repeat.as_deref(),
            record.error.as_deref(),
            &*record.payload,
        );
        Ok(self.records.insert(record.id.as_str(), row)?)
    }
}

impl Held {
    /// Marks the records of commands as changing. Returns their holds, and the token after which
    /// there is an unused one for each command.
    fn mark(&mut self, commands: &[Command]) -> (Effects, u64) {
        let mut effects = Effects::default();
        for id in commands.iter().map(Command::id) {
            if let Some(&hold) = self.holds.get(id) {
                effects.holds.insert(id.clone(), hold);
            }
            self.changing.insert(id.clone());
        }
        let token = self.last_token;
        self.last_token += commands.len() as u64;
        (effects, token)
    }

    fn take_effect(&mut self, effects: &Effects) {
        for (id, before, after) in &effects.changes {
            self.holds.remove(id);
            for frontier in &mut self.frontiers {
                if let Some(before) = before {
                    frontier.loose.remove(&(before.as_micros(), id.clone()));
                }
                if let Some(after) = after {
                    frontier.loosen((after.as_micros(), id.clone()));
                }
            }
        }
    }

    fn is_wary(&self, next: WallTime) -> bool {
        self.wary_until.is_some_and(|until| next <= until)
    }

    /// Voids the claims of a worker.
    fn take_from(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        for (id, hold) in &mut self.holds {
            if hold.worker == Some(worker) {
                hold.worker = None;
                for frontier in &mut self.frontiers {
                    frontier.loosen((hold.next.as_micros(), id.clone()));
                }
            }
        }
    }

    fn is_held(&self, id: &TimeoutId) -> bool {
        self.holds.get(id).is_some_and(|hold| hold.worker.is_some())
    }

    fn hold(&mut self, record: &mut Record, worker: WorkerId) {
        self.last_token += 1;
        record.token = self.last_token;
        record.state = State::Claimed;
        let hold = Hold {
            worker: Some(worker),
            token: record.token,
            next: record.next,
            begun: false,
            attempt: record.attempt,
        };
        self.holds.insert(record.id.clone(), hold);
        let place = (record.next.as_micros(), record.id.clone());
        for frontier in &mut self.frontiers {
            frontier.loose.remove(&place);
        }
    }

    /// Returns when the first lease of another worker that holds records ends.
    fn lapse(&self, worker: WorkerId) -> Option<WallTime> {
        if self.workers.len() < 2 {
            return None;
        }
        let others: BTreeSet<_> = self.holds.values().filter_map(|hold| hold.worker).collect();
        let others = others.into_iter().filter(|&other| other != worker);
        others.filter_map(|other| self.workers.get(&other).copied()).min()
    }

    fn places<'o>(
        &mut self,
        from: u64,
        order: &'o Order,
        transaction: &ReadTransaction,
    ) -> Result<Places<'o>, redb::Error> {
        let known = self.frontiers.iter().position(|frontier| frontier.from == from);
        let frontier = match known {
            Some(index) => self.frontiers.remove(index),
            None => Frontier { from, to: (from, TimeoutId::lowest()), loose: BTreeSet::new() },
        };
        let rest = order.places(transaction, frontier.to.clone())?;
        Ok(Places { frontier, rest, ahead: None, changing: Vec::new() })
    }

    fn put_frontier(&mut self, frontier: Frontier) {
        self.frontiers.insert(0, frontier);
        self.frontiers.truncate(FRONTIERS);
    }
}

impl Frontier {
    /// A record below is not held any more, or is new.
    fn loosen(&mut self, place: Place) {
        if place.0 >= self.from && place < self.to {
            self.loose.insert(place);
            if self.loose.len() > MAX_LOOSE {
                self.draw_back();
            }
        }
    }

    /// Forgets the later half of the loose places, so that memory stays bounded.
    fn draw_back(&mut self) {
        if let Some(middle) = self.loose.iter().nth(MAX_LOOSE / 2).cloned() {
            self.loose.split_off(&middle);
            self.to = middle;
        }
    }
}

/// Loose places of a frontier that are remembered.
const MAX_LOOSE: usize = 1 << 16;

/// Places of records that are not held, in order: the loose ones, then those past the frontier.
struct Places<'o> {
    frontier: Frontier,
    rest: order::Places<'o>,
    /// Read from the table already, and not returned.
    ahead: Option<Place>,
    /// Places that were passed over.
    changing: Vec<Place>,
}

impl Places<'_> {
    fn next(&mut self, state: &Held) -> Result<Option<Place>, redb::Error> {
        while let Some(place) = self.frontier.loose.pop_first() {
            if state.changing.contains(&place.1) {
                self.changing.push(place);
            } else if !state.is_held(&place.1) {
                return Ok(Some(place));
            }
        }
        loop {
            let Some(place) = self.rest.next()? else {
                self.ahead = None;
                return Ok(None);
            };
            self.frontier.to = after(&place);
            if state.changing.contains(&place.1) {
                self.changing.push(place);
            } else if !state.is_held(&place.1) {
                self.ahead = Some(place.clone());
                return Ok(Some(place));
            }
        }
    }

    /// Returns the place that was read last.
    fn put_back(&mut self, place: Place) {
        if self.ahead.take().is_some_and(|ahead| ahead == place) {
            self.frontier.to = place;
        } else {
            self.frontier.loose.insert(place);
        }
    }

    /// Places that were passed over are loose: the transaction may change them, or not.
    fn finish(mut self) -> Frontier {
        let held_back = self.changing.into_iter().filter(|place| *place < self.frontier.to);
        self.frontier.loose.extend(held_back);
        self.frontier
    }
}

/// A file that this process has locked. It stays locked when a database on it is closed and another
/// one opened, so no other process changes records that this one has claimed.
#[derive(Debug, Clone)]
struct LockedFile(Arc<Locked>);

#[derive(Debug)]
struct Locked {
    backend: FileBackend,
    file: File,
}

impl LockedFile {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        Self::new(file.map_err(|error| store_error(error.into()))?)
    }

    fn new(file: File) -> Result<Self, StoreError> {
        let open = || -> Result<_, redb::Error> {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => Err(redb::Error::DatabaseAlreadyOpen),
                Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                    Err(error.into())
                }
                _ => {
                    let backend = FileBackend::new(file.try_clone()?)?;
                    Ok(Self(Arc::new(Locked { backend, file })))
                }
            }
        };
        open().map_err(store_error)
    }

    fn database(&self, is_checked: bool) -> Result<(Database, Opened), StoreError> {
        let mut builder = Database::builder();
        builder.set_cache_size(64 << 20).set_check_integrity_on_open(is_checked);
        contain(|| {
            let database = builder.create_with_backend(self.clone()).map_err(database_error)?;
            let opened = prepare(&database)?;
            Ok((database, opened))
        })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // To close the file is not enough: a new child process has it open as well, until it
        // starts its program.
        let _ = self.file.unlock();
    }
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.backend.write(offset, data)
    }
}

/// Returns the least place after another.
fn after(place: &Place) -> Place {
    (place.0, place.1.successor())
}

/// Returns the place at which a list starts.
fn start(from: WallTime, after: Option<&(WallTime, TimeoutId)>) -> Place {
    let from = (from.as_micros(), TimeoutId::lowest());
    after.map_or(from.clone(), |(time, id)| from.max((time.as_micros(), id.clone())))
}

fn list_places(
    mut next: impl FnMut() -> Result<Option<Place>, redb::Error>,
    after: Option<&(WallTime, TimeoutId)>,
    limit: usize,
    records: &redb::ReadOnlyTable<&'static str, Row<'static>>,
    state: &Held,
) -> Result<Vec<Record>, redb::Error> {
    let mut found = Vec::new();
    while found.len() < limit {
        let Some((time, id)) = next()? else { break };
        if after.is_none_or(|after| (after.0.as_micros(), &after.1) != (time, &id)) {
            let Some(row) = records.get(id.as_str())? else { return Err(damaged("row")) };
            let hold = state.holds.get(&id);
            found.push(read_row(id, &row.value(), hold)?);
        }
    }
    Ok(found)
}

fn read_place((time, id): (u64, &str)) -> Result<Place, redb::Error> {
    Ok((time, stored_id(id)?))
}

fn read_row(id: TimeoutId, row: &Row<'_>, hold: Option<&Hold>) -> Result<Record, redb::Error> {
    let (due, next, attempt, dead, repeat, error, payload) = *row;
    let time = |micros| WallTime::from_micros(micros).map_err(invalid);
    let repeat = match repeat {
        None => None,
        Some(text) => Some(Repeat::from_text(text).ok_or_else(|| damaged("rule"))?),
    };
    let state = match hold {
        _ if dead => State::Dead,
        None => State::Pending,
        Some(hold) if hold.worker.is_none() => State::Pending,
        Some(hold) if hold.begun => State::Delivering,
        Some(_) => State::Claimed,
    };
    Ok(Record {
        id,
        due: time(due)?,
        next: time(next)?,
        payload: payload.into(),
        repeat,
        attempt: hold.map_or(attempt, |hold| hold.attempt),
        state,
        token: hold.map_or(0, |hold| hold.token),
        error: error.map(str::to_owned),
    })
}

fn stored_id(id: &str) -> Result<TimeoutId, redb::Error> {
    TimeoutId::new(id).map_err(invalid)
}

/// Calls redb, which may panic on a file that another program changed.
fn contain<R>(call: impl FnOnce() -> Result<R, StoreError>) -> Result<R, StoreError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        let text = "redb panicked: another program may have changed the file";
        Err(StoreError::with_source(StoreErrorReason::Corrupt, text))
    })
}

/// The state of a file when it is opened.
struct Opened {
    order: Order,
    /// The process before did not close it.
    was_killed: bool,
    epoch: u64,
}

/// Checks the version of the tables, creates those that are missing, and reads the order.
fn prepare(database: &Database) -> Result<Opened, StoreError> {
    let prepare = || -> Result<_, redb::Error> {
        let transaction = database.begin_write()?;
        let mut tables = transaction.list_tables()?.map(|table| table.name() == "delaywheel");
        if tables.next().is_some_and(|is_ours| !is_ours && !tables.any(|is_ours| is_ours)) {
            return Ok(Err(StoreErrorReason::Corrupt));
        }
        drop(tables);
        let mut meta = transaction.open_table(META)?;
        let known = meta.insert("version", VERSION)?.map(|version| version.value());
        let was_killed = meta.insert(IS_OPEN, 1)?.is_some();
        let epoch = meta.get(EPOCH)?.map_or(0, |epoch| epoch.value()) + 1;
        meta.insert(EPOCH, epoch)?;
        drop(meta);
        if known.is_some_and(|version| version > VERSION) {
            return Ok(Err(StoreErrorReason::NewerVersion));
        }
        transaction.open_table(RECORDS)?;
        transaction.open_table(DEAD)?;
        let order = Order::open(&transaction)?;
        transaction.commit()?;
        Ok(Ok(Opened { order, was_killed, epoch }))
    };
    prepare().map_err(store_error)?.map_err(StoreError::new)
}

fn damaged(what: impl Into<String>) -> redb::Error {
    redb::Error::Corrupted(what.into())
}

fn invalid(error: InputError) -> redb::Error {
    damaged(error.to_string())
}

fn database_error(error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StoreError::with_source(StoreErrorReason::InUse, error)
        }
        DatabaseError::UpgradeRequired(_) => {
            StoreError::with_source(StoreErrorReason::Corrupt, error)
        }
        // A file that does not begin as one of redb.
        DatabaseError::Storage(StorageError::Io(ref cause))
            if cause.kind() == io::ErrorKind::InvalidData =>
        {
            StoreError::with_source(StoreErrorReason::Corrupt, error)
        }
        error => store_error(error.into()),
    }
}

fn store_error(error: redb::Error) -> StoreError {
    let reason = match &error {
        redb::Error::Io(cause) => match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorReason::Full,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StoreErrorReason::ReadOnly
            }
            _ => StoreErrorReason::Other,
        },
        redb::Error::Corrupted(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableDoesNotExist(_) => StoreErrorReason::Corrupt,
        redb::Error::DatabaseAlreadyOpen => StoreErrorReason::InUse,
        _ => StoreErrorReason::Other,
    };
    StoreError::with_source(reason, error)
}

#[cfg(test)]
mod tests {
    use std::{
        slice,
        sync::atomic::{AtomicU8, Ordering::SeqCst},
    };

    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::store::NewTimeout;

    const BROKEN_SYNC: u8 = 1;
    const FULL_AT_SYNC: u8 = 2;
    const FULL_AT_WRITE: u8 = 3;
    const BROKEN_READ: u8 = 4;
    /// Not only once, but until the test ends it.
    const BROKEN: u8 = 5;
    const READ_ONLY_AT_SYNC: u8 = 6;

    /// A file whose next sync, write or read can fail. Clones are the same file.
    #[derive(Debug, Clone, Default)]
    struct Disk(Arc<(InMemoryBackend, AtomicU8)>);

    impl Disk {
        fn open(&self) -> RedbStore {
            self.open_with_cache(1 << 20)
        }

        fn open_with_cache(&self, bytes: usize) -> RedbStore {
            let disk = self.clone();
            let open = move || {
                let mut builder = Database::builder();
                let database = builder.set_cache_size(bytes).create_with_backend(disk.clone());
                let database = database.map_err(database_error)?;
                let opened = prepare(&database)?;
                Ok((database, opened))
            };
            RedbStore::new(open().expect("open"), Some(Box::new(open)))
        }

        fn fails(&self, fault: u8) -> bool {
            self.0.1.load(SeqCst) == BROKEN
                || self.0.1.compare_exchange(fault, 0, SeqCst, SeqCst).is_ok()
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.0.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            if self.fails(BROKEN_READ) {
                return Err(io::ErrorKind::Other.into());
            }
            self.0.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.0.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            match () {
                () if self.fails(BROKEN_SYNC) => Err(io::ErrorKind::Other.into()),
                () if self.fails(FULL_AT_SYNC) => Err(io::ErrorKind::StorageFull.into()),
                () if self.fails(READ_ONLY_AT_SYNC) => {
                    Err(io::ErrorKind::ReadOnlyFilesystem.into())
                }
                () => Ok(()),
            }
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            if self.fails(FULL_AT_WRITE) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.0.write(offset, data)
        }
    }

    /// Sweeps of the order begin after fewer changes in this test.
    #[test]
    fn redb_conforms_while_it_sweeps_and_is_wary() {
        let open = || {
            let store = RedbStore::open_backend(InMemoryBackend::new()).expect("open");
            store.shared.state.lock().was_killed = true;
            store
        };
        crate::conformance::check(open, 1_500);
    }

    #[test]
    fn a_file_stays_locked_while_its_database_is_closed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        let store = RedbStore::open(&path).expect("open");
        store.shared.database.write().take();
        let refused = RedbStore::open(&path).expect_err("the first store has claims");
        assert_eq!(refused.reason(), StoreErrorReason::InUse);
        store.count().expect("it opens the file again");
        drop(store);
        RedbStore::open(&path).expect("it is free");
    }

    /// A child process has such a copy until it starts its program.
    #[test]
    fn a_store_releases_its_file_although_a_copy_of_the_handle_is_open() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.redb");
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.expect("open");
        let copy = file.try_clone().expect("copy");
        let file = LockedFile::new(file).expect("it is free");
        let opened = file.database(false).expect("database");
        drop((opened, file));
        RedbStore::open(&path).expect("it is free");
        drop(copy);
    }

    /// The new record is in the file, below the place up to which the worker has claimed.
    #[test]
    fn a_failed_sync_has_an_unknown_outcome_and_hides_no_record() {
        let disk = Disk::default();
        let store = disk.open();
        let time = |micros| WallTime::from_micros(micros).expect("in range");
        let schedule = |id: &str, due| {
            let new = NewTimeout::new(id, time(due), b"").expect("valid");
            store.write(WallTime::MIN, &[Command::Schedule(new)])
        };
        let worker = store.enter(WallTime::MIN, Duration::MAX, None).expect("enter");
        let claim = || {
            let (from, until) = (WallTime::MIN, time(100));
            let request =
                ClaimRequest { now: from, from, until, limit: 9, max_bytes: 9, cron: true };
            let batch = store.claim(worker, request).expect("claim").expect("lease");
            batch.records.iter().map(|record| record.id.to_string()).collect::<Vec<_>>()
        };
        schedule("first", 50).expect("write");
        assert_eq!(claim(), ["first"]);
        let notices = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notices);
        store.listen(Arc::new(move |due| told.lock().push(due)));
        disk.0.1.store(BROKEN_SYNC, SeqCst);
        let error = schedule("second", 20).expect_err("the sync fails");
        assert_eq!(error.reason(), StoreErrorReason::OutcomeUnknown);
        assert_eq!(*notices.lock(), [time(20)]);
        assert_eq!(claim(), ["second"]);
        schedule("third", 10).expect("it goes on");
        assert_eq!(claim(), ["third"]);
    }

    /// The log of the longer transaction is emptied when the file is opened again.
    #[test]
    fn a_commit_on_a_full_or_read_only_disk_failed_only_if_the_file_says_so() {
        for count in [1, 100] {
            let disk = Disk::default();
            let store = disk.open();
            let schedule = |name: &str| {
                let new = |number| NewTimeout::new(format!("{name}{number}"), WallTime::MIN, b"");
                let new = |number| Command::Schedule(new(number).expect("valid"));
                let commands: Vec<_> = (0..count).map(new).collect();
                let answer = store.write(WallTime::MIN, &commands);
                answer.map(drop).map_err(|error| error.reason())
            };
            for (fault, reason, live) in [
                (FULL_AT_WRITE, StoreErrorReason::Full, 0),
                (FULL_AT_SYNC, StoreErrorReason::OutcomeUnknown, count),
                (READ_ONLY_AT_SYNC, StoreErrorReason::OutcomeUnknown, count),
            ] {
                disk.0.1.store(fault, SeqCst);
                assert_eq!(schedule("a"), Err(reason));
                assert_eq!(store.count().expect("count").live, live);
            }
            schedule("b").expect("there is room again");
        }
    }

    /// A worker has claimed the record ahead of time.
    #[test]
    fn a_change_of_unknown_outcome_voids_a_claim_unless_the_file_lacks_the_change() {
        let time = |micros| WallTime::from_micros(micros).expect("in range");
        let id = TimeoutId::new("a").expect("valid");
        let schedule =
            |due| Command::Schedule(NewTimeout::new("a", time(due), b"").expect("valid"));
        let cancel = Command::Cancel(id.clone());
        let reschedule = Command::Reschedule(id, time(90));
        let check = |command: &Command, fault, begins, free| {
            let disk = Disk::default();
            let store = disk.open();
            store.write(WallTime::MIN, &[schedule(10)]).expect("write");
            let worker = store.enter(WallTime::MIN, Duration::MAX, None).expect("enter");
            let claim = || {
                let (now, from, until) = (WallTime::MIN, WallTime::MIN, time(100));
                let request = ClaimRequest { now, from, until, limit: 9, max_bytes: 9, cron: true };
                store.claim(worker, request).expect("claim").expect("lease").records
            };
            let claims = [claim()[0].claim()];
            let notices = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&notices);
            store.listen(Arc::new(move |due| told.lock().push(due)));
            disk.0.1.store(fault, SeqCst);
            store.write(WallTime::MIN, slice::from_ref(command)).expect_err("the disk fails");
            disk.0.1.store(0, SeqCst);
            assert_eq!(
                store.begin(time(20), &claims).expect("begin"),
                [if begins { Begun::Begun } else { Begun::Void }],
                "{command:?}"
            );
            let due = claim().first().map(|record| record.next.as_micros());
            assert_eq!(due, free, "{command:?}");
            let known = command.due().into_iter().collect::<Vec<_>>();
            let expected = if fault == BROKEN { vec![WallTime::MIN] } else { known };
            assert_eq!(*notices.lock(), expected, "{command:?}");
        };
        for (command, moved) in [(cancel, None), (reschedule, Some(90)), (schedule(90), Some(90))] {
            check(&command, BROKEN_SYNC, false, moved);
            check(&command, FULL_AT_WRITE, true, None);
            check(&command, BROKEN, false, Some(10));
        }
    }

    /// No caller writes, so no transaction opens the file again.
    #[test]
    fn a_failed_read_fails_no_later_read() {
        type Read<'r> = &'r dyn Fn(&RedbStore) -> Result<usize, StoreError>;

        for was_killed in [false, true] {
            let disk = Disk::default();
            let new = NewTimeout::new("a", WallTime::MIN, [7; 10_000]).expect("valid");
            disk.open().write(WallTime::MIN, &[Command::Schedule(new)]).expect("write");
            let (id, all) = (TimeoutId::new("a").expect("valid"), WallTime::MAX);
            let from = WallTime::MIN;
            let get = |store: &RedbStore| store.get(&id).map(|found| usize::from(found.is_some()));
            let list = |store: &RedbStore| {
                let query = Query::Times { from, until: all, after: None };
                store.list(&query, 9).map(|found| found.len())
            };
            let claim = |store: &RedbStore| {
                let (now, until, limit) = (from, all, 1);
                let request = ClaimRequest { now, from, until, limit, max_bytes: 1, cron: true };
                let worker = store.enter(now, Duration::MAX, None)?;
                store.claim(worker, request).map(|batch| batch.expect("lease").records.len())
            };
            let reads: [Read<'_>; 3] = [&get, &list, &claim];
            for read in reads {
                let store = disk.open_with_cache(0);
                store.shared.state.lock().was_killed = was_killed;
                disk.0.1.store(BROKEN_READ, SeqCst);
                read(&store).expect_err("the read fails");
                assert_eq!(read(&store).expect("read"), 1);
            }
        }
    }
}
