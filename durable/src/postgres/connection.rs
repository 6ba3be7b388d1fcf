//! Connections of the store's own pool, or of one of the user.
//!
//! A thread of the store makes the calls and drives its own connections, with a runtime of its own.
//! So any executor may poll a call, or stop doing so: its future only waits for the answer.
//!
//! A pool such as `PgBouncer` in transaction mode gives each transaction another session of the
//! server, which has no settings and no prepared statements of this process. Through one, each
//! statement is in a transaction that begins with the settings. So it is with a pool of the user.

use std::{
    error::Error as _,
    future::{pending, poll_fn},
    mem,
    ops::ControlFlow,
    panic::resume_unwind,
    pin::{Pin, pin},
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::Poll,
    thread,
    time::Duration,
};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, QueueMode};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::{
    runtime::{Builder, Handle},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::UnboundedSender},
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Notification, Row, SimpleQueryMessage, Socket, Statement,
    binary_copy::BinaryCopyInWriter,
    config::{LoadBalanceHosts, TargetSessionAttrs},
    error::{DbError, Severity, SqlState},
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

type Opening<'a, R> = Pin<Box<dyn Future<Output = Result<R, Error>> + Send + 'a>>;

type Notices = Option<UnboundedSender<Notification>>;

/// Is ready once the client of a connection is gone.
type Gone = oneshot::Receiver<()>;

pub(super) type Connect =
    Arc<dyn Fn(Config, Notices, Gone) -> Opening<'static, Client> + Send + Sync>;

/// Options of all sessions. The server keeps one plan of each statement for a time, as planning
/// takes longer than many of them, and a plan from when the table was empty may be a scan of the
/// whole table.
///
/// Statements of one transaction must see what others have committed meanwhile, and a commit must
/// be durable, whatever the defaults of the database.
///
/// A session that listens has nothing to do for long.
///
/// A machine that loses its power or its network leaves a transaction, whose locks keep records and
/// keys. The server ends it when it waits for a statement for 10 seconds, and one that waits for
/// the rows of a COPY after 30 seconds without a sign of life.
const OPTIONS: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off \
    -c default_transaction_isolation=read\\ committed -c synchronous_commit=on \
    -c lock_timeout=100 -c statement_timeout=30000 -c plan_cache_mode=force_generic_plan \
    -c idle_in_transaction_session_timeout=10000 -c idle_session_timeout=0 \
    -c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3";

/// Time without an answer after which a connection fails.
const GONE: Duration = Duration::from_secs(30);

/// Time for which a call waits for an answer of the server. Then it closes the connection, even if
/// the server's machine acknowledges each byte. The server ends a statement before that.
const SILENCE: Duration = Duration::from_secs(35);

/// The least such time of calls during which a worker cannot renew its lease.
const QUICK: Duration = Duration::from_secs(5);

/// Time after which a connection that is not used is closed, but for one.
const IDLE: Duration = Duration::from_secs(10);

/// One connection for each turn of the lines of a store.
const MOST: usize = 8;

/// Time for the server to hear that its connections end.
const FAREWELL: Duration = Duration::from_millis(100);

/// Tries of a transaction that the server ended because of a deadlock or a conflict.
const TRIES: usize = 10;

/// Number of batches written without COPY after a COPY failed because an id was scheduled already.
const AVOIDED: u32 = 16;

pub(super) struct Connections {
    pool: Pool,
    /// The runtime of the pool.
    driver: Handle,
    /// Opens connections of the store's own.
    own: Option<Opener>,
    /// How long a call waits for each answer, and a quick one.
    pub(super) limits: Mutex<(Duration, Duration)>,
    /// A connection of the user's pool that quick calls keep. Each would wait there behind all
    /// calls of handlers, and a worker would lose its lease.
    kept: Mutex<Option<Object>>,
    /// The workers of this process, for which it is kept.
    workers: Mutex<FxHashSet<u64>>,
    /// Keeps the connection that listens.
    listening: Mutex<Option<oneshot::Sender<()>>>,
    pub(super) schema: String,
    /// Statements with the names of this schema.
    statements: Mutex<FxHashMap<String, Arc<str>>>,
    /// Types of the parameters of statements that are not prepared.
    types: Mutex<FxHashMap<String, Vec<Type>>>,
    /// Batches that are written without COPY.
    avoided: AtomicU32,
    pub(super) runtime: Handle,
    /// Ends the thread when it is dropped, which is after the connections.
    _end: oneshot::Sender<()>,
}

