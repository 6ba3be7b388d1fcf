//! The store for many processes: tables in a schema of a PostgreSQL database.
//!
//! Workers claim with `FOR UPDATE SKIP LOCKED` on an index by time, so they do not wait for each
//! other. A lease is one row for each worker, however many timeouts it holds. `NOTIFY` tells
//! workers of timeouts that are due within an hour.

mod clock;
mod connection;
mod sql;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use delaywheel::Clock;
use parking_lot::Mutex;
use pollster::block_on;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{sleep, timeout},
};
use tokio_postgres::{
    Client, Config, Error, GenericClient, Notification, Row, error::SqlState, types::Type,
};

pub use self::connection::Tls;
use self::{
    clock::ServerClock,
    connection::{
        Connect, Connections, Line, Parameters, Session, Turn, Value, answer, connect_by, run,
        store_error, unavailable, values,
    },
};
use crate::{
    error::{StoreError, StoreErrorReason, StoreResult},
    record::{Attempt, AttemptEnd, Claim, Name, Priority, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Begun, Calls, Cancelled, ClaimRequest, ClaimedBatch, Command, Conflict, Counts,
        Listeners, NewTimeout, Notice, Query, QueueOverview, QueueState, Rescheduled, Scheduled,
        Settlement, Store, WorkerId, WorkerLease, interval, list_start, most, news,
    },
    time::WallTime,
    timer::contained,
};

/// Statements that lead from one version of the tables to the next, and the least version whose
/// programs also work with that one, so that a deploy can be rolled back.
const MIGRATIONS: &[(i32, &str)] = &[(1, include_str!("schema.sql"))];

#[expect(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "they are few")]
const NEWEST: i32 = MIGRATIONS.len() as i32;

/// Fewest timeouts for which COPY alone is faster than INSERT.
const COPIED_ALONE: usize = 16;

/// The same with a notification, which needs a transaction around both.
const COPIED: usize = 100;

/// How often a worker looks for records without a notification.
const RECHECK: Duration = Duration::from_secs(60);

/// Timeouts that are due later than this are found by the next look.
const NOTICE: Duration = Duration::from_secs(3_600);

/// Time between attempts to listen, and between looks while the server sends no notifications.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Time between looks whether the server answers, and what its clock shows.
const LOOK: Duration = Duration::from_secs(30);

/// Looks without notifications before the next reading of the clock.
const DEAF_LOOKS: u32 = 60;

/// The limit of a migration, which takes as long as it must. `Instant` may not reach a longer one.
const ENDLESS: Duration = Duration::from_secs(365 * 86_400);

/// A store in a PostgreSQL database, version 14 or newer, for any number of processes.
///
/// Any executor may poll its futures, which only wait for answers: a thread of the store makes the
/// calls and drives the connections. If a future is dropped before its call has a turn among those
/// of its kind, the call is not made. Later, it is carried out to its end.
///
/// # Connections
///
/// Clones share their connections. A process that waits has at most two: one that listens, which a
/// timer needs, and one that was used last. A store opens others when calls of different kinds
/// meet, at most nine in all, and closes those whose latest use began 10 to 20 seconds before. In
/// `pg_stat_activity`, their `application_name` is `delaywheel`, unless the parameters have another
/// one.
///
/// A store notices when it connects that the settings of a session do not reach the server, as
/// through `PgBouncer` in transaction mode. It then prepares no statements, and sends the settings
/// with each transaction, which takes two round trips more. As no notifications arrive, its timers
/// look for timeouts of other processes once a second. The pool must notice a client whose machine
/// has lost its power: set `tcp_keepidle` and the like.
///
/// # A server that does not answer
///
/// The server ends a statement after 30 seconds. A call fails if an answer is not there after 35,
/// though the machine of the server acknowledges each byte: with
/// [`OutcomeUnknown`](StoreErrorReason::OutcomeUnknown) if the change may have been made, otherwise
/// with [`Unavailable`](StoreErrorReason::Unavailable). The store then closes this connection and
/// those that are not in use, and asks the server to end the statement, which it cannot with a pool
/// of the user. Until the statement ends, it may still make its change, after later ones. The next
/// call opens a new connection. A commit that waits for a standby for as long fails in this way
/// too. A batch has one second more for each MiB of its payloads, but the 30 seconds of the server
/// include the upload of a COPY. A migration has no limit.
///
/// Calls during which a worker cannot renew its lease have a third of the lease, the shortest one
/// of the process, but not less than 5 seconds. So a lease of 15 seconds or more outlasts a silent
/// connection. It does not outlast a server that is silent on new connections too: other workers
/// may then take the timeouts, and deliveries under way become void.
///
/// # Transactions of your own
///
/// [`schedule_in`](Self::schedule_in), [`cancel_in`](Self::cancel_in) and
/// [`acknowledge_in`](Self::acknowledge_in) work within a transaction of the caller, with the crate
/// `tokio-postgres`. From other drivers, call the SQL functions
/// `delaywheel.schedule(id, due, payload)`, `delaywheel.reschedule(id, due)`,
/// `delaywheel.cancel(id)` and `delaywheel.acknowledge(id, token)`. They fail if a value is beyond
/// the limits of the crate. The README names the views for `psql`.
///
/// SQL does not know the rule of a recurring timeout: give the time of the next occurrence as
/// `again`, or `is_last => true`, without which its acknowledgement fails. The history has an
/// attempt that SQL acknowledges only with a time, `keep_until`.
///
/// # Crashes of the server
///
/// The store's own commits are durable, even if the database's default of `synchronous_commit` is
/// `off`. A transaction of the caller has the caller's setting. The exception is a commit that only
/// begins deliveries, which does not wait for the disk. If the server crashes within a moment after
/// it, a later cancel can answer [`Cancelled`](Cancelled::Cancelled) while the handler runs.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    connections: Arc<Connections>,
    /// Writes two groups at once.
    writers: Line,
    /// Writes single commands, which the timer tries again if their record is locked.
    single: Line,
    worker: Line,
    /// Renews leases and does what is always quick, while claims and reads may be slow.
    keeper: Line,
    /// Claims records that are overdue, so that other claims do not wait for these.
    backlog: Line,
    starter: Line,
    reader: Line,
    clock: Arc<ServerClock>,
    listeners: Listeners,
    is_listening: AtomicBool,
    /// Names this process in notifications, which it ignores. Changes when an outcome is unknown.
    sender: AtomicU64,
    /// Queues that have a row.
    queues: Mutex<FxHashSet<Name>>,
    /// How long the history has attempts.
    keep: Mutex<Duration>,
    /// Until when those were kept that were looked for. A search from the oldest one on would pass
    /// all that were removed during an old transaction. One of 64 does, for those that were locked
    /// or that a failure has left.
    tidied: Mutex<SystemTime>,
}

