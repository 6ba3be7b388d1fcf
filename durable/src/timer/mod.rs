//! The durable timer: the next minutes in a wheel, everything in a store.

mod builder;
mod commit;
mod core;
mod delivery;
pub(crate) mod driver;
mod executor;
#[cfg(feature = "metrics")]
mod gauges;
mod held;
mod policy;
pub(crate) mod stats;

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use pollster::block_on;

#[cfg(feature = "tracing")]
pub(crate) use self::executor::run_contained;
pub use self::{
    builder::{DeliveryFuture, DurableTimerBuilder, Queue},
    delivery::{Delivery, StopToken},
    policy::Backoff,
    stats::{DurableStats, Latency},
};
pub(crate) use self::{
    commit::LOCKED,
    executor::{CallThread, contained},
};
use self::{
    commit::{Caller, Job, Reply},
    core::Core,
};
use crate::{
    error::{DurableError, InputError, StoreError, StoreErrorReason, StoreResult},
    record::{Attempt, MAX_PAYLOAD, Name, Priority, Record, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Calls, Cancelled, Command, Conflict, Counts, NewTimeout, Query, QueueState,
        Rescheduled, Scheduled, Store,
    },
    time::{WallTime, When},
};

/// A timer whose timeouts survive the process.
///
/// Clones are the same timer, which shuts down when the last is dropped. A handler that owns a
/// clone keeps the timer until it is shut down.
///
/// On a store that blocks, such as `SqliteStore`, reads take turns on one thread of the timer, so a
/// slow one delays the others.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel_durable::{
///     Backoff, Cancelled, DurableTimer, ManualClock, SqliteStore, Scheduled,
/// };
///
/// let clock = ManualClock::new();
/// let (sender, received) = std::sync::mpsc::channel();
/// let timer = DurableTimer::builder(SqliteStore::in_memory())
///     .clock(clock.clone())
///     .backoff(Backoff::new(Duration::from_secs(5)).attempts(3))
///     .build_blocking(move |delivery| Ok(sender.send(delivery.id().to_string())?))?;
///
/// let month = Duration::from_secs(30 * 86_400);
/// assert_eq!(timer.schedule("trial/16", month, b"ends").wait()?, Scheduled::Created);
/// clock.advance(month - Duration::from_micros(1));
/// assert!(received.try_recv().is_err());
/// clock.advance(Duration::from_micros(1));
/// assert_eq!(received.try_recv()?, "trial/16");
///
/// timer.schedule("trial/17", month, b"ends").wait()?;
/// assert_eq!(timer.cancel("trial/17").wait()?, Cancelled::Cancelled);
/// assert_eq!(timer.cancel("trial/17").wait()?, Cancelled::NotFound);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DurableTimer {
    core: Arc<Core>,
    /// `None` in a call under way, which does not keep the timer from its end.
    owner: Option<Arc<Owner>>,
}

#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    /// Not in the core, which a question under way keeps alive: the drop of the last handle drops
    /// the receipt, and so stops the question.
    #[cfg(feature = "metrics")]
    queues: parking_lot::Mutex<gauges::QueueGauges>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.shut_down();
    }
}

/// The answer to a call that is under way: a future, for which a thread can also wait.
///
/// A change is carried out even if the receipt is dropped. A read is then left out, or stopped at
/// its next poll. A call under way keeps the store open, and not the timer. A poll does not block.
/// In virtual time, the method that returns the receipt makes the call, and blocks.
#[derive(Debug)]
#[must_use = "the call has succeeded once the receipt says so"]
pub struct Receipt<T> {
    answer: oneshot::Receiver<Result<T, DurableError>>,
    /// Reads see the end of it.
    _gone: Option<oneshot::Sender<()>>,
}

/// Reads the answers to commands; `None` if they are to others.
pub(crate) type Read<T> = fn(&[Answer]) -> Option<Result<T, DurableError>>;

