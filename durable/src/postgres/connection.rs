//! A connection that is opened when it is needed, and again after it was lost.

use std::{panic::resume_unwind, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use postgres::{
    Client, Config, CopyInWriter, Error, Row, Statement, error::SqlState, types::ToSql,
};
use rustc_hash::FxHashMap;

use crate::error::{StoreError, StoreErrorReason, StoreResult};

pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Opens a connection, encrypted or not.
pub(super) type Connect = Arc<dyn Fn(&Config) -> Result<Client, Error> + Send + Sync>;

/// Time without an answer after which a connection fails.
const GONE: Duration = Duration::from_secs(30);

/// Tries of a transaction that the server ended because of a deadlock or a conflict.
const TRIES: usize = 10;

/// One connection, used by one thread at a time.
pub(super) struct Connection {
    config: Config,
    connect: Connect,
    schema: String,
    session: Mutex<Option<Session>>,
}

/// A connection that is open, with its prepared statements.
pub(super) struct Session {
    client: Client,
    schema: String,
    statements: FxHashMap<String, Statement>,
    /// The statement that runs commits, so its outcome is unknown if the connection is lost.
    may_commit: bool,
    /// Batches until COPY is tried again.
    avoided: u32,
}

/// Number of batches written without COPY after a COPY failed because an id was scheduled already.
const AVOIDED: u32 = 16;

impl Connection {
    /// `options` are settings of the session, such as `-c synchronous_commit=off`.
    pub(super) fn new(config: &Config, connect: &Connect, schema: &str, options: &str) -> Self {
        let mut config = config.clone();
        if !options.is_empty() {
            let old = config.get_options().unwrap_or_default().to_owned();
            config.options(format!("{old} {options}").trim());
        }
        bound_waits(&mut config);
        let (connect, schema) = (Arc::clone(connect), schema.to_owned());
        Self { config, connect, schema, session: Mutex::new(None) }
    }

    /// Returns whether no thread uses the connection at this moment.
    pub(super) fn is_free(&self) -> bool {
        self.session.try_lock().is_some()
    }

    /// Runs statements. A deadlock or conflict, which the server has undone, is tried again.
    pub(super) fn run<R: Send>(
        &self,
        run: impl FnMut(&mut Session) -> Result<R, Error> + Send,
    ) -> StoreResult<R> {
        off_runtime(|| self.run_here(run))
    }

    fn run_here<R>(&self, mut run: impl FnMut(&mut Session) -> Result<R, Error>) -> StoreResult<R> {
        let mut slot = self.session.lock();
        let mut tries = 0;
        loop {
            let session = self.session(&mut slot)?;
            session.may_commit = false;
            let error = match run(session) {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let may_commit = session.may_commit;
            let is_lost = error.as_db_error().is_none() || session.client.is_closed();
            if is_lost {
                *slot = None;
            }
            tries += 1;
            if !is_conflict(&error) || tries == TRIES {
                return Err(store_error(error, may_commit));
            }
        }
    }

    fn session<'s>(&self, slot: &'s mut Option<Session>) -> StoreResult<&'s mut Session> {
        // The loss of an unused connection is no error.
        if slot.as_mut().is_some_and(|session| session.client.check_connection().is_err()) {
            *slot = None;
        }
        if slot.is_none() {
            let client = (self.connect)(&self.config).map_err(unavailable)?;
            let statements = FxHashMap::default();
            let schema = self.schema.clone();
            *slot = Some(Session { client, schema, statements, may_commit: false, avoided: 0 });
        }
        slot.as_mut().ok_or_else(|| StoreError::new(StoreErrorReason::Unavailable))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The last handle may be dropped by a task.
        if let Some(session) = self.session.get_mut().take() {
            off_runtime(|| drop(session));
        }
    }
}