impl PostgresStore {
    /// Connects to a schema whose tables [`migrate`](Self::migrate) has made. Its name consists of
    /// lower-case letters, digits and underscores, at most 48, and does not begin with `pg_`. The
    /// usual one is `delaywheel`.
    ///
    /// The string is a URL, or pairs such as `host=localhost user=me dbname=app`.
    ///
    /// All connections of the store use the connector for TLS, for example one of
    /// `postgres-native-tls`, `postgres-openssl` or `tokio-postgres-rustls`. Without
    /// `sslmode=require` in the parameters, a server without TLS gets connections that are not
    /// encrypted. With [`NoTls`](crate::NoTls) no connection is encrypted.
    ///
    /// With several hosts, such as `host=a,b`, add `target_session_attrs=read-write`: a connection
    /// then passes over a standby. Otherwise the first change on a standby fails.
    ///
    /// A connection fails if the machine of the server does not answer for 30 seconds. To change
    /// this limit, set `tcp_user_timeout` and `keepalives_idle` in the string. The machine answers
    /// for a process of the server that hangs: for this, each call has a limit of its own.
    ///
    /// The role needs `USAGE` on the schema and its sequence, `EXECUTE` on its functions, and
    /// `SELECT`, `INSERT`, `UPDATE` and `DELETE` on its tables, also on new ones of a migration.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use delaywheel_durable::{NoTls, PostgresStore};
    /// use tokio_postgres_rustls::MakeRustlsConnect;
    ///
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// PostgresStore::migrate("host=localhost user=owner dbname=app", "delaywheel", NoTls).await?;
    /// let parameters = "host=localhost user=me dbname=app";
    /// let store = PostgresStore::connect(parameters, "delaywheel", NoTls).await?;
    ///
    /// # fn certificates() -> rustls::RootCertStore { rustls::RootCertStore::empty() }
    /// let settings = rustls::ClientConfig::builder()
    ///     .with_root_certificates(certificates())
    ///     .with_no_client_auth();
    /// let parameters = "host=db.example.org user=app dbname=app sslmode=require";
    /// let tls = MakeRustlsConnect::new(settings);
    /// let store = PostgresStore::connect(parameters, "delaywheel", tls).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unavailable`](StoreErrorReason::Unavailable) if the server cannot be reached or the two
    /// sides cannot agree on TLS, [`Other`](StoreErrorReason::Other) for the name, and
    /// [`NotMigrated`](StoreErrorReason::NotMigrated) or
    /// [`NewerVersion`](StoreErrorReason::NewerVersion) for the version of the tables.
    pub async fn connect(parameters: &str, schema: &str, tls: impl Tls) -> StoreResult<Self> {
        Self::of(&open(parameters, schema, connect_by(tls))?).await
    }

    /// The same as [`connect`](Self::connect) for a thread, which waits.
    pub fn connect_blocking(parameters: &str, schema: &str, tls: impl Tls) -> StoreResult<Self> {
        block_on(Self::connect(parameters, schema, tls))
    }

    /// Creates the tables of a schema, or migrates older ones, in one transaction.
    ///
    /// The role may create tables. If several processes call this, the others wait for the first.
    /// Tables that are up to date are not changed.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect) but `NotMigrated`, and
    /// [`Other`](StoreErrorReason::Other) if the role may not create tables.
    pub async fn migrate(parameters: &str, schema: &str, tls: impl Tls) -> StoreResult<()> {
        let line = Line::new(&open(parameters, schema, connect_by(tls))?, 1);
        let migrate = |mut turn: Turn| async move {
            let version = check(&turn).await?;
            turn.limit = ENDLESS;
            if version < NEWEST { migrate(&turn).await } else { Ok(()) }
        };
        line.call(migrate).await
    }

    /// The same as [`migrate`](Self::migrate) for a thread, which waits.
    pub fn migrate_blocking(parameters: &str, schema: &str, tls: impl Tls) -> StoreResult<()> {
        block_on(Self::migrate(parameters, schema, tls))
    }

    /// Returns the statements that lead from each version of the tables to the next.
    /// [`migrate`](Self::migrate) runs those that are missing.
    ///
    /// # Errors
    ///
    /// [`Other`](StoreErrorReason::Other) for the name of the schema.
    pub fn migrations(schema: &str) -> StoreResult<Vec<String>> {
        check_name(schema)?;
        let all = MIGRATIONS.iter().zip(1..).map(|((compatible, sql), version)| {
            let noted = format!("INSERT INTO {{schema}}.version VALUES ({version}, {compatible});");
            sql::named(&format!("{sql}{noted}\n"), schema)
        });
        Ok(all.collect())
    }

    /// Uses connections of a pool, for tables that [`migrate`](Self::migrate) has made.
    ///
    /// A runtime of several workers drives them. Of the tasks on it, fewer than its workers may
    /// block at once for answers of the store: while all do, nothing drives the connections. So
    /// tasks should await. After the end of the runtime or of the pool, calls fail with
    /// [`Closed`](StoreErrorReason::Closed), and the ends of deliveries are lost: finish the timers
    /// first.
    ///
    /// The store uses up to eight at once, so a pool with fewer has calls wait for each other. If
    /// the pool has at least three, a timer that delivers keeps one until its end, so that handlers
    /// that wait for others do not delay the renewal of its lease. Otherwise the store keeps none
    /// while it has nothing to do. Handlers that hold connections and wait for the store need two
    /// more. As the store cannot listen, its timers look each second.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use deadpool_postgres::{Manager, Pool};
    /// use delaywheel_durable::PostgresStore;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let parameters = "host=localhost user=me dbname=app".parse()?;
    /// let manager = Manager::new(parameters, tokio_postgres::NoTls);
    /// let pool = Pool::builder(manager).max_size(16).build()?;
    /// let runtime = tokio::runtime::Handle::current();
    /// let store = PostgresStore::from_pool(pool, "delaywheel", runtime).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and [`Other`](StoreErrorReason::Other) for a runtime of
    /// one worker, where [`Receipt::wait`](crate::Receipt::wait) would wait for its own thread.
    pub async fn from_pool(
        pool: deadpool_postgres::Pool,
        schema: &str,
        runtime: tokio::runtime::Handle,
    ) -> StoreResult<Self> {
        check_name(schema)?;
        if runtime.metrics().num_workers() < 2 {
            let message = "the runtime of the pool has one worker only";
            return Err(StoreError::with_source(StoreErrorReason::Other, message));
        }
        Self::of(&Connections::start(pool, Some(runtime), None, schema)?).await
    }

    /// Sets how long calls wait for each answer of the server, for tests.
    #[doc(hidden)]
    pub fn answer_within(&self, limit: Duration) {
        self.shared.connections.limits.lock().0 = limit;
    }

