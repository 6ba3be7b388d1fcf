//! Fuzzes the purgatory with scripts decoded from bytes, in the world of the simulation, which
//! checks every promise after every step.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz purgatory_script`, from the root of the repository. With a
//! stable toolchain, set `RUSTC_BOOTSTRAP=1`. Put into the corpus, a file that fails is replayed
//! and printed by `cargo test --test simulation corpus`.

#![no_main]

#[path = "../../simulation/books.rs"]
mod books;
#[path = "../../simulation/calls.rs"]
mod calls;
#[path = "../../simulation/clock.rs"]
mod clock;
#[path = "../../simulation/fronts.rs"]
mod fronts;
#[path = "../../simulation/ledger.rs"]
mod ledger;
#[path = "../../simulation/map.rs"]
mod map;
#[path = "../../simulation/repeats.rs"]
mod repeats;
#[path = "../../simulation/script.rs"]
#[expect(dead_code, reason = "scripts are not made from seeds here")]
mod script;
#[path = "../../simulation/waits.rs"]
mod waits;
#[path = "../../simulation/world.rs"]
#[expect(dead_code, reason = "there is one thread here")]
mod world;

use libfuzzer_sys::fuzz_target;

use crate::{script::Script, world::World};

fuzz_target!(|bytes: &[u8]| {
    let script = Script::decode(bytes);
    let world = World::new(script.setup);
    for (_, step) in script.steps {
        world.take(step).unwrap_or_else(|fault| panic!("{step:?}: {fault}"));
    }
    world.end().unwrap_or_else(|fault| panic!("{fault}"));
});
