//! The embedded store: one SQLite file, one process.
//!
//! One table has all records in the order of their times, and an index has their ids. Claims are
//! not written: only this process can hold one, and all of them end with it. So a claim costs no
//! commit, and after a crash every record that was not settled is pending.
//!
//! If a process ends without closing the file, the handler of a record may have killed it. So the
//! next process is *wary* of the records that were due at its start: it writes their attempts
//! before it begins their deliveries. All other attempts are written when they are settled.
//!
//! A claim must not look at the records that are held already. For each range that is claimed from,
//! a [`Frontier`] remembers how far it has been claimed, and which records below are not held.

mod inspect;

use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    fs::{File, TryLockError},
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Params, Row, TransactionBehavior,
    types::Type,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    error::{InputError, StoreError, StoreErrorReason, StoreResult},
    record::{Claim, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Begun, ClaimRequest, ClaimedBatch, Command, Counts, Listeners, Notice, Query,
        Store, WorkerId,
    },
    time::WallTime,
    transition::{Change, apply},
    workers::Workers,
};

/// Version of the tables, and the mark of a file of this crate.
const VERSION: u32 = 1;
const APPLICATION: u32 = 0x6477_6c64;

/// The key is the order of live records by time, and then that of dead ones.
///
/// SQLite has no checksums of pages, so each row has one.
const SCHEMA: &str = "
    CREATE TABLE records (
        dead INTEGER NOT NULL, next INTEGER NOT NULL, id TEXT NOT NULL, due INTEGER NOT NULL,
        attempt INTEGER NOT NULL, repeat TEXT, error TEXT, payload BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (dead, next, id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX by_id ON records (id);
    CREATE TABLE store (
        epoch INTEGER NOT NULL, is_open INTEGER NOT NULL,
        live INTEGER NOT NULL, dead INTEGER NOT NULL
    ) STRICT;
    INSERT INTO store VALUES (0, 0, 0, 0);";

const COLUMNS: &str =
    "SELECT dead, next, id, due, attempt, repeat, error, payload, checksum FROM records";

/// Tokens of one epoch.
const TOKENS: u32 = 40;

/// Ranges of claims: overdue records, and the window.
const FRONTIERS: usize = 2;

/// Memory of the writing connection for pages, in KiB, and of others.
const CACHE: u32 = 48_000;
const SMALL_CACHE: u32 = 8_000;

/// Loose places of a frontier that are remembered.
const MAX_LOOSE: usize = 1 << 16;

/// A store in one file, for one process. Clones are the same store.
///
/// SQLite keeps a write-ahead log and an index of it beside the file, and the store a file that is
/// locked while the store is open.
///
/// # Examples
///
/// ```
/// use delaywheel_durable::{SqliteStore, Store};
///
/// let folder = tempfile::tempdir()?;
/// let store = SqliteStore::open(folder.path().join("timeouts.db"))?;
/// assert_eq!(store.count()?.live, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

/// Locks are taken in the order of these fields.
struct Shared {
    writer: Mutex<Connection>,
    held: Mutex<Held>,
    reader: Mutex<Connection>,
    /// Notified when a transaction has ended.
    settled: Condvar,
    /// Timers of this process that use the store.
    listeners: Listeners,
    path: PathBuf,
    /// Released after the connections are closed. `None` if the store is only read.
    lock: Option<File>,
}

/// Claims: known to this process only.
#[derive(Default)]
struct Held {
    /// Who holds a record.
    holds: FxHashMap<TimeoutId, Hold>,
    /// Records that a transaction may change. Their deliveries wait until it has ended.
    changing: FxHashSet<TimeoutId>,
    /// The process before did not close the file, and no worker has entered since.
    was_killed: bool,
    /// Attempts of records that were due by then are written before their deliveries begin.
    wary_until: Option<WallTime>,
    workers: Workers,
    frontiers: Vec<Frontier>,
    last_token: u64,
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

type Place = (WallTime, TimeoutId);

/// Every live record with a place after `from` and up to `to` is either held or in `loose`.
struct Frontier {
    from: WallTime,
    to: Place,
    loose: BTreeSet<Place>,
}

impl SqliteStore {
    /// Opens a file, or creates it with its tables.
    ///
    /// # Errors
    ///
    /// [`StoreError`] with the reason
    /// [`InUse`](StoreErrorReason::InUse) if another process or store has the file open,
    /// [`ReadOnly`](StoreErrorReason::ReadOnly) if it cannot be written,
    /// [`Corrupt`](StoreErrorReason::Corrupt) if it is not a store, and
    /// [`NewerVersion`](StoreErrorReason::NewerVersion) if a newer version of this crate wrote it.
    pub fn open(path: impl AsRef<Path>) -> StoreResult<Self> {
        Self::open_locked(path.as_ref(), false)
    }

    /// Opens a file like [`open`](Self::open), and verifies its structure and the checksums of all
    /// records first, which reads the whole file. A damaged file is an error.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{SqliteStore, StoreErrorReason};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("reminders.db");
    /// std::fs::write(&path, "not a store")?;
    /// let refused = SqliteStore::open_checked(&path).expect_err("damaged");
    /// assert_eq!(refused.reason(), StoreErrorReason::Corrupt);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_checked(path: impl AsRef<Path>) -> StoreResult<Self> {
        Self::open_locked(path.as_ref(), true)
    }

    fn open_locked(path: &Path, is_checked: bool) -> StoreResult<Self> {
        let path = real_path(path).map_err(file_error)?;
        let lock = lock_beside(&path)?;
        let mut writer = connect(&path, CACHE).map_err(store_error)?;
        let (epoch, was_killed) = prepare(&mut writer, is_checked)?;
        let held = Held { was_killed, last_token: epoch << TOKENS, ..Held::default() };
        Self::with(writer, held, path, Some(lock))
    }

    fn with(
        writer: Connection,
        held: Held,
        path: PathBuf,
        lock: Option<File>,
    ) -> StoreResult<Self> {
        let reader = connect_as(&path, SMALL_CACHE, lock.is_none()).map_err(store_error)?;
        let shared = Shared {
            writer: Mutex::new(writer),
            held: Mutex::new(held),
            reader: Mutex::new(reader),
            settled: Condvar::new(),
            listeners: Listeners::default(),
            path,
            lock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes a copy of the store, as it is at one moment, to a new file. Timers go on meanwhile.
    ///
    /// To restore, open the copy. Timeouts that were delivered after the backup are delivered
    /// again.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{SqliteStore, Store};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let store = SqliteStore::open(folder.path().join("timeouts.db"))?;
    /// store.backup(folder.path().join("backup.db"))?;
    /// assert_eq!(SqliteStore::open(folder.path().join("backup.db"))?.count()?.live, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`]; also if the file exists. After another error, a part of the copy may be
    /// left.
    pub fn backup(&self, path: impl AsRef<Path>) -> StoreResult<()> {
        let path = path.as_ref();
        let file = File::create_new(path).map_err(file_error)?;
        let name =
            path.to_str().ok_or_else(|| file_error(io::ErrorKind::InvalidFilename.into()))?;
        // No claim waits for a connection of its own.
        let copy = || self.connection()?.execute("VACUUM INTO ?", [name]);
        copy().map_err(store_error)?;
        file.sync_all().map_err(file_error)
    }

    /// Makes the file as small as its records allow. Calls that write wait meanwhile. Returns
    /// whether it has become smaller.
    pub fn compact(&self) -> StoreResult<bool> {
        let writer = self.shared.writer.lock();
        let pages = || writer.pragma_query_value(None, "page_count", |row| row.get::<_, u64>(0));
        let compact = || {
            let before = pages()?;
            writer.execute_batch("VACUUM")?;
            writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
            Ok(pages()? < before)
        };
        compact().map_err(store_error)
    }

    fn select(
        &self,
        held: &Held,
        condition: &str,
        parameters: impl Params,
    ) -> StoreResult<Vec<Record>> {
        self.read(|reader| {
            let mut statement = reader.prepare_cached(&format!("{COLUMNS} WHERE {condition}"))?;
            statement.query_map(parameters, |row| held.read_row(row))?.collect()
        })
    }

    /// Runs an operation that only reads.
    fn read<R>(&self, run: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> StoreResult<R> {
        run(&self.shared.reader.lock()).map_err(store_error)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A worker that enters later must be wary still. The same holds if this fails.
        if self.held.get_mut().was_killed {
            return;
        }
        let _ = self.writer.get_mut().execute("UPDATE store SET is_open = 0", ());
    }
}

impl Store for SqliteStore {
    fn write(&self, _now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        let mut writer = self.shared.writer.lock();
        let mut effects = self.shared.held.lock().mark(commands);
        let mut transact = || -> StoreResult<_> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = transaction.map_err(store_error)?;
            let answers = commands.iter().map(|command| effects.apply(command, &transaction));
            let answers = answers.collect::<rusqlite::Result<Vec<_>>>();
            let answers = answers.map_err(store_error)?;
            effects.count(&transaction).map_err(store_error)?;
            transaction.commit().map_err(commit_error)?;
            Ok(answers)
        };
        let result = transact();
        let mut held = self.shared.held.lock();
        if result.is_ok() {
            held.take_effect(&effects);
        }
        held.changing.clear();
        drop(held);
        self.shared.settled.notify_all();
        drop(writer);
        let is_doubtful = |error: &StoreError| error.reason() == StoreErrorReason::OutcomeUnknown;
        if result.as_ref().err().is_none_or(is_doubtful) {
            self.shared.listeners.tell_of(commands);
        }
        result
    }

    fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        let mut held = self.shared.held.lock();
        while held.changing.contains(id) {
            self.shared.settled.wait(&mut held);
        }
        self.read(|reader| find(reader, id, held.holds.get(id)))
    }

    fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        // Between the commit of a transaction and its end, the claims differ from the records.
        let _writer = self.shared.writer.lock();
        let held = self.shared.held.lock();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (dead, from, until, after) = match query {
            Query::Prefix { prefix, after } => {
                // The upper bound has more bytes than an id can have.
                let end = format!("{prefix}{}", "\u{10ffff}".repeat(64));
                let after = after.as_ref().map_or("", TimeoutId::as_str);
                let condition = "id >= ? AND id < ? AND id > ? ORDER BY id LIMIT ?";
                return self.select(&held, condition, (prefix, end, after, limit));
            }
            Query::Times { from, until, after } => (false, *from, until.as_micros(), after),
            Query::Dead { after } => (true, WallTime::MIN, WallTime::MAX.as_micros() + 1, after),
        };
        let start = (from, TimeoutId::lowest());
        let (next, id) = after.clone().map_or(start.clone(), |after| after.max(start));
        let condition = "dead = ? AND (next, id) > (?, ?) AND next < ? ORDER BY next, id LIMIT ?";
        self.select(&held, condition, (dead, next.as_micros(), id.as_str(), until, limit))
    }

    fn count(&self) -> StoreResult<Counts> {
        let read = |row: &Row<'_>| Ok(Counts { live: row.get(0)?, dead: row.get(1)? });
        self.read(|reader| {
            reader.prepare_cached("SELECT live, dead FROM store")?.query_row((), read)
        })
    }

    fn count_due(&self, now: WallTime) -> StoreResult<u64> {
        // No claim waits for a connection of its own.
        let sql = "SELECT count(*) FROM records WHERE dead = 0 AND next <= ?";
        let count = || self.connection()?.query_row(sql, [now.as_micros()], |row| row.get(0));
        count().map_err(store_error)
    }

    fn enter(&self, now: WallTime, lease: Duration, name: Option<&str>) -> StoreResult<WorkerId> {
        if self.shared.lock.is_none() {
            return Err(StoreError::new(StoreErrorReason::ReadOnly));
        }
        let mut held = self.shared.held.lock();
        if mem::take(&mut held.was_killed) {
            held.wary_until = Some(now);
        }
        let (worker, old) = held.workers.enter(now.saturating_add(lease), name);
        if let Some(old) = old {
            held.take_from(old);
        }
        Ok(worker)
    }

    fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        let mut held = self.shared.held.lock();
        let (is_known, lapsed) = held.workers.renew(worker, now, lease);
        for &worker in &lapsed {
            held.take_from(worker);
        }
        drop(held);
        if !lapsed.is_empty() {
            self.shared.listeners.tell(WallTime::MIN);
        }
        Ok(is_known)
    }

    fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        self.shared.held.lock().take_from(worker);
        self.shared.listeners.tell(WallTime::MIN);
        Ok(())
    }

    fn claim(&self, worker: WorkerId, request: ClaimRequest) -> StoreResult<Option<ClaimedBatch>> {
        let mut held = self.shared.held.lock();
        if !held.workers.is_known(worker) {
            return Ok(None);
        }
        // If the claim fails, the next one reads from the start.
        let mut frontier = held.take_frontier(request.from);
        let mut batch = self.read(|reader| held.find_free(&mut frontier, request, reader))?;
        held.frontiers.insert(0, frontier);
        held.frontiers.truncate(FRONTIERS);
        let holders = held.holds.values().filter_map(|hold| hold.worker);
        batch.lapse = held.workers.lapse(holders, worker);
        if batch.records.is_empty() && request.from == WallTime::MIN && batch.next.is_none() {
            // Those that were due at the start are delivered, or being delivered.
            held.wary_until = held.wary_until.filter(|_| !held.holds.is_empty());
        }
        for record in &mut batch.records {
            held.hold(record, worker);
        }
        Ok(Some(batch))
    }

    fn begin(&self, now: WallTime, claims: &[Claim]) -> StoreResult<Vec<Begun>> {
        let is_wary = |state: &Held| {
            let mut holds = claims.iter().filter_map(|claim| state.holds.get(&claim.id));
            holds.any(|hold| state.is_wary(hold.next))
        };
        let mut state = self.shared.held.lock();
        let mut writer = None;
        if is_wary(&state) {
            drop(state);
            writer = Some(self.shared.writer.lock());
            state = self.shared.held.lock();
        }
        while claims.iter().any(|claim| state.changing.contains(&claim.id)) {
            self.shared.settled.wait(&mut state);
        }
        let may_begin = |hold: &Hold, claim: &Claim| {
            let is_held = hold.worker.is_some() && hold.token == claim.token;
            is_held && !hold.begun && hold.next <= now
        };
        if let Some(writer) = &mut writer {
            let attempts = claims.iter().filter_map(|claim| {
                let hold = state.holds.get(&claim.id).filter(|hold| may_begin(hold, claim))?;
                state.is_wary(hold.next).then_some((&claim.id, hold.attempt + 1))
            });
            let attempts: Vec<_> = attempts.collect();
            count_attempts(writer, &attempts).map_err(store_error)?;
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

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// Changes by a transaction, to take effect once it has committed.
struct Effects {
    /// Id, and times before and after the change if the record is live.
    changes: Vec<(TimeoutId, Option<WallTime>, Option<WallTime>)>,
    /// Holds of the records before the transaction. A change takes the hold away.
    holds: FxHashMap<TimeoutId, Hold>,
    token: u64,
    /// Change of the number of dead records.
    dead: i64,
}

impl Effects {
    fn apply(&mut self, command: &Command, writer: &Connection) -> rusqlite::Result<Answer> {
        let id = command.id();
        self.token += 1;
        let old = find(writer, id, self.holds.get(id))?;
        let place = |record: &Record| (record.state == State::Dead, record.next);
        let before = old.as_ref().map(place);
        let (change, answer) = apply(old, command, self.token);
        let record = match change {
            Change::Nothing => return Ok(answer),
            Change::Put(record) => Some(record),
            Change::Remove => None,
        };
        replace(writer, id, before, record.as_ref())?;
        let after = record.as_ref().map(place);
        let is_dead =
            |place: Option<(bool, WallTime)>| i64::from(place.is_some_and(|(dead, _)| dead));
        self.dead += is_dead(after) - is_dead(before);
        let live = |place: Option<(bool, WallTime)>| {
            place.filter(|&(dead, _)| !dead).map(|(_, next)| next)
        };
        self.holds.remove(id);
        self.changes.push((id.clone(), live(before), live(after)));
        Ok(answer)
    }

    /// Writes the new numbers of records.
    fn count(&self, writer: &Connection) -> rusqlite::Result<()> {
        let live = self
            .changes
            .iter()
            .map(|(_, before, after)| i64::from(after.is_some()) - i64::from(before.is_some()));
        let live = live.sum::<i64>();
        if (live, self.dead) != (0, 0) {
            let sql = "UPDATE store SET live = live + ?, dead = dead + ?";
            writer.prepare_cached(sql)?.execute((live, self.dead))?;
        }
        Ok(())
    }
}

impl Held {
    /// Marks the records of commands as changing, and reserves a token for each command.
    fn mark(&mut self, commands: &[Command]) -> Effects {
        let ids = || commands.iter().map(Command::id);
        let holds = ids().filter_map(|id| Some((id.clone(), *self.holds.get(id)?)));
        let effects = Effects {
            changes: Vec::new(),
            holds: holds.collect(),
            token: self.last_token,
            dead: 0,
        };
        self.changing.extend(ids().cloned());
        self.last_token += commands.len() as u64;
        effects
    }

    fn take_effect(&mut self, effects: &Effects) {
        for (id, before, after) in &effects.changes {
            self.holds.remove(id);
            for frontier in &mut self.frontiers {
                if let Some(before) = before {
                    frontier.loose.remove(&(*before, id.clone()));
                }
                if let Some(after) = after {
                    frontier.loosen((*after, id.clone()));
                }
            }
        }
    }

    fn is_wary(&self, next: WallTime) -> bool {
        self.wary_until.is_some_and(|until| next <= until)
    }

    /// Voids the claims of a worker.
    fn take_from(&mut self, worker: WorkerId) {
        self.workers.remove(worker);
        // The next claims read its records again.
        self.frontiers.clear();
        for hold in self.holds.values_mut().filter(|hold| hold.worker == Some(worker)) {
            hold.worker = None;
        }
    }

    fn is_held(&self, id: &str) -> bool {
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
        for frontier in &mut self.frontiers {
            frontier.loose.remove(&(record.next, record.id.clone()));
        }
    }

    fn take_frontier(&mut self, from: WallTime) -> Frontier {
        match self.frontiers.iter().position(|frontier| frontier.from == from) {
            Some(index) => self.frontiers.remove(index),
            None => Frontier { from, to: (from, TimeoutId::lowest()), loose: BTreeSet::new() },
        }
    }

    /// Returns the first records that are not held, and moves the frontier past them.
    fn find_free(
        &self,
        frontier: &mut Frontier,
        request: ClaimRequest,
        reader: &Connection,
    ) -> rusqlite::Result<ClaimedBatch> {
        let (mut batch, mut bytes) = (ClaimedBatch::default(), 0);
        let mut take = |record: Record| {
            let has_room = batch.records.len() < request.limit && bytes < request.max_bytes;
            if !has_room || record.next >= request.until {
                batch.next = Some(record.next);
                return false;
            }
            bytes += record.payload.len();
            batch.records.push(record);
            true
        };
        let mut has_room = true;
        while has_room && let Some((next, id)) = frontier.loose.first() {
            let sql = format!("{COLUMNS} WHERE dead = 0 AND next = ? AND id = ?");
            let mut statement = reader.prepare_cached(&sql)?;
            let place = (next.as_micros(), id.as_str());
            let record = statement.query_row(place, |row| self.read_row(row)).optional()?;
            has_room = record.is_none_or(&mut take);
            if has_room {
                frontier.loose.pop_first();
            }
        }
        if has_room {
            let sql = format!("{COLUMNS} WHERE dead = 0 AND (next, id) > (?, ?) ORDER BY next, id");
            let mut statement = reader.prepare_cached(&sql)?;
            let mut rows = statement.query((frontier.to.0.as_micros(), frontier.to.1.as_str()))?;
            while has_room && let Some(row) = rows.next()? {
                if self.is_held(row.get_ref(2)?.as_str()?) {
                    frontier.to = place(row)?;
                    continue;
                }
                let record = self.read_row(row)?;
                let place = (record.next, record.id.clone());
                has_room = take(record);
                if has_room {
                    frontier.to = place;
                }
            }
        }
        Ok(batch)
    }

    fn read_row(&self, row: &Row<'_>) -> rusqlite::Result<Record> {
        let id = row.get_ref(2)?.as_str()?;
        read_row(row, self.holds.get(id))
    }
}

impl Frontier {
    /// A record up to here is not held any more, or is new.
    fn loosen(&mut self, place: Place) {
        if place.0 >= self.from && place <= self.to {
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
            // The middle itself is read again.
            self.to = self.loose.last().cloned().unwrap_or((self.from, TimeoutId::lowest()));
        }
    }
}

/// Returns the path without links, so that a store has one lock.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.file_name()) {
        (Err(_), Some(name)) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        (found, _) => found,
    }
}

/// Locks a file beside another one. SQLite's own locks would not outlast an operation.
fn lock_beside(path: &Path) -> StoreResult<File> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(name).map_err(file_error)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::new(StoreErrorReason::InUse)),
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
            Err(file_error(error))
        }
        _ => Ok(file),
    }
}

