//! Tests of the public interface, in virtual time as far as possible.
#![expect(clippy::unchecked_time_subtraction, reason = "of constants, in tests")]

mod handlers;
mod load;
mod queues;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod timer;
mod waits;
