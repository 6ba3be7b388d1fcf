//! The committed counts: a text file with a line for the compiler, one for the target, and one for
//! each scenario.

use std::{fmt::Write, fs, io};

/// Where the counts are, as seen from where the package was built.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

const RUSTC: &str = env!("COMPARE_RUSTC");
const TARGET: &str = env!("COMPARE_TARGET");

/// How far a count may be from the baseline, as a fraction of that.
const TOLERANCE: f64 = 0.05;

const HEAD: &str = "\
# Instructions per operation. Written by:
# cargo run --release -p delaywheel-compare --bin instructions -- --write
";

/// How a count compares with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Above,
    Within,
    Below,
    /// The baseline does not have it.
    Unknown,
}

/// What is in the file.
pub(crate) struct Baseline {
    rustc: String,
    target: String,
    counts: Vec<(String, f64)>,
}

impl Baseline {
    pub(crate) fn read() -> io::Result<Self> {
        let text = fs::read_to_string(PATH)?;
        let mut baseline = Self { rustc: String::new(), target: String::new(), counts: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            baseline.take(line).ok_or_else(|| {
                io::Error::other(format!("the baseline has a line that is not one: {line:?}"))
            })?;
        }
        Ok(baseline)
    }

    pub(crate) fn write(counts: &[(&str, f64)]) -> io::Result<()> {
        let mut text = format!("{HEAD}rustc {}\ntarget {TARGET}\n", version());
        for (name, count) in counts {
            writeln!(text, "{name} {count:.1}").expect("a string takes all");
        }
        print!("{text}");
        fs::write(PATH, text)
    }

    /// Whether the counts must hold: they are of the compiler and the target of this program.
    pub(crate) fn is_binding(&self) -> bool {
        self.rustc == version() && self.target == TARGET
    }

    pub(crate) fn origin(&self) -> String {
        format!("rustc {} for {}", self.rustc, self.target)
    }

    /// Compares a count; the line is for the report.
    pub(crate) fn compare(&self, name: &str, count: f64) -> (Verdict, String) {
        let Some((_, baseline)) = self.counts.iter().find(|(known, _)| known == name) else {
            return (Verdict::Unknown, format!("{name:<24}{count:>10.1} has no baseline"));
        };
        let ratio = count / baseline;
        let (verdict, word) = if ratio > 1.0 + TOLERANCE {
            (Verdict::Above, "MISSED")
        } else if ratio < 1.0 - TOLERANCE {
            (Verdict::Below, "below")
        } else {
            (Verdict::Within, "ok")
        };
        (verdict, format!("{name:<24}{count:>10.1} of {baseline:.1} ({ratio:.3}x {word})"))
    }

    /// Takes in a line: a name and what belongs to it.
    fn take(&mut self, line: &str) -> Option<()> {
        let (name, value) = line.split_once(' ')?;
        match name {
            "rustc" => value.clone_into(&mut self.rustc),
            "target" => value.clone_into(&mut self.target),
            _ => self.counts.push((name.to_owned(), value.parse().ok()?)),
        }
        Some(())
    }
}

/// The version of the compiler, with the commit it was built from.
fn version() -> &'static str {
    RUSTC.strip_prefix("rustc ").unwrap_or(RUSTC)
}
