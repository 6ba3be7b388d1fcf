//! Tests of the public interface, in virtual time as far as possible.
#![expect(clippy::unchecked_time_subtraction, reason = "of constants, in tests")]

#[cfg(feature = "redb")]
mod files;
mod handlers;
#[cfg(feature = "redb")]
mod power;
mod scale;
mod simulation;
mod stores;
mod timer;
mod waits;