impl<T> Receipt<T> {
    /// Returns a receipt for calls, and a future that makes them. It stops reads of which the
    /// receipt is gone.
    pub(crate) fn of(
        calls: impl Future<Output = Result<T, DurableError>> + Send + 'static,
        are_reads: bool,
    ) -> (Self, Calls)
    where
        T: Send + Sync + 'static,
    {
        let (sender, answer) = oneshot::channel();
        let (receipt, gone) = oneshot::channel();
        let calls = async move {
            let read = async {
                let (mut gone, mut calls) = (pin!(gone), pin!(calls));
                poll_fn(|context| {
                    // A drop of the receipt wakes the task.
                    if are_reads && gone.as_mut().poll(context).is_ready() {
                        return Poll::Ready(Err(DurableError::ShutDown));
                    }
                    calls.as_mut().poll(context)
                })
                .await
            };
            // This drops the calls: whoever gets the answer may open the store again.
            let answer = contained(read).await;
            // The caller may have gone.
            let _ = sender.send(answer);
        };
        (Self { answer, _gone: Some(receipt) }, Box::pin(calls))
    }

    fn reading(how: Read<T>) -> (Self, Caller)
    where
        T: Send + 'static,
    {
        let (sender, answer) = oneshot::channel();
        let tell = move |answers: StoreResult<&[Answer]>| {
            let answer = answers.map_err(Into::into).and_then(|answers| read(how, answers));
            // The caller may have gone.
            let _ = sender.send(answer);
        };
        (Self { answer, _gone: None }, Box::new(tell))
    }

    pub(crate) fn failed(error: DurableError) -> Self {
        let (sender, answer) = oneshot::channel();
        // The receiver is there.
        let _ = sender.send(Err(error));
        Self { answer, _gone: None }
    }

    /// Blocks until the answer is there.
    pub fn wait(self) -> Result<T, DurableError> {
        // A task may have polled it. The `recv` of its channel would then panic.
        block_on(self)
    }
}

impl<T> Future for Receipt<T> {
    type Output = Result<T, DurableError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = Pin::new(&mut self.answer).poll(context);
        answer.map(|answer| answer.unwrap_or(Err(DurableError::ShutDown)))
    }
}

pub(crate) fn read<T>(how: Read<T>, answers: &[Answer]) -> Result<T, DurableError> {
    let wrong = "the store gave an answer to another command";
    let wrong = || Err(StoreError::with_source(StoreErrorReason::Other, wrong).into());
    how(answers).unwrap_or_else(wrong)
}

macro_rules! one {
    ($kind:ident) => {
        |answers: &[Answer]| match answers {
            [Answer::$kind(answer)] => Some(Ok(*answer)),
            _ => None,
        }
    };
}
pub(crate) use one;

pub(crate) fn read_scheduled(conflict: Conflict) -> Read<Scheduled> {
    let or_exists: Read<Scheduled> = |answers| match answers {
        [Answer::Scheduled(Scheduled::Kept | Scheduled::KeptDead)] => {
            Some(Err(DurableError::Exists))
        }
        _ => one!(Scheduled)(answers),
    };
    if conflict == Conflict::Refuse { or_exists } else { one!(Scheduled) }
}

