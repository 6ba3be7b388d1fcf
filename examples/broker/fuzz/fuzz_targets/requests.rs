//! Fuzzes all that the broker does to what a client sends before it believes a word of it.
//!
//! `cargo fuzz run --fuzz-dir examples/broker/fuzz requests`, from the root of the repository. With
//! a stable toolchain, set `RUSTC_BOOTSTRAP=1`. Put into the corpus, a file that fails is replayed
//! by `cargo test -p delaywheel-broker corpus`.

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
