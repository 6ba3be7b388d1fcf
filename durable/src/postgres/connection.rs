//! Connections that are opened when they are needed, and closed when they are not.
//!
//! A thread of the store makes the calls and drives the connections, with a runtime of its own. So
//! any executor may poll a call, or stop doing so: its future only waits for the answer.
//!
//! A pool such as `PgBouncer` in transaction mode gives each transaction another session of the
//! server, which has no settings and no prepared statements of this process. Through one, each
//! statement is in a transaction that begins with the settings.

use std::{
    error::Error as _,
    future::poll_fn,
    mem,
    ops::{ControlFlow, Deref},
    panic::resume_unwind,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "pool")]
use deadpool_postgres::PoolError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::{
    runtime::{Builder, Handle},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::UnboundedSender},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Notification, Row, SimpleQueryMessage, Socket, Statement,
    binary_copy::BinaryCopyInWriter,
    error::SqlState,
    tls::{MakeTlsConnect, TlsConnect},
    types::{ToSql, Type},
};

use crate::error::{StoreError, StoreErrorReason, StoreResult};

pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

pub(super) type Value = Box<dyn ToSql + Send + Sync>;

macro_rules! values {
    ($($value:expr),*) => { vec![$(Box::new($value) as Value),*] };
}
pub(super) use values;

/// Does the work of a connection, and returns messages that are no answers.
type Driver = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;

type Types = Arc<Mutex<FxHashMap<String, Vec<Type>>>>;

type Opened = Pin<Box<dyn Future<Output = StoreResult<(Held, Option<Driver>)>> + Send>>;

pub(super) type Connect = Box<dyn Fn(Config) -> Opened + Send + Sync>;

pub(super) enum Held {
    Own(Client),
    #[cfg(feature = "pool")]
    /// `None` after it was returned, or the pool has lost it.
    Lent(Option<deadpool_postgres::Object>),
}

/// Time without an answer after which a connection fails.
const GONE: Duration = Duration::from_secs(30);

/// Time after which a connection that is not used is closed, but for the latest one.
const IDLE: Duration = Duration::from_secs(10);

/// Time for the server to hear that its connections end.
const FAREWELL: Duration = Duration::from_millis(100);

/// Tries of a transaction that the server ended because of a deadlock or a conflict.
const TRIES: usize = 10;

/// Number of batches written without COPY after a COPY failed because an id was scheduled already.
const AVOIDED: u32 = 16;

pub(super) struct Connections {
    config: Config,
    connect: Connect,
    schema: String,
    options: &'static str,
    /// Whether a pool gives each transaction another session.
    is_pooled: AtomicBool,
    are_lent: bool,
    /// Types of the parameters of statements that are not prepared.
    types: Types,
    pub(super) runtime: Handle,
    /// The least recently used first.
    idle: Mutex<Vec<Session>>,
    /// Ends the thread when it is dropped, which is after the connections.
    _end: oneshot::Sender<()>,
}

/// Calls that wait for each other, and for no others.
pub(super) struct Lane {
    connections: Arc<Connections>,
    turns: Arc<Semaphore>,
}

/// The right of a call to use one connection at a time.
pub(super) struct Turn {
    pub(super) connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

/// A connection that runs statements. After a panic or a loss, it is not used again.
pub(super) struct Run<'a> {
    pub(super) session: Session,
    connections: &'a Connections,
    tries: usize,
}

/// Runs statements, or a transaction of them, in a turn. A deadlock or conflict, which the server
/// has undone, is tried again. A function cannot take a closure for this: the compiler does not
/// know that the futures of an asynchronous one are `Send`.
macro_rules! run {
    ($turn:expr, transaction $session:ident => $body:expr) => {
        run!($turn, $session => {
            $session.begin().await?;
            let result = async { $body }.await;
            $session.end(result).await
        })
    };
    ($turn:expr, $session:ident => $body:expr) => {
        async {
            let mut run = $turn.run().await?;
            loop {
                let $session = &mut run.session;
                let result = async { $body }.await;
                run = match run.end(result) {
                    std::ops::ControlFlow::Continue(run) => run,
                    std::ops::ControlFlow::Break(answer) => break answer,
                };
            }
        }
        .await
    };
}
pub(super) use run;

pub(super) struct Session {
    client: Held,
    schema: String,
    statements: FxHashMap<String, Statement>,
    /// Begins a transaction with its settings, if a pool is between.
    begin: Option<String>,
    is_in_transaction: bool,
    types: Types,
    /// The statement that runs commits, so its outcome is unknown if the connection is lost.
    may_commit: bool,
    avoided: u32,
    used: Instant,
}