/// Random times touch a page for each record, and a commit writes each whole page to the log. So
/// pages are small, and the log is long: a page that changes often is copied to its place rarely.
fn connect(path: &Path, cache_kib: u32) -> rusqlite::Result<Connection> {
    connect_as(path, cache_kib, false)
}

fn connect_as(path: &Path, cache_kib: u32, is_read_only: bool) -> rusqlite::Result<Connection> {
    let connection = if is_read_only {
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?
    } else {
        Connection::open(path)?
    };
    // The file of another program stays as it is.
    let tables = connection
        .query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get::<_, u32>(0))?;
    if tables > 0 && number(&connection, "application_id")? != APPLICATION {
        return Err(damaged("another program made the file"));
    }
    connection.execute_batch(&format!(
        "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
        PRAGMA wal_autocheckpoint = 16000; PRAGMA temp_store = MEMORY;
        PRAGMA cache_size = -{cache_kib};"
    ))?;
    Ok(connection)
}

/// Checks the version of the tables, or creates them. Returns the epoch, and whether the process
/// before did not close the file.
fn prepare(writer: &mut Connection, is_checked: bool) -> StoreResult<(u64, bool)> {
    if is_checked {
        verify(writer).map_err(store_error)?;
    }
    let mut prepare = || -> rusqlite::Result<_> {
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        match number(&transaction, "user_version")? {
            VERSION => (),
            0 => {
                transaction.execute_batch(SCHEMA)?;
                transaction.pragma_update(None, "application_id", APPLICATION)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            _ => return Ok(Err(StoreErrorReason::NewerVersion)),
        }
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (epoch, was_killed) = transaction.query_row(
            "UPDATE store SET epoch = epoch + 1, is_open = is_open + 1
            RETURNING epoch, is_open > 1",
            (),
            read,
        )?;
        transaction.commit()?;
        Ok(Ok((epoch, was_killed)))
    };
    prepare().map_err(store_error)?.map_err(StoreError::new)
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}

/// Reads the whole file, and all checksums.
fn verify(connection: &Connection) -> rusqlite::Result<()> {
    let check = "PRAGMA integrity_check";
    let answer: String = connection.query_row(check, (), |row| row.get(0))?;
    if answer != "ok" {
        return Err(damaged(answer));
    }
    if number(connection, "user_version")? == VERSION {
        let mut statement = connection.prepare(COLUMNS)?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            read_row(row, None)?;
        }
    }
    Ok(())
}

