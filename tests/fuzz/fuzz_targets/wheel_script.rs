//! Fuzzes the wheel with scripts decoded from bytes, the oracle beside it.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz wheel_script`, from the root of the repository. With a
//! stable toolchain, set `RUSTC_BOOTSTRAP=1`. Put into the corpus, a file that fails is replayed by
//! `cargo test --test it corpus` and printed.

#![no_main]

#[path = "../../it/machine.rs"]
mod machine;
#[path = "../../it/oracle.rs"]
mod oracle;
#[path = "../../it/script.rs"]
mod script;

use libfuzzer_sys::{Corpus, fuzz_target};

use crate::{machine::Machine, script::Script};

/// Wheels with more buckets take too long to check: smaller ones find more in the same time.
const LARGEST: usize = 1 << 10;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let script = Script::decode(bytes);
    if script.setup.size > LARGEST {
        return Corpus::Reject;
    }
    Machine::run(&script);
    Corpus::Keep
});
