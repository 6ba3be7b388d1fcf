//! The measurements. Each section of the report is one function of one of these modules.

pub mod latency;
pub mod load;
pub mod memory;
pub mod purgatory;
pub mod seen;
pub mod shared;
pub mod timer;
pub mod traffic;
pub mod wheel;
