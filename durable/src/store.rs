//! Stores: a small trait, and the commands that change records.
//!
//! The trait is asynchronous, for stores behind a network. Time is an argument: a store reads no
//! clock, so that tests and simulations run in virtual time.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroUsize},
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use delaywheel::{Clock, SystemClock};
use parking_lot::Mutex;

use crate::{
    error::StoreResult,
    record::{Attempt, Claim, Name, Priority, Record, TimeoutId},
    repeat::Repeat,
    time::WallTime,
};

/// What to do if the id is scheduled already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Conflict {
    /// Replaces the old timeout.
    #[default]
    Replace,
    /// Fails with [`DurableError::Exists`](crate::DurableError::Exists).
    Refuse,
    /// Keeps the old timeout and drops the new one.
    Keep,
    /// Keeps the old timeout, and its time, if it differs from the new one only in that or is dead.
    /// Otherwise replaces it.
    ReplaceChanged,
}

/// A timeout to be scheduled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTimeout {
    /// Name of the timeout.
    pub id: TimeoutId,
    /// When it is due.
    pub due: WallTime,
    /// Bytes for the handler.
    pub payload: Arc<[u8]>,
    /// Rule by which it recurs.
    pub repeat: Option<Repeat>,
    /// What to do if the id is scheduled already.
    pub conflict: Conflict,
    /// Queue, whose handler gets it.
    pub queue: Name,
    /// Which timeouts of the queue go first.
    pub priority: Priority,
    /// Group within the queue, of which a limited number of deliveries run at once.
    pub key: Option<Name>,
}

/// A change of one record. A store applies it in whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Adds a timeout. Answer: [`Answer::Scheduled`].
    Schedule(NewTimeout),
    /// Removes a timeout in any state. Answer: [`Answer::Cancelled`].
    Cancel(TimeoutId),
    /// Moves a pending or claimed timeout. Answer: [`Answer::Rescheduled`].
    Reschedule(TimeoutId, WallTime),
    /// Makes a dead timeout pending, and sets its number of attempts to 0. Changes nothing if the
    /// record is a mark that [`Sharded`](crate::Sharded) has moved the timeout. Answer:
    /// [`Answer::Requeued`].
    Requeue(TimeoutId, WallTime),
    /// Removes a timeout if it is dead and its record is not such a mark. Answer:
    /// [`Answer::Cancelled`].
    Purge(TimeoutId),
    /// Ends a delivery. Answer: [`Answer::Settled`]. Changes nothing if the claim is void.
    Settle(Claim, Settlement),
}

impl Command {
    /// Returns the id of the record.
    #[must_use]
    pub fn id(&self) -> &TimeoutId {
        match self {
            Self::Schedule(new) => &new.id,
            Self::Cancel(id) | Self::Reschedule(id, _) | Self::Requeue(id, _) | Self::Purge(id) => {
                id
            }
            Self::Settle(claim, _) => &claim.id,
        }
    }

    /// Returns the queue, if the command tells it.
    pub(crate) fn queue(&self) -> Option<&Name> {
        match self {
            Self::Schedule(new) => Some(&new.queue),
            _ => None,
        }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Self::Schedule(new) => new.payload.len(),
            _ => 0,
        }
    }

    /// Returns the time at which the command makes the record due, if it does; [`WallTime::MIN`] if
    /// only the record tells.
    #[must_use]
    pub fn due(&self) -> Option<WallTime> {
        match self {
            Self::Schedule(new) => Some(new.due),
            Self::Reschedule(_, due)
            | Self::Requeue(_, due)
            | Self::Settle(
                _,
                Settlement::Retry { at: due, .. }
                | Settlement::Leave { at: due, .. }
                | Settlement::Again(due),
            ) => Some(*due),
            // The time is that of the record.
            Self::Settle(_, Settlement::Release) => Some(WallTime::MIN),
            Self::Cancel(_) | Self::Purge(_) | Self::Settle(..) => None,
        }
    }
}

