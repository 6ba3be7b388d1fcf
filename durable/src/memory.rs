//! The reference store: records in memory, every operation the plainest possible.
//!
//! For tests and simulations. Nothing survives the process.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    error::StoreResult,
    record::{Attempt, Claim, Name, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Begun, ClaimRequest, ClaimedBatch, Command, Counts, Listeners, Notice, Query,
        QueueState, Settlement, Store, WorkerId, WorkerLease,
    },
    time::WallTime,
    transition::{Change, apply, ended},
    workers::{Queues, Workers},
};

/// A store in memory, for tests. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<Contents>>,
    listeners: Arc<Listeners>,
}

#[derive(Default)]
struct Contents {
    records: BTreeMap<TimeoutId, Entry>,
    workers: Workers,
    queues: Queues,
    last_token: u64,
    keep: Duration,
    history: VecDeque<(WallTime, Attempt)>,
    attempts: u64,
    /// Records that another transaction has locked.
    #[cfg(test)]
    locked: Vec<TimeoutId>,
}

#[derive(Clone)]
struct Entry {
    record: Record,
    worker: Option<WorkerId>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks records from begins, in place of those that were locked before.
    #[cfg(test)]
    pub(crate) fn lock(&self, ids: impl IntoIterator<Item = TimeoutId>) {
        self.state.lock().locked = ids.into_iter().collect();
    }

    /// Returns every record, in the order of ids.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.state.lock().records.values().map(|entry| entry.record.clone()).collect()
    }
}

impl Contents {
    /// Adds to the history, and removes at most two old entries.
    fn note(&mut self, old: Option<&Record>, settlement: &Settlement, now: WallTime) {
        if self.keep.is_zero() {
            return;
        }
        let attempt = old.and_then(|old| ended(old, settlement, self.attempts + 1, now));
        if let Some(attempt) = attempt {
            self.attempts += 1;
            self.history.push_back((now.saturating_add(self.keep), attempt));
        }
        for _ in 0..2 {
            if self.history.front().is_some_and(|(until, _)| *until <= now) {
                self.history.pop_front();
            }
        }
    }

    fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Removes a worker, voids its claims and makes its records pending.
    fn take_from(&mut self, worker: WorkerId) {
        self.workers.remove(worker);
        self.take_all_but(&[], worker);
    }

    /// Voids the claims of a worker but for some, and returns their number.
    fn take_all_but(&mut self, tokens: &[u64], worker: WorkerId) -> u64 {
        let first = self.last_token;
        for entry in self.records.values_mut().filter(|entry| entry.worker == Some(worker)) {
            if !tokens.contains(&entry.record.token) {
                self.last_token += 1;
                entry.worker = None;
                entry.record.state = State::Pending;
                entry.record.token = self.last_token;
            }
        }
        self.last_token - first
    }

    /// Returns the ids of the pending records of a claim: first those that are due, in the order of
    /// priority.
    fn pending(&self, request: &ClaimRequest) -> Vec<(WallTime, TimeoutId)> {
        if self.queues.is_paused(&request.queue) && !request.paused {
            return Vec::new();
        }
        let matches = |record: &&Record| {
            let is_busy = record.key.as_ref().is_some_and(|key| request.busy.contains(key));
            let is_cron = record.repeat.as_ref().is_some_and(Repeat::is_cron);
            let is_pending = record.state == State::Pending && record.next >= request.from;
            is_pending && record.queue == request.queue && !is_busy && (request.cron || !is_cron)
        };
        let records = self.records.values().map(|entry| &entry.record);
        let mut records: Vec<_> = records.filter(matches).collect();
        records.sort_unstable_by_key(|record| request.rank(record));
        records.into_iter().map(|record| (record.next, record.id.clone())).collect()
    }

    /// Returns the number of deliveries of a queue and key that are under way.
    fn count_delivering(&self, queue: &Name, key: &Name) -> usize {
        let records = self.records.values().map(|entry| &entry.record);
        let is_counted = |record: &&Record| {
            let is_delivering = record.state == State::Delivering && record.queue == *queue;
            is_delivering && record.key.as_ref() == Some(key)
        };
        records.filter(is_counted).count()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        let mut state = self.state.lock();
        let answers = commands.iter().map(|command| {
            let token = state.token();
            if let Command::Schedule(new) = command {
                state.queues.add(&new.queue);
            }
            let old = state.records.get(command.id()).map(|entry| entry.record.clone());
            let (change, answer) = apply(old.clone(), command, token);
            if let (Command::Settle(_, settlement), Answer::Settled(true)) = (command, answer) {
                state.note(old.as_ref(), settlement, now);
            }
            match change {
                Change::Nothing => (),
                Change::Put(record) => {
                    state.records.insert(record.id.clone(), Entry { record, worker: None });
                }
                Change::Remove => {
                    state.records.remove(command.id());
                }
            }
            answer
        });
        let answers: Vec<_> = answers.collect();
        drop(state);
        self.listeners.tell_of(commands, &answers);
        Ok(answers)
    }