/// A connector for TLS of the crate `tokio-postgres`, or `NoTls`.
pub trait Tls:
    MakeTlsConnect<Socket, TlsConnect: Send + TlsConnect<Socket, Future: Send>, Stream: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<T> Tls for T where
    T: MakeTlsConnect<Socket, TlsConnect: Send + TlsConnect<Socket, Future: Send>, Stream: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

pub(super) fn connect_by(tls: impl Tls) -> Connect {
    Box::new(move |config| {
        let tls = tls.clone();
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await.map_err(unavailable)?;
            let driver: Driver = Box::new(move |context| connection.poll_message(context));
            Ok((Held::Own(client), Some(driver)))
        })
    })
}

#[cfg(feature = "pool")]
pub(super) fn lend_by(pool: deadpool_postgres::Pool, runtime: Handle) -> Connect {
    Box::new(move |_| {
        let pool = pool.clone();
        let taken = runtime.spawn(async move { pool.get().await });
        Box::pin(async move {
            let (is_over, error): (_, Box<dyn std::error::Error + Send + Sync>) = match taken.await
            {
                Ok(Ok(taken)) => return Ok((Held::Lent(Some(taken)), None)),
                Ok(Err(error)) => (matches!(error, PoolError::Closed), error.into()),
                // A hook of the pool panicked, before any statement, or the runtime has ended.
                Err(error) => (!error.is_panic(), error.into()),
            };
            // Then no settlement can be written any more.
            let reason =
                if is_over { StoreErrorReason::Closed } else { StoreErrorReason::Unavailable };
            Err(StoreError::with_source(reason, error))
        })
    })
}

impl Connections {
    /// Starts the thread. All sessions have the options.
    pub(super) fn start(
        mut config: Config,
        connect: Connect,
        schema: &str,
        options: &'static str,
        are_lent: bool,
    ) -> StoreResult<Arc<Self>> {
        bound_waits(&mut config);
        if config.get_application_name().is_none() {
            config.application_name("delaywheel");
        }
        let failed = |error| StoreError::with_source(StoreErrorReason::Other, error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let connections = Arc::new(Self {
            config,
            connect,
            schema: schema.to_owned(),
            options,
            is_pooled: AtomicBool::new(are_lent),
            are_lent,
            types: Types::default(),
            runtime: runtime.handle().clone(),
            idle: Mutex::default(),
            _end: end,
        });
        let weak = Arc::downgrade(&connections);
        let name = "delaywheel-postgres".to_owned();
        let run = move || runtime.block_on(tend(&weak, ended));
        thread::Builder::new().name(name).spawn(run).map_err(failed)?;
        Ok(connections)
    }

    /// Finds out whether a pool is between: it refuses the settings of a session, or drops them.
    pub(super) async fn probe(&self) -> StoreResult<()> {
        if self.are_lent {
            return Ok(());
        }
        let is_refusal = |error: &StoreError| {
            let error = error.source().and_then(|source| source.downcast_ref::<Error>());
            error.and_then(Error::code) == Some(&SqlState::PROTOCOL_VIOLATION)
        };
        let is_pooled = match self.open(None).await {
            Ok(client) => {
                let shown = client.simple_query("SHOW plan_cache_mode").await;
                let is_set = |message: &SimpleQueryMessage| {
                    matches!(message, SimpleQueryMessage::Row(row)
                        if row.get(0) == Some("force_generic_plan"))
                };
                !shown.map_err(unavailable)?.iter().any(is_set)
            }
            Err(error) if is_refusal(&error) => true,
            Err(error) => return Err(error),
        };
        #[cfg(feature = "tracing")]
        if is_pooled {
            tracing::warn!("a pool such as PgBouncer is between: the store polls");
        }
        self.is_pooled.store(is_pooled, SeqCst);
        Ok(())
    }

    pub(super) fn are_pooled(&self) -> bool {
        self.is_pooled.load(SeqCst)
    }

    pub(super) async fn open(
        &self,
        notices: Option<UnboundedSender<Notification>>,
    ) -> StoreResult<Held> {
        let mut config = self.config.clone();
        if !self.are_pooled() {
            let old = config.get_options().unwrap_or_default();
            let options = format!("{old} {}", self.options);
            config.options(options.trim());
        }
        let (client, driver) = (self.connect)(config).await?;
        if let Some(mut driver) = driver {
            self.runtime.spawn(async move {
                while let Some(Ok(message)) = poll_fn(&mut driver).await {
                    let AsyncMessage::Notification(notice) = message else { continue };
                    if let Some(notices) = &notices {
                        // Without a receiver, the store is gone.
                        let _ = notices.send(notice);
                    }
                }
            });
        }
        Ok(client)
    }

    /// Takes a connection that is not used, or opens one. The loss of an unused one is no error.
    async fn take(&self) -> StoreResult<Session> {
        while let Some(mut session) = { self.idle.lock().pop() } {
            session.may_commit = false;
            if !session.client.is_closed() {
                return Ok(session);
            }
        }
        Ok(Session {
            client: self.open(None).await?,
            schema: self.schema.clone(),
            statements: FxHashMap::default(),
            begin: self.are_pooled().then(|| begin(self.options)),
            is_in_transaction: false,
            types: Arc::clone(&self.types),
            may_commit: false,
            avoided: 0,
            used: Instant::now(),
        })
    }

    fn give_back(&self, mut session: Session) {
        #[cfg(feature = "pool")]
        if let Held::Lent(client) = &mut session.client {
            *client = None;
            return;
        }
        session.used = Instant::now();
        self.idle.lock().push(session);
    }

    fn close_idle(&self) {
        let mut idle = self.idle.lock();
        let old = idle.iter().take_while(|session| session.used.elapsed() >= IDLE).count();
        let old = old.min(idle.len().saturating_sub(1));
        idle.drain(..old);
    }
}

async fn tend(connections: &Weak<Connections>, mut ended: oneshot::Receiver<()>) {
    while timeout(IDLE, &mut ended).await.is_err() {
        if let Some(connections) = connections.upgrade() {
            connections.close_idle();
        }
    }
    sleep(FAREWELL).await;
}

/// Returns the begin of a transaction with settings that are options of a session otherwise.
fn begin(options: &str) -> String {
    let settings = options.split("-c ").filter_map(|option| option.trim().split_once('='));
    let settings =
        settings.map(|(name, value)| format!("; SET LOCAL {name} = '{}'", value.replace('\\', "")));
    format!("BEGIN ISOLATION LEVEL READ COMMITTED{}", settings.collect::<String>())
}

impl Lane {
    pub(super) fn new(connections: &Arc<Connections>, turns: usize) -> Self {
        let turns = Arc::new(Semaphore::new(turns));
        Self { connections: Arc::clone(connections), turns }
    }

