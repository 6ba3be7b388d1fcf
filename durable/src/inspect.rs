//! Bounded counts that show an operator the state of a store, and the wait of an operator's change
//! for a locked record.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{StoreErrorReason, StoreResult},
    store::{Query, Store},
    time::WallTime,
    timer::LOCKED,
};

/// Time between the tries of a change.
const RETRY: Duration = Duration::from_millis(100);

/// Makes a change, again and again while another transaction has locked its record, for as long as
/// a timer does. Blocks.
#[doc(hidden)]
pub fn change<R>(call: impl FnMut() -> StoreResult<R>) -> StoreResult<R> {
    change_until(Instant::now() + LOCKED, call)
}

fn change_until<R>(limit: Instant, mut call: impl FnMut() -> StoreResult<R>) -> StoreResult<R> {
    loop {
        match call() {
            Err(error) if error.reason() == StoreErrorReason::Locked && Instant::now() < limit => {
                thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

/// Counts of a store at one time. A count that equals `limit` means "at least", but for `dead`.
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
    pub dead: u64,
    /// Start of the hour of `now`, in UTC.
    pub hour: WallTime,
    /// Records that become due in each hour. The first one is the hour of `now`, without what is
    /// due already.
    pub by_hour: Vec<usize>,
}

impl Overview {
    /// Counts the records of a store. Each number costs one statement.
    pub async fn of(
        store: &dyn Store,
        now: WallTime,
        hours: usize,
        limit: usize,
    ) -> StoreResult<Self> {
        const HOUR: u64 = 3_600_000_000;
        let later = now.saturating_add(Duration::from_micros(1));
        let due = Query::Times { from: WallTime::MIN, until: later, after: None };
        let hour = now.saturating_sub(Duration::from_micros(now.as_micros() % HOUR));
        let start = |number: u64| hour.saturating_add(Duration::from_micros(number * HOUR));
        let mut by_hour = Vec::with_capacity(hours);
        for number in 0..hours as u64 {
            let from = start(number).max(later);
            by_hour.push(store.count_live(from, start(number + 1), limit).await?);
        }
        Ok(Self {
            now,
            limit,
            due: store.count_live(WallTime::MIN, later, limit).await?,
            oldest_due: store.list(&due, 1).await?.first().map(|record| record.next),
            dead: store.count().await?.dead,
            hour,
            by_hour,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreError;

    #[test]
    fn a_change_waits_for_a_lock_but_not_without_end_and_for_nothing_else() {
        for (reason, waits) in [(StoreErrorReason::Locked, true), (StoreErrorReason::Full, false)] {
            let mut tries = 0;
            let failed = change_until(Instant::now() + RETRY, || {
                tries += 1;
                Err::<(), _>(StoreError::new(reason))
            });
            assert_eq!(failed.expect_err("it ends").reason(), reason);
            assert_eq!(tries > 1, waits, "{reason}");
        }
    }
}
