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
//! steps 3 and 4 for the copies that have a mark, and removes the other copies.

use std::{mem, time::Duration};

use rustc_hash::FxHashMap;

use super::{PARKED, Sharded, is_parked};
use crate::{
    error::StoreResult,
    record::{Claim, MOVED, Name, Record, TimeoutId, is_moved},
    store::{
        Answer, ClaimRequest, Command, Conflict, NewTimeout, Query, Scheduled, Settlement, Store,
        WorkerId,
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

const PAGE: usize = 256;

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
    /// Looks at up to `limit` timeouts of one old database, and moves those whose database is a new
    /// one. Returns whether all old databases have been looked at since the last time.
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
        let result = self.step(pair, &mut sweep, limit.max(1)).await;
        if !matches!(result, Ok(false)) {
            let pair = (sweep.pair + 1) % pairs;
            sweep = Sweep { pair, ..Sweep::default() };
        }
        let is_first = sweep.pair == 0;
        *self.sweep.lock() = sweep;
        Ok(result? && is_first)
    }

    async fn step(&self, pair: [usize; 2], sweep: &mut Sweep, limit: usize) -> StoreResult<bool> {
        let mut workers = [WorkerId(0); 2];
        for (worker, shard) in workers.iter_mut().zip(pair) {
            let now = self.timers[shard].now();
            *worker = self.store(shard)?.enter(now, LEASE, Some(NAME)).await?;
        }
        let mover = Mover { sharded: self, pair, workers };
        let is_done = mover.step(sweep, limit).await?;
        // All records that did not move are pending again.
        for (shard, worker) in pair.into_iter().zip(mover.workers) {
            self.store(shard)?.leave(worker).await?;
        }
        Ok(is_done)
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
                pages(store, query.clone(), |record| {
                    count += u64::from(shard >= this.old || this.home(&record.id) != shard);
                })
                .await?;
            }
            Ok(count)
        })
    }
}

async fn pages(
    store: &dyn Store,
    mut query: Query,
    mut read: impl FnMut(&Record),
) -> StoreResult<()> {
    loop {
        let page = store.list(&query, PAGE).await?;
        page.iter().for_each(&mut read);
        match page.last().filter(|_| page.len() == PAGE) {
            Some(last) => query.continue_after(last.next, last.id.clone()),
            None => return Ok(()),
        }
    }
}

