//! The workload that was published with Kafka's purgatory: at a rate, or at the highest sustained.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin purgatory_load [-- OPTIONS]
//!
//! --rate N            requests a second: 1,000,000; or where a search begins: 400,000
//! --num N             requests; those of three seconds by default
//! --keys N            keys of a request, 3 by default
//! --key-space-size N  different keys, 100 by default
//! --timeout MS        200 by default
//! --pct75 MS, --pct50 MS
//!                     latencies of completions; both 60, 20 and 400, 200 by default
//! --by-events         complete by events on keys, not by handle
//! --empty             the driver alone, without a purgatory
//! --search            raise the rate until it is not sustained
//! --step N            by so much, 50,000 by default
//! --check             fail if the rate is not sustained, or not 1,000,000 in a search
//! ```
//!
//! Requests arrive as a Poisson process. Each is created when it arrives, and waits on its keys,
//! with the timeout. Latencies are log-normal; a request whose latency is shorter than the timeout
//! is completed that long after it arrived, by another thread, through its handle, as in the
//! published program. (That has all requests of a run watch the same three keys; here each draws
//! its own.) With `--by-events` that thread lets the requests complete that are due by then, and
//! announces an event on each of their keys, once for all of them; whoever watches one of those
//! keys is checked.
//!
//! The driver shares the machine with what it measures. So all is drawn and sorted beforehand, and
//! both of its threads work off what is due and then sleep for half a millisecond.
//!
//! A rate is sustained if the requests are created at 0.99 of it at least; that is what the
//! published program looks at. It is punctual if besides at most one of a hundred requests expires
//! that was to be completed before. What CPU is told includes the driver's.

#![forbid(unsafe_code)]

mod driver;
mod options;
mod report;
mod schedule;

use std::process::ExitCode;

fn main() -> ExitCode {
    match options::Options::from_args() {
        Ok(options) => report::run(&options),
        Err(error) => {
            eprintln!("{error}; the options are described in the head of the source");
            ExitCode::FAILURE
        }
    }
}
