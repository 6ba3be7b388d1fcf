//! The pages of the documentation: their links, the tests that they name, and the width of comments
//! and pages.

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
    assert!(pages.len() > 10, "few pages were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_pages_of_the_package_link_to_nothing_outside_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.canonicalize().expect("the repository exists");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest is text");
    let (_, include) = manifest.split_once("include = [").expect("the manifest lists files");
    let (include, _) = include.split_once(']').expect("the list ends");
    let packaged: Vec<_> = include.split('"').filter_map(|path| path.strip_prefix('/')).collect();
    assert!(packaged.contains(&"README.md"), "few files were found");
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    for page in packaged.iter().map(|path| root.join(path)).filter(is_page) {
        let text = fs::read_to_string(&page).expect("a page is text");
        let folder = page.parent().expect("a page is in a folder");
        for file in files(&text) {
            let Ok(path) = folder.join(file).canonicalize() else { continue };
            let path = path.strip_prefix(&root).expect("it is in the repository");
            let is_in = |packaged: &&str| path.starts_with(packaged.trim_end_matches('*'));
            let is_packaged = packaged.iter().any(is_in) || path.starts_with("LICENSE");
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
    assert!(count > 10, "few names of tests were found");
    assert!(missing.is_empty(), "{missing:#?}");
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

fn pages(root: &Path) -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/decisions", "durable"];
    folders.iter().flat_map(|folder| markdown(&root.join(folder))).collect()
}

fn broken_links<'a>(text: &'a str, folder: &'a Path) -> impl Iterator<Item = &'a str> {
    files(text).filter(|file| !folder.join(file).exists())
}

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
