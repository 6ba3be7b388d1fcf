//! A store in memory, of which calls that lock records may fail.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use delaywheel_durable::{
    Answer, Attempt, Begun, Claim, ClaimRequest, ClaimedBatch, Command, Counts, MemoryStore, Name,
    Notice, Query, QueueState, Record, Store, StoreResult, TimeoutId, WallTime, WorkerId,
};

/// A call that locks records.
pub(crate) enum Call<'a> {
    Write(&'a [Command]),
    Claim,
    Begin,
}

type Hook = Arc<dyn Fn(Call<'_>) -> StoreResult<()> + Send + Sync>;

/// Its hook runs before such calls, and may refuse them.
#[derive(Clone)]
pub(crate) struct Hooked {
    store: MemoryStore,
    hook: Hook,
}

impl Hooked {
    pub(crate) fn new(
        store: &MemoryStore,
        hook: impl Fn(Call<'_>) -> StoreResult<()> + Send + Sync + 'static,
    ) -> Self {
        Self { store: store.clone(), hook: Arc::new(hook) }
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooked").finish_non_exhaustive()
    }
}

impl Store for Hooked {
    fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        (self.hook)(Call::Write(commands))?;
        self.store.write(now, commands)
    }

    fn get(&self, id: &TimeoutId) -> StoreResult<Option<Record>> {
        self.store.get(id)
    }

    fn list(&self, query: &Query, limit: usize) -> StoreResult<Vec<Record>> {
        self.store.list(query, limit)
    }

    fn count(&self) -> StoreResult<Counts> {
        self.store.count()
    }

    fn count_due(&self, now: WallTime) -> StoreResult<u64> {
        self.store.count_due(now)
    }

    fn enter(&self, now: WallTime, lease: Duration, name: Option<&str>) -> StoreResult<WorkerId> {
        self.store.enter(now, lease, name)
    }

    fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        self.store.renew(worker, now, lease)
    }

    fn keep_only(&self, worker: WorkerId, tokens: &[u64]) -> StoreResult<u64> {
        self.store.keep_only(worker, tokens)
    }

    fn leave(&self, worker: WorkerId) -> StoreResult<()> {
        self.store.leave(worker)
    }

    fn claim(&self, worker: WorkerId, request: &ClaimRequest) -> StoreResult<Option<ClaimedBatch>> {
        (self.hook)(Call::Claim)?;
        self.store.claim(worker, request)
    }

    fn begin(
        &self,
        now: WallTime,
        claims: &[Claim],
        key_limit: Option<NonZeroUsize>,
    ) -> StoreResult<Vec<Begun>> {
        (self.hook)(Call::Begin)?;
        self.store.begin(now, claims, key_limit)
    }

    fn permits(
        &self,
        queue: &Name,
        now: WallTime,
        rate: NonZeroU32,
        most: usize,
    ) -> StoreResult<(usize, WallTime)> {
        self.store.permits(queue, now, rate, most)
    }

    fn pause(&self, queue: &Name, is_paused: bool) -> StoreResult<()> {
        self.store.pause(queue, is_paused)
    }

    fn keep_history(&self, keep: Duration) {
        self.store.keep_history(keep);
    }

    fn history(
        &self,
        now: WallTime,
        id: Option<&TimeoutId>,
        before: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<Attempt>> {
        self.store.history(now, id, before, limit)
    }

    fn queues(&self) -> StoreResult<Vec<QueueState>> {
        self.store.queues()
    }

    fn listen(&self, notice: Notice) {
        self.store.listen(notice);
    }
}
