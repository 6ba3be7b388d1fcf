//! Puts figures and tables where the documentation has them.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use delaywheel_compare::side_by_side::results::Results;

use crate::markdown;

/// Between these lines the documentation has what is made from results.
const BEGIN: &str = "<!-- The following is written by `compare --docs`. -->";
const END: &str = "<!-- The preceding is written by `compare --docs`. -->";

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the documentation has its figures.
pub(crate) fn figures() -> PathBuf {
    root().join("docs/figures")
}

/// Writes the tables, and shows the figures that there are; and keeps the results beside these,
/// so that anybody can make both again.
pub(crate) fn update(results: &Results) -> Result<(), Box<dyn Error>> {
    let path = root().join("docs/benchmarks.md");
    let text = fs::read_to_string(&path)?;
    let made = format!("{}{}", markdown::figures(results), markdown::tables(results));
    let updated = replaced(&text, &made)
        .ok_or_else(|| format!("{} has no place for what is made: {BEGIN}", path.display()))?;
    fs::write(&path, updated)?;
    results.write(&figures().join("results.json"))?;
    Ok(())
}

/// The text with something else between the two lines.
fn replaced(text: &str, made: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{made}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_lines_is_replaced_and_nothing_else() {
        let text = format!("before\n{BEGIN}\n\nold\n\n{END}\nafter\n");
        let updated = replaced(&text, "new\n").unwrap();
        assert_eq!(updated, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replaced(&updated, "new\n").unwrap(), updated);
        assert_eq!(replaced("no place", "new\n"), None);
    }

    #[test]
    fn the_documentation_has_the_lines() {
        let text = fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
        assert!(replaced(&text, "").is_some());
    }
}
