//! The layers: a file imports from its own module and from lower layers, and modules form no
//! circles.
//!
//! A file imports an item from the module that defines it, not through a re-export of the crate
//! root. Only the crate root itself is exempt.

use std::{
    collections::BTreeSet,
    mem,
    path::{Path, PathBuf},
};

use crate::sources::{sources_in, tokens};

/// The files and folders of `src`, by layer.
const LAYERS: [&[&str]; 7] = [
    &["error", "panics", "slab", "tick"],
    &["ticks", "wheel"],
    &["histogram", "sync"],
    &["clock", "waker"],
    &["timer"],
    &["guide", "purgatory", "time"],
    &["future"],
];

/// A file with more lines of code has a seam between two things.
const LONGEST_FILE: usize = 600;

#[test]
fn every_file_imports_from_its_own_module_and_from_lower_layers() {
    let sources = sources();
    assert!(sources.len() > 10, "few files were read");
    let faults: Vec<_> = sources.iter().flat_map(|(path, text)| faults(path, text)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_files_of_a_module_import_each_other_without_circles() {
    let mut imports = imports(&sources());
    assert!(imports.len() > 50, "few imports were found");
    // Removes imports of files that import nothing, until each one leads to a circle.
    loop {
        let importing: BTreeSet<_> = imports.iter().map(|(from, _)| from.clone()).collect();
        let before = imports.len();
        imports.retain(|(_, to)| importing.contains(to));
        if imports.len() == before {
            break;
        }
    }
    assert!(imports.is_empty(), "{imports:#?}");
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
fn upward_and_sideways_paths_are_found_and_others_pass() {
    for (path, text, count) in [
        ("tick.rs", "use crate::error::Error;", 1),
        ("tick.rs", "use crate::TimingWheel;", 1),
        ("wheel/iter.rs", "use crate::{TimingWheel, error};", 1),
        ("wheel/iter.rs", "use crate::{sync, timer::{self, Timer}};", 3),
        ("wheel/iter.rs", "use super::{super::timer::Timer, Key};", 1),
        ("wheel/mod.rs", "fn f() { crate::sync::lock() }", 1),
        ("timer.rs", "mod tests { use super::super::purgatory; }", 1),
        ("timer.rs", "use crate::*;", 1),
        ("timer/shard.rs", "use crate::newcomer::Thing;", 1),
        ("wheel/iter.rs", "use super::Key; use crate::{tick::Tick, wheel::arena};", 0),
        ("timer.rs", "use crate::{clock::Clock, sync, wheel::Key}; mod a {}", 0),
        ("wheel/mod.rs", "mod tests { use super::*; use super::arena::Arena; }", 0),
        ("tick.rs", "/// [`crate::wheel`]\nlet x = 1; // crate::wheel", 0),
    ] {
        assert_eq!(faults(Path::new(path), text).len(), count, "{path}: {text}");
    }
}

/// The imports of a file that its layer forbids. A name that is not a module is a re-export.
fn faults(path: &Path, text: &str) -> Vec<String> {
    let home = module_of(path);
    let Some(own) = home.first() else { return Vec::new() };
    let mut names: Vec<_> = paths(text, &home).into_iter().map(|mut path| path.remove(0)).collect();
    names.retain(|name| {
        name != own && layer(name).is_none_or(|layer| Some(layer) >= self::layer(own))
    });
    names.iter().map(|name| format!("{}: {name}", path.display())).collect()
}

/// Which file or folder imports from which other one of its folder, without tests and models.
fn imports(sources: &[(PathBuf, String)]) -> BTreeSet<(String, String)> {
    let files: BTreeSet<_> =
        sources.iter().map(|(path, _)| module_of(path)).filter(|home| home.len() >= 2).collect();
    let mut found = BTreeSet::new();
    for (path, text) in sources {
        let home = module_of(path);
        if !files.contains(&home) || home[1] == "models" {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for path in paths(code, &home) {
            let depth = (2..=path.len()).rev().find(|&depth| files.contains(&path[..depth]));
            let to = depth.map_or(&[][..], |depth| &path[..depth]);
            // Of two files in different folders, the folders import each other.
            let common = to.iter().zip(&home).take_while(|(to, home)| to == home).count();
            let at = |path: &[String]| path[..path.len().min((common + 1).max(2))].join("::");
            if !to.is_empty() && to != home {
                found.insert((at(&home), at(to)));
            }
        }
    }
    found
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Where a file is in the tree of modules: `wheel/iter.rs` is `wheel::iter`, `lib.rs` the root.
fn module_of(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| part != "mod" && part != "lib").collect()
}

/// Paths from the crate root in a file of module `home`, that the file writes with `crate`, `super`
/// or `self`, each on its own or in a group such as `a::{b, c::d as e}`.
fn paths(text: &str, home: &[String]) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let (mut found, mut path) = (Vec::new(), Vec::new());
    // What is before each open group, and whether each open brace is that of a module.
    let (mut groups, mut braces) = (Vec::<Vec<_>>::new(), Vec::new());
    for (at, &token) in tokens.iter().enumerate() {
        let before = if at > 0 { tokens[at - 1] } else { "" };
        let inner = braces.iter().filter(|is_module| **is_module).count();
        let mut end = |path: &mut Vec<_>| found.extend(from_root(&mem::take(path), home, inner));
        match token {
            "::" => {}
            "{" if before == "::" => groups.push(path.clone()),
            "}" if !groups.is_empty() => {
                end(&mut path);
                groups.pop();
            }
            "," if !groups.is_empty() => {
                end(&mut path);
                path.clone_from(groups.last().expect("one is open"));
            }
            _ if before == "::" => path.push(token),
            _ if !groups.is_empty() => path.extend(["{", ","].contains(&before).then_some(token)),
            _ => {
                end(&mut path);
                match token {
                    "crate" | "super" | "self" => path.push(token),
                    "{" => braces.push(at >= 2 && tokens[at - 2] == "mod"),
                    "}" => drop(braces.pop()),
                    _ => {}
                }
            }
        }
    }
    found
}

/// A path from the crate root, as written `inner` modules below `home`. `None` if it stays within
/// these, or begins otherwise.
fn from_root(path: &[&str], home: &[String], inner: usize) -> Option<Vec<String>> {
    let relative = &path[usize::from(*path.first()? == "self")..];
    let ups = relative.iter().take_while(|part| **part == "super").count();
    let (base, rest) = match relative.first()? {
        &"crate" => (0, &relative[1..]),
        _ if ups > 0 || path[0] == "self" => (home.len() + inner - ups, &relative[ups..]),
        _ => return None,
    };
    let is_outside = base <= home.len() && !rest.is_empty();
    let base = is_outside.then(|| home[..base].iter().cloned())?;
    Some(base.chain(rest.iter().map(ToString::to_string)).collect())
}

/// All source files, by their paths under `src`.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let within = |path: PathBuf| path.strip_prefix(&root).expect("it is in the folder").into();
    sources_in(&root).into_iter().map(|(path, text)| (within(path), text)).collect()
}
