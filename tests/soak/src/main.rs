//! Runs timers and a purgatory under load for a while, with faults injected, and fails on any breach.
//!
//! ```text
//! cargo run --release -p delaywheel-soak [-- OPTIONS]
//!
//! --seconds N   20 by default
//! --seed N      what the load is drawn from; how threads interleave is not. Random by default
//! --attacks     measure what hostile use costs, instead, and print a Markdown table
//! ```
//!
//! A soak is made of rounds of some seconds, each with a timer of values, a timer of closures and a
//! purgatory; how they run what is due, their limits, and how they end differ from round to round.
//!
//! Faults: handlers and operations panic, sleep, and call what they come from and each other; the
//! clock stands still, steps back and jumps ahead; bursts come for one moment; limits are reached;
//! threads die with handles; many timeouts are reset again and again. The clock goes right in the first
//! half of a round, and nobody sleeps.
//!
//! Breaches: a ledger that does not agree, within the library or with the load's own; anything that
//! is early by the clock that it was given, ends twice, is lost, dropped without an answer, or
//! satisfied without its condition; an operation that expires a second after its event; a limit that
//! is passed by a quarter; a timer that stands still; one in a hundred late by half a second while the
//! clock goes right and the machine is on time; memory that is not given back; a panic that was not
//! injected.

#![forbid(unsafe_code)]

mod attacks;
mod beside;
mod books;
mod breaches;
mod clock;
mod closures;
mod ledger;
mod memory;
mod operation;
mod options;
mod report;
mod round;
mod values;
mod waits;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{breaches::Breaches, options::Options, round::Round};

/// How long a round takes.
const ROUND: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match Options::from_args() {
        Ok(options) if options.is_attacks => attacks::run(),
        Ok(options) => soak(options),
        Err(error) => {
            eprintln!("{error}; the options are described in the head of the source");
            ExitCode::FAILURE
        }
    }
}

fn soak(options: Options) -> ExitCode {
    let breaches = Breaches::default();
    breaches.watch_panics();
    println!("seed {}", options.seed);
    report::head();
    let end = Instant::now() + options.length;
    let mut numbers = 0..;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    {
        let number = numbers.next().expect("there is always another");
        Round::new(number, options.seed, &breaches).run(left.min(ROUND));
        if breaches.count() > 0 {
            return fail(&breaches, options.seed);
        }
    }
    println!("no breach in {} rounds", numbers.start);
    ExitCode::SUCCESS
}

fn fail(breaches: &Breaches, seed: u64) -> ExitCode {
    for breach in breaches.take() {
        eprintln!("{breach}");
    }
    eprintln!("{} breaches, with seed {seed}", breaches.count());
    ExitCode::FAILURE
}
