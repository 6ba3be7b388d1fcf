//! The layers: a file of the crate names its own module and those of lower layers, and no others.
//!
//! Sources are read as text, cut into tokens, and searched for paths that start at `crate` or reach
//! it through `super`. The crate root is exempt; what it re-exports counts as of the module that
//! defines it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::tokens::tokens;

/// The modules of the crate and their layers.
const LAYERS: [(&str, u8); 13] = [
    ("segments", 0),
    ("tick", 0),
    ("error", 0),
    ("histogram", 0),
    ("ticks", 1),
    ("wheel", 1),
    ("clock", 2),
    ("sync", 2),
    ("timer", 3),
    ("purgatory", 4),
    ("guide", 4),
    ("future", 5),
    ("durable", 5),
];

/// Lines of code after which a file is to be split.
const LONGEST_FILE: usize = 500;

#[test]
fn every_file_names_only_its_own_module_and_lower_layers() {
    let sources = sources();
    let root = sources.iter().find(|(path, _)| path == Path::new("lib.rs"));
    let exports = exports(&root.expect("a crate has a root").1);
    assert!(exports.contains_key("TimingWheel") && sources.len() > 10, "hardly anything was read");
    let faults: Vec<_> =
        sources.iter().flat_map(|(path, text)| faults(path, text, &exports)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_file_opens_with_a_sentence_and_is_short_and_allows_nothing() {
    for (path, text) in sources() {
        let opening: String =
            text.lines().map_while(|line| line.strip_prefix("//! ")).collect::<Vec<_>>().join(" ");
        assert!(opening.contains('.'), "{path:?} does not open with a sentence");
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let length = text.lines().filter(is_code).count();
        assert!(length <= LONGEST_FILE, "{path:?} has {length} lines of code");
        assert!(!tokens(&text).windows(2).any(|pair| pair == ["allow", "("]), "{path:?} allows");
    }
}

#[test]
fn upward_and_sideways_paths_are_found() {
    let exports = exports("pub use self::{tick::Tick, wheel::{TimingWheel, Key as WheelKey}};");
    let count = |path: &str, text: &str| faults(Path::new(path), text, &exports).len();
    assert_eq!(count("tick.rs", "use crate::error::Error;"), 1, "sideways");
    assert_eq!(count("tick.rs", "use crate::TimingWheel;"), 1, "upwards, by a re-export");
    assert_eq!(count("tick.rs", "use super::WheelKey;"), 1, "upwards, by `super`");
    assert_eq!(count("wheel/iter.rs", "use crate::{Tick, timer::{self, Timer}};"), 2, "in a group");
    assert_eq!(count("wheel/iter.rs", "use super::{super::timer::Timer, Key};"), 1, "from within");
    assert_eq!(count("wheel/mod.rs", "fn f() { crate::sync::lock() }"), 1, "in an expression");
    assert_eq!(count("wheel/mod.rs", "debug_assert!(x, \"}\", crate::sync::y)"), 1, "in a macro");
    assert_eq!(count("timer.rs", "mod tests { use super::super::purgatory; }"), 1, "in a module");
    assert_eq!(count("timer.rs", "use crate::*;"), 1, "a glob hides what is named");
    assert_eq!(count("future.rs", "use crate::durable::Store;"), 1, "between tops");
    assert_eq!(count("timer/shard.rs", "use crate::newcomer::Thing;"), 1, "not in the table");
}

#[test]
fn downward_paths_and_words_that_are_no_code_pass() {
    let exports = exports("pub use self::{tick::Tick, wheel::TimingWheel};");
    let count = |path: &str, text: &str| faults(Path::new(path), text, &exports).len();
    assert_eq!(count("wheel/iter.rs", "use super::Key; use crate::{Tick, wheel::arena};"), 0);
    assert_eq!(count("timer.rs", "use crate::{TimingWheel, clock::Clock, sync}; mod a {}"), 0);
    assert_eq!(count("wheel/mod.rs", "mod tests { use super::*; use super::arena::Arena; }"), 0);
    assert_eq!(
        count("tick.rs", "/// [`crate::wheel`]\n// crate::wheel\nlet x = \"crate::wheel\";"),
        0
    );
    assert_eq!(count("tick.rs", "pub(crate) fn f<'a>(x: &'a str, y: char) { y == '\"'; }"), 0);
}

/// The paths in a file that its layer may not name.
fn faults(path: &Path, text: &str, exports: &BTreeMap<String, String>) -> Vec<String> {
    let home = module_of(path);
    let Some(own) = home.first() else { return Vec::new() };
    let mut names = names_at_root(&tokens(text), home.len());
    names.retain(|name| {
        let module = exports.get(name).unwrap_or(name);
        module != own && layer(module).is_none_or(|layer| Some(layer) >= self::layer(own))
    });
    names.iter().map(|name| format!("{}: {name}", path.display())).collect()
}

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|&(_, layer)| layer)
}

