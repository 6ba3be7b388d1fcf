//! The embedded store: one SQLite file, one process.
//!
//! One table has all records of each queue and priority in the order of their times, and another
//! one has the place of each id. An acknowledgement leaves the row of its id, as ids are scattered:
//! each would write a page of its own. Later commits remove such *stale* rows in the order of their
//! ids.
//!
//! Claims are not written: only this process can hold one, and all of them end with it. So a claim
//! costs no commit, and after a crash every record that was not settled is pending.
//!
//! If a process ends without closing the file, the handler of a record may have killed it. So the
//! next process is *wary* of the records that were due at its start: it writes their attempts
//! before it begins their deliveries. All other attempts are written when they are settled.
//!
//! A claim must not look at the records that are held already. For each queue, priority and time
//! that is claimed from, a [`Frontier`] remembers how far it has been claimed, and which records
//! below may be free.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt as _;
use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File, TryLockError},
    io, mem,
    num::{NonZeroU32, NonZeroUsize},
    path::{self, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Condvar, Mutex};
use pollster::FutureExt as _;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Row, ToSql, TransactionBehavior,
    types::Type,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    claims::{Claims, Holds, Queue, view},
    error::{InputError, StoreError, StoreErrorReason, StoreResult},
    record::{Attempt, AttemptEnd, Claim, Name, Priority, Record, State, TimeoutId, fnv},
    repeat::Repeat,
    store::{
        Answer, Begun, ClaimRequest, ClaimedBatch, Command, Conflict, Counts, Listeners,
        NewTimeout, Notice, Query, QueueOverview, QueueState, Settlement, Store, WorkerId,
        WorkerLease, list_start, most,
    },
    time::WallTime,
    transition::{Change, apply, pending_record},
};

const VERSION: u32 = 1;
const APPLICATION: u32 = 0x6477_6c74;

/// Marks a copy that no store has opened yet. It has no log of its own. A log beside it belongs to
/// the file that it replaced, and SQLite would damage the copy with that log.
const COPY: u32 = 0x6477_6c63;