/// Writes attempts before their deliveries begin.
fn count_attempts(writer: &mut Connection, attempts: &[(&TimeoutId, u32)]) -> rusqlite::Result<()> {
    let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for &(id, attempt) in attempts {
        if let Some(record) = find(&transaction, id, None)? {
            let place = (record.state == State::Dead, record.next);
            replace(&transaction, id, Some(place), Some(&Record { attempt, ..record }))?;
        }
    }
    transaction.commit()
}

fn find(
    connection: &Connection,
    id: &TimeoutId,
    hold: Option<&Hold>,
) -> rusqlite::Result<Option<Record>> {
    let mut statement = connection.prepare_cached(&format!("{COLUMNS} WHERE id = ?"))?;
    statement.query_row([id.as_str()], |row| read_row(row, hold)).optional()
}

/// Removes the row at a place, and writes another one.
fn replace(
    writer: &Connection,
    id: &TimeoutId,
    before: Option<(bool, WallTime)>,
    record: Option<&Record>,
) -> rusqlite::Result<()> {
    if let Some((dead, next)) = before {
        let sql = "DELETE FROM records WHERE dead = ? AND next = ? AND id = ?";
        writer.prepare_cached(sql)?.execute((dead, next.as_micros(), id.as_str()))?;
    }
    let Some(record) = record else { return Ok(()) };
    let repeat = record.repeat.as_ref().map(Repeat::to_text);
    let sql = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    writer.prepare_cached(sql)?.execute((
        record.state == State::Dead,
        record.next.as_micros(),
        id.as_str(),
        record.due.as_micros(),
        record.attempt,
        &repeat,
        &record.error,
        &*record.payload,
        checksum(record, repeat.as_deref()),
    ))?;
    Ok(())
}

