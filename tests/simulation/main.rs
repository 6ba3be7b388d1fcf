//! The whole stack in virtual time: timers, a queue and a purgatory, with faulty
//! clocks, callbacks that panic and re-enter, slow pools, and early shutdowns. A seed determines
//! each step. After each step, the test checks every promise.
//!
//! `cargo test --release --test simulation -- --nocapture`. `SIMULATION_SEEDS=100000` sets the
//! number of seeds, and `SIMULATION_SECONDS=3600` the time to run. A failure prints the command
//! that replays its seed, and the shortest script found that fails.
//!
//! It is a separate binary, because it also runs alone for hours.

mod books;
mod calls;
mod clock;
mod corpus;
mod fronts;
#[path = "../shared/inputs.rs"]
mod inputs;
mod ledger;
mod map;
mod repeats;
mod script;
#[path = "../shared/shrink.rs"]
mod shrink;
#[path = "../shared/variable.rs"]
mod variable;
mod waits;
mod workers;
mod world;

use std::time::{Duration, Instant};

use crate::{script::Script, variable::variable, workers::run_script, world::Yield};

/// Default number of seeds, for a few seconds.
const DEFAULT_SEEDS: u64 = if cfg!(debug_assertions) { 50 } else { 1_000 };

const YEAR: u128 = 365 * 24 * 3_600 * 1_000_000_000;

#[test]
fn every_promise_holds_after_every_step_of_any_script() {
    if let Some(seed) = variable::<u64>("SIMULATION_SEED") {
        let script = Script::generate(seed);
        match run_script(&script) {
            Ok(done) => println!("seed {seed}: {done:?}"),
            Err(failure) => report(seed, script, &failure),
        }
        return;
    }
    let seconds = variable("SIMULATION_SECONDS").map(Duration::from_secs);
    let seeds = variable("SIMULATION_SEEDS").unwrap_or(DEFAULT_SEEDS);
    let first = variable("SIMULATION_FROM").unwrap_or(0);
    let begun = Instant::now();
    let (mut count, mut steps, mut sum) = (0_u64, 0, Yield::default());
    while seconds.map_or(count < seeds, |seconds| begun.elapsed() < seconds) {
        let seed = first + count;
        let script = Script::generate(seed);
        match run_script(&script) {
            Ok(done) => {
                sum.nanos += done.nanos;
                sum.operations += done.operations;
            }
            Err(failure) => report(seed, script, &failure),
        }
        count += 1;
        steps += script.steps.len();
    }
    println!(
        "{count} seeds from {first} in {:.1} s: {steps} steps, {} timeouts and operations, {} years",
        begun.elapsed().as_secs_f64(),
        sum.operations,
        sum.nanos / YEAR
    );
}

#[test]
fn a_script_runs_the_same_way_every_time() {
    for seed in 0..DEFAULT_SEEDS / 5 {
        let script = Script::generate(seed);
        assert_eq!(run_script(&script), run_script(&script), "seed {seed}");
    }
}

fn report(seed: u64, script: Script, failure: &str) -> ! {
    eprintln!("{failure}\n\nshrinking..");
    let script =
        shrink::shrink(script, |script| &mut script.steps, |script| run_script(script).is_err());
    let failure = run_script(&script).err().unwrap_or_else(|| String::from(failure));
    eprintln!("{:#?}", script.setup);
    for (index, (thread, step)) in script.steps.iter().enumerate() {
        eprintln!("{index:3} on thread {thread}: {step:?}");
    }
    panic!(
        "seed {seed} fails: {failure}\n\nreplay it:\n\n    \
         SIMULATION_SEED={seed} cargo test --release --test simulation -- --nocapture\n"
    );
}
