//! Several databases as one: the id of a timeout chooses its database.

#[cfg(test)]
mod model;
mod mover;

use std::{iter, sync::Arc, time::Duration};

use parking_lot::Mutex;

use self::mover::Sweep;
use crate::{
    error::{DurableError, InputError, StoreError, StoreErrorReason, StoreResult},
    record::{Name, Record, State, TimeoutId, fnv, is_moved},
    repeat::Repeat,
    store::{
        Answer, Cancelled, Command, Conflict, Counts, NewTimeout, Query, Rescheduled, Scheduled,
        Store,
    },
    time::{WallTime, When},
    timer::{self, CallThread, DurableTimer, Read, Receipt, calls, one, read_scheduled},
    transition::{Change, apply},
};

/// Due time of a copy in the new database, which no worker claims.
const PARKED: WallTime = WallTime::MAX.before();

/// Most records that are read at once. Each may have a payload of 1 MiB.
const PAGE: usize = 256;

/// Timeouts in several databases of one kind. The id chooses the database.
///
/// Each database has a [`DurableTimer`] of its own, with its own threads, connections and group
/// commits. A database that fails delays no other: its calls return typed errors, and its timeouts
/// wait. No transaction spans two databases, so a `Sharded` is not a [`Store`], and has no batches.
/// If stores block, calls of several databases have a thread of their own.
///
/// Each process has the same databases in the same order. Queues, pauses and payloads are those of
/// one store. The limit of a key and the rate of a queue hold for each database on its own. Due
/// times in the last two microseconds of the year 9999 are refused, and no timeout that is in the
/// databases already may have one. Clones are the same.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel_durable::{DurableTimer, ManualClock, SqliteStore, Sharded};
///
/// let clock = ManualClock::new();
/// let start = || {
///     let builder = DurableTimer::builder(SqliteStore::in_memory()).clock(clock.clone());
///     builder.build_blocking(|delivery| Ok(println!("{}", delivery.id())))
/// };
/// let (first, second, third) = (start()?, start()?, start()?);
/// let two = Sharded::new(vec![first.clone(), second.clone()]);
/// let hour = Duration::from_secs(3_600);
/// for number in 0..100 {
///     two.schedule(format!("trial/{number}"), hour, b"ends").wait()?;
/// }
///
/// // A third database takes its part of the timeouts.
/// let three = Sharded::growing(vec![first, second, third.clone()], 2);
/// loop {
///     while !three.move_some(1_024).wait()? {}
///     if three.count_unmoved().wait()? == 0 {
///         break;
///     }
/// }
/// assert_eq!(three.count().wait()?.live, 100);
/// assert!(third.count().wait()?.live > 20);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Adding databases
///
/// 1. Stop all processes, and start them with [`growing`](Self::growing): the old databases first,
///    and then the new ones. Now they look for a timeout in its old database, and then in its new
///    one, to which a new timeout goes. Pause again what is paused: a new database does not know of
///    it. What is paused only in the old one does not move, and a new timeout is delivered.
/// 2. Call [`move_some`](Self::move_some) in one process, at any rate, until it returns `true`, and
///    again until [`count_unmoved`](Self::count_unmoved), which reads all timeouts, is then zero.
/// 3. Start the processes with [`new`](Self::new) and all databases, one by one if you like.
///
/// About one of `n` timeouts moves to the `n`-th database, and none between old ones. One that is
/// dead, or was attempted or left before, stays until it ends or recurs: requeue or cancel dead
/// ones before the last step. A recurring one whose period is shorter than the
/// [window](crate::DurableTimerBuilder::window) stays until the worker that holds it stops. A
/// [history](crate::DurableTimerBuilder::history) has an entry for each move.
///
/// Two calls at once for a timeout that moves take effect in any order, also with a pause: wait for
/// one before you make the next. If two calls schedule it at once, both may answer `Created`; the
/// later one stays. A call that schedules it beside one that cancels it may answer `Replaced` for
/// what the other call cancelled. If a timeout moves and is delivered to its end during a call that
/// cancels or replaces it, the answer may be that of a timeout that was pending. If a timeout moves
/// while it is replaced by one that is delivered to its end at once, it may be delivered as well.
///
/// # Errors
///
/// A call fails if one of its databases does. If another one may have changed, the reason is
/// [`OutcomeUnknown`](StoreErrorReason::OutcomeUnknown), and you can call again:
/// [`schedule`](Self::schedule) says when that is safe.
#[derive(Clone)]
pub struct Sharded {
    timers: Arc<[DurableTimer]>,
    /// The first ones, which have all timeouts at the start.
    old: usize,
    sweep: Arc<Mutex<Sweep>>,
    /// Makes the calls of several databases, so that none of these delays those of one.
    calls: Arc<CallThread>,
    /// Called before a call of a store that takes part in a move. An error ends the mover there.
    #[cfg(test)]
    hook: Arc<Mutex<Option<model::Hook>>>,
}

