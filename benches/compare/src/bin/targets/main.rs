//! Measures what delaywheel promises, beside its peers, and says which targets are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin targets [-- --quick] [--only NAME]... [--check]
//! ```

#![forbid(unsafe_code)]

mod century;
mod entrant;
mod growth;
mod latency;
mod memory;
mod pending;
mod server;
mod sizes;
mod sparse;
mod steps;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use delaywheel_compare::report::{self, Section};
use peakmem_alloc::PeakMemAlloc;

/// Counts the peak of live bytes.
static PEAK: PeakMemAlloc<System> = PeakMemAlloc::new(System);

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<&PeakMemAlloc<System>> = Cap::new(&PEAK, usize::MAX);

const SECTIONS: &[Section] = &[
    Section::new("million", pending::million),
    Section::new("thousand", pending::thousand),
    Section::new("ten_million", pending::ten_million),
    Section::new("memory", memory::rows),
    Section::new("sparse", sparse::rows),
    Section::new("server", server::rows),
    Section::new("steps", steps::rows),
    Section::new("century", century::rows),
    Section::new("growth", growth::rows),
    Section::on_demand("sizes", sizes::rows),
];

fn main() -> ExitCode {
    report::run(SECTIONS)
}