impl Mover<'_> {
    async fn step(&self, sweep: &mut Sweep, limit: usize) -> StoreResult<bool> {
        let queues = match &mut sweep.queues {
            Some(queues) => queues,
            none => {
                self.recover().await?;
                let queues = self.sharded.store(self.pair[0])?.queues().await?;
                none.insert(queues.into_iter().map(|queue| queue.name).collect())
            }
        };
        if let Some(queue) = queues.last()
            && self.move_batch(queue, &mut sweep.from, limit).await?
        {
            queues.pop();
            sweep.from = WallTime::MIN;
        }
        Ok(queues.is_empty())
    }

    fn is_of_pair(&self, id: &TimeoutId) -> bool {
        let (old, new) = self.sharded.homes(id);
        [old, new] == self.pair
    }

    /// Writes to the old database (0) or the new one (1).
    async fn write(&self, which: usize, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let shard = self.pair[which];
        self.sharded.store(shard)?.write(self.sharded.timers[shard].now(), commands).await
    }

    /// Claims also what is paused: a pause keeps deliveries from their begin, not from a move.
    async fn claim(&self, which: usize, request: ClaimRequest) -> StoreResult<Vec<Record>> {
        let store = self.sharded.store(self.pair[which])?;
        let request = ClaimRequest { paused: true, ..request };
        Ok(store.claim(self.workers[which], &request).await?.unwrap_or_default().records)
    }

    /// Claims the copies of a queue that no worker holds.
    async fn claim_copies(&self, queue: &Name) -> StoreResult<Vec<Record>> {
        let all = ClaimRequest::new(WallTime::MIN, WallTime::MAX);
        self.claim(1, ClaimRequest { from: PARKED, queue: queue.clone(), ..all }).await
    }

    /// Ends the moves of a mover that died.
    async fn recover(&self) -> StoreResult<()> {
        let [old, new] = self.pair.map(|shard| self.sharded.store(shard));
        let (old, new) = (old?, new?);
        for queue in new.queues().await? {
            for copy in self.claim_copies(&queue.name).await? {
                if self.is_of_pair(&copy.id) {
                    let moved = old.get(&copy.id).await?.filter(is_moved);
                    let settlement =
                        moved.map_or(Settlement::Done, |moved| Settlement::Again(moved.due));
                    self.write(1, &[Command::Settle(copy.claim(), settlement)]).await?;
                }
            }
        }
        let mut moved = Vec::new();
        pages(old, Query::Dead { after: None }, |record| {
            if is_moved(record) && self.is_of_pair(&record.id) {
                moved.push(record.id.clone());
            }
        })
        .await?;
        for id in moved {
            if !new.get(&id).await?.as_ref().is_some_and(is_parked) {
                self.write(0, &[Command::Cancel(id)]).await?;
            }
        }
        Ok(())
    }

    /// Moves a batch of a queue. Returns whether it has come to the end.
    async fn move_batch(
        &self,
        queue: &Name,
        from: &mut WallTime,
        limit: usize,
    ) -> StoreResult<bool> {
        loop {
            let all = ClaimRequest::new(WallTime::MIN, PARKED);
            let (queue, max_bytes) = (queue.clone(), MAX_BYTES);
            let request = ClaimRequest { from: *from, limit, max_bytes, queue, ..all };
            let mut batch = self.claim(0, request.clone()).await?;
            let Some(last) = batch.last().map(|last| last.next) else { return Ok(true) };
            batch.retain(|record| {
                let is_fresh = record.attempt == 0 && record.due == record.next;
                is_fresh && record.error.is_none() && self.is_of_pair(&record.id)
            });
            self.move_all(&request.queue, &batch).await?;
            let is_later = last > *from;
            *from = last;
            // Otherwise the next claim goes on behind these, which all have one time.
            if is_later || !batch.is_empty() {
                return Ok(false);
            }
        }
    }

    async fn move_all(&self, queue: &Name, batch: &[Record]) -> StoreResult<()> {
        let copies: Vec<_> = batch.iter().map(copy).collect();
        let answers = self.write(1, &copies).await?;
        if answers.is_empty() {
            return Ok(());
        }
        let parked = self.claim_copies(queue).await?;
        let parked: FxHashMap<_, _> = parked.iter().map(|copy| (&copy.id, copy.claim())).collect();
        let mut pairs: Vec<(&Record, Option<&Claim>)> = Vec::new();
        for (record, answer) in batch.iter().zip(answers) {
            let claim = parked.get(&record.id);
            let is_new = answer == Answer::Scheduled(Scheduled::Created);
            // Without a copy, a caller has written a new timeout here, and may have died before it
            // removed the old one. If it lives, it finds the mark, and answers that it has replaced
            // it.
            if claim.is_some() || !is_new {
                pairs.push((record, claim));
            }
        }
        let mark = |(record, _): &(&Record, _)| {
            Command::Settle(record.claim(), Settlement::Dead { error: MOVED.to_owned() })
        };
        let marked = self.write(0, &pairs.iter().map(mark).collect::<Vec<_>>()).await?;
        let starts = pairs.into_iter().zip(marked).filter_map(|((record, claim), answer)| {
            let is_marked = answer == Answer::Settled(true);
            let start = if is_marked { Settlement::Again(record.due) } else { Settlement::Done };
            Some(Command::Settle(claim?.clone(), start))
        });
        let starts: Vec<_> = starts.collect();
        let started = self.write(1, &starts).await?;
        // The next recovery removes the other marks: it starts copies that have one.
        let removals = starts.into_iter().zip(started).filter_map(|pair| match pair {
            (Command::Settle(claim, Settlement::Again(_)), Answer::Settled(true)) => {
                Some(Command::Cancel(claim.id))
            }
            _ => None,
        });
        self.write(0, &removals.collect::<Vec<_>>()).await?;
        Ok(())
    }
}

/// Returns the command that writes a parked copy, unless the id is taken.
fn copy(record: &Record) -> Command {
    let Record { id, payload, repeat, queue, priority, key, .. } = record.clone();
    let (due, conflict) = (PARKED, Conflict::Keep);
    Command::Schedule(NewTimeout { id, due, payload, repeat, conflict, queue, priority, key })
}