/// Returns the earliest time at which commands make a record due, and the queue if all are for one:
/// first of the commands whose time only the record has, and then of the others.
pub(crate) fn news(commands: &[Command]) -> impl Iterator<Item = (Option<&Name>, WallTime)> {
    let dues = commands.iter().filter_map(|command| Some((command.queue(), command.due()?)));
    [false, true].into_iter().filter_map(move |is_known| {
        dues.clone()
            .filter(|(_, due)| (*due > WallTime::MIN) == is_known)
            .reduce(|(queue, due), (other, time)| (queue.filter(|_| queue == other), due.min(time)))
    })
}

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The timeout is done; its record is removed.
    Done,
    /// The attempt failed; the next one is at this time.
    Retry {
        /// Time of the next attempt, but not before the due time, or before that of a requeue if
        /// it is earlier.
        at: WallTime,
        /// Why it failed.
        error: String,
    },
    /// The last attempt failed; the record is kept as dead.
    Dead {
        /// Why it failed.
        error: String,
    },
    /// This occurrence of a recurring timeout is over; the next one is due at this time.
    Again(WallTime),
    /// The worker gives the claim back: the record is pending as it was before.
    Release,
    /// The worker leaves the record to others, which may claim it from this time on. This was no
    /// attempt.
    Leave {
        /// When it can be claimed, as for a retry.
        at: WallTime,
        /// Why it cannot be delivered here.
        error: String,
    },
}

/// Answer to [`Command::Schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheduled {
    /// The id was not scheduled.
    Created,
    /// The new timeout replaced one whose delivery had not begun. That one is never delivered.
    Replaced,
    /// The new timeout replaced one whose delivery was under way. It is not attempted again.
    ReplacedDelivering,
    /// The id was scheduled already. Nothing was changed.
    Kept,
    /// The id has a dead timeout, which waits for a requeue or cancel. Nothing was changed.
    KeptDead,
}

/// Answer to [`Command::Cancel`] and [`Command::Purge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cancelled {
    /// The timeout was removed, and no delivery begins any more.
    Cancelled,
    /// The timeout was removed while a delivery was under way. It is not attempted again.
    Delivering,
    /// There is no such timeout: it was never scheduled, was acknowledged, or was cancelled.
    NotFound,
}

/// Answer to [`Command::Reschedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rescheduled {
    /// The timeout is due at the new time. No delivery begins before that.
    Rescheduled,
    /// A delivery is under way. Nothing was changed.
    Delivering,
    /// There is no such timeout, or it is dead. Nothing was changed.
    NotFound,
}

/// Answer to a [`Command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To a schedule.
    Scheduled(Scheduled),
    /// To a cancel or a purge.
    Cancelled(Cancelled),
    /// To a reschedule.
    Rescheduled(Rescheduled),
    /// To a requeue: whether the timeout was dead.
    Requeued(bool),
    /// To a settlement: whether the claim was valid.
    Settled(bool),
}

impl Answer {
    /// Returns whether a delivery under way has become void.
    pub(crate) fn stops(self) -> bool {
        let stopped = [
            Self::Cancelled(Cancelled::Delivering),
            Self::Scheduled(Scheduled::ReplacedDelivering),
        ];
        stopped.contains(&self)
    }
}

/// A worker's name in its store. A worker that lost its lease needs a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u64);

/// A worker and its lease, as a store knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    /// The worker.
    pub worker: WorkerId,
    /// Name of the worker, if it has one.
    pub name: Option<String>,
    /// End of the lease.
    pub until: WallTime,
    /// Number of records that it has claimed.
    pub held: u64,
    /// Number of these whose delivery is under way.
    pub delivering: u64,
}

