//! Durable timeouts: the next minutes in a timing wheel, everything in a store.
//!
//! A [`DurableTimer`] delivers payloads to a handler at times of the wall clock that may be years
//! ahead, and survives crashes. It keeps every timeout in a [`Store`] and the next minute of them
//! in a wheel of `delaywheel`.
//!
//! ```
//! use std::time::Duration;
//!
//! use delaywheel_durable::{DurableTimer, SqliteStore};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("reminders.db");
//! let timer = DurableTimer::builder(SqliteStore::open(path)?).build_blocking(|delivery| {
//!     println!("{}: {:?}", delivery.id(), delivery.payload());
//!     Ok(())
//! })?;
//! timer.schedule("trial/17", Duration::from_secs(30 * 86_400), b"your trial ends").wait()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//!
//! 1. *Durable.* When `schedule`, `cancel` or `reschedule` returns, a crash does not undo it.
//! 2. *Never early.* No delivery begins before the due time, by the clock of the timer.
//! 3. *At least once.* A timeout is delivered until a delivery is acknowledged, it is cancelled, it
//!    is dead, or a policy skips it.
//! 4. *One answer.* After [`Cancelled::Cancelled`] no delivery begins. [`Cancelled::Delivering`]
//!    says that one had begun. The crash of a PostgreSQL server is an exception: see
//!    `PostgresStore`.
//! 5. *Fenced.* A worker that lost its claim cannot acknowledge, retry or reschedule.
//! 6. *Bounded.* Memory depends on the window and on the deliveries under way, not on the number of
//!    timeouts in the store.
//!
//! A timeout may be delivered twice: if the process dies after the handler did its work and before
//! the acknowledgement was durable, if the handler outlives its lease, or if it is
//! [scheduled](DurableTimer::schedule) again after an unknown outcome. Transactions in the same
//! PostgreSQL database avoid that: see `PostgresStore`.
//!
//! # States of a record
//!
//! ```text
//!              schedule                claim                 begin
//!   (none) -----------------> Pending ---------> Claimed -----------------> Delivering
//!                              ^ ^ ^               |                         | | |
//!                              | | +---------------+ release, lease lost     | | |
//!                              | +-------------------------------------------+ | |
//!                              |    retry, next occurrence, lease lost         | |
//!                      requeue |                                               | |
//!                             Dead <-------------------------------------------+ |
//!                                                 last attempt failed            |
//!   (none) <---------------------------------------------------------------------+
//!                                                 acknowledge
//! ```
//!
//! `cancel` leads from every state to none. `reschedule` leads from `Pending` and `Claimed` to
//! `Pending`; `schedule` with [`Conflict::Replace`] does so from every state.
//!
//! # Windows, leases and tokens
//!
//! A *worker* is one timer on one store. It has a *lease*, which it renews as long as it holds
//! records.
//!
//! 1. *Claim.* The worker claims the earliest pending records of its window, in batches, before
//!    they are due. A claim gives the record a new *token*, which no claim had before. On a shared
//!    store it claims only what it can deliver in a moment, and gives back what is due if no
//!    handler was free for a second, so that workers share.
//! 2. *Begin.* When a record is due and a handler can run it, the worker asks the store to begin
//!    the delivery, which counts an attempt. The store refuses if the token is another one by now:
//!    the record was cancelled, moved or replaced, or it belongs to another worker. So the answer
//!    to a cancel is correct, even though the worker's memory does not know of it. If handlers take
//!    only a moment, a claim of overdue records begins their deliveries as well. Directly before
//!    the handler runs, its thread or task checks the lease by the monotonic clock, and the limit
//!    of the handler starts. If the lease has ended, the queue is paused, or the handler does not
//!    start within its limit, the record goes back, and the attempt does not count.
//! 3. *Settle.* The result of the handler is written with the token. A settlement with an old token
//!    changes nothing: this is the fence.
//! 4. *Lapse.* When a lease has ended, another worker makes the records of its holder pending, and
//!    their old tokens void. It does so when it renews its own lease, unless less than half of that
//!    is left: what stopped this worker may have stopped the other one.
//! 5. *Compare.* A failover or a crash of a server can undo a commit that it has answered. So the
//!    worker of a shared store tells it each minute which tokens it holds, and the store makes the
//!    other records of that worker pending.
//!
//! Invariant: at most one worker holds the token of a record. Every change of a record, except
//! *begin*, gives it another token or removes it.
//!
//! The workers of one PostgreSQL database follow the clock of the server, so their own may differ
//! by minutes. A worker reads it with each claim, and counts on by the monotonic clock of its
//! machine. So it notices a step of the server's clock after a minute at the latest, or the
//! interval of [`recheck`](DurableTimerBuilder::recheck). A timer that only schedules reads it
//! every 30 seconds, and through a pool every minute. On Linux, a worker also claims at once after
//! its own machine was suspended or the clock there was set.
//!
//! A worker sleeps until the first of these times: a due time in its wheel, half a window before
//! the next record in the store is due, the renewal of a lease that is in use, or the end of
//! another worker's lease. A change that makes a record due earlier wakes it. With SQLite, nothing
//! polls. With PostgreSQL, a worker also claims every minute, in case a notification was lost.
//!
//! # Queues
//!
//! A timeout belongs to a [`Queue`]; the default one has the empty name. For each that a timer
//! serves, it is a worker of its own. A claim takes what is due in the order of priority and time.
//! A begin refuses timeouts of a paused queue, and of a key with as many deliveries as may run at
//! once on all workers. A begin that is under way when a queue is paused may still take effect, and
//! no later one. The limit of a key counts deliveries that are [current](Delivery::is_current): a
//! handler whose delivery is not may run beside the next one of its key. If a delivery does not
//! begin after all, its permit of a rate goes to another one of this worker within a tenth of a
//! second, or is lost.
//!
//! # Limits
//!
//! Ids have 1 to 255 bytes, queues and keys at most 64, payloads at most 1 MiB, times lie between
//! 1970 and 9999 and are rounded up to a microsecond. A recurring timeout whose occurrence is dead
//! does not recur until it is requeued. [`Backoff::attempts`] says which attempts count.
//!
//! # Features
//!
//! - `sqlite` (default): the embedded store, which tests also use in memory, and [`conformance`].
//! - `postgres`: the store for many processes.
//! - `jiff`: timestamps of that crate convert into [`When`], and by `try_from` into [`WallTime`].
//! - `cron`: cron expressions in a time zone, by `croner` and `jiff`.
//! - `metrics`: [`DurableTimer::publish_metrics`](DurableTimer#method.publish_metrics).
//! - `cli`: the program `delaywheel-durable`; the README describes it.
//! - `page`: [`Page`](struct@Page), which shows a store to operators in a browser.
//! - `serde`: typed payloads with a version, as JSON.
//! - `tracing`: events for failures of the store, lost leases and steps of the clock.

