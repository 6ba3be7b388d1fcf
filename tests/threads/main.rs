//! Timers and purgatories on real threads: random load, faults, and every way to end.
//!
//! ```text
//! cargo test --release --test threads [-- PART..]
//! ```
//!
//! | Part | Purpose |
//! |---|---|
//! | `soak` | Load with faults on timers and a purgatory; all ledgers must balance after each round |
//! | `ends` | Timers that end while threads use them lose no timeout |
//! | `oversubscribed` | A late reaper expires timeouts beside 16 threads that never pause |
//!
//! | Variable | Meaning |
//! |---|---|
//! | `THREADS_SECONDS` | Length of the soak; 1 by default, 10 with optimization |
//! | `THREADS_SEED` | Seed of the soak; random by default, and printed |
//! | `THREADS_ENDS` | Timers that end; 50 by default, 1000 with optimization |
//!
//! Seeds determine the load, not how threads interleave. No assertion depends on the speed of the
//! machine: waits have a limit of minutes.
//!
//! The parts have a `main` of their own. They share one process, so they run one after the other;
//! and the thread sanitizer reports races within the default test harness.
//!
//! Faults of the soak: callbacks and operations panic, sleep, and call the timer, the purgatory and
//! each other. The clock stands still, steps back and jumps ahead. Many timeouts have one deadline,
//! or are reset again and again. Limits are reached. In the first
//! half of a round, the clock is right and no callback sleeps.

mod books;
mod breaches;
mod clock;
mod ends;
mod ledger;
mod memory;
mod operation;
mod oversubscribed;
mod round;
mod values;
#[path = "../shared/variable.rs"]
mod variable;
mod waits;

use std::{env, panic::catch_unwind, process::ExitCode, time::Instant};

/// A part returns whether it passed; it may panic instead.
type Part = (&'static str, fn() -> bool);

const PARTS: [Part; 3] =
    [("ends", ends::run), ("oversubscribed", oversubscribed::run), ("soak", round::soak)];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let (flags, names): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    let is_named = |part: &&Part| names.iter().any(|name| part.0.contains(name.as_str()));
    let parts = PARTS.iter().filter(|part| names.is_empty() || is_named(part));
    // Test runners ask for the names of the tests first.
    if flags.iter().any(|flag| *flag == "--list") {
        let listed = parts.filter(|_| !flags.iter().any(|flag| *flag == "--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let failed = parts.filter(|part| !passes(part)).count();
    println!("threads: {failed} parts failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes((name, run): &Part) -> bool {
    println!("== {name}");
    let start = Instant::now();
    let is_passed = catch_unwind(run).unwrap_or(false);
    let verdict = if is_passed { "ok" } else { "FAILED" };
    println!("== {name}: {verdict} after {:.1} s", start.elapsed().as_secs_f64());
    is_passed
}
