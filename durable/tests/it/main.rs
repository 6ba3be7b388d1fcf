//! Tests of the public interface, in virtual time as far as possible.
#![cfg(feature = "sqlite")]
#![expect(clippy::unchecked_time_subtraction, reason = "of constants, in tests")]

#[cfg(feature = "cli")]
mod cli;
mod handlers;
mod locked;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(all(feature = "page", unix))]
mod page;
mod queues;
mod simulation;
mod sqlite;
mod timer;
mod waits;

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use delaywheel_durable::{
    Answer, Attempt, Backoff, Begun, BuildError, Cancelled, Claim, ClaimRequest, ClaimedBatch,
    Clock, Command, Conflict, Counts, Delivery, DurableError, DurableTimer, DurableTimerBuilder,
    ManualClock, Name, NewTimeout, Notice, Priority, Query, Queue, QueueOverview, QueueState,
    Record, Repeat, Rescheduled, Scheduled, Settlement, SqliteStore, State, Store, StoreError,
    StoreErrorReason, StoreResult, TimeoutId, WallTime, WorkerId, async_trait,
};
use pollster::FutureExt as _;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn now(clock: &ManualClock) -> WallTime {
    WallTime::now_of(clock.system_time())
}

fn acknowledging(store: impl Store, clock: &ManualClock) -> DurableTimer {
    let builder = DurableTimer::builder(store).clock(clock.clone());
    builder.build_blocking(|_| Ok(())).expect("start")
}

/// Ends an attempt of each timeout of the default queue that is due before a time.
fn settle_all(store: &dyn Store, now: WallTime, until: WallTime, settlement: &Settlement) {
    let worker = store.enter(now, Duration::MAX, None).block_on().expect("enter");
    let claimed = store.claim(worker, &ClaimRequest::new(now, until)).block_on().expect("claim");
    let records = claimed.expect("lease").records;
    let claims: Vec<_> = records.iter().map(Record::claim).collect();
    store.begin(now, &claims, None).block_on().expect("begin");
    let settle = |claim| Command::Settle(claim, settlement.clone());
    let settled: Vec<_> = claims.into_iter().map(settle).collect();
    store.write(now, &settled).block_on().expect("settle");
    store.leave(worker).block_on().expect("leave");
}

/// Returns every record, in the order of ids.
fn records(store: &dyn Store) -> Vec<Record> {
    let all = Query::Prefix { prefix: String::new(), after: None };
    store.list(&all, usize::MAX).block_on().expect("list")
}