/// The key of `records` is the order of the live records of each queue and priority by time, and
/// then that of the dead ones. SQLite has no checksums of pages, so each row has one.
///
/// `ids` has the place of each record. Rows without a record are stale: those up to the id
/// `cleaned` were removed.
const SCHEMA: &str = "
    CREATE TABLE records (
        dead INTEGER NOT NULL, next INTEGER NOT NULL, id TEXT NOT NULL, due INTEGER NOT NULL,
        attempt INTEGER NOT NULL, repeat TEXT, error TEXT, payload BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        queue TEXT NOT NULL, priority INTEGER NOT NULL, key TEXT,
        PRIMARY KEY (dead, queue, priority, next, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE ids (
        id TEXT NOT NULL PRIMARY KEY, dead INTEGER NOT NULL, queue TEXT NOT NULL,
        priority INTEGER NOT NULL, next INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE queues (
        name TEXT NOT NULL PRIMARY KEY, is_paused INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO queues VALUES ('', 0);
    CREATE TABLE history (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, queue TEXT NOT NULL,
        due INTEGER NOT NULL, attempt INTEGER NOT NULL, ended INTEGER NOT NULL,
        end INTEGER NOT NULL, error TEXT, until INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX history_id ON history (id);
    CREATE INDEX history_until ON history (until);
    CREATE TABLE store (
        epoch INTEGER NOT NULL, is_open INTEGER NOT NULL,
        live INTEGER NOT NULL, dead INTEGER NOT NULL, cleaned TEXT NOT NULL
    ) STRICT;
    INSERT INTO store VALUES (0, 0, 0, 0, '');";

const COLUMNS: &str =
    "SELECT dead, next, id, due, attempt, repeat, error, payload, checksum, queue,
    priority, key FROM";

const BY_ID: &str = "ids CROSS JOIN records USING (dead, queue, priority, next, id)";

/// Returns the queues and priorities in the order of their first records after a place: so a list
/// reads few records that others then precede.
const PARTS: &str = "SELECT name, column1, (
        SELECT next FROM records WHERE dead = ? AND queue = name AND priority = column1
        AND (next, id) > (?, ?) AND next < ? ORDER BY next, id LIMIT 1
    ) AS first FROM queues CROSS JOIN (VALUES (0), (1), (2)) ORDER BY first";

/// Counts the records of a queue that are live, due and dead.
const OVERVIEW: &str = "SELECT
    (SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 0 AND queue = ?1 LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 0 AND queue = ?1
        AND priority IN (0, 1, 2) AND next <= ?2 LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 1 AND queue = ?1 LIMIT ?3))";

/// Returns the due records of a queue and a priority, the oldest first.
const DUE: &str = "SELECT next, id FROM records
    WHERE dead = 0 AND queue = ? AND priority = ? AND next <= ? ORDER BY next, id";

/// Removes rows after an id, up to another one or the last. They are of times up to one by which no
/// record is due, so they are stale. No row of a dead record is.
const CLEAN: &str = "DELETE FROM ids WHERE id > ?1 AND id <= coalesce(?2, x'') AND next <= ?3
    AND dead = 0";

/// Removes only stale ones of these. That looks each of them up.
const STALE: &str = "AND NOT EXISTS (
        SELECT 1 FROM records WHERE dead = ids.dead AND queue = ids.queue
        AND priority = ids.priority AND next = ids.next AND id = ids.id
    )";

/// Most stale rows that are looked up in any case: that is as cheap as a look at all queues.
const LOOKUPS: usize = 64;

/// Most records that are listed while writes and claims wait.
const PAGE: usize = 1_024;

const TOKENS: u32 = 40;

/// How often the file may be opened before a copy takes its place, so that no token repeats.
const AHEAD: u32 = 1 << 14;

/// Ranges of claims that are remembered: overdue records and the window, for each queue and
/// priority.
const FRONTIERS: usize = 96;

const MAX_LOOSE: usize = 1 << 14;

/// Memory of a connection for pages, in KiB. SQLite looks at each page of it in each commit that
/// has balanced a tree.
const CACHE: u32 = 8_000;

/// A store in one file, for one process. Clones are the same store.
///
/// SQLite keeps a write-ahead log and an index of it beside the file, and the store a file that is
/// locked while the store is open. Do not remove these. If another process opens the store after
/// the locked file was removed, claims and changes of this one fail with
/// [`InUse`](StoreErrorReason::InUse) until it opens the store again.
///
/// A poll of its futures waits for the disk, so poll them on a thread that may block. Tasks use the
/// methods of [`DurableTimer`](crate::DurableTimer), which do not block.
///
/// A [`list`](Store::list) keeps claims and changes waiting while it reads up to 1,024 records with
/// their payloads. The history, counts of what is due and backups keep none waiting.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

/// Locks are taken in the order of these fields, and that of the field `lock` before `reader`.
struct Shared {
    writer: Mutex<Connection>,
    held: Mutex<Held>,
    reader: Mutex<Connection>,
    settled: Condvar,
    listeners: Listeners,
    path: PathBuf,
    /// Counts the times that a process has opened the file to write; `None` if it is only read.
    epoch: Option<u64>,
    /// Released after the connections are closed. Only a file that the store may change has one.
    lock: Option<Mutex<Lock>>,
}

#[derive(Default)]
struct Held {
    claims: Claims,
    /// Records that a transaction may change. Their deliveries wait until it has ended.
    changing: FxHashSet<TimeoutId>,
    /// The process before did not close the file, and no worker has entered since.
    was_killed: bool,
    /// Attempts of records that were due by then are written before their deliveries begin.
    wary_until: Option<WallTime>,
    keep: Duration,
    frontiers: Vec<Frontier>,
    cleaned: String,
}

type Part = (Name, Priority);

type Spot = (Part, WallTime);

type Place = (WallTime, TimeoutId);

/// Every live record of the part from a time up to a place is held or in `loose`, which may also
/// have places of none.
struct Frontier {
    part: Part,
    from: WallTime,
    to: Option<Place>,
    loose: BTreeSet<Place>,
}

impl SqliteStore {
    /// Opens a file, or creates it with its tables.
    ///
    /// # Errors
    ///
    /// [`InUse`](StoreErrorReason::InUse), [`ReadOnly`](StoreErrorReason::ReadOnly),
    /// [`Corrupt`](StoreErrorReason::Corrupt) if the file is not a store,
    /// [`NewerVersion`](StoreErrorReason::NewerVersion), or
    /// [`Unavailable`](StoreErrorReason::Unavailable) if another program has it locked.
    pub fn open(path: impl AsRef<Path>) -> StoreResult<Self> {
        Self::open_file(path.as_ref(), false)
    }

    /// Opens a file like [`open`](Self::open), and verifies its structure and the checksums of all
    /// records first, which reads the whole file. A damaged file is an error.
    pub fn open_checked(path: impl AsRef<Path>) -> StoreResult<Self> {
        Self::open_file(path.as_ref(), true)
    }

    /// Opens a file only to read it, also while another process uses it.
    ///
    /// The claims of that process are not in the file. So what it delivers seems to be pending, and
    /// [`workers`](Store::workers) returns `None`. Calls that change something fail with
    /// [`ReadOnly`](StoreErrorReason::ReadOnly).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), except [`InUse`](StoreErrorReason::InUse). A file that does
    /// not exist is an error.
    pub fn open_read_only(path: impl AsRef<Path>) -> StoreResult<Self> {
        let path = path.as_ref();
        let path = real_path(path).map_err(file_error(path))?;
        if is_copy(&path) && beside(&path, "-wal").metadata().is_ok_and(|log| log.len() > 0) {
            let text = "the log beside this copy is of another file; open it to write first";
            return Err(StoreError::with_source(StoreErrorReason::Corrupt, text));
        }
        let writer = connect(&path, true).map_err(store_error)?;
        match number(&writer, "user_version").map_err(store_error)? {
            VERSION => Self::with(writer, Held::default(), path, None, None),
            0 => Err(StoreError::new(StoreErrorReason::Corrupt)),
            _ => Err(StoreError::new(StoreErrorReason::NewerVersion)),
        }
    }

    fn connection(&self) -> rusqlite::Result<rusqlite::Connection> {
        connect(&self.shared.path, self.shared.epoch.is_none())
    }

    /// Creates a store in memory, for tests and simulations. Nothing is left after its last clone.
    ///
    /// # Panics
    ///
    /// Panics if memory is exhausted.
    #[must_use]
    pub fn in_memory() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // All connections with this name share the memory.
        let name = format!("file:/timeouts-{}?vfs=memdb", NUMBER.fetch_add(1, Relaxed));
        Self::open_locked(name.into(), None, false).expect("nothing else uses the name")
    }

    /// Returns every record, in the order of ids.
    #[cfg(test)]
    pub(crate) fn records(&self) -> Vec<Record> {
        let all = Query::Prefix { prefix: String::new(), after: None };
        self.list(&all, usize::MAX).block_on().expect("list")
    }

    /// Locks records from begins, in place of those that were locked before.
    #[cfg(test)]
    pub(crate) fn lock(&self, ids: impl IntoIterator<Item = TimeoutId>) {
        self.shared.held.lock().claims.locked = ids.into_iter().collect();
    }

    fn open_file(path: &Path, is_checked: bool) -> StoreResult<Self> {
        let path = real_path(path).map_err(file_error(path))?;
        let lock = lock_beside(&path)?;
        if is_copy(&path) {
            remove_log(&path).map_err(file_error(&path))?;
        }
        Self::open_locked(path, Some(lock), is_checked)
    }

    fn open_locked(path: PathBuf, lock: Option<Lock>, is_checked: bool) -> StoreResult<Self> {
        let mut writer = connect(&path, false).map_err(store_error)?;
        let (epoch, was_killed, cleaned) = prepare(&mut writer, is_checked)?;
        let mut held = Held { was_killed, cleaned, ..Held::default() };
        held.claims.last_token = epoch << TOKENS;
        for QueueState { name, is_paused } in read_queues(&writer).map_err(store_error)? {
            held.claims.queues.entry(name).or_default().is_paused = is_paused;
        }
        Self::with(writer, held, path, lock, Some(epoch))
    }

    fn with(
        writer: Connection,
        held: Held,
        path: PathBuf,
        lock: Option<Lock>,
        epoch: Option<u64>,
    ) -> StoreResult<Self> {
        let reader = connect(&path, epoch.is_none()).map_err(store_error)?;
        let shared = Shared {
            writer: Mutex::new(writer),
            held: Mutex::new(held),
            reader: Mutex::new(reader),
            settled: Condvar::new(),
            listeners: Listeners::default(),
            path,
            epoch,
            lock: lock.map(Mutex::new),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes a copy of the store, as it is at one moment, to a new file. Timers go on meanwhile.
    ///
    /// To restore, stop the process that has the store open, put the copy in the place of its
    /// file, and open it. Timeouts that were delivered after the backup are delivered again.
    ///
    /// If that process was killed, it has left a log beside its file, with the ending `-wal`. The
    /// first [`open`](Self::open) of a copy removes it. **Put no other file there**, such as a copy
    /// that was opened, other than to read it: SQLite would apply the log to it, and destroy it.
    /// Write a copy of that file by `backup`, and put this one there.
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{SqliteStore, Store};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let store = SqliteStore::open(folder.path().join("timeouts.db"))?;
    /// store.backup(folder.path().join("backup.db"))?;
    /// let copy = SqliteStore::open(folder.path().join("backup.db"))?;
    /// assert_eq!(pollster::block_on(copy.count())?.live, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`]; also if the file exists, or this store is in memory. After another error, a
    /// part of the copy may be left.
    pub fn backup(&self, path: impl AsRef<Path>) -> StoreResult<()> {
        // SQLite takes some relative paths, such as `file:copy.db`, for something else.
        let path = path.as_ref();
        let path = path::absolute(path).map_err(file_error(path))?;
        let file = File::create_new(&path).map_err(file_error(&path))?;
        let name = path
            .to_str()
            .ok_or_else(|| file_error(&path)(io::ErrorKind::InvalidFilename.into()))?;
        // No claim waits for a connection of its own.
        let copy = || {
            self.connection()?.execute("VACUUM INTO ?", [name])?;
            let copy = Connection::open(&path)?;
            copy.execute("UPDATE store SET epoch = epoch + ?", [AHEAD])?;
            copy.pragma_update(None, "application_id", COPY)
        };
        copy().map_err(store_error)?;
        file.sync_all().map_err(file_error(&path))
    }

    /// Makes the file as small as its records allow. Calls that write wait meanwhile. Returns
    /// whether it has become smaller.
    ///
    /// Meanwhile it needs the size of the file twice: in the log beside it, and in the folder for
    /// temporary files, which `SQLITE_TMPDIR` can name.
    pub fn compact(&self) -> StoreResult<bool> {
        self.keep_lock()?;
        let writer = self.shared.writer.lock();
        let pages = || writer.pragma_query_value(None, "page_count", |row| row.get::<_, u64>(0));
        let compact = || {
            let before = pages()?;
            writer.execute(&format!("{CLEAN} {STALE}"), ("", None::<&str>, i64::MAX))?;
            // The copy of a large file would need as much memory.
            writer.execute_batch("PRAGMA temp_store = FILE")?;
            let vacuumed = writer.execute_batch("VACUUM");
            writer.execute_batch("PRAGMA temp_store = MEMORY")?;
            vacuumed?;
            writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
            Ok(pages()? < before)
        };
        compact().map_err(store_error)
    }

    /// `limit` is at least 1.
    fn read_page(&self, query: &Query, limit: usize) -> rusqlite::Result<Vec<Record>> {
        // Between the commit of a transaction and its end, the claims differ from the records.
        let _writer = self.shared.writer.lock();
        let held = self.shared.held.lock();
        let reader = self.shared.reader.lock();
        // Another process may change a file that is only read.
        let reader = reader.unchecked_transaction()?;
        let select = |tables: &str, condition: &str, parameters: &[&dyn ToSql]| {
            let sql = format!("{COLUMNS} {tables} WHERE {condition}");
            let mut statement = reader.prepare_cached(&sql)?;
            let read = |row: &Row<'_>| read_row(row).map(|record| view(record, &held.claims.holds));
            statement.query_map(parameters, read)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        let (dead, from, until, after) = match query {
            Query::Prefix { prefix, after } => {
                // The upper bound has more bytes than an id can have.
                let end = format!("{prefix}{}", "\u{10ffff}".repeat(64));
                let after = after.as_ref().map_or("", TimeoutId::as_str);
                let condition = "id >= ? AND id < ? AND id > ? ORDER BY id LIMIT ?";
                return select(BY_ID, condition, &[prefix, &end, &after, &limit]);
            }
            Query::Times { from, until, after } => (false, *from, until.end(), after),
            Query::Dead { after } => (true, WallTime::MIN, WallTime::MAX.end(), after),
        };
        let mut until = until.as_micros();
        let (next, id) = list_start(from, after.as_ref());
        let next = next.as_micros();
        let condition = "dead = ? AND queue = ? AND priority = ? AND (next, id) > (?, ?)
            AND next < ? ORDER BY next, id LIMIT ?";
        let mut parts = reader.prepare_cached(PARTS)?;
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let parts = parts.query_map((dead, next, id, until), read)?;
        let parts: Vec<(String, u8, Option<u64>)> = parts.collect::<rusqlite::Result<_>>()?;
        let mut records = Vec::new();
        for (queue, priority, first) in parts {
            if first.is_none_or(|first| first >= until) {
                continue;
            }
            let place: [&dyn ToSql; 7] = [&dead, &queue, &priority, &next, &id, &until, &limit];
            records.append(&mut select("records", condition, &place)?);
            records.sort_unstable_by(Record::by_time);
            records.truncate(limit);
            if let Some(last) = records.get(limit - 1) {
                until = last.next.as_micros() + 1;
            }
        }
        Ok(records)
    }

    /// Makes a change that may void claims. If it does, tells the timers, and has the next claims
    /// read the records again.
    fn void<R>(&self, change: impl FnOnce(&mut Held) -> R) -> R {
        let mut held = self.shared.held.lock();
        let result = change(&mut held);
        if mem::take(&mut held.claims.has_voided) {
            held.frontiers.clear();
            drop(held);
            self.shared.listeners.tell_all();
        }
        result
    }

    /// Locks the file again if a program has removed the lock. Fails if another process has opened
    /// the file since then: the two do not know of each other's claims.
    fn keep_lock(&self) -> StoreResult<()> {
        let Some(lock) = &self.shared.lock else { return Ok(()) };
        let mut lock = lock.lock();
        if lock.is_removed() {
            // Checked twice: a store that is refused must not keep others from opening the file.
            self.check_epoch()?;
            let again = lock_beside(&self.shared.path)?;
            self.check_epoch()?;
            *lock = again;
        }
        Ok(())
    }

    fn check_epoch(&self) -> StoreResult<()> {
        let sql = "SELECT epoch FROM store";
        let epoch: Option<u64> = self.read(|reader| reader.query_row(sql, (), |row| row.get(0)))?;
        let is_same = epoch == self.shared.epoch;
        is_same.then_some(()).ok_or_else(|| StoreError::new(StoreErrorReason::InUse))
    }

    /// Makes a change in a transaction. Fails if another process has opened the file, also while
    /// the transaction waited for its begin.
    fn transact<R>(
        &self,
        writer: &mut Connection,
        change: impl FnOnce(&Connection) -> rusqlite::Result<R>,
    ) -> StoreResult<R> {
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(store_error)?;
        self.keep_lock()?;
        let result = change(&transaction).map_err(store_error)?;
        transaction.commit().map_err(commit_error)?;
        Ok(result)
    }

    fn read<R>(&self, run: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> StoreResult<R> {
        run(&self.shared.reader.lock()).map_err(store_error)
    }

    /// Reads for long, on a connection of its own, so that no claim waits for it.
    fn read_long<R>(&self, run: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> StoreResult<R> {
        // In memory, a transaction that writes refuses readers.
        let _writer = self.shared.lock.is_none().then(|| self.shared.writer.lock());
        self.connection().and_then(|connection| run(&connection)).map_err(store_error)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A worker that enters later must be wary still. The same holds if this fails.
        if self.held.get_mut().was_killed {
            return;
        }
        let sql = "UPDATE store SET is_open = 0 WHERE epoch = ?";
        let _ = self.writer.get_mut().execute(sql, [self.epoch]);
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        let mut writer = self.shared.writer.lock();
        let mut effects = self.shared.held.lock().mark(commands);
        let result = self.transact(&mut writer, |transaction| {
            let queues: BTreeSet<_> = commands.iter().filter_map(Command::queue).collect();
            for queue in queues {
                let sql = "INSERT OR IGNORE INTO queues VALUES (?, 0)";
                transaction.prepare_cached(sql)?.execute([queue.as_str()])?;
            }
            let answers = commands.iter().map(|command| effects.apply(command, now, transaction));
            let answers = answers.collect::<rusqlite::Result<Vec<_>>>()?;
            effects.clean(transaction)?;
            effects.count(transaction)?;
            effects.trim(now, transaction)?;
            Ok(answers)
        });
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
            let answers = result.as_deref().unwrap_or_default();
            self.shared.listeners.tell_of(commands, answers);
        }
        result
    }

    async fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        let mut held = self.shared.held.lock();
        self.shared.settled.wait_while(&mut held, |held| held.changing.contains(id));
        self.read(|reader| find(reader, id, &held.claims.holds))
    }

    async fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        let (mut query, mut records) = (query.clone(), Vec::new());
        while records.len() < limit {
            let most = PAGE.min(limit - records.len());
            let page = self.read_page(&query, most).map_err(store_error)?;
            let is_last = page.len() < most;
            records.extend(page);
            match records.last() {
                Some(last) if !is_last => query.continue_after(last.next, last.id.clone()),
                _ => break,
            }
        }
        Ok(records)
    }

    async fn count(&self) -> StoreResult<Counts> {
        let read = |row: &Row<'_>| Ok(Counts { live: row.get(0)?, dead: row.get(1)? });
        self.read(|reader| {
            reader.prepare_cached("SELECT live, dead FROM store")?.query_row((), read)
        })
    }

    async fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        limit: usize,
    ) -> StoreResult<usize> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 0
            AND queue IN (SELECT name FROM queues)
            AND priority IN (0, 1, 2) AND next >= ? AND next < ? LIMIT ?)";
        let range = (from.as_micros(), until.end().as_micros(), most(limit));
        self.read_long(|reader| reader.query_row(sql, range, |row| row.get(0)))
    }

    async fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        if self.shared.epoch.is_none() {
            return Ok(None);
        }
        Ok(Some(self.shared.held.lock().claims.leases(limit)))
    }

    async fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> StoreResult<WorkerId> {
        if self.shared.epoch.is_none() {
            return Err(StoreError::new(StoreErrorReason::ReadOnly));
        }
        Ok(self.void(|held| {
            if mem::take(&mut held.was_killed) {
                held.wary_until = Some(now);
            }
            held.claims.enter(now.saturating_add(lease), name)
        }))
    }

    async fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        Ok(self.void(|held| held.claims.renew(worker, now, lease)))
    }

    async fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        self.void(|held| held.claims.take_from(worker));
        Ok(())
    }

    async fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64> {
        Ok(self.void(|held| held.claims.keep_only(worker, tokens)))
    }

    async fn claim(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> StoreResult<Option<ClaimedBatch>> {
        self.keep_lock()?;
        let mut held = self.shared.held.lock();
        if !held.claims.is_known(worker) {
            return Ok(None);
        }
        let mut batch = ClaimedBatch::default();
        let is_paused = |queue: &Queue| queue.is_paused && !request.paused;
        if !held.claims.queues.get(&request.queue).is_some_and(is_paused) {
            self.read(|reader| held.claim(&mut batch, request, reader))?;
        }
        batch.lapse = request.lapse.then(|| held.claims.lapse(worker)).flatten();
        if let Some(until) = held.wary_until.filter(|_| batch.records.is_empty())
            && !self.read(|reader| Held::has_record(until, reader))?
        {
            // Those that were due at the start are delivered.
            held.wary_until = None;
        }
        for record in &mut batch.records {
            held.claims.hold(record, worker);
        }
        drop(held);
        let mut begins: Vec<_> =
            batch.records.iter_mut().filter(|record| request.begins(record)).collect();
        if !begins.is_empty() {
            let claims: Vec<_> = begins.iter().map(|record| record.claim()).collect();
            // It is ready at once. After an error, they are claimed.
            let begun = self.begin(request.now, &claims, None).block_on().unwrap_or_default();
            for (record, _) in
                begins.iter_mut().zip(begun).filter(|(_, begun)| *begun == Begun::Begun)
            {
                (record.state, record.attempt) = (State::Delivering, record.attempt + 1);
            }
        }
        Ok(Some(batch))
    }

    async fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>> {
        self.keep_lock()?;
        let is_wary = |state: &Held| {
            let mut holds = claims.iter().filter_map(|claim| state.claims.holds.get(&claim.id));
            holds.any(|hold| state.is_wary(hold.next))
        };
        let mut state = self.shared.held.lock();
        let mut writer = None;
        if is_wary(&state) {
            drop(state);
            writer = Some(self.shared.writer.lock());
            state = self.shared.held.lock();
        }
        self.shared.settled.wait_while(&mut state, |held| held.is_changing(claims));
        let answers = state.claims.begin(now, claims, key_limit);
        let Some(writer) = &mut writer else { return Ok(answers) };
        let begun = claims.iter().zip(&answers).filter(|(_, answer)| **answer == Begun::Begun);
        let attempts = begun.clone().filter_map(|(claim, _)| {
            let hold = state.claims.holds.get(&claim.id)?;
            state.is_wary(hold.next).then_some((&claim.id, hold.attempt))
        });
        let attempts: Vec<_> = attempts.collect();
        if let Err(error) = self.transact(writer, |writer| count_attempts(writer, &attempts)) {
            for (claim, _) in begun {
                if let Some(hold) = state.claims.holds.get_mut(&claim.id) {
                    (hold.begun, hold.attempt) = (false, hold.attempt - 1);
                }
            }
            return Err(error);
        }
        Ok(answers)
    }

    async fn are_current(&self, claims: &[Claim]) -> StoreResult<Vec<bool>> {
        let mut held = self.shared.held.lock();
        self.shared.settled.wait_while(&mut held, |held| held.is_changing(claims));
        let hold_of = |claim: &Claim| held.claims.holds.get(&claim.id);
        let is_current = |claim| hold_of(claim).is_some_and(|hold| hold.is_of(claim));
        Ok(claims.iter().map(is_current).collect())
    }

    async fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)> {
        let mut held = self.shared.held.lock();
        Ok(held.claims.queues.entry(queue.clone()).or_default().permits(now, rate, most))
    }

    async fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()> {
        let mut writer = self.shared.writer.lock();
        self.transact(&mut writer, |writer| set_paused(writer, queue, is_paused))?;
        let mut held = self.shared.held.lock();
        held.claims.queues.entry(queue.clone()).or_default().is_paused = is_paused;
        drop((held, writer));
        self.shared.listeners.tell(Some(queue), WallTime::MIN);
        Ok(())
    }

    fn keep_history(&self, keep: Duration) {
        self.shared.held.lock().keep = keep;
    }

    async fn history(
        &self,
        now: WallTime,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Attempt>> {
        let condition = if id.is_some() { "id = ?1" } else { "?1 IS NULL" };
        let sql = format!(
            "SELECT number, id, queue, due, attempt, ended, end, error FROM history
            WHERE {condition} AND number < ?2 AND until > ?3 ORDER BY number DESC LIMIT ?4"
        );
        let (before, limit) = (before.map_or(i64::MAX, most), most(limit));
        self.read_long(|reader| {
            let mut statement = reader.prepare(&sql)?;
            let id = id.map(TimeoutId::as_str);
            statement.query_map((id, before, now.as_micros(), limit), read_attempt)?.collect()
        })
    }

    async fn queues(&self) -> StoreResult<Vec<QueueState>> {
        self.read(read_queues)
    }

    async fn overview(
        &self,
        now: WallTime,
        queues: usize,
        limit: usize,
    ) -> StoreResult<Vec<QueueOverview>> {
        let held = self.shared.held.lock();
        let begun = held.claims.holds.iter().filter(|(_, hold)| hold.is_delivering());
        let begun: FxHashMap<_, _> =
            begun.map(|(id, hold)| (id.clone(), hold.queue.clone())).collect();
        drop(held);
        self.read_long(|reader| {
            // All statements read one state of a file that other connections may change.
            let reader = reader.unchecked_transaction()?;
            let (mut counts, mut due) = (reader.prepare(OVERVIEW)?, reader.prepare(DUE)?);
            let overview = |queue: QueueState| {
                let (name, micros) = (queue.name.as_str(), now.as_micros());
                let mut oldest_waiting = None;
                for priority in 0..3 {
                    let read = |row: &Row<'_>| Ok((time(row, 0)?, row.get::<_, String>(1)?));
                    let rows = due.query_map((name, priority, micros), read)?;
                    let is_begun = |(_, id): &(_, String)| begun.contains_key(id.as_str());
                    let waiting = rows.into_iter().find(|row| !row.as_ref().is_ok_and(is_begun));
                    let waiting = waiting.transpose()?.map(|(next, _)| next);
                    oldest_waiting = oldest_waiting.into_iter().chain(waiting).min();
                }
                let delivering = begun.values().filter(|of| **of == queue.name);
                let delivering = delivering.take(limit).count();
                let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
                let (live, due, dead) = counts.query_row((name, micros, most(limit)), read)?;
                Ok(QueueOverview { queue, live, due, delivering, dead, oldest_waiting })
            };
            read_queues(&reader)?.into_iter().take(queues).map(overview).collect()
        })
    }

    fn listen(&self, notice: Notice) {
        self.shared.listeners.add(notice);
    }
}

