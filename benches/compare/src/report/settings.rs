//! What the command line asks for.

use lexopt::prelude::*;

/// Told when the command line is not understood.
pub const USAGE: &str = "options: [--quick] [--check] [--rounds N] [--only NAME]...";

/// How much to measure.
#[derive(Debug)]
pub struct Settings {
    /// Whether to leave out what takes long.
    pub is_quick: bool,
    /// Whether a missed target fails the run.
    pub is_checked: bool,
    /// Number of times that each contestant takes its turn.
    pub rounds: usize,
    /// Names of sections; all if empty.
    only: Vec<String>,
}

impl Settings {
    /// Reads the command line; `sections` are the names that there are.
    ///
    /// # Errors
    ///
    /// If the command line is not understood, or names a section that there is not.
    pub fn from_args(sections: &[&str]) -> Result<Self, lexopt::Error> {
        let (mut is_quick, mut is_checked, mut rounds, mut only) = (false, false, None, Vec::new());
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => is_quick = true,
                Long("check") => is_checked = true,
                Long("rounds") => rounds = Some(parser.value()?.parse()?),
                Long("only") => only.push(parser.value()?.string()?),
                _ => return Err(argument.unexpected()),
            }
        }
        if let Some(unknown) = only.iter().find(|only| !sections.contains(&only.as_str())) {
            return Err(format!("there is no section {unknown}").into());
        }
        let rounds = rounds.unwrap_or(if is_quick { 3 } else { 7 });
        Ok(Self { is_quick, is_checked, rounds: rounds.max(1), only })
    }

    /// Whether to run a section.
    #[must_use]
    pub fn selects(&self, name: &str, is_default: bool) -> bool {
        if self.only.is_empty() { is_default } else { self.only.iter().any(|only| only == name) }
    }
}
