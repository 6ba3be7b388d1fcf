//! Tests of the public interface, in virtual time as far as possible.
#![expect(clippy::unchecked_time_subtraction, reason = "of constants, in tests")]

#[cfg(feature = "sqlite")]
mod files;
mod handlers;
mod load;
mod simulation;
mod stores;
mod timer;
mod waits;