    async fn of(connections: &Arc<Connections>) -> StoreResult<Self> {
        let begin = |turn: Turn| async move {
            let version = check(&turn).await?;
            if version < NEWEST {
                let name = &turn.connections.schema;
                let message = format!(
                    "the tables of the schema {name} have version {version} and need {NEWEST}: \
                     call `migrate`"
                );
                return Err(StoreError::with_source(StoreErrorReason::NotMigrated, message));
            }
            // The last answer: the clock runs from its arrival on.
            let shown = turn.query(sql::NOW, &[]).await?;
            Ok(ServerClock::new(WallTime::now_of(shown[0].get(0))))
        };
        Ok(Self::at(Line::new(connections, 1).call(begin).await?, connections))
    }

    fn at(clock: ServerClock, connections: &Arc<Connections>) -> Self {
        let line = || Line::new(connections, 1);
        let [keeper, starter] = Line::quick(connections);
        let shared = Shared {
            writers: Line::new(connections, 2),
            single: line(),
            worker: line(),
            keeper,
            backlog: line(),
            starter,
            reader: line(),
            clock: Arc::new(clock),
            listeners: Listeners::default(),
            is_listening: AtomicBool::new(false),
            sender: AtomicU64::new(new_sender()),
            queues: Mutex::default(),
            keep: Mutex::default(),
            tidied: Mutex::new(SystemTime::UNIX_EPOCH),
            connections: Arc::clone(connections),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Schedules a timeout within a transaction of the caller. For an id that is taken,
    /// [`Conflict::Refuse`] does what [`Conflict::Keep`] does. One that is kept stays locked until
    /// the transaction ends. After an error, the transaction has failed.
    ///
    /// If the timeout is due within an hour, the commit tells the workers by `NOTIFY`. A server
    /// makes such commits one at a time: each holds a lock until it is durable, also against other
    /// databases. So do `reschedule` in SQL and a next occurrence. The commits of the store itself
    /// have many timeouts each. The server refuses a `PREPARE TRANSACTION` after a `NOTIFY`.
    ///
    /// The first use of a queue adds it. Until the transaction ends, others that first use this
    /// queue in a transaction of the caller wait. If it is rolled back, lists and counts of due
    /// timeouts lack those that others have scheduled in the queue meanwhile, until the next one is
    /// scheduled in it.
    pub async fn schedule_in(
        &self,
        client: &impl GenericClient,
        new: &NewTimeout,
    ) -> StoreResult<Scheduled> {
        let sql = "SELECT {schema}.schedule($1, $2, $3, $4, $5, $6, $7, $8)";
        let repeat = new.repeat.as_ref().map(Repeat::to_text);
        let (due, priority) = (new.due.to_system_time(), new.priority as i32);
        let (queue, key) = (new.queue.as_str(), new.key.as_ref().map(Name::as_str));
        let (id, payload, kind) = (new.id.as_str(), &*new.payload, i32::from(kind_of(new)));
        let parameters: Parameters<'_> =
            &[&id, &due, &payload, &repeat, &queue, &priority, &key, &kind];
        let row = self.call(client, sql, parameters).await?;
        Ok(match row.get::<_, &str>(0) {
            "created" => Scheduled::Created,
            "replaced" => Scheduled::Replaced,
            "replaced_delivering" => Scheduled::ReplacedDelivering,
            "kept" => Scheduled::Kept,
            _ => Scheduled::KeptDead,
        })
    }

    /// Cancels a timeout within a transaction of the caller.
    pub async fn cancel_in(
        &self,
        client: &impl GenericClient,
        id: &TimeoutId,
    ) -> StoreResult<Cancelled> {
        let row = self.call(client, "SELECT {schema}.cancel($1)", &[&id.as_str()]).await?;
        Ok(match row.get::<_, &str>(0) {
            "cancelled" => Cancelled::Cancelled,
            "delivering" => Cancelled::Delivering,
            _ => Cancelled::NotFound,
        })
    }

    /// Acknowledges a delivery within a transaction of its handler. Returns whether the claim is
    /// valid. If not, another worker has the timeout, or it was cancelled or replaced, and the
    /// handler must roll back.
    ///
    /// After the commit, call
    /// [`acknowledged_in_transaction`](crate::Delivery::acknowledged_in_transaction). The history
    /// has the attempt if this store is that of a timer with a history, or a clone of it.
    pub async fn acknowledge_in(
        &self,
        client: &impl GenericClient,
        record: &Record,
    ) -> StoreResult<bool> {
        let following = crate::timer::driver::following(record, self.now());
        let (again, fault) = match following {
            Settlement::Again(next) => (Some(next.to_system_time()), None),
            Settlement::Dead { error } => (None, Some(error)),
            _ => (None, None),
        };
        let sql = "SELECT {schema}.acknowledge($1, $2, $3, $4, $5, is_last => true)";
        let until = self.keep_until(self.now());
        let token = record.token.cast_signed();
        let parameters: Parameters<'_> = &[&record.id.as_str(), &token, &again, &until, &fault];
        Ok(self.call(client, sql, parameters).await?.get(0))
    }

    async fn call(
        &self,
        client: &impl GenericClient,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Row> {
        let sql = self.shared.connections.own(sql);
        client.query_one(&*sql, parameters).await.map_err(|error| store_error(error, false))
    }

    /// Returns the text of a notification: when, who, and which queue if that is known.
    fn notice(&self, queue: Option<&Name>, due: WallTime) -> String {
        let queue = queue.map_or_else(String::new, |queue| format!(" {queue}"));
        format!("{} {}{queue}", due.as_micros(), self.shared.sender.load(SeqCst))
    }

    fn keep_until(&self, now: WallTime) -> Option<SystemTime> {
        let keep = *self.shared.keep.lock();
        (!keep.is_zero()).then(|| now.saturating_add(keep).to_system_time())
    }

    /// Makes sure that queues have a row, unless another transaction that adds it is under way: a
    /// later command looks again.
    async fn add_queues(&self, turn: &Turn, names: impl Iterator<Item = &Name>) -> StoreResult<()> {
        let new: FxHashSet<_> = {
            let known = self.shared.queues.lock();
            names.filter(|name| !known.contains(*name)).collect()
        };
        if !new.is_empty() {
            let names: Vec<_> = new.iter().map(|name| name.as_str()).collect();
            match turn.query(sql::ADD_QUEUES, &[&names]).await {
                Err(error) if error.reason() == StoreErrorReason::Locked => return Ok(()),
                added => drop(added?),
            }
            self.shared.queues.lock().extend(new.into_iter().cloned());
        }
        Ok(())
    }

    /// Ends the leases of locked workers, and makes their records pending. Returns whether
    /// there are any.
    async fn take_from(&self, session: &mut Session, workers: &[Row]) -> Result<bool, Error> {
        const NONE: &[i64] = &[];
        let ids: Vec<i64> = workers.iter().map(|row| row.get(0)).collect();
        if ids.is_empty() {
            return Ok(false);
        }
        session.query(sql::END_LEASES, &[&ids]).await?;
        let taken = session.query(sql::TAKE, &[&ids, &NONE]).await?;
        session.query(sql::REMOVE, &[&ids]).await?;
        session.query(sql::NOTIFY, &[&[self.notice(None, WallTime::MIN)].as_slice()]).await?;
        Ok(!taken.is_empty())
    }

    /// Removes old rows that triggers have left. No timer waits for that. A later call removes what
    /// a failure leaves.
    fn tidy(&self, now: SystemTime) {
        let (store, last) = (self.clone(), *self.shared.tidied.lock());
        let from = if fastrand::u8(..64) == 0 { SystemTime::UNIX_EPOCH } else { last };
        let tidy = move |turn: Turn| async move {
            run!(turn, transaction session => {
                session.execute("SET LOCAL statement_timeout = 1000").await?;
                session.query(sql::TIDY, &[&from, &now]).await
            })
        };
        self.shared.connections.runtime.spawn(async move {
            let rows = store.shared.reader.call(tidy).await;
            let last = rows.ok().and_then(|rows| rows[0].get(0));
            *store.shared.tidied.lock() = last.unwrap_or(now);
        });
    }

    /// Ends a change. If its outcome is unknown, has the timers look: the server may carry it out
    /// later, and its notification then must not seem to be one of this process.
    fn end<R>(&self, result: StoreResult<R>) -> StoreResult<R> {
        let is_unknown = |error: &StoreError| error.reason() == StoreErrorReason::OutcomeUnknown;
        if result.as_ref().is_err_and(is_unknown) {
            self.shared.sender.store(new_sender(), SeqCst);
            self.shared.listeners.tell_all();
        }
        result
    }

    /// Makes a call in a turn of a line. The timers hear of a change also if the call panics after
    /// it, or if its caller has gone.
    async fn task<R: Send + 'static, F: Future<Output = StoreResult<R>> + Send + 'static>(
        &self,
        line: &Line,
        call: impl FnOnce(Self, Turn) -> F + Send + 'static,
    ) -> StoreResult<R> {
        let store = self.clone();
        let call = move |turn| async move {
            let result = contained(call(store.clone(), turn)).await;
            store.end(result)
        };
        line.call(call).await
    }

    /// Reads a list or history. The rows, which may be many, are decoded on another thread than
    /// that of the connections.
    async fn read<R: Send + 'static>(
        &self,
        sql: &'static str,
        values: Vec<Value>,
        read: fn(&Row) -> StoreResult<R>,
    ) -> StoreResult<Vec<R>> {
        let rows = self.shared.reader.query(sql, values).await?;
        let decode = move || rows.iter().map(read).collect();
        answer(self.shared.connections.runtime.spawn_blocking(decode)).await
    }

    async fn carry_out(
        &self,
        turn: &Turn,
        now: WallTime,
        commands: &[Command],
    ) -> StoreResult<Vec<Answer>> {
        self.add_queues(turn, commands.iter().filter_map(Command::queue)).await?;
        let near = news(commands).filter(|(_, due)| *due <= now.saturating_add(NOTICE));
        let told: Vec<_> = near.map(|(queue, due)| self.notice(queue, due)).collect();
        let stopped = self.notice(None, WallTime::MIN);
        let groups = groups(commands);
        // Other single commands may wait for this one.
        let patience = if commands.len() == 1 { "5ms" } else { "100ms" };
        let (until, now) = (self.keep_until(now), now.to_system_time());
        let extra = Extra { stopped: &stopped, until, now, patience };
        let answers: Vec<_> = run!(turn, session => {
            let mut answers = vec![Answer::Settled(false); commands.len()];
            if let [group] = &groups[..] {
                // One statement needs no transaction around it, and two round trips less.
                if copy(group, session, &told).await? {
                    return Ok(vec![Answer::Scheduled(Scheduled::Created); commands.len()]);
                }
                write_group(group, session, &told, &extra, &mut answers).await?;
                return Ok(answers);
            }
            session.begin().await?;
            let result = async {
                for group in &groups {
                    write_group(group, session, &[], &extra, &mut answers).await?;
                }
                session.query(sql::NOTIFY, &[&told]).await.map(drop)
            };
            let result = result.await;
            session.end(result).await?;
            Ok(answers)
        })?;
        self.shared.listeners.tell_of(commands, &answers);
        Ok(answers)
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        let line = if commands.len() == 1 { &self.shared.single } else { &self.shared.writers };
        let commands = commands.to_vec();
        let call = move |store: Self, mut turn: Turn| async move {
            // A slow network takes a second for each MiB.
            let bytes: usize = commands.iter().map(Command::payload_bytes).sum();
            turn.limit += Duration::from_secs(bytes as u64 >> 20);
            store.carry_out(&turn, now, &commands).await
        };
        self.task(line, call).await
    }

    fn groups(&self) -> usize {
        2
    }

    async fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        let rows = self.shared.reader.query(sql::GET, values![text(id)]).await?;
        rows.first().map(read_row).transpose()
    }

    async fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        let limit = most(limit);
        let (sql, values) = match query {
            Query::Prefix { prefix, after } => {
                let after = after.as_ref().map_or_else(String::new, text);
                (sql::LIST_PREFIX, values![prefix.clone(), after, limit])
            }
            Query::Times { from, until, after } => {
                let (time, id) = start(*from, after.as_ref());
                (sql::LIST_TIMES, values![time, id, until.end().to_system_time(), limit])
            }
            Query::Dead { after } => {
                let (time, id) = start(WallTime::MIN, after.as_ref());
                (sql::LIST_DEAD, values![time, id, limit])
            }
        };
        self.read(sql, values, read_row).await
    }

