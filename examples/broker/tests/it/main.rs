//! The broker from outside: through sockets, by requests that the tests make.
//!
//! No test sleeps. If time has to pass, the broker runs on a clock that the test moves. If an event
//! has to come first, [`prelude::until`] waits for it. The tests on the clock of the system have
//! bounds of many seconds.

mod admin;
mod connections;
mod fetch;
mod groups;
mod guide;
mod malformed;
mod memory;
mod prelude;
mod produce;
mod shutdown;