/// Defines the calls of one timeout or queue for a type with `now_of`, `submit_one`, `set_paused`.
macro_rules! calls {
    ($kind:ident) => {
        impl $kind {
            /// Schedules a timeout, and replaces the one of the same id.
            ///
            /// # Errors
            ///
            /// [`DurableError`], by the receipt. After
            /// [`OutcomeUnknown`](crate::StoreErrorReason::OutcomeUnknown) it may be scheduled or
            /// not, and a PostgreSQL server may carry the call out up to 30 seconds later. To
            /// schedule it again is safe if it is due more than a minute later. Otherwise it may
            /// have been delivered and acknowledged, and is delivered once more: then its handler
            /// must do nothing for an id that it has seen. Or schedule it in a transaction of your
            /// own, by `PostgresStore::schedule_in`: your rows tell whether that was committed.
            pub fn schedule(
                &self,
                id: impl AsRef<str>,
                when: impl Into<When>,
                payload: impl AsRef<[u8]>,
            ) -> Receipt<Scheduled> {
                let new =
                    self.due(id, when).and_then(|(id, due)| NewTimeout::new(&id, due, payload));
                self.submit_one(new.map(Command::Schedule), one!(Scheduled))
            }

            /// Schedules a timeout with a policy for an id that is taken, or one that recurs.
            pub fn schedule_new(&self, new: NewTimeout) -> Receipt<Scheduled> {
                let read = read_scheduled(new.conflict);
                self.submit_one(Ok(Command::Schedule(new)), read)
            }

            /// Schedules a recurring timeout of the default queue at its first time from now on.
            /// If it is scheduled already with the same rule and payload, nothing changes: so a
            /// program can call this at each start, and loses no occurrence.
            ///
            /// A dead occurrence stays as it is, also if the rule or payload has changed: then the
            /// answer is [`Scheduled::KeptDead`]. The change takes effect with the first call after
            /// a requeue or cancel.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            /// use delaywheel_durable::{DurableTimer, SqliteStore, Repeat, Scheduled};
            ///
            /// # let builder = DurableTimer::builder(SqliteStore::in_memory());
            /// # let timer = builder.build_blocking(|_| Ok(()))?;
            /// let hourly = Repeat::every(Duration::from_secs(3_600))?;
            /// let start = || timer.schedule_repeat("report", hourly.clone(), b"").wait();
            /// assert_eq!((start()?, start()?), (Scheduled::Created, Scheduled::Kept));
            /// # Ok::<_, Box<dyn std::error::Error>>(())
            /// ```
            pub fn schedule_repeat(
                &self,
                id: impl AsRef<str>,
                repeat: Repeat,
                payload: impl AsRef<[u8]>,
            ) -> Receipt<Scheduled> {
                let id = TimeoutId::new(id);
                let new =
                    id.and_then(|id| NewTimeout::recurring(&id, self.now_of(&id), repeat, payload));
                self.submit_one(new.map(Command::Schedule), one!(Scheduled))
            }

            /// Cancels a timeout. After [`Cancelled::Cancelled`] no delivery of it begins.
            pub fn cancel(&self, id: impl AsRef<str>) -> Receipt<Cancelled> {
                let id = TimeoutId::new(id);
                self.submit_one(id.map(Command::Cancel), one!(Cancelled))
            }

            /// Moves a timeout to another time. Its number of attempts starts at 0 again.
            pub fn reschedule(
                &self,
                id: impl AsRef<str>,
                when: impl Into<When>,
            ) -> Receipt<Rescheduled> {
                let moved = self.due(id, when).map(|(id, due)| Command::Reschedule(id, due));
                self.submit_one(moved, one!(Rescheduled))
            }

            /// Makes a dead timeout due at `when`. Returns whether it was dead.
            pub fn requeue(&self, id: impl AsRef<str>, when: impl Into<When>) -> Receipt<bool> {
                let moved = self.due(id, when).map(|(id, due)| Command::Requeue(id, due));
                self.submit_one(moved, one!(Requeued))
            }

            /// Pauses a queue: no worker begins a delivery of it until it is resumed. The store
            /// keeps that. Handlers that run go on, and so does one that starts at this moment.
            /// Deliveries that wait for a thread or a task go back to the store. The default queue
            /// is `""`.
            ///
            /// Takes effect after earlier changes of this timer, and before later ones, except
            /// those that wait for a locked record. After a shutdown, the timer takes it until its
            /// last delivery has ended.
            ///
            /// Of several databases, each is asked, and the first error is returned.
            pub fn pause(&self, queue: impl AsRef<str>) -> Receipt<()> {
                self.set_paused(Name::new(queue), true)
            }

            /// Resumes a queue.
            pub fn resume(&self, queue: impl AsRef<str>) -> Receipt<()> {
                self.set_paused(Name::new(queue), false)
            }

            fn due(
                &self,
                id: impl AsRef<str>,
                when: impl Into<When>,
            ) -> Result<(TimeoutId, WallTime), InputError> {
                let id = TimeoutId::new(id)?;
                let due = when.into().resolve(self.now_of(&id))?;
                Ok((id, due))
            }
        }
    };
}
pub(crate) use calls;

