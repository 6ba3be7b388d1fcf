//! Fuzzes the checks that the broker makes on the bytes of a client before it uses them.
//!
//! `cargo fuzz run --fuzz-dir examples/broker/fuzz requests`, from the root of the repository. With
//! a stable toolchain, set `RUSTC_BOOTSTRAP=1`. `cargo test -p delaywheel-broker corpus` replays
//! the corpus. Put a file that fails there.

#![no_main]

#[path = "../../src/broker/batch.rs"]
#[expect(dead_code, reason = "nothing is appended here")]
mod batch;
#[path = "../../src/broker/corpus.rs"]
mod corpus;
#[path = "../../src/broker/frame.rs"]
#[expect(dead_code, reason = "nothing is answered here")]
mod frame;
#[path = "../../src/broker/grammar.rs"]
mod grammar;
#[path = "../../src/broker/producer.rs"]
#[expect(dead_code, reason = "nothing is appended here")]
mod producer;
#[path = "../../src/broker/refusal.rs"]
#[expect(dead_code, reason = "nothing is told here")]
mod refusal;
#[path = "../../src/broker/request.rs"]
mod request;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    corpus::take_in(bytes);
});
