//! The reference store: records in memory, every operation the plainest possible.
//!
//! For tests and simulations. Nothing survives the process.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    claims::Claims,
    error::StoreResult,
    record::{Attempt, Claim, Name, Record, State, TimeoutId},
    repeat::Repeat,
    store::{
        Answer, Begun, ClaimRequest, ClaimedBatch, Command, Counts, Listeners, Notice, Query,
        QueueState, Settlement, Store, WorkerId, WorkerLease,
    },
    time::WallTime,
    transition::{Change, apply, ended},
};

/// A store in memory, for tests. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<Contents>>,
    listeners: Arc<Listeners>,
}

#[derive(Default)]
struct Contents {
    /// Each without its hold.
    records: BTreeMap<TimeoutId, Record>,
    claims: Claims,
    keep: Duration,
    history: VecDeque<(WallTime, Attempt)>,
    attempts: u64,
    /// Records that another transaction has locked, in tests.
    locked: Vec<TimeoutId>,
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
        let state = self.state.lock();
        state.records.values().map(|record| state.claims.view(record.clone())).collect()
    }

    /// Makes a change that may void claims, and tells the timers if it does.
    fn void<R>(&self, change: impl FnOnce(&mut Claims) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state.claims);
        let has_voided = mem::take(&mut state.claims.has_voided);
        drop(state);
        if has_voided {
            self.listeners.tell_all();
        }
        result
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

    fn get(&self, id: &TimeoutId) -> Option<Record> {
        Some(self.claims.view(self.records.get(id)?.clone()))
    }

    /// Returns the ids of the pending records of a claim: first those that are due, in the order of
    /// priority.
    fn pending(&self, request: &ClaimRequest) -> Vec<(WallTime, TimeoutId)> {
        if self.claims.queues.is_paused(&request.queue) && !request.paused {
            return Vec::new();
        }
        let matches = |record: &&Record| {
            let is_busy = record.key.as_ref().is_some_and(|key| request.busy.contains(key));
            let is_cron = record.repeat.as_ref().is_some_and(Repeat::is_cron);
            let is_free =
                record.state == State::Pending && !self.claims.is_held(record.id.as_str());
            let is_pending = is_free && record.next >= request.from;
            is_pending && record.queue == request.queue && !is_busy && (request.cron || !is_cron)
        };
        let mut records: Vec<_> = self.records.values().filter(matches).collect();
        records.sort_unstable_by_key(|record| request.rank(record));
        records.into_iter().map(|record| (record.next, record.id.clone())).collect()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        let mut state = self.state.lock();
        let answers = commands.iter().map(|command| {
            state.claims.last_token += 1;
            if let Command::Schedule(new) = command {
                state.claims.queues.add(&new.queue);
            }
            let old = state.get(command.id());
            let (change, answer) = apply(old.clone(), command, state.claims.last_token);
            if let (Command::Settle(_, settlement), Answer::Settled(true)) = (command, answer) {
                state.note(old.as_ref(), settlement, now);
            }
            match change {
                Change::Nothing => return answer,
                Change::Put(record) => drop(state.records.insert(record.id.clone(), record)),
                Change::Remove => drop(state.records.remove(command.id())),
            }
            state.claims.holds.remove(command.id());
            answer
        });
        let answers: Vec<_> = answers.collect();
        drop(state);
        self.listeners.tell_of(commands, &answers);
        Ok(answers)
    }

    async fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        Ok(self.state.lock().get(id))
    }

    async fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        let state = self.state.lock();
        let records = state.records.values().filter(|record| query.matches(record)).cloned();
        let mut found: Vec<_> = records.map(|record| state.claims.view(record)).collect();
        if !matches!(query, Query::Prefix { .. }) {
            found.sort_by(|a, b| (a.next, &a.id).cmp(&(b.next, &b.id)));
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn count(&self) -> StoreResult<Counts> {
        let state = self.state.lock();
        let dead = state.records.values().filter(|record| record.state == State::Dead).count();
        let live = state.records.len() - dead;
        Ok(Counts { live: live as u64, dead: dead as u64 })
    }

    async fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        Ok(Some(self.state.lock().claims.leases(limit)))
    }

    async fn enter(
        &self,
        now: WallTime,
        lease: Duration,
        name: Option<&str>,
    ) -> StoreResult<WorkerId> {
        Ok(self.void(|claims| claims.enter(now.saturating_add(lease), name)))
    }

    async fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        Ok(self.void(|claims| claims.renew(worker, now, lease)))
    }

    async fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        self.void(|claims| claims.take_from(worker));
        Ok(())
    }

    async fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64> {
        Ok(self.void(|claims| claims.keep_only(worker, tokens)))
    }

    async fn claim(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> StoreResult<Option<ClaimedBatch>> {
        let mut state = self.state.lock();
        if !state.claims.is_known(worker) {
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
            let mut record = state.get(&id).expect("the record was listed");
            state.claims.hold(&mut record, worker);
            if request.begins(&record) {
                state.claims.begin(request.now, &[record.claim()], None, |_| false);
            }
            bytes += record.payload.len();
            batch.records.push(state.claims.view(record));
        }
        batch.records.sort_unstable_by(|a, b| (a.next, &a.id).cmp(&(b.next, &b.id)));
        batch.lapse = request.lapse.then(|| state.claims.lapse(worker)).flatten();
        Ok(Some(batch))
    }

    async fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>> {
        let Contents { claims: held, locked, .. } = &mut *self.state.lock();
        Ok(held.begin(now, claims, key_limit, |id| locked.contains(id)))
    }

    async fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)> {
        Ok(self.state.lock().claims.queues.permits(queue, now, rate, most))
    }

    async fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()> {
        self.state.lock().claims.queues.pause(queue, is_paused);
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
        Ok(self.state.lock().claims.queues.list())
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
