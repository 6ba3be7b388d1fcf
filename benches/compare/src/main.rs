//! Compares delaywheel with other timers: one run, one report.
//!
//! ```text
//! cargo compare [--only PATH]... [--smoke | --long] [--rounds N] [--seed N]
//!               [--check] [--docs] [--from FILE]
//! ```
//!
//! A run takes under fifteen minutes; `--smoke` checks in a minute that everything works, `--long`
//! takes an hour. `--only` selects rows by the start of their path. Results, tables and pictures go
//! to `target/compare`. `--docs` also puts tables and pictures into `docs`. `--from` reads the
//! selected rows of a file instead of measuring. `--check` fails if a target is missed.

#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use delaywheel_compare::{
    bench::{Bench, Options, Results, Scale},
    figures,
    measure::Turn,
    report,
};
use lexopt::prelude::*;

const USAGE: &str = "options: [--only PATH]... [--smoke | --long] [--rounds N] [--seed N] [--check] [--docs] \
                     [--from FILE]";

#[derive(Default)]
struct Arguments {
    options: Options,
    is_checked: bool,
    is_documented: bool,
    from: Option<PathBuf>,
    /// A turn that this process takes for its parent.
    turn: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self, lexopt::Error> {
        let mut arguments = Self::default();
        let options = &mut arguments.options;
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("only") => options.only.push(parser.value()?.string()?),
                Long("smoke") => options.scale = Scale::Smoke,
                Long("long") => options.scale = Scale::Long,
                Long("rounds") => options.rounds = Some(parser.value()?.parse()?),
                Long("seed") => options.seed = parser.value()?.parse()?,
                Long("check") => arguments.is_checked = true,
                Long("docs") => arguments.is_documented = true,
                Long("from") => arguments.from = Some(PathBuf::from(parser.value()?)),
                Long("turn") => arguments.turn = Some(parser.value()?.string()?),
                _ => return Err(argument.unexpected()),
            }
        }
        if arguments.is_documented && !options.only.is_empty() {
            return Err("--docs needs all rows, so it takes no --only".into());
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all checks passed.
fn run(arguments: Arguments) -> Result<bool, Box<dyn Error>> {
    if let Some(turn) = arguments.turn {
        let figures = serde_json::from_str::<Turn>(&turn)?.run()?;
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(true);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let made = target.join("compare");
    let results = if let Some(file) = arguments.from {
        Results::read(&file)?.select(&arguments.options.only)
    } else {
        let results = Bench::run(arguments.options)?;
        results.write(&made.join("results.json"))?;
        results
    };
    print!("{}", report::text(&results));
    fs::create_dir_all(&made)?;
    fs::write(made.join("tables.md"), report::markdown(&results))?;
    figures::draw_all(&results, &made.join("figures"))?;
    eprintln!("results, tables and pictures are in {}", made.display());
    if arguments.is_documented {
        report::update_docs(&results, &root)?;
    }
    Ok(!arguments.is_checked || report::missed(&results) == 0)
}
