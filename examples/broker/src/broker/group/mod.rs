//! Consumer groups: their state machine, their coordinator, and their requests.

pub(super) mod admin;
mod coordinator;
mod message;
#[cfg(test)]
mod model;
pub(super) mod offsets;
pub(super) mod requests;
mod state;

pub(super) use self::coordinator::Coordinator;
pub use self::coordinator::GroupStats;
