//! Measures what delaywheel promises, beside its peers, and says which targets are met.
//!
//! ```text
//! cargo run --release -p delaywheel-compare --bin targets [-- --quick] [--only NAME]... [--check]
//! ```
//!
//! Contestants take turns within each round, and a figure is the median over the rounds, so a busy
//! machine weighs on all of them alike.

#![forbid(unsafe_code)]

mod century;
mod growth;
mod latency;
mod memory;
mod pending;
mod rounds;
mod server;
mod settings;
mod sizes;
mod sparse;
mod steps;
mod table;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use peakmem_alloc::PeakMemAlloc;

use self::{settings::Settings, table::Row};

/// Counts the peak of live bytes.
static PEAK: PeakMemAlloc<System> = PeakMemAlloc::new(System);

/// Counts live bytes.
#[global_allocator]
static LIVE: Cap<&PeakMemAlloc<System>> = Cap::new(&PEAK, usize::MAX);

/// A group of measurements.
struct Section {
    name: &'static str,
    /// Whether it runs unless others are asked for.
    is_default: bool,
    run: fn(&Settings) -> Vec<Row>,
}

impl Section {
    const fn new(name: &'static str, run: fn(&Settings) -> Vec<Row>) -> Self {
        Self { name, is_default: true, run }
    }
}

const SECTIONS: &[Section] = &[
    Section::new("million", pending::million),
    Section::new("thousand", pending::thousand),
    Section::new("ten_million", pending::ten_million),
    Section::new("memory", memory::rows),
    Section::new("sparse", sparse::rows),
    Section::new("server", server::rows),
    Section::new("steps", steps::rows),
    Section::new("century", century::rows),
    Section::new("growth", growth::rows),
    Section { name: "sizes", is_default: false, run: sizes::rows },
];

fn main() -> ExitCode {
    let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
    let settings = match Settings::from_args(&names) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}\n{}\nsections: {}", settings::USAGE, names.join(", "));
            return ExitCode::FAILURE;
        }
    };
    println!("our figure (bound) | a peer's (ours divided by it, and the bound of that)");
    let mut missed = 0;
    for section in SECTIONS.iter().filter(|s| settings.selects(s.name, s.is_default)) {
        eprintln!("# {} ..", section.name);
        for row in (section.run)(&settings) {
            println!("{row}");
            missed += row.missed();
        }
    }
    println!("{missed} targets missed");
    if settings.is_checked && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