#[derive(Clone)]
pub(super) struct Opener {
    config: Config,
    connect: Connect,
    /// An option of its sessions, which no other program has set.
    mark: u64,
    /// Whether another pool gives each transaction another session.
    is_pooled: Arc<AtomicBool>,
    /// An address did not answer, and the time was over before the next one had its turn, or it was
    /// one of a standby. In another order, some try reaches the primary.
    is_shuffled: Arc<AtomicBool>,
}

/// Calls that wait for each other, and for no others.
pub(super) struct Line {
    connections: Arc<Connections>,
    turns: Arc<Semaphore>,
    /// A worker waits for its calls, and cannot renew its lease meanwhile.
    is_quick: bool,
}

/// The right of a call to use one connection at a time.
pub(super) struct Turn {
    pub(super) connections: Arc<Connections>,
    /// How long it waits for each answer.
    pub(super) limit: Duration,
    pub(super) is_quick: bool,
    _permit: OwnedSemaphorePermit,
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
            let mut session = $turn.connections.take($turn.limit, $turn.is_quick).await?;
            loop {
                let until = session.until();
                let $session = &mut session;
                let result = $crate::postgres::connection::within(&until, async { $body }).await;
                session = match session.finish(result) {
                    std::ops::ControlFlow::Continue(session) => session,
                    std::ops::ControlFlow::Break(answer) => break answer,
                };
            }
        }
        .await
    };
}
pub(super) use run;

/// A connection that runs statements. After a panic or a loss, it is not used again.
pub(super) struct Session {
    /// `None` after it was returned.
    client: Option<Object>,
    connections: Arc<Connections>,
    is_in_transaction: bool,
    is_quick: bool,
    /// The statement that runs commits, so its outcome is unknown if the connection is lost.
    may_commit: bool,
    tries: usize,
    limit: Duration,
    /// Until when the server must have answered.
    until: Arc<Mutex<Instant>>,
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
    Arc::new(move |config, notices, gone| {
        let tls = tls.clone();
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls.clone()).await?;
            let cancel = client.cancel_token();
            tokio::spawn(async move {
                let pass_on = async {
                    while let Some(Ok(message)) =
                        poll_fn(|context| connection.poll_message(context)).await
                    {
                        let AsyncMessage::Notification(notice) = message else { continue };
                        if let Some(notices) = &notices {
                            // Without a receiver, the store is gone.
                            let _ = notices.send(notice);
                        }
                    }
                };
                let (mut pass_on, mut gone) = (pin!(pass_on), pin!(gone));
                let has_ended = poll_fn(|context| match pass_on.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => gone.as_mut().poll(context).map(|_| false),
                });
                // The connection tells the server of its end. If the server still runs a statement,
                // ask it to cancel that: no caller waits for it, and it may keep locks.
                if !has_ended.await && timeout(FAREWELL, pass_on).await.is_err() {
                    let _ = timeout(QUICK, cancel.cancel_query(tls)).await;
                }
            });
            Ok(client)
        })
    })
}

/// Makes a call; `None` if an answer is not there in time.
pub(super) async fn within<R>(until: &Mutex<Instant>, call: impl Future<Output = R>) -> Option<R> {
    let mut call = pin!(call);
    loop {
        let end = *until.lock();
        if let Ok(result) = timeout_at(end, &mut call).await {
            return Some(result);
        }
        // After a stop of this process, the answer is there, and has not been read.
        if let Ok(result) = timeout(FAREWELL, &mut call).await {
            return Some(result);
        }
        if *until.lock() == end {
            return None;
        }
    }
}