opaque!(SqliteStore, path: shared.path);

/// Changes by a transaction, to take effect once it has committed.
#[derive(Default)]
struct Effects {
    /// Id, and the place after the change if the record is live.
    changed: Vec<(TimeoutId, Option<Spot>)>,
    /// Holds of the records before the transaction. A change takes the hold away.
    holds: Holds,
    token: u64,
    live: i64,
    dead: i64,
    keep: Duration,
    attempts: u64,
    /// Number of rows that became stale, and the greatest time of their records.
    stale: usize,
    stale_to: Option<WallTime>,
    cleaned: String,
}

impl Effects {
    fn apply(
        &mut self,
        command: &Command,
        now: WallTime,
        writer: &Connection,
    ) -> rusqlite::Result<Answer> {
        let id = command.id();
        self.token += 1;
        if let (Command::Settle(claim, Settlement::Done), true) = (command, self.keep.is_zero()) {
            return self.remove_held(claim, writer);
        }
        let old = match (find(writer, id, &self.holds), command) {
            (
                Err(error),
                Command::Cancel(_)
                | Command::Schedule(NewTimeout { conflict: Conflict::Replace, .. })
                | Command::Settle(..),
            ) if is_damaged(&error) => find_place(writer, id)?,
            (found, _) => found?,
        };
        let (change, answer) = apply(old.clone(), command, self.token);
        if let (Command::Settle(_, settlement), Some(old)) = (command, &old)
            && answer == Answer::Settled(true)
            && !self.keep.is_zero()
        {
            self.attempts += u64::from(note(writer, old, settlement, now, self.keep)?);
        }
        let record = match change {
            Change::Nothing => return Ok(answer),
            Change::Put(record) => Some(record),
            Change::Remove => None,
        };
        replace(writer, old.as_ref(), record.as_ref())?;
        for (record, change) in [(&old, -1), (&record, 1)] {
            match record.as_ref().map(|record| record.state) {
                None => (),
                Some(State::Dead) => self.dead += change,
                Some(_) => self.live += change,
            }
        }
        self.holds.remove(id);
        let live = record.filter(|record| record.state != State::Dead);
        let spot = live.map(|record| ((record.queue, record.priority), record.next));
        self.changed.push((id.clone(), spot));
        Ok(answer)
    }

