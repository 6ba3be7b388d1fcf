//! What an operator asks of a store, beside the calls of a timer: bounded counts, and the workers.

use std::time::Duration;

use crate::{
    error::StoreResult,
    memory::MemoryStore,
    store::{Query, Store, WorkerId},
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
    /// Returns the number of records of a list, or `limit` if there are more. Reads no more than
    /// that. The default reads whole records.
    fn count_up_to(&self, query: &Query, limit: usize) -> StoreResult<usize> {
        Ok(self.list(query, limit)?.len())
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
        let times = |from, until| Query::Times { from, until, after: None };
        let later = now.saturating_add(Duration::from_micros(1));
        let due = times(WallTime::MIN, later);
        let hour = now.saturating_sub(Duration::from_micros(now.as_micros() % HOUR));
        let start = |number: u64| hour.saturating_add(Duration::from_micros(number * HOUR));
        let by_hour = (0..hours as u64).map(|number| {
            store.count_up_to(&times(start(number).max(later), start(number + 1)), limit)
        });
        Ok(Self {
            now,
            limit,
            due: store.count_up_to(&due, limit)?,
            oldest_due: store.list(&due, 1)?.first().map(|record| record.next),
            dead: store.count_up_to(&Query::Dead { after: None }, limit)?,
            hour,
            by_hour: by_hour.collect::<StoreResult<_>>()?,
        })
    }
}
