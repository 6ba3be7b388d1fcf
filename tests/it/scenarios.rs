//! Scenario files: a script for each known or likely bug of a wheel.

use std::{fs, panic, path::Path};

use crate::{machine::Machine, script::Script};

#[test]
fn every_scenario_has_the_expected_result() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut failed = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the folder is part of the repository") {
        let path = entry.expect("the folder can be listed").path();
        let text = fs::read_to_string(&path).expect("a scenario is text");
        if panic::catch_unwind(|| Machine::run(&Script::parse(&text))).is_err() {
            failed.push(path);
        }
        count += 1;
    }
    assert!(failed.is_empty(), "these went wrong: {failed:#?}");
    assert!(count >= 20, "only {count} scenarios were found");
}