    /// Removes the record of a claim without reading it. It is where it was claimed, as a change of
    /// its place would have taken the hold away.
    fn remove_held(&mut self, claim: &Claim, writer: &Connection) -> rusqlite::Result<Answer> {
        let Some(hold) = self.holds.get(&claim.id).filter(|hold| hold.is_of(claim)) else {
            return Ok(Answer::Settled(false));
        };
        let spot = ((hold.queue.clone(), hold.priority), hold.next);
        let is_removed = remove(writer, false, &spot, &claim.id)?;
        if is_removed {
            self.stale += 1;
            self.stale_to = self.stale_to.max(Some(spot.1));
            self.holds.remove(&claim.id);
            self.changed.push((claim.id.clone(), None));
            self.live -= 1;
        }
        Ok(Answer::Settled(is_removed))
    }

    /// Looks at twice as many rows of ids as became stale, so that at most about as many are stale
    /// as are not. Those of records that are due later are hardly ever stale, and not looked up.
    /// Nor are the others if the oldest records went first, as those of a backlog do.
    fn clean(&mut self, writer: &Connection) -> rusqlite::Result<()> {
        let Some(until) = self.stale_to else { return Ok(()) };
        let sql = "SELECT id FROM ids WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?";
        let range = (&self.cleaned, 2 * self.stale);
        let end = writer.prepare_cached(sql)?.query_row(range, |row| row.get(0)).optional()?;
        let range = (&self.cleaned, &end, until.as_micros());
        let is_few = self.stale < LOOKUPS;
        let stale = if is_few || Held::has_record(until, writer)? { STALE } else { "" };
        writer.prepare_cached(&format!("{CLEAN} {stale}"))?.execute(range)?;
        self.cleaned = end.unwrap_or_default();
        Ok(())
    }

    fn trim(&self, now: WallTime, writer: &Connection) -> rusqlite::Result<()> {
        if self.attempts > 0 {
            let sql = "DELETE FROM history WHERE number IN (
                SELECT number FROM history WHERE until <= ? ORDER BY until LIMIT ?)";
            let most = 2 * self.attempts.max(8);
            writer.prepare_cached(sql)?.execute((now.as_micros(), most))?;
        }
        Ok(())
    }

    fn count(&self, writer: &Connection) -> rusqlite::Result<()> {
        if (self.live, self.dead) != (0, 0) || self.stale > 0 {
            // Processes that live shortly go on cleaning where the last one stopped.
            let sql = "UPDATE store SET live = live + ?, dead = dead + ?, cleaned = ?";
            writer.prepare_cached(sql)?.execute((self.live, self.dead, &self.cleaned))?;
        }
        Ok(())
    }
}

impl Held {
    /// Returns whether a commit changes one of these records.
    fn is_changing(&self, claims: &[Claim]) -> bool {
        claims.iter().any(|claim| self.changing.contains(&claim.id))
    }

    /// Marks the records of commands as changing, and reserves a token for each command.
    fn mark(&mut self, commands: &[Command]) -> Effects {
        let ids = || commands.iter().map(Command::id);
        let claims = &self.claims;
        let holds = ids().filter_map(|id| Some((id.clone(), claims.holds.get(id)?.clone())));
        let effects = Effects {
            holds: holds.collect(),
            token: claims.last_token,
            keep: self.keep,
            cleaned: self.cleaned.clone(),
            ..Effects::default()
        };
        self.changing.extend(ids().cloned());
        self.claims.last_token += commands.len() as u64;
        effects
    }

    fn take_effect(&mut self, effects: &Effects) {
        self.cleaned.clone_from(&effects.cleaned);
        for (id, spot) in &effects.changed {
            self.claims.holds.remove(id);
            if let Some((part, next)) = spot {
                self.loosen(part, &(*next, id.clone()));
            }
        }
    }

