//! Random scripts under several geometries, each operation compared with the oracle.
//!
//! `DELAYWHEEL_MODEL_OPS=100000000 cargo test --release --test it model` sets the number of
//! operations. A failure prints its seed and the shortest failing script.
//! `DELAYWHEEL_MODEL_SEED=<seed>` replays the seed.

use std::panic::{self, AssertUnwindSafe};

use crate::{machine::Machine, script::Script, shrink, variable::variable};

const DEFAULT_OPS: u64 = if cfg!(debug_assertions) { 12_000 } else { 1_200_000 };

/// Bytes of a script. An operation takes two or three.
const SCRIPT_BYTES: usize = 1500;

#[test]
fn wheels_of_each_size_agree_with_the_oracle() {
    // 2, 4, 16, 64, 256 and 65536 buckets.
    for (size_byte, percent) in [(0, 25), (1, 25), (4, 20), (2, 20), (3, 9), (u8::MAX, 1)] {
        agree(size_byte, percent);
    }
}

/// Runs scripts on wheels of one size, with a share of all operations.
fn agree(size_byte: u8, percent: u64) {
    let replayed = variable("DELAYWHEEL_MODEL_SEED");
    let ops = variable("DELAYWHEEL_MODEL_OPS").unwrap_or(DEFAULT_OPS) * percent / 100;
    let mut done = 0;
    for seed in replayed.map_or(0..=u64::MAX, |seed| seed..=seed) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes: Vec<_> = (0..SCRIPT_BYTES).map(|_| random.u8(..)).collect();
        bytes[0] = size_byte;
        let script = Script::decode(&bytes);
        if fails(&script) {
            report(seed, &shrink::shrink(script, |script| &mut script.ops, fails));
        }
        done += script.ops.len() as u64;
        if done >= ops {
            break;
        }
    }
}

/// Runs a failing script again, with its panic message.
fn report(seed: u64, script: &Script) -> ! {
    eprintln!("DELAYWHEEL_MODEL_SEED={seed} replays it; shrunk:\n\n{script}");
    Machine::run(script);
    unreachable!("the script has failed before");
}

fn fails(script: &Script) -> bool {
    panic::catch_unwind(AssertUnwindSafe(|| Machine::run(script))).is_err()
}
