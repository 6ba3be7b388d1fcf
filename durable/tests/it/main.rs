//! Tests of the public interface, in virtual time as far as possible.
#![expect(clippy::unchecked_time_subtraction, reason = "of constants, in tests")]

#[cfg(feature = "cli")]
mod cli;
mod handlers;
mod load;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(all(feature = "page", unix))]
mod page;
mod queues;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod timer;
mod waits;