impl Opener {
    async fn open(&self, notices: Notices, gone: Gone) -> Result<Client, Error> {
        let mut config = self.config.clone();
        if !self.is_pooled.load(SeqCst) {
            let old = config.get_options().unwrap_or_default();
            let options = format!("{old} {OPTIONS} -c delaywheel.mark={}", self.mark);
            config.options(options.trim());
        }
        if self.is_shuffled.load(SeqCst) {
            // One name may lead to several addresses.
            config.load_balance_hosts(LoadBalanceHosts::Random);
            let is_alone = config.get_hosts().len().max(config.get_hostaddrs().len()) == 1;
            // A standby alone serves reads.
            if !is_alone && config.get_target_session_attrs() == TargetSessionAttrs::Any {
                // A standby that is before the primary would refuse what the store writes.
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
        }
        (self.connect)(config, notices, gone).await
    }
}

impl deadpool_postgres::Connect for Opener {
    fn connect(&self, _: &Config) -> Opening<'_, (Client, JoinHandle<()>)> {
        Box::pin(async {
            let (alive, gone) = oneshot::channel();
            let client = self.open(None, gone).await?;
            // The pool aborts this task, and not the one that tells the server of the end.
            let keep = async move {
                pending::<()>().await;
                drop(alive);
            };
            Ok((client, tokio::spawn(keep)))
        })
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::with_source(StoreErrorReason::Other, error)
}

impl Connections {
    /// Starts a pool of the store's own.
    pub(super) fn open(
        mut config: Config,
        connect: Connect,
        schema: &str,
    ) -> StoreResult<Arc<Self>> {
        bound_waits(&mut config);
        if config.get_application_name().is_none() {
            config.application_name("delaywheel");
        }
        let own = Opener {
            config,
            connect,
            mark: fastrand::u64(..),
            is_pooled: Arc::default(),
            is_shuffled: Arc::default(),
        };
        let manager = Manager::from_connect(Config::new(), own.clone(), ManagerConfig::default());
        // The latest first, so that others are not used for long enough to be closed.
        let pool = Pool::builder(manager).max_size(MOST).queue_mode(QueueMode::Lifo);
        Self::start(pool.build().map_err(failed)?, None, Some(own), schema)
    }

    /// Starts the thread. `driver` is the runtime of a pool of the user.
    pub(super) fn start(
        pool: Pool,
        driver: Option<Handle>,
        own: Option<Opener>,
        schema: &str,
    ) -> StoreResult<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let connections = Arc::new(Self {
            pool,
            driver: driver.unwrap_or_else(|| runtime.handle().clone()),
            own,
            limits: Mutex::new((SILENCE, SILENCE)),
            kept: Mutex::default(),
            workers: Mutex::default(),
            listening: Mutex::default(),
            schema: schema.to_owned(),
            statements: Mutex::default(),
            types: Mutex::default(),
            avoided: AtomicU32::new(0),
            runtime: runtime.handle().clone(),
            _end: end,
        });
        let weak = Arc::downgrade(&connections);
        let name = "delaywheel-postgres".to_owned();
        let run = move || runtime.block_on(tend(&weak, ended));
        thread::Builder::new().name(name).spawn(run).map_err(failed)?;
        Ok(connections)
    }

    /// Finds out whether a pool is between: it refuses the options of a session, or drops them.
    pub(super) async fn probe(self: &Arc<Self>) -> StoreResult<()> {
        let Some(own) = &self.own else { return Ok(()) };
        // The codes of `PgBouncer` and of RDS Proxy. A server may refuse for many other reasons.
        let is_refusal = |error: &StoreError| {
            let error = error.source().and_then(|source| source.downcast_ref::<Error>());
            matches!(
                error.and_then(Error::code),
                Some(&SqlState::PROTOCOL_VIOLATION | &SqlState::FEATURE_NOT_SUPPORTED)
            )
        };
        let mut taken = self.take(self.limit(false), false).await;
        if taken.as_ref().is_err_and(is_refusal) {
            own.is_pooled.store(true, SeqCst);
            taken = self.take(self.limit(false), false).await;
        }
        let mut session = taken?;
        let show = session.client().simple_query("SELECT current_setting('delaywheel.mark', true)");
        let Some(shown) = within(&session.until(), show).await else {
            return Err(session.give_up());
        };
        let is_set = |message: &SimpleQueryMessage| {
            matches!(message, SimpleQueryMessage::Row(row)
                if row.get(0) == Some(&own.mark.to_string()))
        };
        let is_pooled = !shown.map_err(unavailable)?.iter().any(is_set);
        session.give_back();
        if is_pooled {
            emit!(warn, "a pool such as PgBouncer is between: the store polls");
        }
        own.is_pooled.store(is_pooled, SeqCst);
        Ok(())
    }

    pub(super) fn are_pooled(&self) -> bool {
        self.own.as_ref().is_none_or(|own| own.is_pooled.load(SeqCst))
    }

    /// Returns how long a call waits for each answer.
    pub(super) fn limit(&self, is_quick: bool) -> Duration {
        let (limit, quick) = *self.limits.lock();
        if is_quick { limit.min(quick) } else { limit }
    }

