//! That the edge tests leave no public function out.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::tokens::tokens;

#[test]
fn every_public_function_is_called_with_edge_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let public: BTreeSet<_> =
        texts(&root.join("src")).iter().flat_map(|text| public_functions(text)).collect();
    assert!(public.len() > 80, "hardly any was read: {public:?}");
    let tests = texts(&root.join("tests/it/edges"));
    let called: BTreeSet<_> = tests.iter().flat_map(|text| called(text)).collect();
    let left_out: Vec<_> = public.difference(&called).collect();
    assert!(left_out.is_empty(), "no edge test calls {left_out:?}");
}

#[test]
fn public_functions_and_calls_are_found() {
    let text = "impl A { pub fn one(&self) {} pub const fn two() {} pub(super) fn three() {} }";
    assert_eq!(public_functions(text), ["one", "two"]);
    assert_eq!(
        called("a.one(); B::two(1); \"three()\"; four; five::<u8>()"),
        ["one", "two", "five"]
    );
}

/// The names of the functions that a source makes public. Those of types that cannot be reached from
/// without are none: the compiler warns of them.
fn public_functions(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let names = tokens.windows(4).filter_map(|window| match window {
        ["pub", "fn", name, _] | ["pub", "const", "fn", name] => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

/// The names that a source calls: followed by arguments, or by types and arguments.
fn called(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let names = tokens.windows(2).enumerate().filter_map(|(index, pair)| match pair {
        [name, "(" | "::"] if index > 0 && matches!(tokens[index - 1], "." | "::" | ";" | "=") => {
            Some((*name).to_owned())
        }
        _ => None,
    });
    names.filter(|name| name.starts_with(|c: char| c.is_lowercase())).collect()
}

/// All sources in a folder.
fn texts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the sources are there");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    let mut texts = Vec::new();
    for path in paths {
        if path.is_dir() {
            texts.extend(self::texts(&path));
        } else {
            texts.push(fs::read_to_string(path).expect("it is text"));
        }
    }
    texts
}