enum Place {
    Nowhere,
    /// Only in the new database, as a copy that is not valid.
    Copied,
    Old(Record),
    New(Record),
}

calls!(Sharded);

impl Sharded {
    /// Joins timers. Their order must stay the same.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    #[must_use]
    #[track_caller]
    pub fn new(timers: Vec<DurableTimer>) -> Self {
        let old = timers.len();
        Self::growing(timers, old)
    }

    /// Joins timers while those after the first `old` ones are being added.
    ///
    /// # Panics
    ///
    /// Panics if `old` is zero, or larger than the number of timers.
    #[must_use]
    #[track_caller]
    pub fn growing(timers: Vec<DurableTimer>, old: usize) -> Self {
        assert!((1..=timers.len()).contains(&old), "{old} of {} databases are old", timers.len());
        Self {
            timers: timers.into(),
            old,
            sweep: Arc::default(),
            calls: Arc::default(),
            #[cfg(test)]
            hook: Arc::default(),
        }
    }

    /// Returns the timers, in their order: for what concerns one database, such as statistics.
    #[must_use]
    pub fn timers(&self) -> &[DurableTimer] {
        &self.timers
    }

    /// Returns the number of the database of an id. This never changes in later versions.
    #[must_use]
    pub fn home(&self, id: &TimeoutId) -> usize {
        jump(id, self.timers.len())
    }

    /// The old and the new database of an id.
    fn homes(&self, id: &TimeoutId) -> (usize, usize) {
        (jump(id, self.old), self.home(id))
    }

    /// Returns a handle for a call, which does not keep the timers from their end.
    fn for_call(&self) -> Self {
        let timers = self.timers.iter().map(DurableTimer::for_call).collect();
        Self { timers, ..self.clone() }
    }

