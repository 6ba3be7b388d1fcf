//! Relative links of Markdown files lead to files that exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn every_relative_link_of_the_documentation_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    pages.extend(
        ["docs", "docs/decisions", "durable"].iter().flat_map(|dir| markdown(&root.join(dir))),
    );
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
const PACKAGED: [&str; 5] = ["src", "docs", "README.md", "CHANGELOG.md", "LICENSE"];

#[test]
fn the_pages_of_the_package_link_to_nothing_outside_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.canonicalize().expect("the repository exists");
    let folders = ["", "docs", "docs/decisions"].map(|folder| root.join(folder));
    for page in folders.iter().flat_map(|folder| markdown(folder)) {
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
fn a_link_to_a_missing_file_is_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = "[a](README.md#speed) ![b](missing.svg) [c](https://x.y) [d](#e) [f](tests/missing)";
    assert_eq!(broken_links(text, folder).collect::<Vec<_>>(), ["missing.svg", "tests/missing"]);
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