    async fn count(&self) -> StoreResult<Counts> {
        let rows = self.shared.reader.query(sql::COUNT, values![]).await?;
        let count = |column| rows[0].get::<_, i64>(column).cast_unsigned();
        Ok(Counts { live: count(0), dead: count(1) })
    }

    /// The limit holds for the server too.
    async fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        limit: usize,
    ) -> StoreResult<usize> {
        let (from, until) = (from.to_system_time(), until.end().to_system_time());
        let values = values![from, until, most(limit)];
        let rows = self.shared.reader.query(sql::COUNT_LIVE, values).await?;
        Ok(usize::try_from(rows[0].get::<_, i64>(0)).unwrap_or(limit))
    }

    async fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let rows = self.shared.reader.query(sql::LEASES, values![most(limit)]).await?;
        let lease = |row: &Row| WorkerLease {
            worker: WorkerId(row.get::<_, i64>(0).cast_unsigned()),
            name: row.get(1),
            until: WallTime::now_of(row.get(2)),
            held: row.get::<_, i64>(3).cast_unsigned(),
            delivering: row.get::<_, i64>(4).cast_unsigned(),
        };
        Ok(Some(rows.iter().map(lease).collect()))
    }

    async fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> StoreResult<WorkerId> {
        self.shared.connections.leave_time_for(lease);
        let until = now.saturating_add(lease).to_system_time();
        let name = name.map(str::to_owned);
        let enter = move |store: Self, mut turn: Turn| async move {
            if name.is_some() {
                // There may be many records.
                turn.limit = (lease / 2).clamp(turn.limit, ENDLESS);
            }
            let (id, taken) = run!(turn, transaction session => {
                let named = session.query(sql::LOCK_NAMED, &[&name]).await?;
                let taken = store.take_from(session, &named).await?;
                let rows = session.query(sql::ENTER, &[&until, &name]).await?;
                Ok((rows[0].get::<_, i64>(0), taken))
            })?;
            if taken {
                store.shared.listeners.tell_all();
            }
            Ok(WorkerId(id.cast_unsigned()))
        };
        // A claim of another queue may be under way on the line of claims, for long.
        let worker = self.task(&self.shared.keeper, enter).await?;
        self.shared.connections.enter(worker.0);
        Ok(worker)
    }

    async fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        let until = now.saturating_add(lease).to_system_time();
        let half = now.saturating_add(lease / 2).to_system_time();
        let (id, now) = (worker.0.cast_signed(), now.to_system_time());
        let renew = move |store: Self, mut turn: Turn| async move {
            let (sent, known) = run!(turn, session => {
                Ok((Instant::now(), session.query(sql::RENEW, &[&id, &until, &half]).await?))
            })?;
            let Some(known) = known.first() else { return Ok(false) };
            // A worker renews its lease at once if this is a step.
            let clock = &store.shared.clock;
            clock.adjust(sent, WallTime::now_of(known.get(1)));
            if !known.get::<_, bool>(0) || clock.may_mislead(lease) {
                return Ok(true);
            }
            // The lease is renewed, and there may be many records. Others wait for this line.
            turn.limit = (lease / 2).clamp(turn.limit, ENDLESS);
            let taken = run!(turn, transaction session => {
                let lapsed = session.query(sql::LAPSED, &[&now, &id]).await?;
                store.take_from(session, &lapsed).await
            });
            // Even if the records of others are locked: the next call takes them.
            if store.end(taken).is_ok_and(|taken| taken) {
                store.shared.listeners.tell_all();
            }
            store.tidy(now);
            Ok(true)
        };
        let is_known = self.task(&self.shared.keeper, renew).await?;
        if !is_known {
            self.shared.connections.leave(worker.0);
        }
        Ok(is_known)
    }

    async fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        let id = worker.0.cast_signed();
        let leave = move |store: Self, turn: Turn| async move {
            run!(turn, transaction session => {
                // A shutdown calls once, and a claim may be under way.
                session.execute("SET LOCAL lock_timeout = 5000").await?;
                let worker = session.query(sql::LOCK_WORKER, &[&id]).await?;
                store.take_from(session, &worker).await
            })?;
            store.shared.listeners.tell_all();
            Ok(())
        };
        let left = self.task(&self.shared.worker, leave).await;
        self.shared.connections.leave(worker.0);
        left
    }

    async fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64> {
        let tokens: Vec<_> = tokens.iter().map(|token| token.cast_signed()).collect();
        let id = worker.0.cast_signed();
        let keep = move |store: Self, turn: Turn| async move {
            let freed = run!(turn, transaction session => {
                // A claim of unknown outcome ends first.
                session.query(sql::LOCK_WORKER, &[&id]).await?;
                session.query(sql::TAKE, &[&[id].as_slice(), &tokens]).await
            })?;
            if !freed.is_empty() {
                store.shared.listeners.tell_all();
            }
            Ok(freed.len() as u64)
        };
        self.task(&self.shared.keeper, keep).await
    }

    async fn claim(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> StoreResult<Option<ClaimedBatch>> {
        let id = worker.0.cast_signed();
        let is_overdue = request.until <= request.now;
        let line = if is_overdue { &self.shared.backlog } else { &self.shared.worker };
        // The claim has taken effect, whatever fails from there on.
        let unknown = |error| StoreError::with_source(StoreErrorReason::OutcomeUnknown, error);
        let request = request.clone();
        let claim = move |store: Self, turn: Turn| async move {
            let (from, until) = (request.from.to_system_time(), request.until.to_system_time());
            let (limit, bytes) = (most(request.limit), most(request.max_bytes));
            let (queue, now) = (request.queue.as_str(), request.now.to_system_time());
            let busy: Vec<_> = request.busy.iter().map(Name::as_str).collect();
            let ClaimRequest { cron, begins, paused, lapse, .. } = &request;
            let parameters: Parameters<'_> =
                &[&id, &from, &until, &limit, &bytes, cron, &queue, &busy, &now, begins, paused];
            let rows = turn.query(sql::CLAIM, parameters).await?;
            let after: Parameters<'_> = &[&id, &from, cron, &queue, &busy, lapse];
            let after = run!(turn, session => {
                Ok((Instant::now(), session.query(sql::AFTER_CLAIM, after).await?))
            });
            let (sent, after) = after.map_err(unknown)?;
            store.shared.clock.adjust(sent, WallTime::now_of(after[0].get(3)));
            Ok((rows, after))
        };
        let (rows, after) = self.task(line, claim).await?;
        let after = &after[0];
        if !after.get::<_, bool>(2) {
            return Ok(None);
        }
        let records: StoreResult<Vec<_>> = rows.iter().map(read_row).collect();
        let mut records = records.map_err(unknown)?;
        records.sort_unstable_by(Record::by_time);
        let time = |column| after.get::<_, Option<SystemTime>>(column).map(WallTime::now_of);
        Ok(Some(ClaimedBatch { records, next: time(0), lapse: time(1) }))
    }

    async fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>> {
        let now = now.to_system_time();
        let limit = key_limit.map(|limit| most(limit.get()));
        let held = claims.to_vec();
        let call = move |_, turn: Turn| async move {
            let (ids, tokens): (Vec<_>, Vec<_>) = held.iter().map(parts).unzip();
            let none = Vec::<String>::new();
            if limit.is_none() {
                return turn.query(sql::BEGIN, &[&ids, &tokens, &now, &limit, &none]).await;
            }
            run!(turn, transaction session => {
                let busy = session.query(sql::LOCK_KEYS, &[&ids]).await?;
                let busy: Vec<String> = busy.iter().map(|row| row.get(0)).collect();
                session.query(sql::BEGIN, &[&ids, &tokens, &now, &limit, &busy]).await
            })
        };
        let rows = self.task(&self.shared.starter, call).await?;
        // The worker may hold a void claim beside a valid one of the same id.
        let begun = rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2)));
        let begun: FxHashMap<(&str, i64), i32> = begun.collect();
        let answer = |claim| match begun.get(&parts(claim)) {
            Some(0) => Begun::Begun,
            Some(1) => Begun::Locked,
            Some(2) => Begun::Busy,
            Some(_) => Begun::Paused,
            None => Begun::Void,
        };
        Ok(claims.iter().map(answer).collect())
    }

    async fn are_current(&self, claims: &[Claim]) -> StoreResult<Vec<bool>> {
        let ids: Vec<_> = claims.iter().map(|claim| text(&claim.id)).collect();
        let tokens: Vec<_> = claims.iter().map(|claim| claim.token.cast_signed()).collect();
        let rows = self.shared.keeper.query(sql::CURRENT, values![ids, tokens]).await?;
        let current = rows.iter().map(|row| (row.get(0), row.get(1)));
        let current: FxHashSet<(&str, i64)> = current.collect();
        Ok(claims.iter().map(|claim| current.contains(&parts(claim))).collect())
    }

    async fn locked(&self, ids: &[&TimeoutId]) -> StoreResult<Vec<TimeoutId>> {
        let ids: Vec<_> = ids.iter().map(|id| text(id)).collect();
        let rows = self.shared.single.query(sql::LOCKED, values![ids]).await?;
        Ok(rows.iter().filter_map(|row| TimeoutId::new(row.get::<_, &str>(0)).ok()).collect())
    }

    async fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)> {
        let (interval, burst) = interval(rate);
        let later = now.saturating_add(interval);
        let micros = |time: WallTime| time.as_micros().cast_signed();
        let (first, now) = (micros(now.saturating_sub(interval * burst)), micros(now));
        let (most, step, queue) =
            (self::most(most), self::most(interval.as_micros()), queue.clone());
        let permits = move |_, turn: Turn| async move {
            let queue = queue.as_str();
            let parameters: Parameters<'_> = &[&queue, &most, &first, &now, &step];
            run!(turn, session => {
                let rows = session.query(sql::PERMITS, parameters).await?;
                if !rows.is_empty() {
                    return Ok(rows);
                }
                session.query(sql::ADD_PERMITS, &[&queue]).await?;
                session.query(sql::PERMITS, parameters).await
            })
        };
        let rows = self.task(&self.shared.starter, permits).await?;
        // Another program may have removed the row again.
        let Some(row) = rows.first() else { return Ok((0, later)) };
        let given = |column| row.get::<_, i64>(column).cast_unsigned();
        let next = WallTime::from_micros(given(1)).unwrap_or(WallTime::MAX);
        Ok((usize::try_from(given(0)).unwrap_or(0), next.saturating_add(interval)))
    }

    async fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()> {
        let queue = queue.clone();
        let pause = move |store: Self, turn: Turn| async move {
            run!(turn, transaction session => {
                session.query(sql::PAUSE, &[&queue.as_str(), &is_paused]).await?;
                let notice = store.notice(Some(&queue), WallTime::MIN);
                session.query(sql::NOTIFY, &[&[notice].as_slice()]).await
            })?;
            store.shared.listeners.tell(Some(&queue), WallTime::MIN);
            Ok(())
        };
        self.task(&self.shared.writers, pause).await
    }

    fn keep_history(&self, keep: Duration) {
        *self.shared.keep.lock() = keep;
    }

    async fn history(
        &self,
        now: WallTime,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Attempt>> {
        let (before, limit) = (before.map_or(i64::MAX, most), most(limit));
        let now = now.to_system_time();
        let (sql, values) = match id {
            None => (sql::HISTORY, values![before, now, limit]),
            Some(id) => (sql::HISTORY_OF, values![before, now, limit, text(id)]),
        };
        self.read(sql, values, read_attempt).await
    }

    async fn queues(&self) -> StoreResult<Vec<QueueState>> {
        let rows = self.shared.keeper.query(sql::QUEUES, values![]).await?;
        rows.iter().map(read_queue).collect()
    }

    async fn overview(
        &self,
        now: WallTime,
        queues: usize,
        limit: usize,
    ) -> StoreResult<Vec<QueueOverview>> {
        let values = values![now.to_system_time(), most(queues), most(limit)];
        self.read(sql::OVERVIEW, values, |row| {
            let count = |column| usize::try_from(row.get::<_, i64>(column)).unwrap_or(usize::MAX);
            Ok(QueueOverview {
                queue: read_queue(row)?,
                live: count(2),
                due: count(3),
                delivering: count(4),
                dead: count(5),
                oldest_waiting: row.get::<_, Option<SystemTime>>(6).map(WallTime::now_of),
            })
        })
        .await
    }

    fn listen(&self, notice: Notice) {
        self.shared.listeners.add(notice);
        if !self.shared.is_listening.swap(true, SeqCst) {
            let shared = Arc::downgrade(&self.shared);
            self.shared.connections.runtime.spawn(listen(shared));
        }
    }

    fn recheck(&self) -> Option<Duration> {
        Some(RECHECK)
    }

    fn spawn(&self, calls: Calls) -> Option<Calls> {
        self.shared.connections.runtime.spawn(calls);
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clock.clone()
    }
}

