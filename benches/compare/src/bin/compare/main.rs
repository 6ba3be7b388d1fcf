//! Runs all systems of the field side by side, writes down what it measures, and draws it.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin compare
//!     [-- --quick] [--only WORKLOAD]... [--rounds N] [--seed N] [--out FILE]
//!     [--render FILE] [--figures FOLDER] [--markdown] [--docs]
//! ```
//!
//! Results are a JSON file, and figures and tables are made from that alone: `--render` reads one
//! instead of measuring, `--docs` puts figures and tables where the documentation has them.
//!
//! Contestants take turns within a round. Those with threads of their own take each turn in a process
//! of its own, so that no threads of others are about; so does whoever's memory is measured, in
//! the program `compare_memory`, whose allocator counts.

#![forbid(unsafe_code)]

mod docs;
mod figures;
mod machine;
mod markdown;
mod options;
mod run;

use std::{error::Error, process::ExitCode};

use delaywheel_compare::side_by_side::results::Results;

use self::options::{Options, Source};

fn main() -> ExitCode {
    let options = match Options::from_args() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{}", options::usage());
            return ExitCode::FAILURE;
        }
    };
    match perform(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(options: &Options) -> Result<(), Box<dyn Error>> {
    let results = match &options.source {
        Source::Turn(turn) => return run::child::take_turn(turn),
        Source::File(file) => Results::read(file)?,
        Source::Run(scope) => {
            let results = run::all(scope)?;
            results.write(&options.out)?;
            eprintln!("results: {}", options.out.display());
            results
        }
    };
    for file in figures::render(&results, &options.figures)? {
        eprintln!("figure: {}", file.display());
    }
    if options.is_markdown {
        print!("{}", markdown::tables(&results));
    }
    if options.is_docs {
        docs::update(&results)?;
    }
    Ok(())
}
