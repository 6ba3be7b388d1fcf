//! The edge tests call every public function.
//!
//! The test reads the sources as tokens, which do not have types. Where several types have a
//! function of one name, a call counts for those types that its file names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::sources::{sources_in, tokens};

#[test]
fn every_public_function_is_called_with_edge_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts = |folder: &str| sources_in(&root.join(folder)).into_iter().map(|(_, text)| text);
    let public: BTreeSet<_> = texts("src").flat_map(|text| public_functions(&text)).collect();
    assert!(public.len() > 200, "few functions were read: {public:?}");
    let folders = ["tests/it/edges", "tests/future", "tests/async/tests"];
    let callers: Vec<_> = folders.into_iter().flat_map(texts).collect();
    let left_out = left_out(&public, &callers);
    assert!(left_out.is_empty(), "no edge test calls {left_out:?}");
}

#[test]
fn public_functions_and_calls_are_found() {
    let text = "impl<F: Fn() -> u8> a::C<F> { pub fn one(&self) { x } pub const fn two() {} \
                pub(super) fn three() {} } pub fn four() {}";
    let public = public_functions(text);
    let expected = [("C", "one"), ("C", "two"), ("", "four")];
    assert_eq!(public, expected.map(|(of, name)| (of.into(), name.into())));
    let text = "a.one(b.two(1)[2])?.three(); C::<D>::four::<u8>(); five(); \"e.six()\"";
    assert_eq!(calls(text), ["one", "two", "three", "four", "five"]);
}

#[test]
fn a_function_of_a_type_that_no_caller_names_is_found() {
    let public = ["A", "B"].map(|of| (of.to_owned(), "one".to_owned())).into();
    let left_out = |test: &str| left_out(&public, &[test.to_owned()]).len();
    assert_eq!(left_out("let a: A = x; a.one();"), 1);
    assert_eq!(left_out("let (a, b): (A, B) = x; a.one();"), 0);
}

/// The public functions that no test calls. A type and a name stand for a function.
fn left_out<'a>(
    public: &'a BTreeSet<(String, String)>,
    tests: &[String],
) -> Vec<&'a (String, String)> {
    let mut types = BTreeMap::new();
    for (_, name) in public {
        *types.entry(name).or_insert(0) += 1;
    }
    let tests: Vec<_> = tests.iter().map(|text| (tokens(text), calls(text))).collect();
    let is_called = |(of, name): &(String, String)| {
        tests.iter().any(|(words, calls)| {
            let is_named = of.is_empty() || types[name] == 1 || words.contains(&of.as_str());
            is_named && calls.contains(name)
        })
    };
    public.iter().filter(|function| !is_called(function)).collect()
}

/// Returns the public functions of a source, each with the type that it belongs to.
fn public_functions(text: &str) -> Vec<(String, String)> {
    let tokens = tokens(text);
    let (mut depth, mut of, mut found) = (0, "", Vec::new());
    for (at, part) in tokens.windows(4).enumerate() {
        match *part {
            ["{", ..] => depth += 1,
            ["}", ..] => depth -= 1,
            ["impl", ..] if depth == 0 => of = implementer(&tokens[at + 1..]),
            ["pub", "const", "fn", name] | ["pub", "fn", name, _] => {
                found.push((if depth == 0 { "" } else { of }.to_owned(), name.to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// The name of the type of an `impl` block without a trait.
fn implementer<'a>(tokens: &[&'a str]) -> &'a str {
    let (mut at, mut open) = (0, 0);
    while open > 0 || tokens[at] == "<" {
        open += i32::from(tokens[at] == "<");
        open -= i32::from(tokens[at] == ">" && tokens[at - 1] != "-");
        at += 1;
    }
    while tokens[at + 1] == "::" {
        at += 2;
    }
    tokens[at]
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