/// Request for records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub struct ClaimRequest {
    /// Present time.
    pub now: WallTime,
    /// Least time of the next attempt.
    pub from: WallTime,
    /// Time of the next attempt at which the window ends; it is not part of the window.
    pub until: WallTime,
    /// Most records.
    pub limit: usize,
    /// Bytes of payload after which no further record is claimed.
    pub max_bytes: usize,
    /// Whether records with a cron expression are claimed: some worker lacks the time zones.
    /// Without the feature `cron`, `SqliteStore` claims them anyway: no other process could.
    pub cron: bool,
    /// Queue of the records.
    pub queue: Name,
    /// Keys whose records are passed over.
    pub busy: Vec<Name>,
    /// Whether the claim also begins deliveries: those of records that are due, were never
    /// attempted, do not recur and have no key. Others are only claimed.
    pub begins: bool,
    /// Whether the answer must tell when a lease ends.
    pub lapse: bool,
    /// Whether records of a paused queue are claimed as well. Their deliveries do not begin.
    pub paused: bool,
}

impl ClaimRequest {
    /// Requests all records of the default queue whose next attempt is before a time.
    #[must_use]
    pub fn new(now: WallTime, until: WallTime) -> Self {
        let (limit, max_bytes) = (usize::MAX, usize::MAX);
        let (from, queue, busy) = (WallTime::MIN, Name::default(), Vec::new());
        let (cron, begins, lapse, paused) = (true, false, true, false);
        Self { now, from, until, limit, max_bytes, cron, queue, busy, begins, lapse, paused }
    }
}

/// Records that were claimed, and when to claim again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedBatch {
    /// Records, in the order of their next attempt.
    pub records: Vec<Record>,
    /// Least time at or after `from` at which a record of the queue that is not passed over is
    /// pending still; `None` if the queue is paused.
    pub next: Option<WallTime>,
    /// Least time at which the lease of another worker that holds records ends, if the request asks
    /// for it.
    pub lapse: Option<WallTime>,
}

/// Answer to [`Store::begin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Begun {
    /// The delivery may proceed.
    Begun,
    /// The claim is void.
    Void,
    /// Another transaction has locked the record. Nothing was changed.
    Locked,
    /// As many deliveries of its key are under way as may run at once. Nothing was changed.
    Busy,
    /// Its queue is paused. Nothing was changed.
    Paused,
}

/// Records for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Query {
    /// Records that are not dead whose next attempt lies in a range of time, ordered by time and
    /// id. The end is not included, unless it is [`WallTime::MAX`]. The cursor names the last
    /// record of the page before.
    Times {
        /// Start of the range.
        from: WallTime,
        /// End of the range.
        until: WallTime,
        /// Last record of the page before.
        after: Option<(WallTime, TimeoutId)>,
    },
    /// Records whose id has a prefix, ordered by id. The cursor names the last of the page before.
    Prefix {
        /// Prefix; the empty one fits every id.
        prefix: String,
        /// Last id of the page before.
        after: Option<TimeoutId>,
    },
    /// Dead records, ordered by time and id.
    Dead {
        /// Last record of the page before.
        after: Option<(WallTime, TimeoutId)>,
    },
}

impl Query {
    /// Continues the list after the last record of the page before, by the time of its next attempt
    /// and its id.
    pub fn continue_after(&mut self, next: WallTime, id: TimeoutId) {
        match self {
            Self::Times { after, .. } | Self::Dead { after } => *after = Some((next, id)),
            Self::Prefix { after, .. } => *after = Some(id),
        }
    }
}

/// Returns the place after which a list continues. The empty string is before every id.
pub(crate) fn list_start(
    from: WallTime,
    after: Option<&(WallTime, TimeoutId)>,
) -> (WallTime, &str) {
    after.map_or((from, ""), |(time, id)| (*time, id.as_str())).max((from, ""))
}

/// Returns a number that may be too large for a database.
pub(crate) fn most(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Numbers of records in a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Pending, claimed, or being delivered.
    pub live: u64,
    /// Dead.
    pub dead: u64,
}

/// A queue of a store: the default one, or one that had a timeout or a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueState {
    /// Name of the queue.
    pub name: Name,
    /// No delivery of it begins.
    pub is_paused: bool,
}

/// A queue with bounded counts. A count that equals the limit means "at least".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOverview {
    /// Name and state of the queue.
    pub queue: QueueState,
    /// Records that are not dead.
    pub live: usize,
    /// Live records that are due.
    pub due: usize,
    /// Live records whose delivery is under way.
    pub delivering: usize,
    /// Dead records.
    pub dead: usize,
    /// Next attempt of the oldest record that is due and whose delivery has not begun.
    pub oldest_waiting: Option<WallTime>,
}

