//! Moves timeouts to databases that were added, in steps that a crash may end anywhere.
//!
//! No transaction spans two databases, so a move has four, and the second one decides:
//!
//! 1. Write a copy to the new database, parked at a time that no worker claims, and claim it.
//! 2. In the old database, replace the record by a mark that it has moved.
//! 3. In the new one, give the copy its time.
//! 4. Remove the mark.
//!
//! The mover has claimed the record and the copy. So each settlement is void if anybody has changed
//! them meanwhile: a changed record does not move, and a changed copy keeps the change. The next
//! mover has the same name as a worker, which voids the claims of the one before. It carries out
//! steps 3 and 4 for the copies that have a mark, and removes the other copies. It leaves a copy
//! whose old record is claimed, and a record whose copy it cannot claim: a lock may have kept that
//! claim from it, and a write of the mover before may be under way.

use std::{mem, time::Duration};

use rustc_hash::FxHashMap;

use super::{PAGE, PARKED, Sharded, is_parked, read};
use crate::{
    error::StoreResult,
    record::{MOVED, Name, Record, State, TimeoutId, is_moved},
    store::{
        Answer, ClaimRequest, Command, Conflict, NewTimeout, Query, Settlement, Store, WorkerId,
    },
    time::WallTime,
    timer::Receipt,
};

/// Name of each mover as a worker. It takes over the claims of the one before, of any pair.
const NAME: &str = "delaywheel-move";

/// Lease of a mover, after which other workers take its claims.
const LEASE: Duration = Duration::from_secs(30);

/// Most bytes of payload of a step.
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Number of the pair of an old and a new database.
    pub(super) pair: usize,
    /// Queues that are left of this pair; `None` before the recovery.
    queues: Option<Vec<Name>>,
    /// Time of the next records of the last of these queues.
    from: WallTime,
}

struct Mover<'a> {
    sharded: &'a Sharded,
    /// The old database and the new one, and the worker in each.
    pair: [usize; 2],
    workers: [WorkerId; 2],
}

impl Sharded {
    /// Looks at up to `limit` timeouts of one old database, or at all that are due at one time, and
    /// moves those whose database is a new one. Returns whether all old databases have been looked
    /// at since the last time.
    ///
    /// Only one process should call it, and once at a time. If that dies, any other one continues.
    ///
    /// # Errors
    ///
    /// The error of a database, and the next call continues with another one; or
    /// [`ShutDown`](crate::DurableError::ShutDown).
    pub fn move_some(&self, limit: usize) -> Receipt<bool> {
        let this = self.for_call();
        self.change(async move { Ok(this.move_now(limit).await?) })
    }

    pub(super) async fn move_now(&self, limit: usize) -> StoreResult<bool> {
        let pairs = self.old * (self.timers.len() - self.old);
        if pairs == 0 {
            return Ok(true);
        }
        // A second call meanwhile begins at the first pair, and voids the claims of this one.
        let mut sweep = mem::take(&mut *self.sweep.lock());
        let pair = [sweep.pair % self.old, self.old + sweep.pair / self.old];
        let mut mover = Mover { sharded: self, pair, workers: [WorkerId(0); 2] };
        let result = mover.step(&mut sweep, limit.max(1)).await;
        if !matches!(result, Ok(false)) {
            let pair = (sweep.pair + 1) % pairs;
            sweep = Sweep { pair, ..Sweep::default() };
        }
        let is_first = sweep.pair == 0;
        *self.sweep.lock() = sweep;
        Ok(result? && is_first)
    }

    /// Returns the number of timeouts that are in an old database and belong into a new one, and
    /// of moves that have not ended. Reads all timeouts of the old databases.
    pub fn count_unmoved(&self) -> Receipt<u64> {
        let this = self.for_call();
        self.ask(true, async move {
            let all = Query::Prefix { prefix: String::new(), after: None };
            let copies = Query::Times { from: PARKED, until: WallTime::MAX, after: None };
            let mut count = 0;
            for (shard, store) in this.stores().enumerate() {
                let query = if shard < this.old { &all } else { &copies };
                read(store, query.clone(), PAGE, |record| {
                    count += u64::from(this.home(&record.id) != shard || is_parked(&record));
                    true
                })
                .await?;
            }
            Ok(count)
        })
    }
}