    /// Has quick calls leave a worker enough time to renew its lease.
    pub(super) fn leave_time_for(&self, lease: Duration) {
        let quick = &mut self.limits.lock().1;
        *quick = (lease / 3).max(QUICK).min(*quick);
    }

    /// Opens a connection that passes notifications on.
    pub(super) async fn listen(&self, notices: UnboundedSender<Notification>) -> Option<Client> {
        let (alive, gone) = oneshot::channel();
        let open = self.own.as_ref()?.open(Some(notices), gone);
        let client = timeout(self.limit(false), open).await.ok()?.ok()?;
        *self.listening.lock() = Some(alive);
        Some(client)
    }

    /// Closes the connections that no call uses. A server that did not answer on one connection may
    /// be silent on these too.
    fn forget(&self) {
        self.pool.retain(|_, _| false);
        drop(self.kept.lock().take().map(Object::take));
        self.listening.lock().take();
    }

    /// Takes a connection that is not used, or opens one. The loss of an unused one is no error.
    pub(super) async fn take(
        self: &Arc<Self>,
        limit: Duration,
        is_quick: bool,
    ) -> StoreResult<Session> {
        let pool = self.pool.clone();
        let kept = is_quick.then(|| self.kept.lock().take()).flatten();
        let kept = kept.filter(|client| !client.is_closed() && !pool.is_closed());
        let mut taken = self.driver.spawn(async move {
            match kept {
                Some(kept) => Ok(kept),
                None => pool.get().await,
            }
        });
        let Ok(got) = timeout(limit.min(self.limit(false)), &mut taken).await else {
            taken.abort();
            // In a pool of the user, handlers may have all connections, so the server may be well.
            if let Some(own) = &self.own {
                self.forget();
                own.is_shuffled.store(true, SeqCst);
            }
            let message = "the pool gave no connection in time";
            return Err(StoreError::with_source(StoreErrorReason::Unavailable, message));
        };
        let (is_over, error): (_, Box<dyn std::error::Error + Send + Sync>) = match got {
            Ok(Ok(client)) => {
                return Ok(Session {
                    client: Some(client),
                    connections: Arc::clone(self),
                    is_in_transaction: false,
                    is_quick,
                    may_commit: false,
                    tries: 0,
                    limit,
                    until: Arc::new(Mutex::new(Instant::now() + limit)),
                });
            }
            Ok(Err(PoolError::Backend(error))) => return Err(unavailable(error)),
            Ok(Err(error)) => (matches!(error, PoolError::Closed), error.into()),
            // A hook of the pool panicked, before any statement, or the runtime has ended.
            Err(error) => (!error.is_panic(), error.into()),
        };
        // Then no settlement can be written any more.
        let reason = if is_over { StoreErrorReason::Closed } else { StoreErrorReason::Unavailable };
        Err(StoreError::with_source(reason, error))
    }

    /// Returns a statement with the names of this schema.
    pub(super) fn own(&self, sql: &str) -> Arc<str> {
        let mut statements = self.statements.lock();
        if let Some(own) = statements.get(sql) {
            return Arc::clone(own);
        }
        let own = super::sql::named(sql, &self.schema);
        let own: Arc<str> = own.replace("{columns}", super::sql::COLUMNS).into();
        statements.insert(sql.to_owned(), Arc::clone(&own));
        own
    }

    /// Keeps a connection from the next quick call on.
    pub(super) fn enter(&self, worker: u64) {
        self.workers.lock().insert(worker);
    }

    /// Gives the kept connection back if no other worker needs it.
    pub(super) fn leave(&self, worker: u64) {
        let mut workers = self.workers.lock();
        workers.remove(&worker);
        if workers.is_empty() {
            self.kept.lock().take();
        }
    }

    /// Closes connections of the store's own that were not used for a time, but for one. The others
    /// prepare their statements again: the plans may be from when the server knew few records.
    fn refresh(&self) {
        if self.own.is_some() {
            self.pool.manager().statement_caches.clear();
            let mut others = self.pool.status().available;
            self.pool.retain(|_, metrics| {
                others = others.saturating_sub(1);
                others == 0 || metrics.last_used() < IDLE
            });
        }
    }
}

async fn tend(connections: &Weak<Connections>, mut ended: oneshot::Receiver<()>) {
    while timeout(IDLE, &mut ended).await.is_err() {
        if let Some(connections) = connections.upgrade() {
            connections.refresh();
        }
    }
    sleep(FAREWELL).await;
}