calls!(DurableTimer);

impl DurableTimer {
    /// Starts with the default settings.
    pub fn builder(store: impl Store) -> DurableTimerBuilder {
        DurableTimerBuilder::new(Box::new(store))
    }

    fn new(core: Arc<Core>) -> Self {
        let owner = Owner {
            core: Arc::clone(&core),
            #[cfg(feature = "metrics")]
            queues: parking_lot::Mutex::default(),
        };
        Self { owner: Some(Arc::new(owner)), core }
    }

    /// Returns a handle for a call, which does not keep the timer from its end.
    pub(crate) fn for_call(&self) -> Self {
        Self { core: Arc::clone(&self.core), owner: None }
    }

    /// Begins a change, for which [`finish`](Self::finish) waits until the mark is dropped.
    pub(crate) fn change(&self) -> Result<Arc<()>, DurableError> {
        let change = Arc::clone(&self.core.changes);
        self.core.check_open()?;
        Ok(change)
    }

    /// Schedules timeouts in one transaction: all or none. The answers are in their order; with
    /// [`Conflict::Refuse`] the answer for an id that is taken is [`Scheduled::Kept`] or
    /// [`Scheduled::KeptDead`].
    ///
    /// Batches of a thousand are a good size.
    pub fn schedule_batch(&self, batch: Vec<NewTimeout>) -> Receipt<Vec<Scheduled>> {
        self.submit(Ok(batch.into_iter().map(Command::Schedule).collect()), |answers| {
            let one = |answer: &Answer| match answer {
                Answer::Scheduled(answer) => Some(*answer),
                _ => None,
            };
            answers.iter().map(one).collect::<Option<_>>().map(Ok)
        })
    }

    fn now_of(&self, _: &TimeoutId) -> WallTime {
        self.now()
    }