/// Called with a time at which a new or changed record is due, and its queue if that is known; with
/// [`WallTime::MIN`], after records of any time have become pending again or deliveries void. Must
/// not block. A store forgets those that are gone.
pub type Notice = Weak<dyn Fn(Option<&Name>, WallTime) + Send + Sync>;

/// Calls of a store for a task, which [`Store::spawn`] runs.
pub type Calls = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the time between permits, rounded up to keep to the rate, and how many are kept.
pub(crate) fn interval(rate: NonZeroU32) -> (Duration, u32) {
    let micros = 1_000_000_u64.div_ceil(u64::from(rate.get()));
    (Duration::from_micros(micros), (rate.get() / 10).max(1))
}

#[derive(Default)]
pub(crate) struct Listeners(pub(crate) Mutex<Vec<Notice>>);

impl Listeners {
    pub(crate) fn add(&self, notice: Notice) {
        let mut listeners = self.0.lock();
        listeners.retain(|old| old.strong_count() > 0);
        listeners.push(notice);
    }

    pub(crate) fn tell_all(&self) {
        self.tell(None, WallTime::MIN);
    }

    pub(crate) fn tell(&self, queue: Option<&Name>, due: WallTime) {
        let listeners = self.0.lock().clone();
        for notice in listeners.iter().filter_map(Weak::upgrade) {
            notice(queue, due);
        }
    }

    /// Tells of the earliest time at which commands made a record due, and that a delivery under
    /// way was cancelled.
    pub(crate) fn tell_of(&self, commands: &[Command], answers: &[Answer]) {
        if answers.iter().copied().any(Answer::stops) {
            self.tell_all();
        }
        news(commands).for_each(|(queue, due)| self.tell(queue, due));
    }
}

