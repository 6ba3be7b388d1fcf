//! Counts the instructions that operations take, and compares them with a baseline.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin instructions [-- --write]
//! ```
//!
//! Time varies with the machine and what else it does; the number of instructions hardly does, so
//! that a loss of some percent shows. A child process performs a scenario, and its parent, which traces
//! it, lets it take one instruction after the other and counts them. That needs Linux, and the
//! right to trace a child; without, nothing is checked, which is said.
//!
//! Counts are compared with `instructions.txt` in the folder of this package. One that is more than
//! 5 % above fails the run, if compiler and target are those of the file. `--write` makes the
//! present counts the baseline.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod baseline;
#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod scenarios;
#[cfg(target_os = "linux")]
mod subjects;
#[cfg(target_os = "linux")]
mod tracer;
#[cfg(target_os = "linux")]
mod waits;
#[cfg(target_os = "linux")]
mod workers;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    check::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    println!("not checked: instructions are counted on Linux only");
    ExitCode::SUCCESS
}