    /// Makes a call on the thread of the connections when it has a turn. If the caller has gone by
    /// then, it is not made; if the caller goes later, it is carried out to its end.
    pub(super) async fn call<
        R: Send + 'static,
        F: Future<Output = StoreResult<R>> + Send + 'static,
    >(
        &self,
        call: impl FnOnce(Turn) -> F + Send + 'static,
    ) -> StoreResult<R> {
        let (_caller, gone) = oneshot::channel::<()>();
        let (connections, turns) = (Arc::clone(&self.connections), Arc::clone(&self.turns));
        let task = self.connections.runtime.spawn(async move {
            let (mut gone, mut turn) = (pin!(gone), pin!(turns.acquire_owned()));
            let turn = poll_fn(|context| match gone.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => turn.as_mut().poll(context).map(Result::ok),
            });
            let closed = || StoreError::new(StoreErrorReason::Closed);
            let permit = turn.await.ok_or_else(closed)?;
            call(Turn { connections, _permit: permit }).await
        });
        answer(task).await
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> StoreResult<Vec<Row>> {
        let query = move |turn: Turn| async move {
            let parameters: Vec<_> = values.iter().map(|value| &**value as _).collect();
            turn.query(sql, &parameters).await
        };
        self.call(query).await
    }
}

/// Waits for a task. A panic in it goes on here.
pub(super) async fn answer<R>(task: JoinHandle<StoreResult<R>>) -> StoreResult<R> {
    task.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(StoreError::new(StoreErrorReason::Closed)),
    })
}

impl Turn {
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Vec<Row>> {
        run!(self, session => session.query(sql, parameters).await)
    }

    pub(super) async fn run(&self) -> StoreResult<Run<'_>> {
        let session = self.connections.take().await?;
        Ok(Run { session, connections: &self.connections, tries: 0 })
    }
}

impl Run<'_> {
    /// Ends a try, and the run unless there is another one.
    pub(super) fn end<R>(mut self, result: Result<R, Error>) -> ControlFlow<StoreResult<R>, Self> {
        let error = match result {
            Ok(result) => {
                self.connections.give_back(self.session);
                return ControlFlow::Break(Ok(result));
            }
            Err(error) => error,
        };
        let may_commit = mem::take(&mut self.session.may_commit);
        self.tries += 1;
        // A standby, or it was the primary: a new connection may find the primary. Or the server
        // does not know a prepared statement, or refuses its plan: a new session prepares it again.
        let are_stale = matches!(
            error.code(),
            Some(
                &SqlState::READ_ONLY_SQL_TRANSACTION
                    | &SqlState::INVALID_SQL_STATEMENT_NAME
                    | &SqlState::FEATURE_NOT_SUPPORTED
            )
        );
        if are_stale {
            self.connections.idle.lock().clear();
        }
        let is_lost = are_stale || error.as_db_error().is_none() || self.session.client.is_closed();
        if !is_lost && is_conflict(&error) && self.tries < TRIES {
            return ControlFlow::Continue(self);
        }
        if !is_lost {
            self.connections.give_back(self.session);
        }
        ControlFlow::Break(Err(store_error(error, may_commit)))
    }
}