    fn submit_one<T: Send + 'static>(
        &self,
        command: Result<Command, InputError>,
        read: Read<T>,
    ) -> Receipt<T> {
        self.submit(command.map(|command| vec![command]), read)
    }

    /// Writes commands with the next group, unless the timer was shut down or the input is wrong.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        commands: Result<Vec<Command>, InputError>,
        read: Read<T>,
    ) -> Receipt<T> {
        let submit = || {
            let commands = commands?;
            // A call under way began before the end.
            if self.owner.is_some() {
                self.core.check_open()?;
            }
            // A caller may have set the fields of a new timeout.
            commands.iter().try_for_each(|command| match command {
                Command::Schedule(new) => check_payload(&new.payload),
                _ => Ok(()),
            })?;
            let (receipt, caller) = Receipt::reading(read);
            self.core.commit(Job::new(commands, Reply::Caller(caller)));
            Ok(receipt)
        };
        submit().unwrap_or_else(Receipt::failed)
    }

    /// Reads the store for a task, as long as its receipt is there; in virtual time, at once.
    fn ask<T: Send + Sync + 'static>(
        &self,
        calls: impl Future<Output = Result<T, DurableError>> + Send + 'static,
    ) -> Receipt<T> {
        let (receipt, calls) = Receipt::of(calls, true);
        if let Some(calls) = self.spawn(calls) {
            self.core.call_on(&self.core.calls, calls);
        }
        receipt
    }

    /// Runs calls, or returns them for a thread that they may block.
    pub(crate) fn spawn(&self, calls: Calls) -> Option<Calls> {
        if self.core.is_virtual {
            block_on(calls);
            return None;
        }
        self.store().spawn(calls)
    }

    /// Returns a timeout; `None` if there is none of that id.
    pub fn get(&self, id: impl AsRef<str>) -> Receipt<Option<Record>> {
        let (core, id) = (Arc::clone(&self.core), TimeoutId::new(id));
        self.ask(async move { Ok(core.store.get(&id?).await?) })
    }

    /// Returns at most `limit` timeouts of a list. To continue, put the last one into the query. Of
    /// more than 1,024 in SQLite, one that moves meanwhile may be missing, or be there twice.
    pub fn list(&self, query: &Query, limit: usize) -> Receipt<Vec<Record>> {
        let (core, query) = (Arc::clone(&self.core), query.clone());
        self.ask(async move { Ok(core.store.list(&query, limit).await?) })
    }

    /// Returns the numbers of live and of dead timeouts in the store.
    pub fn count(&self) -> Receipt<Counts> {
        let core = Arc::clone(&self.core);
        self.ask(async move { Ok(core.store.count().await?) })
    }

    /// Returns the number of timeouts that are due and not acknowledged: those that wait, and those
    /// that are being delivered. The store reads an entry for each of them.
    pub fn count_due(&self) -> Receipt<usize> {
        let (core, now) = (Arc::clone(&self.core), self.now());
        self.ask(async move { Ok(count_due(&*core.store, now).await?) })
    }

    pub(crate) fn set_paused(
        &self,
        queue: Result<Name, InputError>,
        is_paused: bool,
    ) -> Receipt<()> {
        match queue {
            Ok(queue) => {
                let (receipt, caller) = Receipt::reading(|_| Some(Ok(())));
                let reply = Reply::Paused(queue, is_paused, caller);
                self.core.commit(Job::new(Vec::new(), reply));
                receipt
            }
            Err(error) => Receipt::failed(error.into()),
        }
    }

    /// Returns at most `limit` attempts that have ended, of one or of all timeouts, the latest
    /// first. To continue, give the number of the last one as `before`. The store keeps them as
    /// long as [`DurableTimerBuilder::history`] says.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use delaywheel_durable::{AttemptEnd, DurableTimer, ManualClock, SqliteStore};
    ///
    /// let clock = ManualClock::new();
    /// let timer = DurableTimer::builder(SqliteStore::in_memory())
    ///     .clock(clock.clone())
    ///     .history(Duration::from_secs(86_400))
    ///     .build_blocking(|_| Err("the printer is off".into()))?;
    /// timer.schedule("report", Duration::ZERO, b"").wait()?;
    /// clock.advance(Duration::ZERO);
    /// let attempts = timer.history(Some(&"report".parse()?), None, 10).wait()?;
    /// assert_eq!(attempts[0].end, AttemptEnd::Failed);
    /// assert_eq!(attempts[0].error.as_deref(), Some("the printer is off"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn history(
        &self,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> Receipt<Vec<Attempt>> {
        let (core, now, id) = (Arc::clone(&self.core), self.now(), id.cloned());
        self.ask(async move { Ok(core.store.history(now, id.as_ref(), before, limit).await?) })
    }

    /// Returns the queues of the store: those that had a timeout or a pause.
    pub fn queues(&self) -> Receipt<Vec<QueueState>> {
        let core = Arc::clone(&self.core);
        self.ask(async move { Ok(core.store.queues().await?) })
    }

    /// Returns the present time of the timer's clock.
    #[must_use]
    pub fn now(&self) -> WallTime {
        self.core.now()
    }

    /// Returns the store. For the methods that only its type has, keep a clone of it.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.core.store
    }

    /// Returns the counts of the timer, and the numbers of records in its memory. Does not ask the
    /// store, unlike [`count`](Self::count) and [`count_due`](Self::count_due).
    #[must_use]
    pub fn stats(&self) -> DurableStats {
        self.core.counters.read()
    }

    /// Shuts down at once: refuses changes of timeouts and begins no delivery.
    ///
    /// Undelivered timeouts stay in the store, for the next timer. Deliveries under way can still
    /// end; the lease is renewed until they have. Does not wait for them. Changes that wait for a
    /// locked record when they have ended fail with [`ShutDown`](DurableError::ShutDown).
    ///
    /// [`finish`](Self::finish) after it waits until they have ended and the store has all others
    /// back. If the process ends before that, its timeouts wait for the end of its lease.
    pub fn shutdown(&self) {
        self.core.shut_down();
    }

    /// Refuses changes of timeouts, delivers until no timeout is due or being delivered, and shuts
    /// down; after `within` at the latest. Returns whether all deliveries and changes have ended.
    ///
    /// The timer goes on to its end though its handles and the receipt are dropped. Await the
    /// receipt in a task, whose thread the handlers may need.
    ///
    /// Later timeouts stay in the store. If the store cannot write how a delivery ended, such as on
    /// a damaged page of PostgreSQL, the timer tries again until the store is closed, also after
    /// `within`.
    pub fn finish(&self, within: Duration) -> Receipt<bool> {
        let (timer, deadline) = (self.clone(), Instant::now().checked_add(within));
        self.core.refuse();
        let finish = async move {
            // The block would capture the core alone, and a drop of the last handle end the timer.
            let timer = timer;
            Ok(timer.core.finish(deadline))
        };
        let (receipt, calls) = Receipt::of(finish, false);
        if self.core.is_virtual {
            block_on(calls);
        } else {
            // It waits for the thread of other calls.
            CallThread::default().push(calls);
        }
        receipt
    }
}