opaque!(PostgresStore, schema: shared.connections.schema);

fn start(from: WallTime, after: Option<&(WallTime, TimeoutId)>) -> (SystemTime, String) {
    let (time, id) = list_start(from, after);
    (time.to_system_time(), id.to_owned())
}

fn text(id: &TimeoutId) -> String {
    id.as_str().to_owned()
}

fn parts(claim: &Claim) -> (&str, i64) {
    (claim.id.as_str(), claim.token.cast_signed())
}

/// Zero is the sender of a notification by an SQL function.
fn new_sender() -> u64 {
    fastrand::u64(1..)
}

/// Passes notifications on until the store is dropped. Also follows the clock of the server: a
/// timer that only schedules makes no claims.
async fn listen(shared: Weak<Shared>) {
    let mut looks = 0;
    while let Some(store) = shared.upgrade() {
        if store.connections.are_pooled() {
            store.listeners.tell_all();
            looks += 1;
            if looks % DEAF_LOOKS == 0 {
                let sent = Instant::now();
                if let Ok(shown) = store.keeper.query(sql::NOW, values![]).await {
                    store.clock.adjust(sent, WallTime::now_of(shown[0].get(0)));
                }
            }
            drop(store);
        } else {
            let (sender, notices) = mpsc::unbounded_channel();
            let opened = store.connections.listen(sender).await;
            drop(store);
            if let Some(client) = opened {
                pass_on(&client, notices, &shared).await;
            }
        }
        sleep(LISTEN_AGAIN).await;
    }
}

