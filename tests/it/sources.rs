//! Rust sources: the files of a folder, and a tokenizer.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the paths and texts of all Rust files below a folder, except built ones.
pub(crate) fn sources_in(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the repository can be listed") {
        let path = entry.expect("a folder of the repository can be listed").path();
        if path.is_dir() && !path.ends_with("target") {
            sources.extend(sources_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file is text");
            sources.push((path, text));
        }
    }
    sources
}

/// Cuts source text into identifiers, `::` and single characters, without comments.
pub(crate) fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    // No string of the sources contains `//`.
    for code in text.lines().filter_map(|line| line.split("//").next()) {
        let mut rest = code.trim_start();
        while !rest.is_empty() {
            let (token, after) = rest.split_at(token_length(rest));
            tokens.push(token);
            rest = after.trim_start();
        }
    }
    tokens
}

fn token_length(rest: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    match rest.find(|c| !is_word(c)) {
        Some(0) if rest.starts_with("::") => 2,
        Some(0) => rest.chars().next().map_or(0, char::len_utf8),
        Some(length) => length,
        None => rest.len(),
    }
}