/// A place that keeps records safe.
///
/// Its methods may be called from several threads at once. Each is atomic: it takes effect in one
/// moment between the first poll of its future and the last one, or fails and has changed nothing.
/// The exceptions are [`OutcomeUnknown`](crate::StoreErrorReason::OutcomeUnknown), which a timer
/// also takes a panic for, and a future that is dropped before its end. One that is not polled must
/// delay no other call.
///
/// A timer polls each future on a thread of its own, which has no runtime and which the future may
/// block, or by [`spawn`](Self::spawn). In virtual time it does so on the thread of the caller. So
/// a store that needs a runtime brings it, as `PostgresStore` does. Tasks may await the futures of
/// a store that does not block, and those of any store by the methods of
/// [`DurableTimer`](crate::DurableTimer).
///
/// The methods are those of the crate `async-trait`, whose macro this crate exports.
/// [`conformance`](crate::conformance) checks an implementation.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Applies commands in order, in one transaction, and returns their answers in this order. On
    /// return, the changes are durable.
    async fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>>;

    /// Returns how many calls of [`write`](Self::write) the store can carry out at once. If there
    /// are two or more, a timer makes two while many commands wait. By default one.
    fn groups(&self) -> usize {
        1
    }

    /// Returns a record.
    async fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>>;

    /// Returns at most `limit` records of a list. A store may read a long one in parts: a record
    /// that moves meanwhile may be missing, or be there twice.
    async fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>>;

    /// Returns the numbers of records.
    async fn count(&self) -> StoreResult<Counts>;

    /// Returns the number of live records whose next attempt lies in a range of time, as in
    /// [`Query::Times`]; `limit` if there are more. The default reads them.
    async fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        limit: usize,
    ) -> StoreResult<usize> {
        Ok(self.list(&Query::Times { from, until, after: None }, limit).await?.len())
    }

    /// Returns at most `limit` workers; `None` if the store cannot tell, which is the default.
    async fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let _ = limit;
        Ok(None)
    }

    /// Registers a worker with a lease until `now + lease`. A worker with a name takes over the
    /// records of an earlier one of this name, whose claims become void.
    async fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> StoreResult<WorkerId>;

    /// Extends the lease of a worker to `now + lease`, and takes the records of workers whose lease
    /// ended before `now` from them. If less than half of `lease` was left, it takes nothing: what
    /// made this call late may have stopped the others as well. Returns `false` if the worker had
    /// lost its lease.
    async fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool>;

    /// Removes a worker. Its claims become void, and its records pending.
    async fn leave(&self, worker: WorkerId) -> StoreResult<()>;

    /// Makes the records of a worker pending whose tokens are not among these, and returns their
    /// number. The worker has no claim under way. Those that others have locked may stay. A timer
    /// calls this each minute if other processes share the store.
    async fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64>;

    /// Claims pending records of a queue and a window, and gives each a new token: first those that
    /// are due, in the order of priority and time, and then the earliest others. None if the queue
    /// is paused, unless the request asks for them. `None` if the worker has lost its lease.
    async fn claim(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> StoreResult<Option<ClaimedBatch>>;

    /// Begins the deliveries of claimed records that are due at `now`, and counts an attempt for
    /// each that may proceed. Of each queue and key, at most `key_limit` deliveries of all workers
    /// are under way at once.
    async fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>>;

    /// Returns for each claim whether it is still valid. A timer asks for the deliveries under way
    /// when it renews its lease, and after a notice without a queue and time.
    async fn are_current(&self, claims: &[Claim]) -> StoreResult<Vec<bool>>;

    /// Returns which of these records other transactions have locked at this moment. A timer asks
    /// if a commit failed because of a lock, and before it tries the rest of it again. It writes
    /// the other commands first. By default none.
    async fn locked(&self, ids: &[&TimeoutId]) -> StoreResult<Vec<TimeoutId>> {
        let _ = ids;
        Ok(Vec::new())
    }

    /// Takes at most `most` permits to begin deliveries of a queue, which all workers share.
    /// Returns their number, and when there is another one. There are `rate` in a second, and those
    /// of the latest tenth of a second are kept. A crash may give these out again.
    async fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)>;

    /// Pauses a queue, or resumes it. While it is paused, no delivery of it begins.
    async fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()>;

    /// Keeps attempts that end from now on for a time; zero keeps none. Transactions that add
    /// attempts remove old ones, and no more than 16 or twice as many as they add.
    fn keep_history(&self, keep: Duration);

    /// Returns at most `limit` attempts of one or all timeouts with a number less than `before`,
    /// the latest first. Those that were kept for their time at `now` are not among them.
    async fn history(
        &self,
        now: WallTime,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Attempt>>;

    /// Returns the queues, in the order of their names.
    async fn queues(&self) -> StoreResult<Vec<QueueState>>;

    /// Returns the first queues by name, at most `queues`, with counts of their records at `now`.
    /// No count exceeds `limit`, which is at least 1.
    async fn overview(
        &self,
        now: WallTime,
        queues: usize,
        limit: usize,
    ) -> StoreResult<Vec<QueueOverview>>;

    /// Asks the store to call `notice` while it lives, under no lock, after a change that makes a
    /// record due, resumes a queue, or voids a delivery under way. A timer hears of its own changes
    /// in no other way: a store tells of a change of this process before its call returns, also if
    /// the outcome is unknown. It may drop notices of other processes: see
    /// [`recheck`](Self::recheck).
    fn listen(&self, notice: Notice);

    /// Returns how often a worker must look for new records without a notice; `None` if no other
    /// process can add one.
    fn recheck(&self) -> Option<Duration> {
        None
    }

    /// Runs reads of a timer at once, if the futures of the store do not block, or returns them,
    /// which is the default. A thread of the timer runs those one after the other. Must not block.
    fn spawn(&self, calls: Calls) -> Option<Calls> {
        Some(calls)
    }

    /// Returns the clock by whose [`system_time`](Clock::system_time) all workers of the store
    /// agree. By default that of the system. One that steps when that does not reports it by
    /// [`watch`](Clock::watch).
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Returns the present time of [`clock`](Self::clock).
    fn now(&self) -> WallTime {
        WallTime::now(&*self.clock())
    }
}