/// Ends if the connection or the store is gone, or the server does not answer.
async fn pass_on(
    client: &Client,
    mut notices: UnboundedReceiver<Notification>,
    shared: &Weak<Shared>,
) -> Option<()> {
    let limit = || Some(shared.upgrade()?.connections.limit(true));
    let listen = format!("LISTEN \"{}\"", shared.upgrade()?.connections.schema);
    timeout(limit()?, client.batch_execute(&listen)).await.ok()?.ok()?;
    // Earlier notifications do not arrive.
    shared.upgrade()?.listeners.tell_all();
    let mut looked = Instant::now();
    loop {
        let next = timeout(LOOK.saturating_sub(looked.elapsed()), notices.recv()).await;
        let Ok(Some(notification)) = next else {
            // Does the server still answer?
            looked = Instant::now();
            let asked = timeout(limit()?, client.query_typed(sql::NOW, &[])).await;
            let shown = asked.ok()?.ok()?;
            shared.upgrade()?.clock.adjust(looked, WallTime::now_of(shown[0].get(0)));
            continue;
        };
        let shared = shared.upgrade()?;
        let mut parts = notification.payload().splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
        let (due, from) = (WallTime::from_micros(number()), number());
        if from != shared.sender.load(SeqCst) {
            let queue = parts.next().and_then(|name| Name::new(name).ok());
            shared.listeners.tell(queue.as_ref(), due.unwrap_or(WallTime::MIN));
        }
    }
}

