//! What an operator asks of a store, beside the calls of a timer: bounded counts, and the workers.

use std::time::Duration;

use crate::{
    error::StoreResult,
    memory::MemoryStore,
    record::{Name, Record},
    store::{Query, QueueState, Store, WorkerId},
    time::WallTime,
};

/// A worker and its lease, as a store knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    /// The worker.
    pub worker: WorkerId,
    /// Name of the worker, if it has one.
    pub name: Option<String>,
    /// End of the lease.
    pub until: WallTime,
    /// Number of records that it has claimed.
    pub held: u64,
    /// Number of these whose delivery is under way.
    pub delivering: u64,
}

/// A store that the program and the page for operators can show.
///
/// The methods have defaults, so a store of your own needs only `impl Inspect for MyStore {}`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use delaywheel_durable::{Inspect, MemoryStore, Overview, Store, WallTime};
///
/// let (store, now) = (MemoryStore::new(), WallTime::MIN);
/// store.enter(now, Duration::from_secs(60), Some("node-1"))?;
/// let workers = store.workers(10)?.expect("this store knows them");
/// assert_eq!(workers[0].name.as_deref(), Some("node-1"));
/// assert_eq!(Overview::of(&store, now, 24, 1_000)?.due, 0);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub trait Inspect: Store {
    /// Returns the number of live records of all queues or of one whose next attempt lies in a
    /// range of time, the end not included; `limit` if there are more. The default reads all of
    /// them.
    fn count_live(
        &self,
        from: WallTime,
        until: WallTime,
        queue: Option<&Name>,
        limit: usize,
    ) -> StoreResult<usize> {
        let records = self.list(&Query::Times { from, until, after: None }, usize::MAX)?;
        let fits = |record: &&Record| queue.is_none_or(|queue| record.queue == *queue);
        Ok(records.iter().filter(fits).take(limit).count())
    }

    /// Returns the number of dead records, or `limit` if there are more. The default reads them.
    fn count_dead(&self, limit: usize) -> StoreResult<usize> {
        Ok(self.list(&Query::Dead { after: None }, limit)?.len())
    }

    /// Returns at most `limit` workers; `None` if the store cannot tell, which is the default.
    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        let _ = limit;
        Ok(None)
    }
}

impl Inspect for MemoryStore {
    fn workers(&self, limit: usize) -> StoreResult<Option<Vec<WorkerLease>>> {
        Ok(Some(self.leases(limit)))
    }
}

/// Bounded counts of a store at one time. A count that equals `limit` means "at least".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overview {
    /// Time of the counts.
    pub now: WallTime,
    /// Most records that are counted for each number.
    pub limit: usize,
    /// Records that are due and not acknowledged.
    pub due: usize,
    /// Next attempt of the oldest of these.
    pub oldest_due: Option<WallTime>,
    /// Dead records.
    pub dead: usize,
    /// Start of the hour of `now`, in UTC.
    pub hour: WallTime,
    /// Records that become due in each hour. The first one is the hour of `now`, without what is
    /// due already.
    pub by_hour: Vec<usize>,
}

impl Overview {
    /// Counts the records of a store. Each number costs one statement.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError).
    pub fn of<S: Inspect + ?Sized>(
        store: &S,
        now: WallTime,
        hours: usize,
        limit: usize,
    ) -> StoreResult<Self> {
        const HOUR: u64 = 3_600_000_000;
        let later = now.saturating_add(Duration::from_micros(1));
        let due = Query::Times { from: WallTime::MIN, until: later, after: None };
        let hour = now.saturating_sub(Duration::from_micros(now.as_micros() % HOUR));
        let start = |number: u64| hour.saturating_add(Duration::from_micros(number * HOUR));
        let by_hour = (0..hours as u64).map(|number| {
            store.count_live(start(number).max(later), start(number + 1), None, limit)
        });
        Ok(Self {
            now,
            limit,
            due: store.count_live(WallTime::MIN, later, None, limit)?,
            oldest_due: store.list(&due, 1)?.first().map(|record| record.next),
            dead: store.count_dead(limit)?,
            hour,
            by_hour: by_hour.collect::<StoreResult<_>>()?,
        })
    }
}

/// A queue with bounded counts. A count that equals the limit means "at least".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOverview {
    /// Name and state of the queue.
    pub queue: QueueState,
    /// Records that are not dead.
    pub live: usize,
    /// Those of them that are due.
    pub due: usize,
}

impl QueueOverview {
    /// Counts the records of a queue, with two statements.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError).
    pub fn of<S: Inspect + ?Sized>(
        store: &S,
        queue: QueueState,
        now: WallTime,
        limit: usize,
    ) -> StoreResult<Self> {
        let count = |until| store.count_live(WallTime::MIN, until, Some(&queue.name), limit);
        let due = count(now.saturating_add(Duration::from_micros(1)))?;
        Ok(Self { live: count(WallTime::MAX)?, due, queue })
    }
}