/// Where a file is in the tree of modules: `wheel/iter.rs` is `wheel::iter`, `lib.rs` the root.
fn module_of(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod" && part != "lib").collect()
}

/// What is named of the crate root, in a file whose module lies `depth` below it.
fn names_at_root(tokens: &[&str], depth: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut braces = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => braces.push(at >= 2 && tokens[at - 2] == "mod"),
            "}" => drop(braces.pop()),
            "crate" | "super" | "self" => {
                let modules = braces.iter().filter(|is_module| **is_module).count();
                let mut paths = Vec::new();
                at = leaves(tokens, at, &[], &mut paths);
                names.extend(paths.iter().filter_map(|leaf| at_root(&leaf.path, depth + modules)));
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    names
}

/// The first name after the crate root in a path of a module `depth` below it, if it goes there.
fn at_root(path: &[&str], depth: usize) -> Option<String> {
    let relative = &path[usize::from(path[0] == "self")..];
    let ups = relative.iter().take_while(|part| **part == "super").count();
    let rest = match relative.first() {
        Some(&"crate") => &relative[1..],
        _ if ups == depth => &relative[ups..],
        _ => return None,
    };
    rest.first().map(ToString::to_string)
}

/// What the crate root re-exports, and the module that each comes from.
fn exports(root: &str) -> BTreeMap<String, String> {
    let tokens = tokens(root);
    let mut found = Vec::new();
    for at in (2..tokens.len()).filter(|&at| tokens[at - 2..at] == ["pub", "use"]) {
        leaves(&tokens, at, &[], &mut found);
    }
    let from_self = |leaf: &Leaf| usize::from(["self", "crate"].contains(&leaf.path[0]));
    found.iter().map(|leaf| (leaf.name.into(), leaf.path[from_self(leaf)].into())).collect()
}

/// One path of a tree such as `a::{b, c::d as e}`, and what it is called.
struct Leaf<'a> {
    path: Vec<&'a str>,
    name: &'a str,
}

/// Collects the paths of the tree that starts at a token; returns where the tree ends.
fn leaves<'a>(
    tokens: &[&'a str],
    at: usize,
    prefix: &[&'a str],
    found: &mut Vec<Leaf<'a>>,
) -> usize {
    let path = [prefix, &tokens[at..=at]].concat();
    match tokens[at + 1..] {
        ["::", "{", ..] => {
            let mut at = at + 3;
            while tokens[at] != "}" {
                at = leaves(tokens, at, &path, found);
                at += usize::from(tokens[at] == ",");
            }
            at + 1
        }
        ["::", ..] => leaves(tokens, at + 2, &path, found),
        ["as", name, ..] => {
            found.push(Leaf { path, name });
            at + 3
        }
        _ => {
            found.push(Leaf { path, name: tokens[at] });
            at + 1
        }
    }
}

/// All source files, by their paths under `src`.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the repository can be listed") {
            let path = entry.expect("a folder of the repository can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file is text");
                found.push((path.strip_prefix(&root).expect("it is within").into(), text));
            }
        }
    }
    found
}