/// Runs blocking calls of `postgres`. It has a runtime of its own, which panics within another one,
/// so tasks have another thread do it, and wait.
pub(super) fn off_runtime<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    if tokio::runtime::Handle::try_current().is_err() {
        return run();
    }
    let result = thread::scope(|scope| scope.spawn(run).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Limits the waits for a server that does not answer, unless the user has set limits. Without
/// them, the kernel sends a request again for 15 minutes, and waits for an answer for hours.
pub(super) fn bound_waits(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(5));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(GONE);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(GONE / 2);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(GONE / 6);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
}

impl Session {
    /// Runs a statement that changes nothing, or within a transaction.
    pub(super) fn query(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, parameters)
    }

    /// Runs a statement that is a transaction by itself.
    pub(super) fn commit(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(sql)?;
        self.may_commit = true;
        self.client.query(&statement, parameters)
    }

    /// Runs statements in one transaction.
    pub(super) fn transaction<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.client.batch_execute("BEGIN")?;
        match run(self) {
            Ok(result) => {
                self.may_commit = true;
                self.client.batch_execute("COMMIT")?;
                Ok(result)
            }
            Err(error) => {
                // If this fails, the connection is lost, and with it the transaction.
                let _ = self.client.batch_execute("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Runs a statement within a transaction, and returns the number of rows that it changed.
    pub(super) fn execute_count(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<u64, Error> {
        let statement = self.prepare(sql)?;
        self.client.execute(&statement, parameters)
    }

    /// Starts a COPY; `is_alone` says that it is a transaction by itself.
    pub(super) fn copy_in(&mut self, sql: &str, is_alone: bool) -> Result<CopyInWriter<'_>, Error> {
        let statement = self.prepare(sql)?;
        self.may_commit = is_alone;
        self.client.copy_in(&statement)
    }

    /// Returns whether a COPY is likely to find all ids free.
    pub(super) fn may_copy(&mut self) -> bool {
        let may_copy = self.avoided == 0;
        self.avoided = self.avoided.saturating_sub(1);
        may_copy
    }

    /// The server has undone a COPY because an id was scheduled already.
    pub(super) fn avoid_copies(&mut self) {
        self.avoided = AVOIDED;
        self.may_commit = false;
    }

    /// Runs a text of several statements.
    pub(super) fn execute(&mut self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql)
    }

    fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&sql.replace("{schema}", &self.schema))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
    )
}

pub(super) fn unavailable(error: Error) -> StoreError {
    StoreError::with_source(StoreErrorReason::Unavailable, error)
}

/// `may_commit` says whether the failed statement may have taken effect.
pub(super) fn store_error(error: Error, may_commit: bool) -> StoreError {
    let reason = match error.code() {
        None if may_commit => StoreErrorReason::OutcomeUnknown,
        Some(&SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN) if may_commit => {
            StoreErrorReason::OutcomeUnknown
        }
        Some(&SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN) => {
            StoreErrorReason::Unavailable
        }
        Some(&SqlState::LOCK_NOT_AVAILABLE) => StoreErrorReason::Locked,
        None | Some(&SqlState::QUERY_CANCELED) => StoreErrorReason::Unavailable,
        Some(code) if code.code().starts_with("22") || code.code().starts_with("23") => {
            StoreErrorReason::Refused
        }
        Some(&SqlState::DISK_FULL) => StoreErrorReason::Full,
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => StoreErrorReason::ReadOnly,
        Some(_) => StoreErrorReason::Other,
    };
    StoreError::with_source(reason, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_does_not_wait_long_for_a_server_that_is_gone() {
        let limits = |parameters: &str| {
            let mut config: Config = parameters.parse().expect("parameters");
            bound_waits(&mut config);
            let user = config.get_tcp_user_timeout().expect("a limit").as_secs();
            let interval = config.get_keepalives_interval().expect("an interval").as_secs();
            let retries = u64::from(config.get_keepalives_retries().expect("a number"));
            (user, config.get_keepalives_idle().as_secs() + interval * retries)
        };
        assert_eq!(limits("host=a"), (30, 30));
        let own = "host=a tcp_user_timeout=7 keepalives_idle=60 keepalives_interval=2
            keepalives_retries=5";
        assert_eq!(limits(own), (7, 70));
    }
}
