//! Measures what the purgatory promises, in real time, and says which targets are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin purgatory_targets \
//!     [-- --quick] [--rounds N] [--only NAME]... [--check]
//! ```
//!
//! K is what Kafka's purgatory takes for the same on a machine of this kind: JDK 17, an operation
//! on 3 keys out of 100 unless said otherwise. Memory is measured by `purgatory_memory`, and the
//! workload that was published with Kafka's by `purgatory_load`.

#![forbid(unsafe_code)]

mod checks;
mod closed_loop;
mod lateness;
mod longest;
mod service;
mod threads;

use std::process::ExitCode;

use delaywheel_compare::report::{self, Section};

const SECTIONS: &[Section] = &[
    Section::new("closed_loop", closed_loop::rows),
    Section::new("threads", threads::rows),
    Section::new("checks", checks::rows),
    Section::new("lateness", lateness::rows),
    Section::new("longest", longest::rows),
];

fn main() -> ExitCode {
    report::run(SECTIONS)
}
