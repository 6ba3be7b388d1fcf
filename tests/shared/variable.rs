//! Environment variables.

use std::{env, fmt::Display, str::FromStr};

/// Returns the value of a variable, if it is set.
pub(crate) fn variable<N: FromStr<Err: Display>>(name: &str) -> Option<N> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}: {error}")))
}