    async fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        Ok(self.state.lock().records.get(id).map(|entry| entry.record.clone()))
    }

    async fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        let state = self.state.lock();
        let records = state.records.values().map(|entry| &entry.record);
        let mut found: Vec<_> = records.filter(|record| query.matches(record)).cloned().collect();
        if !matches!(query, Query::Prefix { .. }) {
            found.sort_by(|a, b| (a.next, &a.id).cmp(&(b.next, &b.id)));
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn count(&self) -> StoreResult<Counts> {
        let state = self.state.lock();
        let dead = state.records.values().filter(|entry| entry.record.state == State::Dead).count();
        let live = state.records.len() - dead;
        Ok(Counts { live: live as u64, dead: dead as u64 })
    }

    async fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let state = self.state.lock();
        let hold = |entry: &Entry| (entry.worker, entry.record.state == State::Delivering);
        Ok(Some(state.workers.leases(limit, &state.records.values().map(hold))))
    }

    async fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> StoreResult<WorkerId> {
        let mut state = self.state.lock();
        let (worker, old) = state.workers.enter(now.saturating_add(lease), name);
        if let Some(old) = old {
            state.take_from(old);
        }
        Ok(worker)
    }

    async fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        let mut state = self.state.lock();
        let (is_known, lapsed) = state.workers.renew(worker, now, lease);
        for &worker in &lapsed {
            state.take_from(worker);
        }
        drop(state);
        if !lapsed.is_empty() {
            self.listeners.tell_all();
        }
        Ok(is_known)
    }

    async fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        self.state.lock().take_from(worker);
        self.listeners.tell_all();
        Ok(())
    }

    async fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64> {
        let taken = self.state.lock().take_all_but(tokens, worker);
        if taken > 0 {
            self.listeners.tell_all();
        }
        Ok(taken)
    }

    async fn claim(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> StoreResult<Option<ClaimedBatch>> {
        let mut state = self.state.lock();
        if !state.workers.is_known(worker) {
            return Ok(None);
        }
        let mut batch = ClaimedBatch::default();
        let mut bytes = 0;
        let mut has_room = true;
        for (next, id) in state.pending(request) {
            has_room &= batch.records.len() < request.limit && bytes < request.max_bytes;
            if !has_room || next >= request.until {
                batch.next = batch.next.into_iter().chain([next]).min();
                continue;
            }
            let token = state.token();
            let entry = state.records.get_mut(&id).expect("the record was listed");
            entry.worker = Some(worker);
            entry.record.token = token;
            let begins = request.begins(&entry.record);
            entry.record.state = if begins { State::Delivering } else { State::Claimed };
            entry.record.attempt += u32::from(begins);
            bytes += entry.record.payload.len();
            batch.records.push(entry.record.clone());
        }
        batch.records.sort_unstable_by(|a, b| (a.next, &a.id).cmp(&(b.next, &b.id)));
        let holders = state.records.values().filter_map(|entry| entry.worker);
        batch.lapse = request.lapse.then(|| state.workers.lapse(holders, worker)).flatten();
        Ok(Some(batch))
    }

    async fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>> {
        let mut state = self.state.lock();
        let begun = claims.iter().map(|claim| {
            let Some(Entry { record, .. }) = state.records.get(&claim.id) else {
                return Begun::Void;
            };
            if record.token != claim.token || record.state != State::Claimed || record.next > now {
                return Begun::Void;
            }
            #[cfg(test)]
            if state.locked.contains(&claim.id) {
                return Begun::Locked;
            }
            if state.queues.is_paused(&record.queue) {
                return Begun::Paused;
            }
            if let (Some(limit), Some(key)) = (key_limit, &record.key)
                && state.count_delivering(&record.queue, key) >= limit.get()
            {
                return Begun::Busy;
            }
            let record = &mut state.records.get_mut(&claim.id).expect("it was found").record;
            record.state = State::Delivering;
            record.attempt += 1;
            Begun::Begun
        });
        Ok(begun.collect())
    }

    async fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)> {
        Ok(self.state.lock().queues.permits(queue, now, rate, most))
    }

    async fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()> {
        self.state.lock().queues.pause(queue, is_paused);
        self.listeners.tell(Some(queue), WallTime::MIN);
        Ok(())
    }

    fn keep_history(&self, keep: Duration) {
        self.state.lock().keep = keep;
    }

    async fn history(
        &self,
        now: WallTime,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Attempt>> {
        let state = self.state.lock();
        let kept = state.history.iter().rev().filter(|(until, _)| *until > now);
        let matches = |attempt: &&Attempt| {
            let is_before = before.is_none_or(|before| attempt.number < before);
            is_before && id.is_none_or(|id| *id == attempt.id)
        };
        Ok(kept.map(|(_, attempt)| attempt).filter(matches).take(limit).cloned().collect())
    }

    async fn queues(&self) -> StoreResult<Vec<QueueState>> {
        Ok(self.state.lock().queues.list())
    }

    fn listen(&self, notice: Notice) {
        self.listeners.add(notice);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.state.lock().records.len();
        f.debug_struct("MemoryStore").field("records", &records).finish_non_exhaustive()
    }
}
