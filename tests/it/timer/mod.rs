//! The timer, mostly in virtual time. With real threads, a test waits for a condition and never for
//! time to pass.

mod callbacks;
pub(crate) mod clock;
mod drops;
mod finish;
mod limits;
mod order;
pub(crate) mod reaper;
mod sharing;
mod states;
pub(crate) mod support;
pub(crate) mod threads;
mod wall;