fn open(parameters: &str, schema: &str, connect: Connect) -> StoreResult<Arc<Connections>> {
    check_name(schema)?;
    let config: Config = parameters.parse().map_err(unavailable)?;
    Connections::open(config, connect, schema)
}

fn check_name(schema: &str) -> StoreResult<()> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_name = schema.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    if !is_name || schema.starts_with("pg_") || schema.len() > 48 || !schema.bytes().all(is_plain) {
        let message = format!("{schema:?} is not a plain name of a schema");
        return Err(StoreError::with_source(StoreErrorReason::Other, message));
    }
    Ok(())
}

/// Checks the database, and that its tables are not newer. Returns their version.
async fn check(turn: &Turn) -> StoreResult<i32> {
    turn.connections.probe().await?;
    let encoding = "SELECT current_setting('server_encoding')";
    let rows = turn.query(encoding, &[]).await?;
    let encoding: &str = rows[0].get(0);
    if encoding != "UTF8" {
        let message = format!("the database has the encoding {encoding}, and must have UTF8");
        return Err(StoreError::with_source(StoreErrorReason::Other, message));
    }
    let schema = &turn.connections.schema;
    let (version, compatible) = run!(turn, session => version(session, schema).await)?;
    if compatible > NEWEST {
        return Err(StoreError::new(StoreErrorReason::NewerVersion));
    }
    Ok(version)
}

/// Returns the version of the tables, and the least one whose programs work with it.
async fn version(session: &mut Session, schema: &str) -> Result<(i32, i32), Error> {
    // Another process may have made the tables since this transaction began. A query of the catalog
    // sees that, and `to_regclass` does not.
    let tables = "SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'version'";
    if session.query(tables, &[&schema]).await?.is_empty() {
        return Ok((0, 0));
    }
    let sql = "SELECT version, compatible FROM {schema}.version ORDER BY version DESC LIMIT 1";
    let rows = session.query(sql, &[]).await?;
    Ok(rows.first().map_or((0, 0), |row| (row.get(0), row.get(1))))
}

async fn migrate(turn: &Turn) -> StoreResult<()> {
    let schema = &turn.connections.schema;
    let migrations = PostgresStore::migrations(schema)?;
    run!(turn, transaction session => {
        // One process at a time; the others wait until it is done.
        let lock = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0;
            SELECT pg_advisory_xact_lock(7205759403792793600)";
        session.execute(lock).await?;
        let known = usize::try_from(version(session, schema).await?.0).unwrap_or(0);
        for migration in migrations.iter().skip(known) {
            session.execute(migration).await?;
        }
        Ok(())
    })
}

/// Commands in the order of their ids, with their numbers.
type Group<'a> = Vec<(usize, &'a Command)>;

/// Returns groups in which every id occurs once, so that one statement carries out each of them.
fn groups(commands: &[Command]) -> Vec<Group<'_>> {
    let (mut groups, mut ids) = (vec![Vec::new()], FxHashSet::default());
    for (number, command) in commands.iter().enumerate() {
        if !ids.insert(command.id()) {
            ids.clear();
            ids.insert(command.id());
            groups.push(Vec::new());
        }
        groups.last_mut().expect("one at least").push((number, command));
    }
    for group in &mut groups {
        group.sort_unstable_by_key(|(_, command)| command.id());
    }
    groups
}

/// Adds many new timeouts at once by COPY, which is much faster than INSERT and knows no conflicts.
/// Returns `false` if other commands are among them, or an id is scheduled already.
async fn copy(group: &Group<'_>, session: &mut Session, told: &[String]) -> Result<bool, Error> {
    let is_schedule = |(_, command): &(usize, &Command)| matches!(command, Command::Schedule(_));
    let is_alone = told.is_empty() && session.commits_alone();
    let least = if is_alone { COPIED_ALONE } else { COPIED };
    if group.len() < least || !group.iter().all(is_schedule) || !session.may_copy() {
        return Ok(false);
    }
    let columns = Columns::of(group);
    let copied = if is_alone {
        columns.copy(session).await
    } else {
        session.begin().await?;
        let mut copied = columns.copy(session).await;
        if copied.is_ok() && !told.is_empty() {
            copied = session.query(sql::NOTIFY, &[&told]).await.map(drop);
        }
        session.end(copied).await
    };
    match copied {
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            session.avoid_copies();
            Ok(false)
        }
        copied => copied.map(|()| true),
    }
}

struct Extra<'a> {
    /// The notification that a delivery has become void.
    stopped: &'a str,
    /// Until when the history has the attempts.
    until: Option<SystemTime>,
    now: SystemTime,
    /// How long to wait for a lock.
    patience: &'a str,
}

async fn write_group(
    group: &Group<'_>,
    session: &mut Session,
    told: &[String],
    extra: &Extra<'_>,
    answers: &mut [Answer],
) -> Result<(), Error> {
    let columns = Columns::of(group);
    let Columns { kinds, ids, tokens, times, repeats, payloads, errors, .. } = &columns;
    let Columns { queues, priorities, keys, .. } = &columns;
    let Extra { stopped, until, now, patience } = extra;
    let parameters: Parameters<'_> = &[
        kinds, ids, tokens, times, repeats, payloads, errors, &told, queues, priorities, keys,
        stopped, until, now, patience,
    ];
    let is_done =
        |(_, command): &(usize, &Command)| matches!(command, Command::Settle(_, Settlement::Done));
    let rows = if until.is_none() && group.iter().all(is_done) {
        session.query(sql::DONE, &[ids, tokens, patience]).await?
    } else {
        session.query(sql::WRITE, parameters).await?
    };
    let found: FxHashMap<&str, i16> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for &(number, command) in group {
        let found = found.get(command.id().as_str());
        answers[number] = match command {
            Command::Schedule(_) => Answer::Scheduled(match found {
                None => Scheduled::Kept,
                Some(1) => Scheduled::Replaced,
                Some(2) => Scheduled::ReplacedDelivering,
                Some(4) => Scheduled::KeptDead,
                Some(_) => Scheduled::Created,
            }),
            Command::Cancel(_) | Command::Purge(_) => Answer::Cancelled(match found {
                None => Cancelled::NotFound,
                Some(0) => Cancelled::Cancelled,
                Some(_) => Cancelled::Delivering,
            }),
            Command::Reschedule(..) => Answer::Rescheduled(match found {
                None => Rescheduled::NotFound,
                Some(0) => Rescheduled::Rescheduled,
                Some(_) => Rescheduled::Delivering,
            }),
            Command::Requeue(..) => Answer::Requeued(found.is_some()),
            Command::Settle(..) => Answer::Settled(found.is_some()),
        };
    }
    Ok(())
}