    fn has_record(until: WallTime, reader: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM records WHERE dead = 0
            AND queue IN (SELECT name FROM queues) AND priority IN (0, 1, 2) AND next <= ?)";
        reader.prepare_cached(sql)?.query_row([until.as_micros()], |row| row.get(0))
    }

    fn is_wary(&self, next: WallTime) -> bool {
        self.wary_until.is_some_and(|until| next <= until)
    }

    /// A record is not held any more, or is new.
    fn loosen(&mut self, part: &Part, place: &Place) {
        for frontier in self.frontiers.iter_mut().filter(|frontier| frontier.part == *part) {
            frontier.loosen(place.clone());
        }
    }

    fn claim(
        &mut self,
        batch: &mut ClaimedBatch,
        request: &ClaimRequest,
        reader: &Connection,
    ) -> rusqlite::Result<()> {
        let (mut found, mut frontiers) = (Vec::new(), Vec::new());
        for priority in Priority::ALL {
            let (part, from) = ((request.queue.clone(), priority), request.from);
            let is_same = |other: &Frontier| other.from == from && other.part == part;
            // If the claim fails, these are gone, and the next one reads from the start.
            let mut frontier = match self.frontiers.iter().position(is_same) {
                Some(index) => self.frontiers.remove(index),
                None => Frontier { part, from, to: None, loose: BTreeSet::new() },
            };
            let (mut records, next) = frontier.find_free(&self.claims, request, reader)?;
            frontiers.push(frontier);
            found.append(&mut records);
            batch.next = batch.next.into_iter().chain(next).min();
        }
        self.frontiers.splice(..0, frontiers);
        self.frontiers.truncate(FRONTIERS);
        found.sort_by_cached_key(|record| request.rank(record));
        let mut bytes = 0;
        let fits = |record: &&Record| {
            let fits = bytes < request.max_bytes;
            bytes += record.payload.len();
            fits
        };
        let kept = found.iter().take(request.limit).take_while(fits).count();
        for record in found.drain(kept..) {
            batch.next = batch.next.into_iter().chain([record.next]).min();
            self.loosen(&(record.queue, record.priority), &(record.next, record.id));
        }
        found.sort_unstable_by(Record::by_time);
        batch.records = found;
        Ok(())
    }
}

impl Frontier {
    /// Returns the first records that are not held or passed over, and moves the frontier past
    /// them. Also returns the time of the next such record.
    fn find_free(
        &mut self,
        claims: &Claims,
        request: &ClaimRequest,
        reader: &Connection,
    ) -> rusqlite::Result<(Vec<Record>, Option<WallTime>)> {
        let (mut records, mut next_free, mut bytes) = (Vec::new(), None, 0);
        let mut take = |record: Record| {
            let has_room = records.len() < request.limit && bytes < request.max_bytes;
            if !has_room || record.next >= request.until {
                next_free = Some(record.next);
                return false;
            }
            bytes += record.payload.len();
            records.push(record);
            true
        };
        let is_passed_over = |record: &Record| {
            let is_cron = record.repeat.as_ref().is_some_and(Repeat::is_cron);
            let is_busy = record.key.as_ref().is_some_and(|key| request.busy.contains(key));
            // Without that feature there is no worker that knows more, and the timer says so.
            is_busy || is_cron && !request.cron && cfg!(feature = "cron")
        };
        let (mut has_room, mut kept) = (true, Vec::new());
        let sql = format!("{COLUMNS} records WHERE dead = 0 AND queue = ? AND priority = ?");
        let (queue, priority) = (self.part.0.as_str(), self.part.1 as u8);
        while has_room && let Some(place) = self.loose.pop_first() {
            let mut statement = reader.prepare_cached(&format!("{sql} AND next = ? AND id = ?"))?;
            let key = (queue, priority, place.0.as_micros(), place.1.as_str());
            let record = unless_damaged(statement.query_row(key, read_row).optional())?.flatten();
            let record = record.filter(|record| !claims.is_held(record.id.as_str()));
            let Some(record) = record.map(|record| view(record, &claims.holds)) else { continue };
            let is_kept = is_passed_over(&record);
            has_room = is_kept || take(record);
            kept.extend((is_kept || !has_room).then_some(place));
        }
        if has_room {
            let sql = format!("{sql} AND (next, id) > (?, ?) ORDER BY next, id");
            let mut statement = reader.prepare_cached(&sql)?;
            let start = self.to.as_ref().map(|(next, id)| (next.as_micros(), id.as_str()));
            let (next, id) = start.unwrap_or((self.from.as_micros(), ""));
            let mut rows = statement.query((queue, priority, next, id))?;
            while has_room && let Some(row) = rows.next()? {
                let Some(place) = unless_damaged(place(row))? else { continue };
                if !claims.is_held(place.1.as_str())
                    && let Some(record) = unless_damaged(read_row(row))?
                {
                    let is_kept = is_passed_over(&record);
                    has_room = is_kept || take(view(record, &claims.holds));
                    kept.extend(is_kept.then(|| place.clone()));
                }
                if has_room {
                    self.to = Some(place);
                }
            }
        }
        for place in kept {
            self.loosen(place);
        }
        Ok((records, next_free))
    }

    fn loosen(&mut self, place: Place) {
        if place.0 >= self.from && self.to.as_ref().is_some_and(|to| place <= *to) {
            self.loose.insert(place);
        }
        if self.loose.len() > MAX_LOOSE {
            // Memory stays bounded, and the next claim reads from the start.
            self.to = None;
            self.loose.clear();
        }
    }
}

impl ClaimRequest {
    /// Returns whether the claim of a record begins its delivery.
    fn begins(&self, record: &Record) -> bool {
        let is_plain = record.attempt == 0 && record.repeat.is_none() && record.key.is_none();
        self.begins && is_plain && record.next <= self.now
    }

    fn rank(&self, record: &Record) -> (bool, Priority, WallTime, TimeoutId) {
        let is_due = record.next <= self.now;
        // Of those that are not due, the earliest ones go first.
        let priority = if is_due { record.priority } else { Priority::Low };
        (!is_due, priority, record.next, record.id.clone())
    }
}

/// Returns the path without links, so that a store has one lock. The file, to which a link may
/// lead, need not exist. A loop of links is another error.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            match path.read_link() {
                Ok(target) => real_path(&folder.join(target)),
                Err(_) => Ok(folder.join(name)),
            }
        }
        (found, _) => found,
    }
}

/// A locked file. A program that starts meanwhile has a copy of it for a moment, which keeps the
/// lock if it is only closed.
struct Lock(File);

impl Lock {
    /// Returns whether the file was removed, so that another process can create and lock a new one.
    /// Systems other than Unix keep a file that is open.
    fn is_removed(&self) -> bool {
        #[cfg(unix)]
        let is_removed = self.0.metadata().is_ok_and(|file| file.nlink() == 0);
        #[cfg(not(unix))]
        let is_removed = false;
        is_removed
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Returns whether a file is a [`COPY`]. SQLite reads an immutable file without the log beside it.
fn is_copy(path: &Path) -> bool {
    let Some(name) = path.to_str() else { return false };
    let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let file = Connection::open_with_flags(format!("file:{name}?immutable=1"), flags);
    file.and_then(|file| number(&file, "application_id")).is_ok_and(|found| found == COPY)
}

/// Empties and removes a log, and its index.
fn remove_log(path: &Path) -> io::Result<()> {
    match File::options().write(true).truncate(true).open(beside(path, "-wal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        log => log?.sync_all()?,
    }
    // A process that reads the old file has both open, with an index of the old log.
    for ending in ["-wal", "-shm"] {
        match fs::remove_file(beside(path, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
    }
    Ok(())
}

/// Marks a copy as the file of a store. Without a log, the mark goes into the file itself.
fn adopt(copy: &Connection) -> rusqlite::Result<()> {
    let read = |row: &Row<'_>| row.get(0);
    let mode: String = copy.pragma_update_and_check(None, "journal_mode", "DELETE", read)?;
    if mode != "delete" {
        return Err(damaged("the copy has a log"));
    }
    // Then the end of its journal is durable as well.
    copy.pragma_update(None, "synchronous", "EXTRA")?;
    copy.pragma_update(None, "application_id", APPLICATION)
}

/// Locks a file beside another one. SQLite's own locks would not outlast an operation.
fn lock_beside(path: &Path) -> StoreResult<Lock> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let lock = beside(path, "-lock");
    let file = options.open(&lock).map_err(file_error(&lock))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::new(StoreErrorReason::InUse)),
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
            Err(file_error(&lock)(error))
        }
        _ => match Lock(file) {
            // It was removed before it was locked.
            lock if lock.is_removed() => lock_beside(path),
            lock => Ok(lock),
        },
    }
}

/// Random times touch a page for each record, and a commit writes each whole page to the log. So
/// pages are small, and the log is long: a page that changes often is copied to its place rarely.
fn connect(path: &Path, is_read_only: bool) -> rusqlite::Result<Connection> {
    let connection = if is_read_only {
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?
    } else {
        Connection::open(path)?
    };
    // The file of another program stays as it is.
    let tables = connection
        .query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get::<_, u32>(0))?;
    if tables > 0 {
        match number(&connection, "application_id")? {
            APPLICATION => (),
            COPY if is_read_only => (),
            COPY => adopt(&connection)?,
            _ => return Err(damaged("another program made the file")),
        }
    }
    if !is_read_only {
        let log = "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
            PRAGMA wal_autocheckpoint = 16000;";
        connection.execute_batch(log)?;
    }
    connection.execute_batch(&format!(
        "PRAGMA temp_store = MEMORY; PRAGMA cache_size = -{CACHE}; PRAGMA cache_spill = -48000;"
    ))?;
    Ok(connection)
}

