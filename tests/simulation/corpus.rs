//! The corpus of the fuzzer: what it found worth keeping is run with every test.

use std::{fs, path::Path};

use crate::{run, script::Script};

#[test]
fn every_script_of_the_corpus_keeps_every_promise() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/purgatory_script");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the corpus is part of the repository") {
        let path = entry.expect("the corpus can be listed").path();
        let script = Script::decode(&fs::read(&path).expect("a file of the corpus can be read"));
        if let Err(fault) = run(&script) {
            panic!("{}: {fault}\n{script:#?}", path.display());
        }
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}