/// The begin of a transaction with settings that are options of a session otherwise.
static BEGIN_POOLED: LazyLock<String> = LazyLock::new(|| {
    let settings = OPTIONS.split("-c ").filter_map(|option| option.trim().split_once('='));
    let settings =
        settings.map(|(name, value)| format!("; SET LOCAL {name} = '{}'", value.replace('\\', "")));
    format!("BEGIN ISOLATION LEVEL READ COMMITTED{}", settings.collect::<String>())
});

impl Line {
    pub(super) fn new(connections: &Arc<Connections>, turns: usize) -> Self {
        let turns = Arc::new(Semaphore::new(turns));
        Self { connections: Arc::clone(connections), turns, is_quick: false }
    }

    /// Creates two lines for quick calls. With a pool of the user, these share a connection.
    pub(super) fn quick(connections: &Arc<Connections>) -> [Self; 2] {
        let [one, two] = [0; 2].map(|_| Self { is_quick: true, ..Self::new(connections, 1) });
        let turns = if connections.own.is_none() { &one.turns } else { &two.turns };
        let turns = Arc::clone(turns);
        [one, Self { turns, ..two }]
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
        let is_quick = self.is_quick;
        let task = self.connections.runtime.spawn(async move {
            let (mut gone, mut turn) = (pin!(gone), pin!(turns.acquire_owned()));
            let turn = poll_fn(|context| match gone.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => turn.as_mut().poll(context).map(Result::ok),
            });
            let closed = || StoreError::new(StoreErrorReason::Closed);
            let permit = turn.await.ok_or_else(closed)?;
            let limit = connections.limit(is_quick);
            call(Turn { connections, limit, is_quick, _permit: permit }).await
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
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a panic or a loss. The pool must not lend a connection with an open transaction.
        drop(self.client.take().map(Object::take));
    }
}

impl Session {
    /// Returns the connection for a message that the server must answer.
    fn client(&self) -> &Object {
        self.expect_answer();
        self.client.as_ref().expect("it was not returned")
    }

    /// The server has a new time to answer.
    pub(super) fn expect_answer(&self) {
        *self.until.lock() = Instant::now() + self.limit;
    }

    pub(super) fn until(&self) -> Arc<Mutex<Instant>> {
        Arc::clone(&self.until)
    }

    fn give_back(&mut self) {
        let client = self.client.take();
        let Connections { own, pool, kept, workers, .. } = &*self.connections;
        let has_workers = !workers.lock().is_empty();
        // A smaller pool has calls and handlers wait for each other.
        if self.is_quick && has_workers && own.is_none() && pool.status().max_size > 2 {
            *kept.lock() = client;
        }
    }

    /// Closes the connection, as its server does not answer: a late answer has no reader.
    fn give_up(self) -> StoreError {
        self.connections.forget();
        let reason = if self.may_commit {
            StoreErrorReason::OutcomeUnknown
        } else {
            StoreErrorReason::Unavailable
        };
        StoreError::with_source(reason, "the server does not answer")
    }

    /// Ends a try, and returns the connection unless there is another try. `None` is a try without
    /// an answer.
    pub(super) fn finish<R>(
        mut self,
        result: Option<Result<R, Error>>,
    ) -> ControlFlow<StoreResult<R>, Self> {
        let error = match result {
            Some(Ok(result)) => {
                self.give_back();
                return ControlFlow::Break(Ok(result));
            }
            Some(Err(error)) => error,
            None => return ControlFlow::Break(Err(self.give_up())),
        };
        let may_commit = mem::take(&mut self.may_commit);
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
        if let (true, Some(own)) = (are_stale, &self.connections.own) {
            self.connections.pool.retain(|_, _| false);
            let is_standby = error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
            // Otherwise the next connection is to the first address again.
            if is_standby {
                own.is_shuffled.store(true, SeqCst);
            }
        }
        // After another severity, the server closes the connection.
        let is_error = |error: &DbError| error.parsed_severity() == Some(Severity::Error);
        let is_lost = are_stale || !error.as_db_error().is_some_and(is_error);
        let is_conflict = matches!(
            error.code(),
            Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
        );
        if !is_lost && is_conflict && self.tries < TRIES {
            return ControlFlow::Continue(self);
        }
        if !is_lost {
            self.give_back();
        }
        ControlFlow::Break(Err(store_error(error, may_commit)))
    }

