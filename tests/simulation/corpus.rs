//! The corpus of the fuzzer: what it found worth keeping is run with every test.

use crate::{inputs::inputs, run, script::Script};

#[test]
fn every_script_of_the_corpus_keeps_every_promise() {
    for (path, bytes) in inputs("purgatory_script") {
        let script = Script::decode(&bytes);
        if let Err(fault) = run(&script) {
            panic!("{}: {fault}\n{script:#?}", path.display());
        }
    }
}
