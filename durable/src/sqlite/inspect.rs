//! Reading a store beside the process that uses it.

use std::path::Path;

use super::{CACHE, Held, SMALL_CACHE, SqliteStore, VERSION, connect, file_error, number};
use super::{real_path, store_error};
use crate::error::{StoreError, StoreErrorReason, StoreResult};

impl SqliteStore {
    /// Opens a file only to read it, also while another process uses it.
    ///
    /// The claims of that process are not in the file. So what it delivers seems to be pending, and
    /// [`workers`](crate::Store::workers) returns `None`. Calls that change something fail with
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

    /// Opens a connection of its own, so that no claim waits for it.
    pub(super) fn connection(&self) -> rusqlite::Result<rusqlite::Connection> {
        connect(&self.shared.path, SMALL_CACHE, self.shared.lock.is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        store::{Command, NewTimeout, Store},
        time::WallTime,
    };

    fn at(micros: u64) -> WallTime {
        WallTime::from_micros(micros).expect("in range")
    }

    fn schedule(id: &str, due: u64) -> Command {
        Command::Schedule(NewTimeout::new(id, at(due), b"").expect("valid"))
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