    /// Runs a statement, which outside of a transaction is one by itself.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        if self.commits_alone() {
            let statement = self.prepare(sql).await?;
            self.may_commit |= !self.is_in_transaction && !sql.trim_start().starts_with("SELECT");
            return self.client().query(&statement, parameters).await;
        }
        if self.is_in_transaction {
            return self.query_typed(sql, parameters).await;
        }
        self.begin().await?;
        let result = self.query_typed(sql, parameters).await;
        self.end(result).await
    }

    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        let begin = if self.commits_alone() { "BEGIN" } else { &BEGIN_POOLED };
        let result = self.execute(begin).await;
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
        !self.connections.are_pooled()
    }

    /// Starts a COPY, which outside of a transaction is one by itself.
    pub(super) async fn copy_in(
        &mut self,
        sql: &str,
        types: &[Type],
    ) -> Result<BinaryCopyInWriter, Error> {
        let statement = self.prepare(sql).await?;
        self.may_commit |= !self.is_in_transaction;
        Ok(BinaryCopyInWriter::new(self.client().copy_in(&statement).await?, types))
    }

    pub(super) fn may_copy(&self) -> bool {
        let left = |left: u32| left.checked_sub(1);
        self.connections.avoided.fetch_update(SeqCst, SeqCst, left).is_err()
    }

    /// The server has undone a COPY because an id was scheduled already.
    pub(super) fn avoid_copies(&mut self) {
        self.connections.avoided.store(AVOIDED, SeqCst);
        self.may_commit = false;
    }

    pub(super) async fn execute(&self, sql: &str) -> Result<(), Error> {
        self.client().batch_execute(sql).await
    }

    /// Through another pool, the end of the statement must reach its session, within a transaction.
    async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        let (client, sql) = (self.client(), self.connections.own(sql));
        if self.commits_alone() {
            client.prepare_cached(&sql).await
        } else {
            client.prepare(&sql).await
        }
    }

    /// Runs a statement within a transaction, for which it is prepared once, to know the types of
    /// its parameters. Rows would keep a prepared one beyond the end of the transaction.
    async fn query_typed(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        let known = self.connections.types.lock().get(sql).cloned();
        let types = if let Some(types) = known {
            types
        } else {
            let types = self.prepare(sql).await?.params().to_vec();
            self.connections.types.lock().insert(sql.to_owned(), types.clone());
            types
        };
        let parameters: Vec<_> = parameters.iter().copied().zip(types).collect();
        self.client().query_typed(&self.connections.own(sql), &parameters).await
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
    use super::{super::*, *};

    /// The store has no server to connect to.
    #[test]
    fn a_silent_server_leaves_a_worker_time_to_renew_its_lease() {
        let connect = connect_by(tokio_postgres::NoTls);
        let connections = Connections::open(Config::new(), connect, "s").expect("start");
        let store = PostgresStore::at(ServerClock::new(WallTime::MIN), &connections);
        for (lease, quick) in [(600, 35), (30, 10), (60, 10), (3, 5)] {
            let lease = Duration::from_secs(lease);
            block_on(store.enter(WallTime::MIN, lease, None)).expect_err("no server");
            let limits = [false, true].map(|is_quick| connections.limit(is_quick).as_secs());
            assert_eq!(limits, [35, quick], "after a lease of {lease:?}");
        }
    }

    /// The first address did not answer for a time. One name may lead to several addresses, and a
    /// standby alone serves reads.
    #[test]
    fn addresses_are_tried_in_another_order_and_only_one_of_several_must_be_a_primary() {
        for (parameters, expected) in [
            ("host=standby", TargetSessionAttrs::Any),
            ("host=gone,primary", TargetSessionAttrs::ReadWrite),
            ("hostaddr=192.0.2.1,192.0.2.2", TargetSessionAttrs::ReadWrite),
        ] {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&asked);
            let connect: Connect = Arc::new(move |config: Config, _, _| {
                let order = config.get_load_balance_hosts();
                seen.lock().push((config.get_target_session_attrs(), order));
                Box::pin(pending())
            });
            let config: Config = parameters.parse().expect("parameters");
            let connections = Connections::open(config, connect, "s").expect("start");
            for _ in 0..2 {
                let taken = connections.take(Duration::from_millis(20), false);
                assert!(connections.driver.block_on(taken).is_err(), "no server");
            }
            let expected = (expected, LoadBalanceHosts::Random);
            assert_eq!(asked.lock().last(), Some(&expected), "{parameters}");
        }
    }

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