    fn ask<T: Send + Sync + 'static>(
        &self,
        are_reads: bool,
        calls: impl Future<Output = Result<T, DurableError>> + Send + 'static,
    ) -> Receipt<T> {
        let (receipt, calls) = Receipt::of(calls, are_reads);
        if let Some(calls) = self.timers[0].spawn(calls) {
            self.calls.push(calls);
        }
        receipt
    }

    fn change<T: Send + Sync + 'static>(
        &self,
        calls: impl Future<Output = Result<T, DurableError>> + Send + 'static,
    ) -> Receipt<T> {
        let changes = self.timers.iter().map(DurableTimer::change).collect::<Result<Vec<_>, _>>();
        self.ask(false, async move {
            let _changes = changes?;
            calls.await
        })
    }

    fn now_of(&self, id: &TimeoutId) -> WallTime {
        self.timers[self.home(id)].now()
    }

    fn submit_one<T: Send + Sync + 'static>(
        &self,
        command: Result<Command, InputError>,
        read: Read<T>,
    ) -> Receipt<T> {
        let is_valid = |command: &Command| command.due().is_none_or(|due| due < PARKED);
        let command = command.and_then(|command| {
            if is_valid(&command) { Ok(command) } else { Err(InputError::AfterYear9999) }
        });
        let (old, new) = command.as_ref().map_or((0, 0), |command| self.homes(command.id()));
        match command {
            Ok(command) if old != new => {
                let this = self.for_call();
                self.change(async move { timer::read(read, &[this.write_moving(command).await?]) })
            }
            command => self.timers[new].submit(command.map(|command| vec![command]), read),
        }
    }

    /// Writes a command for a timeout that moves.
    ///
    /// In the old database no record is created any more. So one that is not there any more is in
    /// the new one, or ended. The mover may act between any two calls here, and loses: what it does
    /// later is void after each change here.
    async fn write_moving(&self, command: Command) -> Result<Answer, DurableError> {
        let id = command.id().clone();
        let (old, new) = self.homes(&id);
        let send = async |shard: usize, command: Command| {
            let first: Read<Answer> = |answers| answers.first().copied().map(Ok);
            self.store(shard)?;
            self.timers[shard].submit(Ok(vec![command]), first).await
        };
        let replacing = |command| match command {
            Command::Schedule(new) => {
                Command::Schedule(NewTimeout { conflict: Conflict::Replace, ..new })
            }
            other => other,
        };
        let (_, absent) = apply(None, &command, 0);
        match (self.locate(&id).await?, &command) {
            (place @ (Place::Nowhere | Place::New(_)), Command::Schedule(_)) => {
                let answer = send(new, command.clone()).await?;
                if let (Place::Nowhere, Answer::Scheduled(Scheduled::Replaced)) = (&place, answer) {
                    // A late copy of the mover.
                    return Ok(absent);
                }
                if answer != Answer::Scheduled(Scheduled::Kept) {
                    return Ok(answer);
                }
                // What was kept may be a copy that the mover removes again.
                match self.locate(&id).await? {
                    Place::Nowhere => send(new, command).await,
                    Place::Copied => send(new, replacing(command)).await.map(|_| absent),
                    _ => Ok(answer),
                }
            }
            (Place::New(_), _) => send(new, command).await,
            (Place::Copied, Command::Schedule(_)) => {
                send(new, replacing(command)).await.map(|_| absent)
            }
            (Place::Nowhere | Place::Copied, _) => Ok(absent),
            (Place::Old(record), Command::Schedule(_)) => {
                let next = record.next;
                let (change, kept) = apply(Some(record), &command, 0);
                if change == Change::Nothing {
                    return Ok(kept);
                }
                // The new one first: if this process ends here, the mover removes the old one.
                let created = send(new, replacing(command)).await?;
                let replaced = match send(old, Command::Cancel(id)).await.map_err(unknown)? {
                    Answer::Cancelled(Cancelled::Delivering) => Scheduled::ReplacedDelivering,
                    // It may have been a mark, and a delivery of the copy had begun.
                    Answer::Cancelled(Cancelled::Cancelled) if !created.stops() => {
                        Scheduled::Replaced
                    }
                    // It was not due. The mover has found the new one, and removed the old one.
                    _ if created == absent && next > self.timers[old].now() => Scheduled::Replaced,
                    _ => return Ok(created),
                };
                Ok(Answer::Scheduled(replaced))
            }
            (Place::Old(_), _) => {
                let first = send(old, command.clone()).await?;
                if first == absent {
                    // It ended, or the mover has ended its move: a copy alone is no timeout.
                    return match self.locate(&id).await? {
                        Place::New(_) => send(new, command).await,
                        _ => Ok(absent),
                    };
                }
                if !matches!(command, Command::Cancel(_)) {
                    return Ok(first);
                }
                // The mover may have made a copy.
                let second = send(new, command).await.map_err(unknown)?;
                Ok(if second.stops() { second } else { first })
            }
        }
    }

    async fn locate(&self, id: &TimeoutId) -> Result<Place, DurableError> {
        let (old, new) = self.homes(id);
        let moved = match self.store(old)?.get(id).await? {
            Some(record) if !is_moved(&record) => return Ok(Place::Old(record)),
            moved => moved,
        };
        Ok(match (self.store(new)?.get(id).await?, moved) {
            (None, _) => Place::Nowhere,
            (Some(copy), Some(moved)) if is_parked(&copy) => {
                Place::New(Record { due: moved.due, next: moved.due, ..copy })
            }
            (Some(copy), None) if is_parked(&copy) => Place::Copied,
            (Some(record), _) => Place::New(record),
        })
    }

    /// Returns a timeout; `None` if there is none of that id.
    pub fn get(&self, id: impl AsRef<str>) -> Receipt<Option<Record>> {
        let id = match TimeoutId::new(id) {
            Ok(id) => id,
            Err(error) => return Receipt::failed(error.into()),
        };
        let (old, new) = self.homes(&id);
        if old == new {
            return self.timers[new].get(id);
        }
        let this = self.for_call();
        self.ask(true, async move {
            Ok(match this.locate(&id).await? {
                Place::Old(record) | Place::New(record) => Some(record),
                Place::Nowhere | Place::Copied => None,
            })
        })
    }

    /// Returns at most `limit` timeouts of all databases, in the order of the list. To continue,
    /// put the last one into the query. A timeout that moves meanwhile may be missing, or occur
    /// twice.
    pub fn list(&self, query: &Query, limit: usize) -> Receipt<Vec<Record>> {
        let (this, query) = (self.for_call(), query.clone());
        self.ask(true, async move {
            let mut all = Vec::new();
            for store in this.stores() {
                let mut left = limit;
                read(store, query.clone(), limit.min(PAGE), |record| {
                    if !is_moved(&record) && !is_parked(&record) {
                        all.push(record);
                        left -= 1;
                    }
                    left > 0
                })
                .await?;
            }
            match query {
                Query::Prefix { .. } => all.sort_unstable_by(|a, b| a.id.cmp(&b.id)),
                _ => all.sort_unstable_by(Record::by_time),
            }
            all.truncate(limit);
            Ok(all)
        })
    }

    /// Returns the numbers of live and of dead timeouts. One that moves meanwhile may count twice.
    pub fn count(&self) -> Receipt<Counts> {
        let this = self.for_call();
        self.ask(true, async move {
            let mut sum = Counts::default();
            for store in this.stores() {
                let Counts { live, dead } = store.count().await?;
                sum = Counts { live: sum.live + live, dead: sum.dead + dead };
            }
            Ok(sum)
        })
    }

    /// Returns the number of timeouts that are due and not acknowledged.
    pub fn count_due(&self) -> Receipt<usize> {
        let this = self.for_call();
        self.ask(true, async move {
            let mut sum = 0;
            for timer in &*this.timers {
                sum += timer::count_due(timer.store(), timer.now()).await?;
            }
            Ok(sum)
        })
    }

    fn set_paused(&self, queue: Result<Name, InputError>, is_paused: bool) -> Receipt<()> {
        let timers = self.timers.iter().zip(iter::repeat(queue));
        let receipts = timers.map(|(timer, queue)| timer.set_paused(queue, is_paused));
        let receipts: Vec<_> = receipts.collect();
        self.ask(true, async move {
            let mut results = Vec::new();
            for receipt in receipts {
                results.push(receipt.await);
            }
            let may_have_changed = |result: &Result<(), _>| match result {
                Err(DurableError::Store(error)) => {
                    error.reason() == StoreErrorReason::OutcomeUnknown
                }
                result => result.is_ok(),
            };
            let is_partial = results.len() > 1 && results.iter().any(may_have_changed);
            let all: Result<(), _> = results.into_iter().collect();
            if is_partial { all.map_err(unknown) } else { all }
        })
    }

    fn stores(&self) -> impl Iterator<Item = &dyn Store> {
        self.timers.iter().map(DurableTimer::store)
    }

    /// Shuts all timers down, like [`DurableTimer::shutdown`].
    pub fn shutdown(&self) {
        self.timers.iter().for_each(DurableTimer::shutdown);
    }

    /// Finishes all timers at once, like [`DurableTimer::finish`]. Returns whether all deliveries
    /// and changes have ended.
    pub fn finish(&self, within: Duration) -> Receipt<bool> {
        let receipts: Vec<_> = self.timers.iter().map(|timer| timer.finish(within)).collect();
        let all = async move {
            let mut have_ended = true;
            for receipt in receipts {
                have_ended &= receipt.await?;
            }
            Ok(have_ended)
        };
        let (receipt, calls) = Receipt::of(all, true);
        // Handlers may make other calls meanwhile.
        CallThread::default().push(calls);
        receipt
    }

    #[cfg_attr(not(test), expect(clippy::unnecessary_wraps, reason = "tests fail here"))]
    fn store(&self, shard: usize) -> StoreResult<&dyn Store> {
        #[cfg(test)]
        if let Some(hook) = &*self.hook.lock() {
            hook()?;
        }
        Ok(self.timers[shard].store())
    }
}

