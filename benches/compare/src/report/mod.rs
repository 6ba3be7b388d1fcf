//! How a program of this package measures and reports: sections of rows, rounds, targets.
//!
//! Contestants take turns within each round, and a figure is the median over the rounds, so a busy
//! machine weighs on all of them alike.

pub mod rounds;
pub mod settings;
pub mod table;

use std::process::ExitCode;

use self::{
    settings::{Settings, USAGE},
    table::Row,
};

/// A group of measurements.
#[derive(Debug)]
pub struct Section {
    name: &'static str,
    /// Whether it runs unless others are asked for.
    is_default: bool,
    run: fn(&Settings) -> Vec<Row>,
}

impl Section {
    /// One that runs unless others are asked for.
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&Settings) -> Vec<Row>) -> Self {
        Self { name, is_default: true, run }
    }

    /// One that runs only if it is asked for.
    #[must_use]
    pub const fn on_demand(name: &'static str, run: fn(&Settings) -> Vec<Row>) -> Self {
        Self { name, is_default: false, run }
    }
}

/// Runs the sections that the command line asks for, and tells how many targets were missed.
#[must_use]
pub fn run(sections: &[Section]) -> ExitCode {
    let names: Vec<_> = sections.iter().map(|section| section.name).collect();
    let settings = match Settings::from_args(&names) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}\n{USAGE}\nsections: {}", names.join(", "));
            return ExitCode::FAILURE;
        }
    };
    println!("our figure (bound) | a peer's (ours divided by it, and the bound of that)");
    let mut missed = 0;
    for section in sections.iter().filter(|s| settings.selects(s.name, s.is_default)) {
        eprintln!("# {} ..", section.name);
        for row in (section.run)(&settings) {
            println!("{row}");
            missed += row.missed();
        }
    }
    println!("{missed} targets missed");
    if settings.is_checked && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
