//! What is told of runs, and the search for the highest rate that is sustained.

use std::process::ExitCode;

use delaywheel_compare::report::table::count;

use crate::{
    driver::{self, Outcome},
    options::{Latency, Options},
    schedule::Schedule,
};

/// What a search is to find at least.
const TARGET: u32 = 1_000_000;

/// What Kafka's purgatory sustains.
const PEERS: &str = "K 575,000-675,000 at 60, 20; 525,000-600,000 at 400, 200; \
                     published in 2015: 105,000 at 400, 200";

/// Runs of a rate in a search, unless one shows the best: so that one disturbance does not end it.
const ATTEMPTS: u32 = 3;

const HEAD: &str = "# rate\tnum\tkeys\tspace\ttimeout\tpct75\tpct50 -> elapsed ms\ttarget rate\t\
                    actual rate\tCPU ms\tCPU ns/request\tsatisfied\texpired\tmissed";

/// Runs what the command line asks for.
pub(crate) fn run(options: &Options) -> ExitCode {
    println!("{HEAD}");
    let mut is_met = true;
    for latency in options.latencies() {
        is_met &= if options.is_search {
            let [highest, punctual] = search(options, latency);
            let verdict = if highest >= TARGET { "ok" } else { "MISSED" };
            println!(
                "# pct75 {} pct50 {}: sustained {highest} requests/s (>= {TARGET} {verdict}), \
                 punctual {punctual} | {PEERS}",
                latency.pct75, latency.pct50,
            );
            highest >= TARGET
        } else {
            attempt(options, latency).is_sustained()
        };
    }
    if is_met || !options.is_checked { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The highest rate that is sustained, and the highest at which completions are punctual as well; 0
/// if the first is not.
fn search(options: &Options, latency: Latency) -> [u32; 2] {
    let (mut highest, mut punctual) = (0, 0);
    let rates = (options.rate..).step_by(options.step.max(1) as usize);
    for rate in rates {
        let options = options.at_rate(rate);
        for _ in 0..ATTEMPTS {
            let outcome = attempt(&options, latency);
            if outcome.is_sustained() {
                highest = rate;
            }
            if outcome.is_punctual() {
                punctual = rate;
                break;
            }
        }
        if highest < rate {
            break;
        }
    }
    [highest, punctual]
}

/// Runs once, and tells what that has shown.
fn attempt(options: &Options, latency: Latency) -> Outcome {
    let outcome = driver::run(options, &Schedule::new(options, latency));
    let Outcome { elapsed, target_rate, actual_rate, cpu, satisfied, expired, missed } = &outcome;
    let [cpu, each] = match cpu {
        Some(cpu) => {
            let each = cpu.as_secs_f64() * 1e9 / count(u64::from(options.num()));
            [cpu.as_millis().to_string(), format!("{each:.0}")]
        }
        None => ["-".to_owned(), "-".to_owned()],
    };
    println!(
        "{}\t{}\t{}\t{}\t{}\t{}\t{} -> {}\t{target_rate:.0}\t{actual_rate:.0}\t{cpu}\t{each}\t\
         {satisfied}\t{expired}\t{missed}",
        options.rate,
        options.num(),
        options.keys,
        options.key_space,
        options.timeout.as_millis(),
        latency.pct75,
        latency.pct50,
        elapsed.as_millis(),
    );
    outcome
}
