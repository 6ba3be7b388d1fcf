//! Kafka's `DelayedOperationPurgatory`, written from its description.
//!
//! Lists of watchers are in 512 shards by key. An operation has a lock of its own, under which its
//! condition is checked. A completed operation stays in its lists until an event checks them, or
//! until the reaper purges all lists, which it does once 1,000 operations have completed. Timeouts
//! wait in the wheels of [`KafkaTimer`](crate::shared::KafkaTimer).
//!
//! In Kafka a list is a queue without a lock. Here a list has one, which is held while its
//! operations are checked; so an operation is put into its lists without its own lock.

use rustc_hash::FxHashMap;

use crate::prelude::*;
use crate::shared::kafka::{Expire, Timeout, Wheels};

const SHARDS: usize = 512;

/// Completed operations in lists, from which on the reaper purges.
const PURGE_INTERVAL: usize = 1_000;

/// The purgatory, whose keys are numbers.
pub struct KafkaPurgatory {
    wheels: Wheels<Operation>,
    watchers: Arc<Watchers>,
}

/// An operation in the wheels; a list counts a reference to it.
type Watcher = Arc<Timeout<Operation>>;

/// The operations that watch a key.
type List = Arc<Mutex<Vec<Watcher>>>;

/// Locks are taken in this order: shard, list, operation.
struct Watchers {
    shards: Vec<Mutex<FxHashMap<u32, List>>>,
    /// Operations in lists, of which some may have completed.
    estimated: AtomicUsize,
}

/// An operation that completes when its answer is ready.
pub struct Operation {
    answer: &'static Answer,
    is_completed: AtomicBool,
    lock: Mutex<()>,
}

impl Operation {
    fn is_completed(&self) -> bool {
        self.is_completed.load(Ordering::Acquire)
    }

    /// Ends the operation. Returns whether it had not ended.
    fn end(&self, completion: Completion) -> bool {
        let ends = !self.is_completed.swap(true, Ordering::AcqRel);
        if ends {
            Request(self.answer).complete(completion);
        }
        ends
    }
}

impl Expire for Operation {
    fn expire(&self) {
        self.end(Completion::Expired);
    }
}

impl Watchers {
    fn shard(&self, key: u32) -> &Mutex<FxHashMap<u32, List>> {
        &self.shards[key as usize % SHARDS]
    }

    fn watch(&self, key: u32, watcher: &Watcher) {
        let mut shard = self.shard(key).lock();
        shard.entry(key).or_default().lock().push(Arc::clone(watcher));
    }

    fn remove_if_empty(&self, key: u32) {
        let mut shard = self.shard(key).lock();
        if shard.get(&key).is_some_and(|list| list.lock().is_empty()) {
            shard.remove(&key);
        }
    }

    /// Removes completed operations from all lists, if there are enough.
    fn purge(&self, pending: usize) {
        if self.estimated.load(Ordering::Relaxed).saturating_sub(pending) <= PURGE_INTERVAL {
            return;
        }
        self.estimated.store(pending, Ordering::Relaxed);
        for shard in &self.shards {
            let lists: Vec<_> =
                shard.lock().iter().map(|(key, list)| (*key, Arc::clone(list))).collect();
            for (key, list) in lists {
                let mut list = list.lock();
                list.retain(|watcher| !watcher.task.is_completed());
                let is_empty = list.is_empty();
                drop(list);
                if is_empty {
                    self.remove_if_empty(key);
                }
            }
        }
    }
}

impl KafkaPurgatory {
    pub fn watched(&self) -> usize {
        let shards = self.watchers.shards.iter();
        shards.map(|shard| shard.lock().values().map(|list| list.lock().len()).sum::<usize>()).sum()
    }

    /// Completes an operation if its condition holds.
    fn try_complete(&self, watcher: &Watcher) -> bool {
        let _checked = watcher.task.lock.lock();
        !watcher.task.is_completed()
            && Request(watcher.task.answer).try_complete()
            && self.force_complete(watcher)
    }

    fn force_complete(&self, watcher: &Watcher) -> bool {
        let ends = watcher.task.end(Completion::Satisfied);
        if ends {
            self.wheels.cancel(watcher);
        }
        ends
    }
}

impl SharedPurgatory for KafkaPurgatory {
    type Handle = Watcher;

    const NAME: &'static str = "kafka_purgatory";

    fn start() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let watchers = Arc::new(Watchers { shards, estimated: AtomicUsize::new(0) });
        let own = Arc::clone(&watchers);
        Self { wheels: Wheels::start(move |pending| own.purge(pending)), watchers }
    }

    fn try_watch<const KEYS: usize>(
        &self,
        answer: &'static Answer,
        keys: [u32; KEYS],
        delay: Duration,
    ) -> Option<Watcher> {
        let operation =
            Operation { answer, is_completed: AtomicBool::new(false), lock: Mutex::new(()) };
        let watcher = self.wheels.timeout(delay, operation);
        if self.try_complete(&watcher) {
            return None;
        }
        keys.iter().for_each(|&key| self.watchers.watch(key, &watcher));
        self.watchers.estimated.fetch_add(1, Ordering::Relaxed);
        if self.try_complete(&watcher) {
            return None;
        }
        // Nothing is added if an event has completed it meanwhile.
        self.wheels.add(&watcher);
        Some(watcher)
    }

    fn complete(&self, watcher: Watcher) -> bool {
        self.force_complete(&watcher)
    }

    fn check(&self, key: u32) -> usize {
        let Some(list) = self.watchers.shard(key).lock().get(&key).map(Arc::clone) else {
            return 0;
        };
        let (mut completed, mut list) = (0, list.lock());
        list.retain(|watcher| {
            if watcher.task.is_completed() {
                return false;
            }
            let is_completed = self.try_complete(watcher);
            completed += usize::from(is_completed);
            !is_completed
        });
        let is_empty = list.is_empty();
        drop(list);
        if is_empty {
            self.watchers.remove_if_empty(key);
        }
        completed
    }

    fn check_all(&self, keys: &[u32]) -> usize {
        keys.iter().map(|&key| self.check(key)).sum()
    }

    /// The purgatory counts nothing, so this checks only which operations wait.
    fn settle(&self, _satisfied: u64, _expired: u64, waiting: u64) {
        // The reaper may just be moving some to a finer level.
        wait_until("as many are pending", || self.wheels.pending() as u64 == waiting);
        let mut ended = 0;
        for shard in &self.watchers.shards {
            for watcher in shard.lock().values().flat_map(|list| std::mem::take(&mut *list.lock()))
            {
                if watcher.task.end(Completion::ShutDown) {
                    self.wheels.cancel(&watcher);
                    ended += 1;
                }
            }
        }
        assert_eq!(ended, waiting, "requests that wait");
    }
}
