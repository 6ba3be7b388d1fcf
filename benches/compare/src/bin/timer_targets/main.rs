//! Measures what the timer promises, in real time, and says which targets are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin timer_targets \
//!     [-- --quick] [--rounds N] [--only NAME]... [--check]
//! ```
//!
//! Memory is measured by `timer_memory`, since an allocator that counts would weigh on all others.

#![forbid(unsafe_code)]

mod burst;
mod cascade;
mod fine;
mod idle;
mod pairs;
mod slow;
mod steady;
mod threads;

use std::process::ExitCode;

use delaywheel_compare::report::{self, Section};

const SECTIONS: &[Section] = &[
    Section::new("pairs", pairs::rows),
    Section::new("threads", threads::rows),
    Section::new("idle", idle::rows),
    Section::new("burst", burst::rows),
    Section::new("steady", steady::rows),
    Section::new("fine", fine::rows),
    Section::new("cascade", cascade::rows),
    Section::new("slow_callback", slow::rows),
];

fn main() -> ExitCode {
    report::run(SECTIONS)
}