/// Checks the version of the tables, or creates them. Returns the epoch, whether the process before
/// did not close the file, and the id up to which stale rows were removed.
fn prepare(writer: &mut Connection, is_checked: bool) -> StoreResult<(u64, bool, String)> {
    if is_checked {
        let check = "PRAGMA integrity_check";
        let answer = writer.query_row(check, (), |row| row.get::<_, String>(0));
        let answer = answer.map_err(store_error)?;
        if answer != "ok" {
            return Err(store_error(damaged(answer)));
        }
    }
    // The logs of processes that were killed would add up, and fill a small disk. A disk that is
    // full already may have no room for the copy.
    let _ = writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(()));
    let mut prepare = || -> rusqlite::Result<_> {
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        match number(&transaction, "user_version")? {
            VERSION => (),
            0 => transaction.execute_batch(SCHEMA)?,
            _ => return Ok(Err(StoreErrorReason::NewerVersion)),
        }
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let state = transaction.query_row(
            "UPDATE store SET epoch = epoch + 1, is_open = is_open + 1
            RETURNING epoch, is_open > 1, cleaned",
            (),
            read,
        )?;
        transaction.commit()?;
        if is_checked {
            let mut statement = writer.prepare(&format!("{COLUMNS} records"))?;
            let mut rows = statement.query(())?;
            let mut count = 0;
            while let Some(row) = rows.next()? {
                read_row(row)?;
                count += 1;
            }
            let found = format!("SELECT count(*) FROM {BY_ID}");
            if writer.query_row(&found, (), |row| row.get::<_, u64>(0))? != count {
                return Err(damaged("a record lacks its id"));
            }
        }
        Ok(Ok(state))
    };
    prepare().map_err(store_error)?.map_err(StoreError::new)
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}

/// Adds the attempt that a settlement ends to the history, unless no handler has run. Returns
/// whether it has.
fn note(
    writer: &Connection,
    old: &Record,
    settlement: &Settlement,
    now: WallTime,
    keep: Duration,
) -> rusqlite::Result<bool> {
    let (end, error) = match settlement {
        Settlement::Done | Settlement::Again(_) => (AttemptEnd::Acknowledged, None),
        Settlement::Retry { error, .. } => (AttemptEnd::Failed, Some(error)),
        Settlement::Dead { error } => (AttemptEnd::Dead, Some(error)),
        Settlement::Release | Settlement::Leave { .. } => return Ok(false),
    };
    let is_attempt = old.state == State::Delivering || end == AttemptEnd::Dead;
    if is_attempt {
        let (id, queue, due) = (old.id.as_str(), old.queue.as_str(), old.due.as_micros());
        let (ended, until) = (now.as_micros(), now.saturating_add(keep).as_micros());
        let row = (id, queue, due, old.attempt, ended, end as u8, error, until);
        let sql = "INSERT INTO history VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)";
        writer.prepare_cached(sql)?.execute(row)?;
    }
    Ok(is_attempt)
}

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        number: row.get(0)?,
        id: TimeoutId::new(row.get_ref(1)?.as_str()?).map_err(damaged)?,
        queue: Name::new(row.get_ref(2)?.as_str()?).map_err(damaged)?,
        due: time(row, 3)?,
        attempt: row.get(4)?,
        ended: time(row, 5)?,
        end: AttemptEnd::ALL[row.get::<_, usize>(6)?.min(2)],
        error: row.get(7)?,
    })
}

fn set_paused(writer: &Connection, queue: &Name, is_paused: bool) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO queues VALUES (?, ?)";
    writer.prepare_cached(sql)?.execute((queue.as_str(), is_paused)).map(drop)
}

fn read_queues(reader: &Connection) -> rusqlite::Result<Vec<QueueState>> {
    let mut statement =
        reader.prepare_cached("SELECT name, is_paused FROM queues ORDER BY name")?;
    let read = |row: &Row<'_>| {
        let name = Name::new(row.get_ref(0)?.as_str()?).map_err(damaged)?;
        Ok(QueueState { name, is_paused: row.get(1)? })
    };
    statement.query_map((), read)?.collect()
}

fn count_attempts(writer: &Connection, attempts: &[(&TimeoutId, u32)]) -> rusqlite::Result<()> {
    for &(id, attempt) in attempts {
        if let Some(record) = find(writer, id, &Holds::default())? {
            let counted = Record { attempt, ..record.clone() };
            replace(writer, Some(&record), Some(&counted))?;
        }
    }
    Ok(())
}

fn find(
    connection: &Connection,
    id: &TimeoutId,
    holds: &Holds,
) -> rusqlite::Result<Option<Record>> {
    let mut statement = connection.prepare_cached(&format!("{COLUMNS} {BY_ID} WHERE id = ?"))?;
    let record = statement.query_row([id.as_str()], read_row).optional()?;
    Ok(record.map(|record| view(record, holds)))
}

/// Passes over a record that cannot be read, as it would stop its queue.
fn unless_damaged<T>(read: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match read {
        Err(error) if is_damaged(&error) => {
            emit!(warn, error = &error as &dyn Error, "a damaged timeout is passed over");
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Returns whether the content of a row is at fault, and not the file as a whole.
fn is_damaged(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code().is_none()
}

/// Stands for a record that cannot be read, so that it can be removed or replaced.
fn find_place(writer: &Connection, id: &TimeoutId) -> rusqlite::Result<Option<Record>> {
    let sql = "SELECT dead, next, id, queue, priority FROM ids WHERE id = ?";
    let read = |row: &Row<'_>| {
        let (next, id) = place(row)?;
        let queue = Name::new(row.get_ref(3)?.as_str()?).map_err(damaged)?;
        let priority = Priority::ALL.get(row.get::<_, usize>(4)?).copied().unwrap_or_default();
        let state = if row.get(0)? { State::Dead } else { State::Pending };
        let new = NewTimeout::new(id, next, b"").map_err(damaged)?;
        let new = NewTimeout { queue, priority, ..new };
        Ok(Record { state, ..pending_record(&new, 0) })
    };
    writer.prepare_cached(sql)?.query_row([id.as_str()], read).optional()
}

/// Removes the row at a place. Returns whether there was one.
fn remove(
    writer: &Connection,
    is_dead: bool,
    ((queue, priority), next): &Spot,
    id: &TimeoutId,
) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM records
        WHERE dead = ? AND queue = ? AND priority = ? AND next = ? AND id = ?";
    let place = (is_dead, queue.as_str(), *priority as u8, next.as_micros(), id.as_str());
    Ok(writer.prepare_cached(sql)?.execute(place)? == 1)
}

fn replace(
    writer: &Connection,
    old: Option<&Record>,
    record: Option<&Record>,
) -> rusqlite::Result<()> {
    let place = |record: &Record| {
        let spot = ((record.queue.clone(), record.priority), record.next);
        (record.state == State::Dead, spot)
    };
    let before = old.map(place);
    if let (Some(old), Some((is_dead, spot))) = (old, &before) {
        remove(writer, *is_dead, spot, &old.id)?;
    }
    let Some(record) = record else {
        if let Some(old) = old {
            writer.prepare_cached("DELETE FROM ids WHERE id = ?")?.execute([old.id.as_str()])?;
        }
        return Ok(());
    };
    let after = place(record);
    if before.as_ref() != Some(&after) {
        let (is_dead, ((queue, priority), next)) = after;
        let row = (record.id.as_str(), is_dead, queue.as_str(), priority as u8, next.as_micros());
        let sql = "INSERT OR REPLACE INTO ids VALUES (?, ?, ?, ?, ?)";
        writer.prepare_cached(sql)?.execute(row)?;
    }
    let repeat = record.repeat.as_ref().map(Repeat::to_text);
    let sql = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    writer.prepare_cached(sql)?.execute((
        record.state == State::Dead,
        record.next.as_micros(),
        record.id.as_str(),
        record.due.as_micros(),
        record.attempt,
        &repeat,
        &record.error,
        &*record.payload,
        checksum(record, repeat.as_deref()),
        record.queue.as_str(),
        record.priority as u8,
        record.key.as_ref().map(Name::as_str),
    ))?;
    Ok(())
}

fn checksum(record: &Record, repeat: Option<&str>) -> i64 {
    let numbers = [
        u64::from(record.state == State::Dead),
        record.next.as_micros(),
        record.due.as_micros(),
        u64::from(record.attempt),
        record.priority as u64,
    ];
    let numbers = numbers.map(u64::to_le_bytes);
    let (queue, key) = (record.queue.as_str(), record.key.as_ref().map(Name::as_str));
    let texts = [Some(record.id.as_str()), repeat, record.error.as_deref(), Some(queue), key];
    let bytes = numbers.as_flattened().iter().copied().chain(texts.into_iter().flat_map(marked));
    fnv(bytes.chain(record.payload.iter().copied())).cast_signed()
}

/// A byte that no text has marks its end, or that there is none.
fn marked(text: Option<&str>) -> impl Iterator<Item = u8> {
    text.unwrap_or_default().bytes().chain([0xff])
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    let id = TimeoutId::new(row.get_ref(2)?.as_str()?);
    Ok((time(row, 1)?, id.map_err(damaged)?))
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<Record> {
    let name = |text: &str| Name::new(text).map_err(damaged);
    let (next, id) = place(row)?;
    let text = row.get_ref(5)?.as_str_or_null()?;
    let repeat = text.map(|text| Repeat::from_text(text).ok_or_else(|| damaged(InputError::Cron)));
    let record = Record {
        id,
        due: time(row, 3)?,
        next,
        payload: row.get_ref(7)?.as_blob()?.into(),
        repeat: repeat.transpose()?,
        queue: name(row.get_ref(9)?.as_str()?)?,
        priority: Priority::ALL.get(row.get::<_, usize>(10)?).copied().unwrap_or_default(),
        key: row.get_ref(11)?.as_str_or_null()?.map(name).transpose()?,
        attempt: row.get(4)?,
        state: if row.get(0)? { State::Dead } else { State::Pending },
        token: 0,
        error: row.get(6)?,
    };
    if checksum(&record, text) != row.get::<_, i64>(8)? {
        return Err(damaged(format!("the checksum of {:?} differs", record.id)));
    }
    Ok(record)
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<WallTime> {
    WallTime::from_micros(row.get(column)?).map_err(damaged)
}

fn damaged(error: impl Into<Box<dyn Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Null, error.into())
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |error| {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorReason::Full,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StoreErrorReason::ReadOnly
            }
            _ => StoreErrorReason::Other,
        };
        let text = format!("{}: {error}", path.display());
        StoreError::with_source(reason, io::Error::new(error.kind(), text))
    }
}

