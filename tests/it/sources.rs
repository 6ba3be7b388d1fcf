//! Rust sources: the files of a folder, and a tokenizer without comments, strings and characters.

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

/// Cuts source text into identifiers, `::` and single characters.
pub(crate) fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(length) = no_code(rest) {
            rest = &rest[length..];
        } else {
            let (token, after) = rest.split_at(token_length(rest));
            tokens.push(token);
            rest = after;
        }
        rest = rest.trim_start();
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

/// Length of the comment or literal that the text starts with, if it starts with one.
fn no_code(rest: &str) -> Option<usize> {
    let until = |end: &str, from: usize| {
        rest[from..].find(end).map_or(rest.len(), |found| from + found + end.len())
    };
    if rest.starts_with("//") {
        return Some(until("\n", 2));
    }
    if rest.starts_with("/*") {
        return Some(until("*/", 2));
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let is_string = raw[hashes..].starts_with('"');
        return is_string.then(|| until(&format!("\"{}", "#".repeat(hashes)), hashes + 2));
    }
    match *rest.as_bytes() {
        [b'"', ..] => Some(string_length(rest)),
        [b'\'', b'\\', ..] => Some(until("'", 3)),
        [b'\'', ..] if rest.chars().nth(2) == Some('\'') => Some(until("'", 1)),
        _ => None,
    }
}

fn string_length(rest: &str) -> usize {
    let mut is_escaped = false;
    let end = rest.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(rest.len(), |end| end + 2)
}