impl Mover<'_> {
    async fn step(&mut self, sweep: &mut Sweep, limit: usize) -> StoreResult<bool> {
        for which in [0, 1] {
            let enter = self.store(which)?.enter(self.now(which), LEASE, Some(NAME));
            self.workers[which] = enter.await?;
        }
        let result = self.move_next(sweep, limit).await;
        // All records that did not move are pending again, also if a database has failed.
        self.leave(0).await.and(self.leave(1).await).and(result)
    }

    async fn leave(&self, which: usize) -> StoreResult<()> {
        self.store(which)?.leave(self.workers[which]).await
    }

    async fn move_next(&self, sweep: &mut Sweep, limit: usize) -> StoreResult<bool> {
        let queues = match &mut sweep.queues {
            Some(queues) => queues,
            none => {
                self.recover().await?;
                let queues = self.store(0)?.queues().await?;
                none.insert(queues.into_iter().map(|queue| queue.name).collect())
            }
        };
        // In a new database that does not know of a pause, the timeouts would be delivered.
        if let Some(queue) = queues.last()
            && (self.is_paused(0, queue).await? && !self.is_paused(1, queue).await?
                || self.move_batch(queue, &mut sweep.from, limit).await?)
        {
            queues.pop();
            sweep.from = WallTime::MIN;
        }
        Ok(queues.is_empty())
    }

    async fn is_paused(&self, which: usize, queue: &Name) -> StoreResult<bool> {
        let queues = self.store(which)?.queues().await?;
        Ok(queues.iter().any(|state| state.is_paused && state.name == *queue))
    }

    fn is_of_pair(&self, id: &TimeoutId) -> bool {
        let (old, new) = self.sharded.homes(id);
        [old, new] == self.pair
    }

    /// Returns the old database (0) or the new one (1).
    fn store(&self, which: usize) -> StoreResult<&dyn Store> {
        self.sharded.store(self.pair[which])
    }

    fn now(&self, which: usize) -> WallTime {
        self.sharded.timers[self.pair[which]].now()
    }

    async fn write(&self, which: usize, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.store(which)?.write(self.now(which), commands).await
    }

    /// Claims also what is paused: a pause keeps deliveries from their begin, not from a move.
    /// `None` if the mover has lost its lease.
    async fn claim(&self, which: usize, request: ClaimRequest) -> StoreResult<Option<Vec<Record>>> {
        let store = self.store(which)?;
        let request = ClaimRequest { paused: true, ..request };
        let claimed = store.claim(self.workers[which], &request).await?;
        Ok(claimed.map(|claimed| claimed.records))
    }

    /// Claims the copies of a queue that no worker holds.
    async fn claim_copies(&self, queue: &Name) -> StoreResult<Vec<Record>> {
        let all = ClaimRequest::new(WallTime::MIN, WallTime::MAX);
        let request = ClaimRequest { from: PARKED, queue: queue.clone(), ..all };
        Ok(self.claim(1, request).await?.unwrap_or_default())
    }

    /// Ends the moves of a mover that died.
    async fn recover(&self) -> StoreResult<()> {
        let old = self.store(0)?;
        let mut copies = Vec::new();
        for queue in self.store(1)?.queues().await? {
            for copy in self.claim_copies(&queue.name).await? {
                if self.is_of_pair(&copy.id) {
                    let old = old.get(&copy.id).await?;
                    // Its mark may be under way.
                    if old.as_ref().is_none_or(|old| old.state != State::Claimed) {
                        copies.push((copy, old.filter(is_moved).map(|mark| mark.due)));
                    }
                }
            }
        }
        self.complete(copies).await?;
        let mut marks = Vec::new();
        read(old, Query::Dead { after: None }, PAGE, |record| {
            if is_moved(&record) && self.is_of_pair(&record.id) {
                marks.push(record.id);
            }
            true
        })
        .await?;
        for id in marks {
            if !self.is_copied(&id).await? {
                self.write(0, &[Command::Cancel(id)]).await?;
            }
        }
        Ok(())
    }

    /// Starts the copies that have a mark, of which the time is given. Removes these marks, and the
    /// other copies.
    async fn complete(&self, copies: Vec<(Record, Option<WallTime>)>) -> StoreResult<()> {
        let settle = |(copy, due): &(Record, Option<WallTime>)| {
            Command::Settle(copy.claim(), due.map_or(Settlement::Done, Settlement::Again))
        };
        let settled = self.write(1, &copies.iter().map(settle).collect::<Vec<_>>()).await?;
        let mut removals = Vec::new();
        for ((copy, due), answer) in copies.into_iter().zip(settled) {
            let has_started = answer == Answer::Settled(true);
            // With a mark whose copy was changed, a late copy of another mover would start.
            if due.is_some() && (has_started || !self.is_copied(&copy.id).await?) {
                removals.push(Command::Cancel(copy.id));
            }
        }
        self.write(0, &removals).await?;
        Ok(())
    }

    async fn is_copied(&self, id: &TimeoutId) -> StoreResult<bool> {
        Ok(self.store(1)?.get(id).await?.as_ref().is_some_and(is_parked))
    }

    /// Moves a batch of a queue. Returns whether it has come to the end.
    async fn move_batch(
        &self,
        queue: &Name,
        from: &mut WallTime,
        mut limit: usize,
    ) -> StoreResult<bool> {
        loop {
            let all = ClaimRequest::new(WallTime::MIN, PARKED);
            let (queue, max_bytes) = (queue.clone(), MAX_BYTES);
            let request = ClaimRequest { from: *from, limit, max_bytes, queue, ..all };
            let Some(mut batch) = self.claim(0, request.clone()).await? else { return Ok(false) };
            let Some(last) = batch.last().map(|last| last.next) else { return Ok(true) };
            batch.retain(|record| {
                let is_fresh = record.attempt == 0 && record.due == record.next;
                is_fresh && record.error.is_none() && self.is_of_pair(&record.id)
            });
            let is_later = last > mem::replace(from, last);
            if !batch.is_empty() {
                self.move_all(&request.queue, batch).await?;
            }
            // A shutdown waits for no more than a batch.
            if is_later || self.sharded.timers.iter().any(|timer| timer.change().is_err()) {
                return Ok(false);
            }
            // The next claim goes on behind these, which all have one time. A later call would
            // claim those again that do not move.
            limit = limit.max(PAGE);
            for which in [0, 1] {
                self.store(which)?.renew(self.workers[which], self.now(which), LEASE).await?;
            }
        }
    }

    async fn move_all(&self, queue: &Name, batch: Vec<Record>) -> StoreResult<()> {
        self.write(1, &batch.iter().map(copy).collect::<Vec<_>>()).await?;
        let copies = self.claim_copies(queue).await?.into_iter();
        let mut copies: FxHashMap<_, _> = copies.map(|copy| (copy.id.clone(), copy)).collect();
        let mut moves = Vec::new();
        for old in batch {
            let copy = copies.remove(&old.id);
            // Without a copy, a caller has written a new timeout here, and may have died before it
            // removed the old one. If it lives, it finds the mark, and answers that it has replaced
            // it. A copy that others have claimed may be about to go.
            let is_there = |new: Record| !is_parked(&new);
            if copy.is_some() || self.store(1)?.get(&old.id).await?.is_some_and(is_there) {
                moves.push((old, copy));
            }
        }
        let mark = |(old, _): &(Record, _)| {
            Command::Settle(old.claim(), Settlement::Dead { error: MOVED.to_owned() })
        };
        let marked = self.write(0, &moves.iter().map(mark).collect::<Vec<_>>()).await?;
        let copies = moves.into_iter().zip(marked).filter_map(|((old, copy), answer)| {
            Some((copy?, (answer == Answer::Settled(true)).then_some(old.due)))
        });
        self.complete(copies.collect()).await
    }
}

/// Returns the command that writes a parked copy, unless the id is taken.
fn copy(record: &Record) -> Command {
    let Record { id, payload, repeat, queue, priority, key, .. } = record.clone();
    let (due, conflict) = (PARKED, Conflict::Keep);
    Command::Schedule(NewTimeout { id, due, payload, repeat, conflict, queue, priority, key })
}
