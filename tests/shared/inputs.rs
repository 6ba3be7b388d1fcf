//! Inputs of a fuzz target.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the files of a fuzz target's corpus.
pub(crate) fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(folder).expect("the corpus is part of the repository");
    let read = |entry: Result<fs::DirEntry, _>| {
        let path = entry.expect("the corpus can be listed").path();
        let bytes = fs::read(&path).expect("a file of the corpus can be read");
        (path, bytes)
    };
    let inputs: Vec<_> = entries.map(read).collect();
    assert!(!inputs.is_empty(), "the corpus is empty");
    inputs
}
