//! A store around another, with another clock or without regular looks, which counts claims.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use delaywheel_durable::{
    Answer, Claim, ClaimRequest, ClaimedBatch, Command, Counts, Notice, PostgresStore, Query,
    Record, Store, StoreError, TimeoutId, WallClock, WallTime, WorkerId,
};

#[derive(Debug)]
pub(crate) struct Wrapper {
    pub(crate) store: PostgresStore,
    /// By how much its clock is ahead of the server's.
    pub(crate) ahead: Duration,
    /// Whether workers look again after some time.
    pub(crate) polls: bool,
    pub(crate) claims: Arc<AtomicU64>,
}

impl Wrapper {
    pub(crate) fn of(store: PostgresStore) -> Self {
        Self { store, ahead: Duration::ZERO, polls: true, claims: Arc::default() }
    }
}

#[derive(Debug)]
struct Ahead(Arc<dyn WallClock>, Duration);

impl WallClock for Ahead {
    fn now(&self) -> WallTime {
        self.0.now().saturating_add(self.1)
    }

    fn sleep_limit(&self) -> Option<Duration> {
        None
    }
}

impl Store for Wrapper {
    fn write(&self, now: WallTime, commands: &[Command]) -> Result<Vec<Answer>, StoreError> {
        self.store.write(now, commands)
    }

    fn get(&self, id: &TimeoutId) -> Result<Option<Record>, StoreError> {
        self.store.get(id)
    }

    fn list(&self, query: &Query, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.list(query, limit)
    }

    fn count(&self) -> Result<Counts, StoreError> {
        self.store.count()
    }

    fn enter(&self, now: WallTime, lease: Duration) -> Result<WorkerId, StoreError> {
        self.store.enter(now, lease)
    }

    fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> Result<bool, StoreError> {
        self.store.renew(worker, now, lease)
    }

    fn leave(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.store.leave(worker)
    }

    fn claim(
        &self,
        worker: WorkerId,
        request: ClaimRequest,
    ) -> Result<Option<ClaimedBatch>, StoreError> {
        self.claims.fetch_add(1, SeqCst);
        self.store.claim(worker, request)
    }

    fn begin(&self, now: WallTime, claims: &[Claim]) -> Result<Vec<bool>, StoreError> {
        self.store.begin(now, claims)
    }

    fn listen(&self, notice: Notice) {
        self.store.listen(notice);
    }

    fn recheck(&self) -> Option<Duration> {
        self.store.recheck().filter(|_| self.polls)
    }

    fn clock(&self) -> Option<Arc<dyn WallClock>> {
        let server = self.store.clock()?;
        Some(Arc::new(Ahead(server, self.ahead)))
    }
}