#[derive(Default)]
struct Columns<'a> {
    kinds: Vec<i16>,
    ids: Vec<&'a str>,
    tokens: Vec<Option<i64>>,
    times: Vec<Option<SystemTime>>,
    repeats: Vec<Option<String>>,
    payloads: Vec<Option<&'a [u8]>>,
    errors: Vec<Option<&'a str>>,
    queues: Vec<&'a str>,
    priorities: Vec<i16>,
    keys: Vec<Option<&'a str>>,
}

/// What the statements of a group and the function `schedule` take for a conflict policy.
fn kind_of(new: &NewTimeout) -> i16 {
    match new.conflict {
        Conflict::Replace => 0,
        Conflict::Refuse | Conflict::Keep => 1,
        Conflict::ReplaceChanged => -1,
    }
}

impl<'a> Columns<'a> {
    fn of(group: &Group<'a>) -> Self {
        let mut columns = Self::default();
        for &(_, command) in group {
            let (kind, time, error) = match command {
                Command::Schedule(new) => (kind_of(new), Some(new.due), None),
                Command::Cancel(_) => (2, None, None),
                Command::Settle(_, Settlement::Done) => (3, None, None),
                Command::Reschedule(_, due) => (4, Some(*due), None),
                Command::Requeue(_, due) => (5, Some(*due), None),
                Command::Settle(_, Settlement::Retry { at, error }) => (6, Some(*at), Some(error)),
                Command::Settle(_, Settlement::Dead { error }) => (7, None, Some(error)),
                Command::Settle(_, Settlement::Again(due)) => (8, Some(*due), None),
                Command::Settle(_, Settlement::Release) => (9, None, None),
                Command::Settle(_, Settlement::Leave { at, error }) => (10, Some(*at), Some(error)),
                Command::Purge(_) => (11, None, None),
            };
            let (new, claim) = match command {
                Command::Schedule(new) => (Some(new), None),
                Command::Settle(claim, _) => (None, Some(claim)),
                _ => (None, None),
            };
            columns.kinds.push(kind);
            columns.ids.push(command.id().as_str());
            columns.tokens.push(claim.map(|claim| claim.token.cast_signed()));
            columns.times.push(time.map(WallTime::to_system_time));
            columns.repeats.push(new.and_then(|new| Some(new.repeat.as_ref()?.to_text())));
            columns.payloads.push(new.map(|new| &*new.payload));
            columns.errors.push(error.map(String::as_str));
            columns.queues.push(new.map_or("", |new| new.queue.as_str()));
            columns.priorities.push(new.map_or(1, |new| new.priority as i16));
            columns.keys.push(new.and_then(|new| Some(new.key.as_ref()?.as_str())));
        }
        columns
    }

    /// Adds the timeouts; fails if an id is scheduled already.
    async fn copy(&self, session: &mut Session) -> Result<(), Error> {
        let times = [Type::TIMESTAMPTZ, Type::TIMESTAMPTZ];
        let types = [
            &[Type::TEXT],
            &times[..],
            &[Type::TEXT, Type::BYTEA],
            &[Type::TEXT, Type::INT2, Type::TEXT],
        ]
        .concat();
        let mut writer = pin!(session.copy_in(sql::COPY, &types).await?);
        for (index, id) in self.ids.iter().enumerate() {
            let (time, repeat) = (&self.times[index], &self.repeats[index]);
            let (queue, priority) = (&self.queues[index], &self.priorities[index]);
            let (payload, key) = (&self.payloads[index], &self.keys[index]);
            let row: Parameters<'_> = &[id, time, time, repeat, payload, queue, priority, key];
            session.expect_answer();
            writer.as_mut().write(row).await?;
        }
        session.expect_answer();
        writer.finish().await.map(drop)
    }
}

fn damaged(what: &'static str) -> StoreError {
    StoreError::with_source(StoreErrorReason::Corrupt, what)
}

fn read_name(name: &str) -> StoreResult<Name> {
    Name::new(name).map_err(|_| damaged("name"))
}

fn read_queue(row: &Row) -> StoreResult<QueueState> {
    Ok(QueueState { name: read_name(row.get(0))?, is_paused: row.get(1) })
}

fn read_attempt(row: &Row) -> StoreResult<Attempt> {
    Ok(Attempt {
        number: row.get::<_, i64>(0).cast_unsigned(),
        id: TimeoutId::new(row.get::<_, &str>(1)).map_err(|_| damaged("id"))?,
        queue: read_name(row.get(2))?,
        due: WallTime::now_of(row.get(3)),
        attempt: row.get::<_, i32>(4).cast_unsigned(),
        ended: WallTime::now_of(row.get(5)),
        end: AttemptEnd::ALL[usize::from(row.get::<_, i16>(6).cast_unsigned().min(2))],
        error: row.get(7),
    })
}

fn read_row(row: &Row) -> StoreResult<Record> {
    let repeat = match row.get::<_, Option<&str>>(7) {
        None => None,
        Some(text) => Some(Repeat::from_text(text).ok_or_else(|| damaged("unknown rule"))?),
    };
    let state = match (row.get::<_, i16>(5), row.get::<_, bool>(6)) {
        (3, _) => State::Dead,
        (0, _) => State::Pending,
        (_, false) => State::Claimed,
        (_, true) => State::Delivering,
    };
    Ok(Record {
        id: TimeoutId::new(row.get::<_, &str>(0)).map_err(|_| damaged("id"))?,
        due: WallTime::now_of(row.get(1)),
        next: WallTime::now_of(row.get(2)),
        payload: row.get::<_, &[u8]>(9).into(),
        repeat,
        queue: read_name(row.get(10))?,
        priority: Priority::ALL[usize::from(row.get::<_, i16>(11).cast_unsigned().min(2))],
        key: row.get::<_, Option<&str>>(12).map(read_name).transpose()?,
        attempt: row.get::<_, i32>(4).cast_unsigned(),
        state,
        token: row.get::<_, i64>(3).cast_unsigned(),
        error: row.get(8),
    })
}