/// FNV-1a of all columns.
fn checksum(record: &Record, repeat: Option<&str>) -> i64 {
    let numbers = [
        u64::from(record.state == State::Dead),
        record.next.as_micros(),
        record.due.as_micros(),
        u64::from(record.attempt),
    ];
    let numbers = numbers.map(u64::to_le_bytes);
    let texts = [Some(record.id.as_str()), repeat, record.error.as_deref()];
    // A byte that no text has marks its end, or that there is none.
    let texts = texts.iter().flat_map(|text| text.unwrap_or_default().bytes().chain([0xff]));
    let bytes = numbers.as_flattened().iter().copied().chain(texts);
    let bytes = bytes.chain(record.payload.iter().copied());
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step).cast_signed()
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    let id = TimeoutId::new(row.get_ref(2)?.as_str()?);
    Ok((time(row, 1)?, id.map_err(damaged)?))
}

fn read_row(row: &Row<'_>, hold: Option<&Hold>) -> rusqlite::Result<Record> {
    let (next, id) = place(row)?;
    let text = row.get_ref(5)?.as_str_or_null()?;
    let repeat = text.map(|text| Repeat::from_text(text).ok_or_else(|| damaged(InputError::Cron)));
    let record = Record {
        id,
        due: time(row, 3)?,
        next,
        payload: row.get_ref(7)?.as_blob()?.into(),
        repeat: repeat.transpose()?,
        attempt: row.get(4)?,
        state: if row.get(0)? { State::Dead } else { State::Pending },
        token: 0,
        error: row.get(6)?,
    };
    if checksum(&record, text) != row.get(8)? {
        return Err(damaged("the checksum differs"));
    }
    // What only this process knows.
    let Some(hold) = hold else { return Ok(record) };
    let state = match hold {
        _ if record.state == State::Dead => State::Dead,
        hold if hold.worker.is_none() => State::Pending,
        hold if hold.begun => State::Delivering,
        _ => State::Claimed,
    };
    Ok(Record { state, attempt: hold.attempt, token: hold.token, ..record })
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<WallTime> {
    WallTime::from_micros(row.get(column)?).map_err(damaged)
}

fn damaged(error: impl Into<Box<dyn Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Null, error.into())
}

