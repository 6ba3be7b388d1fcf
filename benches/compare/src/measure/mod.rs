//! The measurements. Each section of the report is one function of one of these modules.

pub mod futures;
pub mod latency;
pub mod load;
pub mod memory;
pub mod purgatory;
pub mod seen;
pub mod shared;
pub mod timer;
pub mod traffic;
pub mod wheel;

use std::io;

use crate::prelude::*;

/// A turn that a process takes for its parent.
#[derive(Serialize, Deserialize)]
pub enum Turn {
    Shared(shared::Turn),
    Futures(futures::Turn),
}

impl Turn {
    pub fn run(self) -> io::Result<Vec<Figure>> {
        match self {
            Self::Shared(turn) => Ok(turn.run()),
            Self::Futures(turn) => turn.run(),
        }
    }
}
