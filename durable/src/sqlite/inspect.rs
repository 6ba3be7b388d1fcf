//! Reading a store beside the process that uses it, and what operators ask.

use std::path::Path;

use rusqlite::{Params, types::FromSql};

use super::{CACHE, Held, SMALL_CACHE, SqliteStore, VERSION, connect, file_error, number};
use super::{real_path, store_error};
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult},
    inspect::{Inspect, WorkerLease},
    record::Name,
    time::WallTime,
};

impl SqliteStore {
    /// Opens a file only to read it, also while another process uses it.
    ///
    /// The claims of that process are not in the file. So what it delivers seems to be pending, and
    /// [`workers`](Inspect::workers) returns `None`. Calls that change something fail with
    /// [`ReadOnly`](StoreErrorReason::ReadOnly).
    ///
    /// # Examples
    ///
    /// ```
    /// use delaywheel_durable::{SqliteStore, Store};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("timeouts.db");
    /// let in_use = SqliteStore::open(&path)?;
    /// assert_eq!(SqliteStore::open_read_only(&path)?.count()?, in_use.count()?);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), except [`InUse`](StoreErrorReason::InUse). A file that does
    /// not exist is an error.
    pub fn open_read_only(path: impl AsRef<Path>) -> StoreResult<Self> {
        let path = real_path(path.as_ref()).map_err(file_error)?;
        let writer = connect(&path, CACHE, true).map_err(store_error)?;
        match number(&writer, "user_version").map_err(store_error)? {
            VERSION => Self::with(writer, Held::default(), path, None),
            version if version > VERSION => Err(StoreError::new(StoreErrorReason::NewerVersion)),
            0 => Err(StoreError::new(StoreErrorReason::Corrupt)),
            _ => {
                let message = "an earlier version of this crate wrote the file: open it first";
                Err(StoreError::with_source(StoreErrorReason::Other, message))
            }
        }
    }

    /// Reads one number.
    pub(super) fn number<R: FromSql>(&self, sql: &str, parameters: impl Params) -> StoreResult<R> {
        let read = || self.connection()?.query_row(sql, parameters, |row| row.get(0));
        read().map_err(store_error)
    }

    /// Opens a connection of its own, so that no claim waits for it.
    pub(super) fn connection(&self) -> rusqlite::Result<rusqlite::Connection> {
        connect(&self.shared.path, SMALL_CACHE, self.shared.lock.is_none())
    }
}

impl Inspect for SqliteStore {
    fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        queue: Option<&Name>,
        limit: usize,
    ) -> StoreResult<usize> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 0
            AND queue IN (SELECT name FROM queues WHERE ?1 IS NULL OR name = ?1)
            AND priority IN (0, 1, 2) AND next >= ?2 AND next < ?3 LIMIT ?4)";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let queue = queue.map(Name::as_str);
        self.number(sql, (queue, from.as_micros(), until.as_micros(), limit))
    }

    fn count_dead(&self, limit: usize) -> StoreResult<usize> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM records WHERE dead = 1 LIMIT ?)";
        self.number(sql, [i64::try_from(limit).unwrap_or(i64::MAX)])
    }

    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        if self.shared.lock.is_none() {
            return Ok(None);
        }
        let held = self.shared.held.lock();
        let holds = held.holds.values().map(|hold| (hold.worker, hold.begun));
        Ok(Some(held.workers.leases(limit, &holds)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        record::{Priority, Record},
        store::{ClaimRequest, Command, NewTimeout, Query, Settlement, Store},
    };

    fn at(micros: u64) -> WallTime {
        WallTime::from_micros(micros).expect("in range")
    }

    fn schedule(id: &str, due: u64) -> Command {
        Command::Schedule(NewTimeout::new(id, at(due), b"").expect("valid"))
    }

    #[test]
    fn counts_are_those_of_lists_and_a_store_in_use_knows_its_workers() {
        let folder = tempfile::tempdir().expect("folder");
        let store = SqliteStore::open(folder.path().join("timeouts.db")).expect("open");
        let new: Vec<_> = (0..9).map(|number| schedule(&number.to_string(), number)).collect();
        store.write(at(0), &new).expect("write");
        for (number, priority) in Priority::ALL.into_iter().enumerate() {
            let new = NewTimeout::new(format!("mail {number}"), at(4), b"").expect("valid");
            let new = new.queue("mail").expect("valid").priority(priority);
            store.write(at(0), &[Command::Schedule(new)]).expect("write");
        }
        let worker = store.enter(at(0), Duration::from_micros(50), Some("a")).expect("enter");
        let batch = store.claim(worker, &ClaimRequest::new(at(3), at(4))).expect("claim");
        let claims: Vec<_> = batch.expect("lease").records.iter().map(Record::claim).collect();
        store.begin(at(3), &claims[..2], None).expect("begin");
        let dead = Settlement::Dead { error: String::new() };
        store.write(at(3), &[Command::Settle(claims[0].clone(), dead)]).expect("settle");
        for (from, until) in [(0, 9), (2, 5), (5, 5)] {
            let query = Query::Times { from: at(from), until: at(until), after: None };
            let listed = store.list(&query, 100).expect("list");
            for (queue, limit) in [(None, 100), (None, 3), (Some("mail"), 100), (Some(""), 1)] {
                let queue = queue.map(|queue| Name::new(queue).expect("valid"));
                let fits = |record: &&Record| queue.as_ref().is_none_or(|q| *q == record.queue);
                let count = store.count_live(at(from), at(until), queue.as_ref(), limit);
                let expected = listed.iter().filter(fits).count().min(limit);
                assert_eq!(count.expect("count"), expected, "{from} {until} {queue:?} {limit}");
            }
        }
        let dead = [0, 1, 3].map(|limit| store.count_dead(limit).expect("count"));
        assert_eq!(dead, [0, 1, 1]);
        let lease = |worker, name, held, delivering| WorkerLease {
            worker,
            name,
            until: at(50),
            held,
            delivering,
        };
        let workers = store.workers(9).expect("read").expect("it knows them");
        assert_eq!(workers, [lease(worker, Some("a".to_owned()), 3, 1)]);
        assert_eq!(store.workers(0).expect("read"), Some(Vec::new()));
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
        store.enter(WallTime::MIN, Duration::MAX, None).expect("enter");
        drop(store);
        assert!(!is_wary(&open()));
    }

    #[test]
    fn a_store_that_is_only_read_refuses_workers_and_changes() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("timeouts.db");
        assert!(SqliteStore::open_read_only(&path).is_err());
        let _in_use = SqliteStore::open(&path).expect("open");
        let store = SqliteStore::open_read_only(&path).expect("open");
        let refused = store.enter(WallTime::MIN, Duration::MAX, None).expect_err("read-only");
        assert_eq!(refused.reason(), StoreErrorReason::ReadOnly);
        let refused = store.write(WallTime::MIN, &[schedule("a", 1)]);
        assert_eq!(refused.expect_err("read-only").reason(), StoreErrorReason::ReadOnly);
        assert_eq!(store.workers(9).expect("read"), None);
    }
}
