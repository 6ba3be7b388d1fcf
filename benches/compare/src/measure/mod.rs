//! The measurements. Each section of the report is one function of one of these modules.

pub mod futures;
pub mod load;
pub mod map;
pub mod memory;
pub mod purgatory;
pub mod shared;
pub mod timer;
pub mod traffic;
pub mod wheel;

use std::io;

use crate::prelude::*;

/// A turn of one contestant in a process of its own.
#[derive(Clone, Serialize, Deserialize)]
pub struct Turn {
    /// The row, or the path above rows that are measured together.
    pub row: String,
    pub contestant: String,
    /// Threads that use the contestant.
    pub threads: u32,
    /// Timeouts, sleeps, operations or connections.
    pub number: u32,
    /// Length of the timed part. In virtual time, its number of ticks.
    pub millis: u32,
    pub seed: u64,
}

impl Turn {
    /// Takes the turn, unless it needs the allocator of the program `memory`.
    pub fn run(&self) -> io::Result<Vec<Figure>> {
        if self.row.starts_with("future/") {
            return futures::take(self);
        }
        Ok(shared::take(self))
    }

    fn time(&self) -> Duration {
        self.millis * MILLI
    }
}
