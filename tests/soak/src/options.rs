//! What the command line asks for.

use std::time::Duration;

use lexopt::prelude::*;

/// What is to be run, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    pub(crate) is_attacks: bool,
}

impl Options {
    pub(crate) fn from_args() -> Result<Self, lexopt::Error> {
        let mut options =
            Self { length: Duration::from_secs(20), seed: fastrand::u64(..), is_attacks: false };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("seconds") => options.length = Duration::from_secs(parser.value()?.parse()?),
                Long("seed") => options.seed = parser.value()?.parse()?,
                Long("attacks") => options.is_attacks = true,
                _ => return Err(argument.unexpected()),
            }
        }
        if options.length.is_zero() {
            return Err("a soak takes a second at least".into());
        }
        Ok(options)
    }
}