fn file_error(error: io::Error) -> StoreError {
    let reason = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorReason::Full,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreErrorReason::ReadOnly
        }
        _ => StoreErrorReason::Other,
    };
    StoreError::with_source(reason, error)
}

fn store_error(error: rusqlite::Error) -> StoreError {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreErrorReason::Full,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreErrorReason::ReadOnly,
        None | Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreErrorReason::Corrupt
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreErrorReason::InUse,
        Some(_) => StoreErrorReason::Other,
    };
    StoreError::with_source(reason, error)
}

/// If the sync of a commit failed, a process after this one may find the changes.
fn commit_error(error: rusqlite::Error) -> StoreError {
    let error = store_error(error);
    match error.reason() {
        StoreErrorReason::Full | StoreErrorReason::ReadOnly => error,
        _ => StoreError::with_source(StoreErrorReason::OutcomeUnknown, error),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{self, Receiver, Sender},
        thread,
    };

    use tempfile::TempDir;

    use super::*;
    use crate::store::NewTimeout;

    fn open() -> (TempDir, SqliteStore) {
        let folder = tempfile::tempdir().expect("folder");
        let store = SqliteStore::open(folder.path().join("timeouts.db")).expect("open");
        (folder, store)
    }

    fn at(micros: u64) -> WallTime {
        WallTime::from_micros(micros).expect("in range")
    }

    fn schedule(id: &str, due: u64) -> Command {
        Command::Schedule(NewTimeout::new(id, at(due), b"").expect("valid"))
    }

    fn claim(store: &SqliteStore, worker: WorkerId) -> Vec<Record> {
        let request = ClaimRequest::new(at(0), at(100));
        store.claim(worker, request).expect("claim").expect("lease").records
    }

    fn ids(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.id.as_str()).collect()
    }

    #[test]
    fn sqlite_conforms_also_while_it_is_wary() {
        for (is_wary, steps) in [(false, 4_000), (true, 1_500)] {
            let folders = Mutex::new(Vec::new());
            let open = || {
                let (folder, store) = open();
                store.shared.held.lock().was_killed = is_wary;
                // The comparison needs no disk.
                let fast = "PRAGMA synchronous = OFF";
                store.shared.writer.lock().execute_batch(fast).expect("valid");
                folders.lock().push(folder);
                store
            };
            crate::conformance::check(open, steps);
        }
    }

    /// The record is below the place up to which the worker has claimed.
    #[test]
    fn a_commit_that_fails_changes_nothing_and_voids_no_claim() {
        let (_folder, store) = open();
        let worker = store.enter(at(0), Duration::MAX, None).expect("enter");
        store.write(at(0), &[schedule("first", 50)]).expect("write");
        let claims = [claim(&store, worker)[0].claim()];
        let notices = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notices);
        store.listen(Arc::new(move |due| told.lock().push(due)));
        let commands = [schedule("second", 20), schedule("first", 70)];
        let fails = || store.write(at(0), &commands).expect_err("it fails").reason();
        let set = |sql: &str| {
            let writer = store.shared.writer.lock();
            let mut statement = writer.prepare(sql).expect("valid");
            statement.query(()).and_then(|mut rows| rows.next().map(drop)).expect("set");
        };
        store.shared.writer.lock().commit_hook(Some(|| true));
        assert_eq!(fails(), StoreErrorReason::OutcomeUnknown);
        assert_eq!(*notices.lock(), [at(20)]);
        store.shared.writer.lock().commit_hook(None::<fn() -> bool>);
        set("PRAGMA query_only = 1");
        assert_eq!(fails(), StoreErrorReason::ReadOnly);
        set("PRAGMA query_only = 0");
        set("PRAGMA max_page_count = 1");
        let large = NewTimeout::new("large", at(0), vec![7; 100_000]).expect("valid");
        let error = store.write(at(0), &[Command::Schedule(large)]).expect_err("it is full");
        assert_eq!(error.reason(), StoreErrorReason::Full);
        set("PRAGMA max_page_count = 1000000");
        assert_eq!(store.count().expect("count").live, 1);
        assert_eq!(store.begin(at(60), &claims).expect("begin"), [Begun::Begun]);
        store.write(at(0), &commands).expect("it goes on");
        assert_eq!(ids(&claim(&store, worker)), ["second", "first"]);
    }

    /// Returns a function that lets the next commit wait, and tells of it.
    fn gate(store: &SqliteStore) -> (Receiver<()>, Sender<()>) {
        let ((reached, commit), (go, gate)) = (mpsc::channel(), mpsc::channel());
        let hook = move || {
            reached.send(()).expect("the test waits");
            gate.recv().is_err()
        };
        store.shared.writer.lock().commit_hook(Some(hook));
        (commit, go)
    }

    #[test]
    fn a_commit_delays_only_deliveries_and_reads_of_its_own_records() {
        let (_folder, store) = open();
        let worker = store.enter(at(0), Duration::MAX, None).expect("enter");
        store.write(at(0), &[schedule("a", 10), schedule("b", 10)]).expect("write");
        let claims: Vec<_> = claim(&store, worker).iter().map(Record::claim).collect();
        store.write(at(0), &[schedule("c", 10)]).expect("write");
        let (commit, go) = gate(&store);
        thread::scope(|scope| {
            let cancel =
                scope.spawn(|| store.write(at(0), &[Command::Cancel(claims[0].id.clone())]));
            commit.recv().expect("a commit");
            assert_eq!(store.begin(at(10), &claims[1..]).expect("begin"), [Begun::Begun]);
            assert_eq!(ids(&claim(&store, worker)), ["c"]);
            let begin = scope.spawn(|| store.begin(at(10), &claims[..1]));
            let get = scope.spawn(|| store.get(&claims[0].id));
            go.send(()).expect("the commit waits");
            cancel.join().expect("no panic").expect("write");
            assert_eq!(begin.join().expect("no panic").expect("begin"), [Begun::Void]);
            assert_eq!(get.join().expect("no panic").expect("get"), None);
        });
    }

    /// Memory forgets the later half of the records below the place of the claims.
    #[test]
    fn a_frontier_with_very_many_loose_places_draws_back_and_loses_none() {
        let place = |number: usize| (at(number as u64), TimeoutId::new("a").expect("valid"));
        let to = place(2 * MAX_LOOSE);
        let mut frontier = Frontier { from: at(0), to, loose: BTreeSet::new() };
        (0..=MAX_LOOSE).for_each(|number| frontier.loosen(place(number)));
        assert_eq!(frontier.loose.len(), MAX_LOOSE / 2);
        assert_eq!(frontier.to, place(MAX_LOOSE / 2 - 1), "what follows is read again");
    }
}
