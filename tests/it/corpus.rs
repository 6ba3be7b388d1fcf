//! Replays the corpus of the fuzzer.

use crate::{inputs::inputs, machine::Machine, script::Script};

#[test]
fn every_script_of_the_corpus_agrees_with_the_oracle() {
    for (path, bytes) in inputs("wheel_script") {
        let script = Script::decode(&bytes);
        eprintln!("{}:\n{script}", path.display());
        Machine::run(&script);
    }
}
