//! Consumer groups: their state machine, their coordinator, and their requests.

mod commits;
mod coordinator;
#[cfg(test)]
mod model;
mod state;

pub use self::coordinator::{GroupConfig, GroupStats};
pub(crate) use self::{
    commits::Commit,
    coordinator::{Coordinator, Joining, Slot, Syncing},
    state::{
        Client, Identity, Join, JoinOutcome, Joined, Name, NotJoined, Phase, SyncOutcome, Synced,
    },
};
