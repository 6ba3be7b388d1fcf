//! Random scripts under several geometries, each operation compared with the oracle.
//!
//! `DELAYWHEEL_MODEL_OPS=100000000 cargo test --release --test it model` sets the number of
//! operations. A failure prints its seed and the shortest failing script.
//! `DELAYWHEEL_MODEL_SEED=<seed>` replays the seed.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use crate::{machine::Machine, script::Script, shrink, variable::variable};

/// Default number of operations.
const DEFAULT_OPS: u64 = if cfg!(debug_assertions) { 12_000 } else { 1_200_000 };

/// Bytes of a script. An operation takes two or three.
const SCRIPT_BYTES: usize = 1500;

#[test]
fn wheels_of_2_agree_with_the_oracle() {
    agree(0, 25);
}

#[test]
fn wheels_of_4_agree_with_the_oracle() {
    agree(1, 25);
}

#[test]
fn wheels_of_16_agree_with_the_oracle() {
    agree(4, 20);
}

#[test]
fn wheels_of_64_agree_with_the_oracle() {
    agree(2, 20);
}

#[test]
fn wheels_of_256_agree_with_the_oracle() {
    agree(3, 9);
}

#[test]
fn wheels_of_65536_agree_with_the_oracle() {
    agree(u8::MAX, 1);
}

#[test]
fn a_failing_script_shrinks_to_the_operations_that_make_it_fail() {
    let script = Script::decode(&random_bytes(3));
    let (first, last) = (script.ops[10], script.ops[90]);
    let needs_both = |script: &Script| {
        let position = script.ops.iter().position(|&op| op == first);
        position.is_some_and(|position| script.ops[position..].contains(&last))
    };
    assert_eq!(shrink(script, needs_both).ops, [first, last]);
}

/// Runs scripts on wheels of one size, with a share of all operations.
fn agree(size_byte: u8, percent: u64) {
    let replayed = variable("DELAYWHEEL_MODEL_SEED");
    let ops = model_operations() * percent / 100;
    let mut done = 0;
    for seed in replayed.map_or(0..=u64::MAX, |seed| seed..=seed) {
        let mut bytes = random_bytes(seed);
        bytes[0] = size_byte;
        let script = Script::decode(&bytes);
        if fails(&script) {
            report(seed, &shrink(script, fails));
        }
        done += script.ops.len() as u64;
        if done >= ops {
            break;
        }
    }
}

fn random_bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..SCRIPT_BYTES).map(|_| random.u8(..)).collect()
}

/// Runs a failing script again, with its panic message.
fn report(seed: u64, script: &Script) -> ! {
    eprintln!("DELAYWHEEL_MODEL_SEED={seed} replays it; shrunk:\n\n{script}");
    Machine::run(script);
    unreachable!("the script has failed before");
}

/// Removes operations while the script still fails.
fn shrink(script: Script, fails: impl Fn(&Script) -> bool) -> Script {
    shrink::shrink(script, |script| &mut script.ops, fails)
}

/// Runs a script without output, and returns whether it fails.
fn fails(script: &Script) -> bool {
    thread_local!(static IS_QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let aloud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                aloud(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(|| Machine::run(script)));
    IS_QUIET.set(false);
    result.is_err()
}

/// Operations of all sizes together.
fn model_operations() -> u64 {
    variable("DELAYWHEEL_MODEL_OPS").unwrap_or(DEFAULT_OPS)
}