#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(dead_code, reason = "the stores of this crate use it")
)]

/// Shows some fields of a type for debugging.
macro_rules! opaque {
    ($kind:ident, $($name:ident: $($field:ident).+),+) => {
        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($kind));
                $(shown.field(stringify!($name), &self.$($field).+);)+
                shown.finish_non_exhaustive()
            }
        }
    };
}

/// Emits an event. A subscriber that panics ends no thread.
macro_rules! emit {
    ($level:ident, $($event:tt)*) => {
        #[cfg(feature = "tracing")]
        crate::timer::run_contained(|| tracing::$level!($($event)*));
    };
}

#[cfg(feature = "sqlite")]
mod claims;
#[cfg(feature = "sqlite")]
pub mod conformance;
mod error;
mod inspect;
#[cfg(feature = "page")]
mod page;
#[cfg(feature = "serde")]
mod payload;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
mod repeat;
mod sharded;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;
mod timer;
mod transition;

#[cfg(feature = "page")]
pub use self::page::Page;
#[cfg(feature = "serde")]
pub use self::payload::{Payload, PayloadError};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, Tls};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
#[doc(hidden)]
pub use self::{error::causes, inspect::change};
pub use self::{
    error::{BuildError, DurableError, InputError, StoreError, StoreErrorReason, StoreResult},
    inspect::Overview,
    record::{Attempt, AttemptEnd, Claim, MAX_PAYLOAD, Name, Priority, Record, State, TimeoutId},
    repeat::{Missed, Repeat},
    sharded::Sharded,
    store::{
        Answer, Begun, Calls, Cancelled, ClaimRequest, ClaimedBatch, Command, Conflict, Counts,
        NewTimeout, Notice, Query, QueueOverview, QueueState, Rescheduled, Scheduled, Settlement,
        Store, WorkerId, WorkerLease,
    },
    time::{WallTime, When},
    timer::{
        Backoff, Delivery, DeliveryFuture, DurableStats, DurableTimer, DurableTimerBuilder,
        Latency, Queue, Receipt, StopToken,
    },
};
pub use async_trait::async_trait;
pub use delaywheel::{Clock, Driven, JumpListener, ManualClock, SystemClock};
#[cfg(feature = "postgres")]
pub use tokio_postgres::NoTls;

#[cfg(all(test, not(feature = "sqlite")))]
compile_error!("the tests need the feature `sqlite`");

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
