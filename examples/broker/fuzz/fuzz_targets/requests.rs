//! Fuzzes the checks that the broker makes on the bytes of a client before it uses them.
//!
//! `cargo fuzz run --fuzz-dir examples/broker/fuzz requests`, from the root of the repository. With
//! a stable toolchain, set `RUSTC_BOOTSTRAP=1`. `cargo test -p delaywheel-broker corpus` replays
//! the corpus. Put a file that fails there.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = delaywheel_broker::broker::take_in(bytes);
});