pub(crate) async fn count_due(store: &dyn Store, now: WallTime) -> StoreResult<usize> {
    let until = now.saturating_add(Duration::from_micros(1));
    store.count_live(WallTime::MIN, until, usize::MAX).await
}

impl NewTimeout {
    /// Creates a timeout of the default queue that replaces the one of the same id, and does not
    /// recur.
    pub fn new(
        id: impl AsRef<str>,
        due: WallTime,
        payload: impl AsRef<[u8]>,
    ) -> Result<Self, InputError> {
        let id = TimeoutId::new(id)?;
        let payload = payload.as_ref();
        check_payload(payload)?;
        let payload = payload.into();
        Ok(Self {
            id,
            due,
            payload,
            repeat: None,
            conflict: Conflict::Replace,
            queue: Name::default(),
            priority: Priority::default(),
            key: None,
        })
    }

    /// Creates a recurring timeout that is due at the first time of its rule after `now`, and
    /// replaces only one that differs and is not dead: see [`DurableTimer::schedule_repeat`].
    ///
    /// # Errors
    ///
    /// [`InputError`] if the id or the payload is not valid, or the rule has no such time.
    pub fn recurring(
        id: impl AsRef<str>,
        now: WallTime,
        repeat: Repeat,
        payload: impl AsRef<[u8]>,
    ) -> Result<Self, InputError> {
        let first = repeat.after(now, now)?.ok_or(InputError::AfterYear9999)?;
        let new = Self::new(id, first, payload)?.repeat(repeat);
        Ok(new.conflict(Conflict::ReplaceChanged))
    }

    /// Sets the queue, whose handler gets it: see [`Queue`].
    pub fn queue(mut self, queue: impl AsRef<str>) -> Result<Self, InputError> {
        self.queue = Name::new(queue)?;
        Ok(self)
    }

    /// Sets the group within the queue, of which at most [`Queue::key_limit`] deliveries run at
    /// once.
    pub fn key(mut self, key: impl AsRef<str>) -> Result<Self, InputError> {
        self.key = Some(Name::new(key)?);
        Ok(self)
    }

    /// Sets which timeouts of the queue go first.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the rule by which it recurs. `due` is the first occurrence.
    #[must_use]
    pub fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = Some(repeat);
        self
    }

    /// Sets what to do if the id is scheduled already.
    #[must_use]
    pub fn conflict(mut self, conflict: Conflict) -> Self {
        self.conflict = conflict;
        self
    }
}

fn check_payload(payload: &[u8]) -> Result<(), InputError> {
    let is_large = payload.len() > MAX_PAYLOAD;
    if is_large { Err(InputError::LargePayload(payload.len())) } else { Ok(()) }
}
