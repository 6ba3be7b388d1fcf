//! The broker from outside: through a real client, and through frames of our own where a client
//! would not do what is to be seen.
//!
//! Nothing sleeps. Where time has to pass the broker runs on a clock that the test moves; where
//! something has to happen first, [`harness::until`] waits for the thing itself. The few tests on
//! the system's clock assert that nothing is early, and hold it against bounds of many seconds.

mod admin;
mod connections;
mod fetch;
mod groups;
mod guide;
mod harness;
mod idle;
mod malformed;
mod memory;
mod produce;
mod real_client;
mod shutdown;
