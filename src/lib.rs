//! Timeouts at scale.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

mod error;
mod tick;
pub mod wheel;

pub use self::{
    error::{BuildError, InsertError},
    tick::{Tick, TickSpan},
    wheel::{Advance, Drain, Expired, Iter, Key, TimingWheel, WheelBuilder},
};
