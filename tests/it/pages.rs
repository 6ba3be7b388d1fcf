//! The pages of the documentation: their links, the tests that they name, and the files that they
//! list; and the width of comments and pages.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::sources::sources_in;

#[test]
fn every_relative_link_of_the_documentation_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = pages(root);
    let mut broken = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).expect("a page is text");
        let folder = page.parent().expect("a page is in a folder");
        broken
            .extend(broken_links(&text, folder).map(|link| format!("{}: {link}", page.display())));
    }
    assert!(pages.len() > 20, "few pages were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The folders and files of the package, as in `include` of `Cargo.toml`.
const PACKAGED: [&str; 9] = [
    "src",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "docs/benchmarks.md",
    "docs/compare.md",
    "docs/contract.md",
    "docs/figures",
    "docs/tokio.md",
];

#[test]
fn the_pages_of_the_package_link_to_nothing_outside_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.canonicalize().expect("the repository exists");
    let pages = PACKAGED.iter().map(|file| root.join(file));
    for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).expect("a page is text");
        let folder = page.parent().expect("a page is in a folder");
        for file in files(&text) {
            let Ok(path) = folder.join(file).canonicalize() else { continue };
            let path = path.strip_prefix(&root).expect("it is in the repository");
            let is_packaged = PACKAGED.iter().any(|packaged| path.starts_with(packaged));
            assert!(is_packaged, "{} links to {}", page.display(), path.display());
        }
    }
}

#[test]
fn every_test_that_a_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["tests", "src", "durable", "examples", "benches"];
    let functions = functions(sources.iter().flat_map(|folder| sources_in(&root.join(folder))));
    let pages = ["docs", "docs/decisions"].map(|folder| root.join(folder));
    let (mut count, mut missing) = (0, Vec::new());
    for page in pages.iter().flat_map(|folder| markdown(folder)) {
        let text = fs::read_to_string(&page).expect("a page is text");
        for name in test_names(&text) {
            count += 1;
            if !is_function(name, &functions) {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(count > 50, "few names of tests were found");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_name_of_a_missing_test_is_found() {
    let text = "`a::b::one_two_three_four` `one_two` `c::one_two_three_four` `x` `d::e_f`";
    let names: Vec<_> = test_names(text).collect();
    assert_eq!(names, ["a::b::one_two_three_four", "c::one_two_three_four"]);
    let path = PathBuf::from("tests/it/a/b.rs");
    let functions = BTreeMap::from([("one_two_three_four".into(), vec![path])]);
    assert_eq!(
        names.iter().map(|name| is_function(name, &functions)).collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn the_architecture_page_lists_every_source_file_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("the page is text");
    let listed: Vec<_> = files(&page).filter_map(|file| file.strip_prefix("../src/")).collect();
    for (source, _) in sources_in(&root.join("src")) {
        let path = source.strip_prefix(root.join("src")).expect("it is within");
        let path = path.to_str().expect("a path is text").replace('\\', "/");
        if path != "lib.rs" && !path.contains("models") {
            let count = listed.iter().filter(|file| **file == path).count();
            assert_eq!(count, 1, "{path} in docs/architecture.md");
        }
    }
}

#[test]
fn a_link_to_a_missing_file_is_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = "[a](README.md#speed) ![b](missing.svg) [c](https://x.y) [d](#e) [f](tests/missing)";
    assert_eq!(broken_links(text, folder).collect::<Vec<_>>(), ["missing.svg", "tests/missing"]);
}

/// rustfmt does not check comments.
#[test]
fn no_comment_is_wider_than_100_columns_and_no_page_than_120() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wide = Vec::new();
    let mut check = |path: &Path, widest: usize, text: &str, is_checked: fn(&str) -> bool| {
        for (line, text) in (1..).zip(text.lines()) {
            // A row of a table may be wider.
            if is_checked(text) && text.chars().count() > widest && !text.ends_with('|') {
                wide.push(format!("{}:{line}", path.display()));
            }
        }
    };
    for folder in ["src", "tests", "benches", "examples", "durable"] {
        for (path, text) in sources_in(&root.join(folder)) {
            check(&path, 100, &text, |line| line.trim_start().starts_with("//"));
        }
    }
    for page in pages(root) {
        check(&page, 120, &fs::read_to_string(&page).expect("a page is text"), |_| true);
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

/// All pages of the repository.
fn pages(root: &Path) -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/decisions", "durable"];
    folders.iter().flat_map(|folder| markdown(&root.join(folder))).collect()
}

fn broken_links<'a>(text: &'a str, folder: &'a Path) -> impl Iterator<Item = &'a str> {
    files(text).filter(|file| !folder.join(file).exists())
}

/// Files that a page links to.
fn files(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://"))
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository can be listed");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Names of tests in code spans: at least four words, behind a module, or six.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |span: &&str| {
        let (modules, name) = span.rsplit_once("::").unwrap_or(("", span));
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
        let words = name.split('_').count();
        span.chars().all(is_part) && words >= if modules.is_empty() { 6 } else { 4 }
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

/// Returns whether a function of this name is in a file whose path has the modules of the name.
fn is_function(name: &str, functions: &BTreeMap<String, Vec<PathBuf>>) -> bool {
    let (modules, name) = name.rsplit_once("::").unwrap_or(("", name));
    let modules = modules.split("::").filter(|module| !["", "tests"].contains(module));
    let modules: Vec<_> = modules.collect();
    let is_in = |path: &Path, module: &str| {
        path.components()
            .any(|part| Path::new(&part).file_stem().is_some_and(|stem| stem == module))
    };
    let files = functions.get(name).map_or(&[][..], Vec::as_slice);
    files.iter().any(|path| modules.iter().all(|module| is_in(path, module)))
}

/// The files that define each function, by its name.
fn functions(sources: impl Iterator<Item = (PathBuf, String)>) -> BTreeMap<String, Vec<PathBuf>> {
    let mut functions: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources {
        for rest in text.split("fn ").skip(1) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            functions.entry(name.unwrap_or_default().into()).or_default().push(path.clone());
        }
    }
    functions
}