fn is_parked(record: &Record) -> bool {
    record.next == PARKED && record.state != State::Dead
}

/// Reads a list in pages, until a record is the last one that is wanted.
async fn read(
    store: &dyn Store,
    mut query: Query,
    page: usize,
    mut wants_more: impl FnMut(Record) -> bool,
) -> StoreResult<()> {
    loop {
        let records = store.list(&query, page).await?;
        let last = records.last().filter(|_| records.len() == page);
        let last = last.map(|last| (last.next, last.id.clone()));
        match (records.into_iter().all(&mut wants_more), last) {
            (true, Some((next, id))) => query.continue_after(next, id),
            _ => return Ok(()),
        }
    }
}

fn unknown(error: DurableError) -> DurableError {
    StoreError::with_source(StoreErrorReason::OutcomeUnknown, error).into()
}

/// Returns the bucket of an id: the hash FNV-1a of 64 bits, and the jump consistent hash of John
/// Lamping and Eric Veach. Of `n` buckets, the last one takes one of `n` ids from the others.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the algorithm divides numbers of 31 bits"
)]
fn jump(id: &TimeoutId, buckets: usize) -> usize {
    let mut key = fnv(id.as_str().bytes());
    let (mut bucket, mut next) = (0, 0);
    while next < buckets {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let part = (1_u64 << 31) as f64 / ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * part) as usize;
    }
    bucket
}

opaque!(Sharded, timers: timers, old: old);
