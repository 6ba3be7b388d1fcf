//! Replays the corpus of the fuzzer.

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
