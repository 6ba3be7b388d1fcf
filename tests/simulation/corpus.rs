//! Replays the corpus of the fuzzer.

use crate::{inputs::inputs, script::Script, workers::run_script};

#[test]
fn every_script_of_the_corpus_keeps_every_promise() {
    for (path, bytes) in inputs("purgatory_script") {
        let script = Script::decode(&bytes);
        if let Err(fault) = run_script(&script) {
            panic!("{}: {fault}\n{script:#?}", path.display());
        }
    }
}