/// Limits the waits for a server that does not answer, unless the user has set limits. Without
/// them, the kernel sends a request again for 15 minutes, and waits for an answer for hours.
fn bound_waits(config: &mut Config) {
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

impl Deref for Held {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            Self::Own(client) => client,
            #[cfg(feature = "pool")]
            Self::Lent(client) => client.as_ref().expect("only a drop takes it"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a panic or a loss. The pool must not lend a connection with an open transaction.
        #[cfg(feature = "pool")]
        if let Held::Lent(client) = &mut self.client {
            drop(client.take().map(deadpool_postgres::Object::take));
        }
    }
}

impl Session {
    /// Runs a statement, which outside of a transaction is one by itself.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        if self.begin.is_none() {
            let statement = self.prepare(sql).await?;
            self.may_commit |= !self.is_in_transaction && !sql.trim_start().starts_with("SELECT");
            return self.client.query(&statement, parameters).await;
        }
        if self.is_in_transaction {
            return self.query_typed(sql, parameters).await;
        }
        self.begin().await?;
        let result = self.query_typed(sql, parameters).await;
        self.end(result).await
    }

    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        let begin = self.begin.clone();
        let result = self.execute(begin.as_deref().unwrap_or("BEGIN")).await;
        if result.is_err() {
            // A setting may have failed after the BEGIN, or the pool lent a failed transaction.
            return self.end(result).await;
        }
        self.is_in_transaction = true;
        Ok(())
    }

    /// Commits a transaction, or after an error undoes it.
    pub(super) async fn end<R>(&mut self, result: Result<R, Error>) -> Result<R, Error> {
        self.is_in_transaction = false;
        if result.is_ok() {
            self.may_commit = true;
            self.execute("COMMIT").await?;
        } else {
            // If this fails, the connection is lost, and with it the transaction.
            let _ = self.execute("ROLLBACK").await;
        }
        result
    }

    /// Returns whether a statement outside of a transaction is one by itself.
    pub(super) fn commits_alone(&self) -> bool {
        self.begin.is_none()
    }

    /// Starts a COPY, which outside of a transaction is one by itself.
    pub(super) async fn copy_in(
        &mut self,
        sql: &str,
        types: &[Type],
    ) -> Result<BinaryCopyInWriter, Error> {
        let statement = self.prepare(sql).await?;
        self.may_commit |= !self.is_in_transaction;
        Ok(BinaryCopyInWriter::new(self.client.copy_in(&statement).await?, types))
    }

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

    pub(super) async fn execute(&mut self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    async fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&self.own(sql)).await?;
        if self.commits_alone() {
            self.statements.insert(sql.to_owned(), statement.clone());
        }
        Ok(statement)
    }

    /// Runs a statement within a transaction, for which it is prepared once, to know the types of
    /// its parameters.
    async fn query_typed(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        let known = self.types.lock().get(sql).cloned();
        let types = if let Some(types) = known {
            types
        } else {
            let types = self.prepare(sql).await?.params().to_vec();
            self.types.lock().insert(sql.to_owned(), types.clone());
            types
        };
        let parameters: Vec<_> = parameters.iter().copied().zip(types).collect();
        self.client.query_typed(&self.own(sql), &parameters).await
    }

    fn own(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.schema).replace("{columns}", super::sql::COLUMNS)
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
    // A pooler tells by class 08 that its connection to the server ended.
    let has_lost =
        |code: &SqlState| ["08", "57P"].iter().any(|class| code.code().starts_with(class));
    let reason = match error.code() {
        code if may_commit && code.is_none_or(has_lost) => StoreErrorReason::OutcomeUnknown,
        code if code.is_none_or(has_lost) => StoreErrorReason::Unavailable,
        Some(&SqlState::QUERY_CANCELED | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT) => {
            StoreErrorReason::Unavailable
        }
        Some(&SqlState::LOCK_NOT_AVAILABLE) => StoreErrorReason::Locked,
        Some(code) if code.code().starts_with("22") || code.code().starts_with("23") => {
            StoreErrorReason::Refused
        }
        // The server cannot read a page, or its file.
        Some(
            &SqlState::DATA_CORRUPTED
            | &SqlState::INDEX_CORRUPTED
            | &SqlState::IO_ERROR
            | &SqlState::UNDEFINED_FILE,
        ) => StoreErrorReason::Corrupt,
        Some(&SqlState::DISK_FULL) => StoreErrorReason::Full,
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => StoreErrorReason::ReadOnly,
        _ => StoreErrorReason::Other,
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