fn lacks_index(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|failure| failure.extended_code);
    code == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

fn store_error(error: rusqlite::Error) -> StoreError {
    let reason = match error.sqlite_error_code() {
        _ if lacks_index(&error) => StoreErrorReason::Full,
        Some(ErrorCode::DiskFull) => StoreErrorReason::Full,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreErrorReason::ReadOnly,
        None | Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreErrorReason::Corrupt
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreErrorReason::Unavailable,
        Some(_) => StoreErrorReason::Other,
    };
    StoreError::with_source(reason, error)
}

/// If the sync of a commit failed, or the index of the log could not grow after it, a process after
/// this one may find the changes.
fn commit_error(error: rusqlite::Error) -> StoreError {
    let lacks_index = lacks_index(&error);
    let error = store_error(error);
    match error.reason() {
        StoreErrorReason::Full | StoreErrorReason::ReadOnly if !lacks_index => error,
        _ => StoreError::with_source(StoreErrorReason::OutcomeUnknown, error),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc, thread};

    use tempfile::TempDir;

    use super::*;

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

    fn enter(store: &SqliteStore) -> WorkerId {
        store.enter(at(0), Duration::MAX, None).block_on().expect("enter")
    }

    fn write(store: &SqliteStore, commands: &[Command]) {
        store.write(at(0), commands).block_on().expect("write");
    }

    fn begin(store: &SqliteStore, claims: &[Claim]) -> Vec<Begun> {
        store.begin(at(60), claims, None).block_on().expect("begin")
    }

    fn claim(store: &SqliteStore, worker: WorkerId) -> Vec<Record> {
        let request = ClaimRequest::new(at(0), at(100));
        store.claim(worker, &request).block_on().expect("claim").expect("lease").records
    }

    #[test]
    fn a_delivery_whose_record_is_damaged_meanwhile_is_current() {
        let (folder, store) = open();
        write(&store, &[schedule("a", 0)]);
        let claims = [claim(&store, enter(&store))[0].claim()];
        let file = Connection::open(folder.path().join("timeouts.db")).expect("open");
        file.execute("UPDATE records SET payload = x'00'", ()).expect("change");
        assert_eq!(store.are_current(&claims).block_on().expect("current"), [true]);
    }

    fn ids(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.id.as_str()).collect()
    }

    /// A history of years takes long to read. Claims use the connection that is locked here.
    #[test]
    fn the_history_is_read_beside_claims() {
        let (_folder, store) = open();
        let (sender, answer) = std::sync::mpsc::channel();
        let claims = store.shared.reader.lock();
        let read = store.clone();
        std::thread::spawn(move || sender.send(read.history(at(0), None, None, 9).block_on()));
        let answer = answer.recv_timeout(Duration::from_secs(60));
        drop(claims);
        assert_eq!(answer.expect("at once").expect("history"), []);
    }

    #[test]
    fn timers_that_have_ended_leave_nothing_in_a_store() {
        let store = SqliteStore::in_memory();
        for _ in 0..9 {
            let clock = delaywheel::ManualClock::new();
            let builder = crate::DurableTimer::builder(store.clone()).clock(clock);
            drop(builder.build_blocking(|_| Ok(())).expect("start"));
        }
        assert_eq!(store.shared.listeners.0.lock().len(), 1);
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

    /// A program that is being started has a copy of the lock.
    #[test]
    fn a_store_that_is_dropped_frees_its_file() {
        let (folder, store) = open();
        let lock = store.shared.lock.as_ref().expect("it has one");
        let copy = lock.lock().0.try_clone().expect("copy");
        drop(store);
        SqliteStore::open(folder.path().join("timeouts.db")).expect("open");
        drop(copy);
    }

    #[test]
    fn an_error_about_the_lock_names_its_file() {
        let folder = tempfile::tempdir().expect("folder");
        fs::create_dir(folder.path().join("a.db-lock")).expect("create");
        let error = SqliteStore::open(folder.path().join("a.db")).expect_err("it is a folder");
        let source = error.source().expect("it has one").to_string();
        assert!(source.contains("a.db-lock: "), "{source}");
    }

    #[cfg(unix)]
    #[test]
    fn a_store_whose_lock_was_removed_locks_its_file_again_or_begins_nothing() {
        let (folder, store) = open();
        let worker = enter(&store);
        write(&store, &[schedule("a", 10), schedule("b", 10)]);
        let claims: Vec<_> = claim(&store, worker).iter().map(Record::claim).collect();
        let path = folder.path().join("timeouts.db");
        let open = || SqliteStore::open(&path);
        let remove = || fs::remove_file(beside(&path, "-lock")).expect("remove");
        remove();
        assert_eq!(claim(&store, worker), []);
        assert_eq!(open().expect_err("it is locked").reason(), StoreErrorReason::InUse);
        assert_eq!(begin(&store, &claims[..1]), [Begun::Begun]);
        remove();
        let refused = |when: &str| {
            let begun = store.begin(at(60), &claims[1..], None).block_on().map(drop);
            let written = store.write(at(0), &[schedule("c", 10)]).block_on().map(drop);
            let paused = store.pause(&Name::default(), true).block_on();
            for result in [begun, written, paused, store.compact().map(drop)] {
                assert_eq!(result.expect_err(when).reason(), StoreErrorReason::InUse, "{when}");
            }
        };
        let other = open().expect("the lock was removed");
        refused("another process has the file");
        drop(other);
        refused("another process may have delivered it");
        // The one after it must know that this one was killed.
        mem::forget(open().expect("open").shared);
        drop(store);
        remove();
        assert!(open().expect("open").shared.held.lock().was_killed);
    }

    /// The call has found its lock, and waits for another program.
    #[cfg(unix)]
    #[test]
    fn a_change_that_waits_while_another_process_opens_the_file_is_refused() {
        static MEANWHILE: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
        let (folder, store) = open();
        let path = folder.path().join("timeouts.db");
        let other = Connection::open(&path).expect("open");
        other.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let (opened, another) = mpsc::channel();
        *MEANWHILE.lock() = Some(Box::new(move || {
            other.execute_batch("ROLLBACK").expect("unlock");
            fs::remove_file(beside(&path, "-lock")).expect("remove");
            opened.send(SqliteStore::open(&path).expect("open")).expect("the test waits");
        }));
        let meanwhile = |_| MEANWHILE.lock().take().map(|call| call()).is_some();
        store.shared.writer.lock().busy_handler(Some(meanwhile)).expect("set");
        let refused = store.write(at(0), &[schedule("a", 10)]).block_on().expect_err("it is late");
        assert_eq!(refused.reason(), StoreErrorReason::InUse);
        assert_eq!(another.recv().expect("it was opened").records(), []);
    }

    /// A mover claims each record of an old database.
    #[test]
    fn a_claim_that_is_given_back_and_began_nothing_uses_no_memory() {
        let store = SqliteStore::in_memory();
        write(&store, &[schedule("a", 10)]);
        let worker = enter(&store);
        assert_eq!(ids(&claim(&store, worker)), ["a"]);
        store.leave(worker).block_on().expect("leave");
        assert!(store.shared.held.lock().claims.holds.is_empty());
    }

    #[test]
    fn a_claim_that_fails_passes_over_no_record() {
        for steps in 1.. {
            let store = SqliteStore::in_memory();
            let worker = enter(&store);
            let high = NewTimeout::new("high", at(5), b"").expect("valid").priority(Priority::High);
            write(&store, &[Command::Schedule(high), schedule("normal", 5)]);
            let mut step = 0;
            let interrupt = move || {
                step += 1;
                step == steps
            };
            store.shared.reader.lock().progress_handler(1, Some(interrupt));
            let claimed = store.claim(worker, &ClaimRequest::new(at(60), at(100))).block_on();
            store.shared.reader.lock().progress_handler(1, None::<fn() -> bool>);
            if claimed.is_ok() {
                assert!(steps > 50, "nothing was interrupted");
                return;
            }
            assert_eq!(ids(&claim(&store, worker)), ["high", "normal"], "at step {steps}");
        }
    }

    #[test]
    fn a_list_longer_than_a_page_is_complete_and_in_order() {
        let store = SqliteStore::in_memory();
        let id = |number: usize| format!("{number:05}");
        let new = |number: usize| schedule(&id(number), 3 * PAGE as u64 - number as u64);
        write(&store, &(0..3 * PAGE).map(new).collect::<Vec<_>>());
        let times = Query::Times { from: at(0), until: WallTime::MAX, after: None };
        let prefix = Query::Prefix { prefix: String::new(), after: None };
        for most in [0, 1, PAGE, 2 * PAGE + 1, 3 * PAGE, usize::MAX] {
            let count = most.min(3 * PAGE);
            let list = |query| store.list(query, most).block_on().expect("list");
            let by_time = (0..count).map(|number| id(3 * PAGE - 1 - number));
            assert!(by_time.eq(ids(&list(&times))), "{most} by time");
            assert!((0..count).map(id).eq(ids(&list(&prefix))), "{most} by id");
        }
    }

    /// The record is below the place up to which the worker has claimed.
    #[test]
    fn a_commit_that_fails_changes_nothing_and_voids_no_claim() {
        let (_folder, store) = open();
        let worker = enter(&store);
        write(&store, &[schedule("first", 50)]);
        let claims = [claim(&store, worker)[0].claim()];
        let notices = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notices);
        let notice = Arc::new(move |_: Option<&Name>, due| told.lock().push(due));
        let weak = Arc::downgrade(&notice);
        store.listen(weak);
        let commands = [schedule("second", 20), schedule("first", 70)];
        let fails = || store.write(at(0), &commands).block_on().expect_err("it fails").reason();
        let set = |sql: &str| {
            let writer = store.shared.writer.lock();
            let mut statement = writer.prepare(sql).expect("valid");
            statement.query(()).and_then(|mut rows| rows.next().map(drop)).expect("set");
        };
        store.shared.writer.lock().commit_hook(Some(|| true));
        assert_eq!(fails(), StoreErrorReason::OutcomeUnknown);
        store.shared.held.lock().wary_until = Some(at(60));
        store.begin(at(60), &claims, None).block_on().expect_err("the attempt is not written");
        assert_eq!(*notices.lock(), [at(20)]);
        store.shared.writer.lock().commit_hook(None::<fn() -> bool>);
        set("PRAGMA query_only = 1");
        assert_eq!(fails(), StoreErrorReason::ReadOnly);
        set("PRAGMA query_only = 0");
        set("PRAGMA max_page_count = 1");
        let large = NewTimeout::new("large", at(0), vec![7; 100_000]).expect("valid");
        let error =
            store.write(at(0), &[Command::Schedule(large)]).block_on().expect_err("it is full");
        assert_eq!(error.reason(), StoreErrorReason::Full);
        set("PRAGMA max_page_count = 1000000");
        assert_eq!(store.count().block_on().expect("count").live, 1);
        assert_eq!(begin(&store, &claims), [Begun::Begun]);
        let sql = "SELECT attempt FROM records";
        let written = store.read(|reader| reader.query_row(sql, (), |row| row.get::<_, u32>(0)));
        assert_eq!(written.expect("read"), 1);
        let first = store.get(&claims[0].id).block_on().expect("get").expect("kept");
        assert_eq!(first.attempt, 1);
        write(&store, &commands);
        assert_eq!(ids(&claim(&store, worker)), ["second", "first"]);
    }

    /// The copy of a large file would need as much memory. SQLite removes the name of its temporary
    /// file at once.
    #[cfg(target_os = "linux")]
    #[test]
    fn compact_copies_to_a_file_and_not_to_memory() {
        let (_folder, store) = open();
        let large = NewTimeout::new("large", at(0), vec![7; 200_000]).expect("valid");
        write(&store, &[Command::Schedule(large)]);
        let has_file = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&has_file);
        let look = move || {
            let open = fs::read_dir("/proc/self/fd").expect("proc");
            let names = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
            let is_temporary = |name: PathBuf| name.to_string_lossy().contains("/etilqs_");
            let found = names.map(is_temporary).filter(|found| *found).count() as u64;
            seen.fetch_add(found, Relaxed);
            found > 0
        };
        store
            .shared
            .writer
            .lock()
            .execute_batch("PRAGMA cache_size = 9; PRAGMA cache_spill = 9")
            .expect("valid");
        store.shared.writer.lock().progress_handler(1, Some(look));
        store.compact().expect_err("it was interrupted");
        store.shared.writer.lock().progress_handler(1, None::<fn() -> bool>);
        assert!(has_file.load(Relaxed) > 0);
        store.compact().expect("compact");
        write(&store, &[schedule("a", 0)]);
    }

    #[test]
    fn a_commit_delays_only_deliveries_and_reads_of_its_own_records() {
        let (_folder, store) = open();
        let worker = enter(&store);
        write(&store, &[schedule("a", 10), schedule("b", 10)]);
        let claims: Vec<_> = claim(&store, worker).iter().map(Record::claim).collect();
        write(&store, &[schedule("c", 10)]);
        let ((reached, commit), (go, gate)) = (mpsc::channel(), mpsc::channel());
        let hook = move || {
            reached.send(()).expect("the test waits");
            gate.recv().is_err()
        };
        store.shared.writer.lock().commit_hook(Some(hook));
        thread::scope(|scope| {
            let cancel = scope
                .spawn(|| store.write(at(0), &[Command::Cancel(claims[0].id.clone())]).block_on());
            commit.recv().expect("a commit");
            assert_eq!(begin(&store, &claims[1..]), [Begun::Begun]);
            assert_eq!(ids(&claim(&store, worker)), ["c"]);
            let begin = scope.spawn(|| begin(&store, &claims[..1]));
            let get = scope.spawn(|| store.get(&claims[0].id).block_on());
            go.send(()).expect("the commit waits");
            cancel.join().expect("no panic").expect("write");
            assert_eq!(begin.join().expect("no panic"), [Begun::Void]);
            assert_eq!(get.join().expect("no panic").expect("get"), None);
        });
    }

    /// Such as an SQL shell with an open transaction.
    #[test]
    fn a_file_that_another_program_locks_is_unavailable_and_not_in_use() {
        let (folder, store) = open();
        let other = Connection::open(folder.path().join("timeouts.db")).expect("open");
        other.execute_batch("BEGIN IMMEDIATE").expect("lock");
        store.shared.writer.lock().busy_timeout(Duration::ZERO).expect("set");
        let refused = store.write(at(0), &[schedule("a", 10)]).block_on().expect_err("locked");
        assert_eq!(refused.reason(), StoreErrorReason::Unavailable);
    }

    #[test]
    fn a_frontier_with_very_many_loose_places_forgets_them_and_starts_again() {
        let place = |number: usize| (at(number as u64), TimeoutId::new("a").expect("valid"));
        let (part, to) = ((Name::default(), Priority::Normal), Some(place(MAX_LOOSE)));
        let mut frontier = Frontier { part, from: at(0), to, loose: BTreeSet::new() };
        (0..=MAX_LOOSE).for_each(|number| frontier.loosen(place(number)));
        assert!(frontier.to.is_none() && frontier.loose.is_empty());
    }

    /// An operator may look at the file of a process that was killed, before the next one starts.
    #[test]
    fn a_store_without_workers_leaves_the_next_one_wary() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.db");
        let open = || SqliteStore::open(&path).expect("open");
        let is_wary = |store: &SqliteStore| store.shared.held.lock().was_killed;
        open().shared.held.lock().was_killed = true;
        drop(SqliteStore::open_read_only(&path).expect("open"));
        assert!(is_wary(&open()), "the one before was not closed");
        let store = open();
        assert!(is_wary(&store), "no worker has entered since");
        enter(&store);
        drop(store);
        let store = open();
        assert!(!is_wary(&store));
        enter(&store);
        // A kill leaves the files as they are.
        let copy = tempfile::tempdir().expect("folder");
        for name in ["timeouts.db", "timeouts.db-wal"] {
            fs::copy(folder.path().join(name), copy.path().join(name)).expect("copy");
        }
        assert!(is_wary(&SqliteStore::open(copy.path().join("timeouts.db")).expect("open")));
    }
}
