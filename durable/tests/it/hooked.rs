//! A store in memory, of which calls that lock records may fail.

use super::*;

/// A call: one that locks records, or another one.
pub(crate) enum Call<'a> {
    Other,
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

/// Passes calls of a store on by `call`, but for those that a test store may change.
macro_rules! pass_others_on {
    () => {
        pass_others_on! {
            get(id: &TimeoutId) -> Option<Record>;
            list(query: &Query, limit: usize) -> Vec<Record>;
            count() -> Counts;
            enter(now: WallTime, lease: Duration, name: Option<&str>) -> WorkerId;
            leave(worker: WorkerId) -> ();
            keep_only(worker: WorkerId, tokens: &[u64]) -> u64;
            permits(queue: &Name, now: WallTime, rate: NonZeroU32, most: usize)
                -> (usize, WallTime);
            pause(queue: &Name, is_paused: bool) -> ();
            history(now: WallTime, id: Option<&TimeoutId>, before: Option<u64>, limit: usize)
                -> Vec<Attempt>;
            queues() -> Vec<QueueState>;
        }

        fn keep_history(&self, keep: Duration) {
            self.store.keep_history(keep);
        }

        fn listen(&self, notice: Notice) {
            self.store.listen(notice);
        }
    };
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(
            fn $name(&self, $($argument: $kind),*) -> StoreResult<$answer> {
                self.call(|| self.store.$name($($argument),*))
            }
        )*
    };
}
pub(crate) use pass_others_on;

impl Hooked {
    fn call<R>(&self, run: impl FnOnce() -> StoreResult<R>) -> StoreResult<R> {
        (self.hook)(Call::Other)?;
        run()
    }
}

impl Store for Hooked {
    pass_others_on!();

    fn write(&self, now: WallTime, commands: &[Command]) -> StoreResult<Vec<Answer>> {
        (self.hook)(Call::Write(commands))?;
        self.store.write(now, commands)
    }

    fn renew(&self, worker: WorkerId, now: WallTime, lease: Duration) -> StoreResult<bool> {
        self.call(|| self.store.renew(worker, now, lease))
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
}
