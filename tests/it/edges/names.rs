//! The edge tests call every public function.
//!
//! The test reads the sources as tokens, which do not have types. So it compares only the names of
//! functions: one call counts for all functions of that name.

use std::{collections::BTreeSet, path::Path};

use crate::sources::{sources_in, tokens};

#[test]
fn every_public_function_is_called_with_edge_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |folder: &str, names: fn(&str) -> Vec<String>| -> BTreeSet<String> {
        sources_in(&root.join(folder)).iter().flat_map(|(_, text)| names(text)).collect()
    };
    let public = names("src", public_functions);
    assert!(public.len() > 100, "few functions were read: {public:?}");
    let tests = ["tests/it/edges", "tests/future", "tests/async/tests"];
    let called: BTreeSet<_> = tests.iter().flat_map(|folder| names(folder, calls)).collect();
    let left_out: Vec<_> = public.difference(&called).collect();
    assert!(left_out.is_empty(), "no edge test calls {left_out:?}");
}

#[test]
fn public_functions_and_calls_are_found() {
    let text = "impl C { pub fn one(&self) { x } pub const fn two() {} pub(super) fn three() {} }";
    assert_eq!(public_functions(text), ["one", "two"]);
    let text = "a.one(b.two(1)[2])?.three(); C::<D>::four::<u8>(); five(); \"e.six()\"";
    assert_eq!(calls(text), ["one", "two", "three", "four", "five"]);
}

fn public_functions(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let names = tokens.windows(4).filter_map(|part| match *part {
        ["pub", "const", "fn", name] | [_, "pub", "fn", name] => Some(name.to_owned()),
        _ => None,
    });
    names.collect()
}

/// Returns the names of the functions that a source calls.
fn calls(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let names = tokens.windows(3).filter_map(|part| match *part {
        [before, name, "(" | "::"] if before != "fn" => Some(name.to_owned()),
        _ => None,
    });
    names.filter(|name| name.starts_with(char::is_lowercase)).collect()
}
