//! Compares delaywheel with other timers, or with another commit of itself: one run, one report.
//!
//! `cargo compare --help` lists the options. A run takes about 20 minutes. Results, tables and
//! pictures go to `target/compare`.

#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use delaywheel_compare::{
    bench::{Bench, Options, Results},
    beside, figures,
    measure::{Turn, load},
    report,
};

/// Compares delaywheel with other timers, or with another commit.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Fail if a target is missed
    #[arg(long)]
    check: bool,
    /// Also put tables and pictures into `docs`
    #[arg(long, conflicts_with = "only")]
    docs: bool,
    /// Read the selected rows of a file instead of measuring
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Compare with this program, built from another commit, in alternating rounds
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["check", "docs", "from"])]
    beside: Option<PathBuf>,
    /// Only judge the purgatory past the knee, in this many runs at each rate; 20 take 15 minutes
    #[arg(long, value_name = "RUNS")]
    past: Option<usize>,
    /// A turn that this process takes for its parent
    #[arg(long, hide = true)]
    turn: Option<String>,
    /// A section that this process measures for its parent
    #[arg(long, hide = true)]
    section: Option<usize>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let for_parent = match (arguments.turn, arguments.section) {
        (Some(turn), _) => Some(serde_json::from_str::<Turn>(&turn)?.run()?),
        (_, Some(section)) => Some(Bench::run_section(arguments.options.clone(), section)?),
        _ => None,
    };
    if let Some(figures) = for_parent {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(runs) = arguments.past {
        return Ok(ExitCode::from(u8::from(!load::judge_past(runs))));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let made = target.join("compare");
    if let Some(other) = arguments.beside {
        print!("{}", beside::run(&arguments.options, &other, &made)?);
        return Ok(ExitCode::SUCCESS);
    }
    let results = if let Some(file) = arguments.from {
        Results::read(&file)?.select(&arguments.options.only)
    } else {
        let results = Bench::run(arguments.options)?;
        results.write(&made.join("results.json"))?;
        results
    };
    print!("{}", report::text(&results));
    fs::create_dir_all(&made)?;
    fs::write(made.join("tables.md"), report::page(&results))?;
    figures::draw_all(&results, &made.join("figures"))?;
    eprintln!("results, tables and pictures are in {}", made.display());
    if arguments.docs {
        report::update_docs(&results, &root)?;
    }
    let has_failed = arguments.check && report::missed(&results) > 0;
    Ok(ExitCode::from(u8::from(has_failed)))
}
