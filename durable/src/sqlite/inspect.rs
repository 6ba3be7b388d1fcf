//! Reading a store beside the process that uses it, and what operators ask.

use std::path::Path;

use super::{CACHE, Held, SMALL_CACHE, SqliteStore, VERSION, connect_as, file_error, number};
use super::{real_path, store_error};
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult},
    inspect::{Inspect, WorkerLease},
    store::{Query, Store},
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
        let writer = connect_as(&path, CACHE, true).map_err(store_error)?;
        match number(&writer, "user_version").map_err(store_error)? {
            VERSION => Self::with(writer, Held::default(), path, None),
            version if version > VERSION => Err(StoreError::new(StoreErrorReason::NewerVersion)),
            _ => Err(StoreError::new(StoreErrorReason::Corrupt)),
        }
    }

    /// Opens a connection of its own, so that no claim waits for it.
    pub(super) fn connection(&self) -> rusqlite::Result<rusqlite::Connection> {
        connect_as(&self.shared.path, SMALL_CACHE, self.shared.lock.is_none())
    }
}

impl Inspect for SqliteStore {
    fn count_up_to(&self, query: &Query, limit: usize) -> StoreResult<usize> {
        let (is_dead, from, until) = match query {
            Query::Times { from, until, after: None } => (false, *from, until.as_micros()),
            Query::Dead { after: None } => (true, WallTime::MIN, u64::MAX >> 1),
            _ => return Ok(self.list(query, limit)?.len()),
        };
        let sql = "SELECT count(*) FROM (
            SELECT 1 FROM records WHERE dead = ? AND next >= ? AND next < ? LIMIT ?)";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters = (is_dead, from.as_micros(), until, limit);
        let count = || self.connection()?.query_row(sql, parameters, |row| row.get(0));
        count().map_err(store_error)
    }

    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        if self.shared.lock.is_none() {
            return Ok(None);
        }
        let held = self.shared.held.lock();
        let lease = |(worker, until, name)| {
            let holds = held.holds.values().filter(|hold| hold.worker == Some(worker));
            let (all, begun) =
                holds.fold((0, 0), |(all, begun), hold| (all + 1, begun + u64::from(hold.begun)));
            WorkerLease { worker, name, until, held: all, delivering: begun }
        };
        Ok(Some(held.workers.leases().take(limit).map(lease).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{ClaimRequest, Command, NewTimeout, Settlement};

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
        let worker = store.enter(at(0), Duration::from_micros(50), Some("a")).expect("enter");
        let batch = store.claim(worker, &ClaimRequest::new(at(3), at(4))).expect("claim");
        let claims: Vec<_> =
            batch.expect("lease").records.iter().map(crate::record::Record::claim).collect();
        store.begin(at(3), &claims[..2], None).expect("begin");
        let dead = Settlement::Dead { error: String::new() };
        store.write(at(3), &[Command::Settle(claims[0].clone(), dead)]).expect("settle");
        let times = |from, until| Query::Times { from: at(from), until: at(until), after: None };
        let prefix = Query::Prefix { prefix: String::new(), after: None };
        for query in [times(0, 9), times(2, 5), times(5, 5), prefix, Query::Dead { after: None }] {
            for limit in [0, 1, 3, 100] {
                let listed = store.list(&query, limit).expect("list").len();
                assert_eq!(store.count_up_to(&query, limit).expect("count"), listed, "{query:?}");
            }
        }
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
